"""Trace: `RMQ_SYS_TRACE_TOPIC` to latencies from send to end of processing, failures and slow consumers.

As a batch over a range of time, or as a stream that adds windows to a table as they close (`trace_memory` says when). A
chart is drawn of the table. Producers and consumers trace when they are told to (`trace=True`, Java: enableMsgTrace).
"""

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs import runs
from cometmq.spark.jobs.chart import Chart, Panel, Redraw, Series, check_form
from cometmq.spark.jobs.durations import REMEDY, millis_of
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import literal
from cometmq.spark.jobs.messages import Messages, schema_of
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, ResultTable, Silence
from cometmq.spark.jobs.ownership import TABLE, Ownership
from cometmq.spark.jobs.publication import Publication
from cometmq.spark.jobs.results import LATENCIES, claim, replace
from cometmq.spark.jobs.stages import watched
from cometmq.spark.jobs.trace_memory import Memory, Times
from cometmq.spark.jobs.trace_rows import COLUMNS, PERCENTILES, SCHEMA, TOPIC, happened, steps, windows

#: Lines of a chart at most, and rows of the table that is shown: those with most messages.
SHOWN: Final = 8
#: Windows that a chart has at most: the latest.
CHART_ROWS: Final = 5000


def trace(
    spark: SparkSession,
    *,
    name_server: str | None = None,
    topic: str = TOPIC,
    since: datetime | None = None,
    until: datetime | None = None,
    window: str = "1 minute",
    slow: float = 1.0,
    output: str | None = None,
    chart: str | None = None,
    trigger: str | None = None,
    interval: str = "1 minute",
    watermark: str = "1 minute",
    horizon: str = "1 hour",
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Latencies of a range of time; with `trigger` a stream that adds closed windows to `output`.

    `slow`: consumers whose 95th percentile of processing is above so many seconds are called slow. `output` is a
    directory of Parquet, `chart` a file that ends with .html, .svg or .png. A stream closes a window when a trace is
    newer than its end by `watermark`, and remembers sends for `horizon`; a batch has all there is, and needs neither.
    """
    times = Times(
        window=_millis("window", window, least=1),
        watermark=_millis("watermark", watermark),
        horizon=_millis("horizon", horizon),
    )
    meter = Meter("trace")
    messages = Messages.of(topic, name_server, options, since, until)
    messages.check()
    if chart is not None:
        check_form(chart)
    with display or Silence() as shown:
        if trigger is None:
            if output is not None:
                claim(spark, output, LATENCIES)
            with watched(spark, meter, shown):
                found = latencies(messages.batch(spark, schema_of(*COLUMNS)), times.window).persist()
                try:
                    meter.doing = "reading and matching"
                    _finish(found, meter, slow, chart)
                    if output is not None:
                        meter.doing = "writing"
                        replace(found, output)
                finally:
                    found.unpersist()
        else:
            place = output or "trace-latencies"
            when = runs.Trigger.of(trigger, interval)
            _stream(
                messages.stream(spark, schema_of(*COLUMNS)), times, place, when, checkpoint, chart, meter, shown, stop
            )
            _finish(_written(spark, place), meter, slow, chart)
    return meter.metrics()


def _millis(name: str, text: str, *, least: int = 0) -> int:
    try:
        return millis_of(text, least=least)
    except ValueError:
        raise JobError(f"{name}={text!r}", REMEDY) from None


def latencies(traces: DataFrame, window: int) -> DataFrame:
    """The table of trace messages (columns `body` and `storeTimestamp`), by windows of so many milliseconds."""
    return windows(steps(happened(traces)), window)


def _stream(
    traces: DataFrame,
    times: Times,
    output: str,
    when: runs.Trigger,
    checkpoint: str | None,
    chart: str | None,
    meter: Meter,
    display: Display,
    stop: threading.Event | None,
) -> None:
    spark = traces.sparkSession
    publication = Publication(spark, output)
    checkpoint = checkpoint or f"{publication.directory}.checkpoint"
    ownership = Ownership(spark, publication, checkpoint, TABLE)
    ownership.check()
    memory = Memory(spark, checkpoint, times)
    redraw = Redraw()

    def write(rows: DataFrame, number: int) -> None:
        batch = ownership.batch(number)
        new = happened(rows).persist()
        try:
            closed, late = memory.closed(new, number)
            closed.persist()
            try:
                if not closed.isEmpty():
                    publication.publish(closed.coalesce(1), batch)
                    if chart is not None and redraw.is_due():
                        _draw(_written(spark, output), chart)
            finally:
                closed.unpersist()
            meter.count("late", late)
        finally:
            new.unpersist()

    with ownership.opened():
        runs.run(
            traces.writeStream.foreachBatch(write).outputMode("append"),
            when,
            checkpoint=checkpoint,
            meter=meter,
            display=display,
            stop=stop,
        )


def _written(spark: SparkSession, output: str) -> DataFrame:
    """The table as far as it is written; it may be empty."""
    if not any(file.name.endswith(".parquet") for file in Publication(spark, output).lake.files(output)):
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(literal(output))


def _finish(found: DataFrame, meter: Meter, slow: float, chart: str | None) -> None:
    """The report of a table: all of its time in one row for each topic and group."""
    weight = F.sum("count")
    # Percentiles of windows cannot be joined exactly: the worst window counts, as whoever waited in it would say.
    whole = found.groupBy("kind", "topic", "group").agg(
        weight.alias("count"),
        F.sum("failures").alias("failures"),
        *(F.max(name).alias(f"worst_{name}") for name in (*PERCENTILES, "max", "cost_p95")),
    )
    is_slow = (F.col("kind") == "consume") & (F.col("worst_cost_p95") > slow * 1000)
    ordered = whole.withColumn("slow", is_slow).orderBy(F.desc("count"), "kind", "topic", "group").persist()
    try:
        meter.tables["latencies"] = ResultTable.of(ordered, 1000)
    finally:
        ordered.unpersist()
    rows = meter.tables["latencies"].objects()
    meter.add(sum(row["count"] for row in rows))
    meter.details["failures"] = sum(row["failures"] for row in rows)
    meter.details["slowConsumers"] = sorted({row["group"] for row in rows if row["slow"]})
    if chart is not None:
        _draw(found, chart)
        meter.details["chart"] = chart


def _draw(found: DataFrame, chart: str) -> None:
    latest = ResultTable.of(found.orderBy(F.desc("time")), CHART_ROWS)
    lines: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in reversed(latest.objects()):
        lines.setdefault((row["kind"], row["topic"], row["group"]), []).append(row)

    def panel(title: str, kind: str, figure: str, unit: str) -> Panel:
        most = sorted(
            (line for line in lines.items() if line[0][0] == kind),
            key=lambda line: -sum(row["count"] for row in line[1]),
        )
        series = (
            Series(
                f"{topic} → {group}" if kind == "consume" else f"{group} → {topic}",
                tuple((row["time"], float(row[figure])) for row in rows if row[figure] is not None),
            )
            for (_, topic, group), rows in most[:SHOWN]
        )
        return Panel(title, unit, tuple(each for each in series if each.points))

    Chart(
        "Message latencies",
        (
            panel("From send to end of processing, 50th percentile", "consume", "p50", "ms"),
            panel("From send to end of processing, 99th percentile", "consume", "p99", "ms"),
            panel("Processing alone, 95th percentile", "consume", "cost_p95", "ms"),
            panel("Sending, 99th percentile", "send", "p99", "ms"),
            panel("Failures of processing", "consume", "failures", "messages"),
        ),
    ).save(chart)
