"""Message traces as rows: RocketMQ's texts of `RMQ_SYS_TRACE_TOPIC` taken apart, and latencies in windows of time.

A trace message holds records ended by 0x02, with fields joined by 0x01, in the forms of all clients since 4.4; the SDK
writes the same (`cometmq.client.trace.records`). `Pub` is a send, `SubAfter` the end of processing; a message's way is
the two joined by its id. RocketMQ's TraceDataEncoder is what reads them in Java.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cometmq.client.trace.records import END, FIELD

TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

#: What a latency is in the tables: milliseconds at these parts of all.
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def records(traces: DataFrame) -> DataFrame:
    """The records of trace messages (a column `body`), one row each, as arrays of fields."""
    texts = F.explode(F.split(F.col("body").cast("string"), END))
    return (
        traces.select(texts.alias("text")).where(F.col("text") != "").select(F.split(F.col("text"), FIELD).alias("f"))
    )


def sends(found: DataFrame) -> DataFrame:
    """The sends among records: time, topic, group, message, milliseconds, whether it worked."""
    # 12 fields: no outcome; 13: the outcome last; from 14 on an id before it and the client's address behind.
    outcome = F.when(F.size("f") == 13, _text(12)).when(F.size("f") >= 14, _text(13)).otherwise("true")
    rows = found.where((_text(0) == "Pub") & (F.size("f") >= 12)).select(
        _time(1).alias("time"),
        _text(4).alias("topic"),
        _text(3).alias("group"),
        _text(5).alias("msgId"),
        _number(10).alias("cost"),
        (outcome == "true").alias("success"),
    )
    return rows.where(F.col("time").isNotNull() & F.col("cost").isNotNull())


def ends(found: DataFrame) -> DataFrame:
    """The ends of processing among records. Clients before 4.6 do not say when and for which group: left out."""
    rows = found.where((_text(0) == "SubAfter") & (F.size("f") >= 9)).select(
        _time(7).alias("time"),
        _text(8).alias("group"),
        _text(2).alias("msgId"),
        _number(3).alias("cost"),
        (_text(4) == "true").alias("success"),
    )
    return rows.where(F.col("time").isNotNull() & F.col("cost").isNotNull())


def _text(index: int) -> Column:
    return F.get(F.col("f"), F.lit(index))


def _number(index: int) -> Column:
    return _text(index).try_cast("long")


def _time(index: int) -> Column:
    return F.timestamp_millis(_number(index))


def journeys(sent: DataFrame, ended: DataFrame, *, horizon: str, watermark: str) -> DataFrame:
    """Every end of processing with the send it belongs to; null where there is no trace of that.

    In a stream sends are kept for `horizon`: what is processed later is a journey without beginning.
    """
    start = sent.withWatermark("time", watermark).select(
        F.col("msgId").alias("sentId"), F.col("time").alias("sentAt"), F.col("topic")
    )
    end = ended.withWatermark("time", watermark)
    span = F.expr(f"interval {horizon}")
    # Clocks of producers and consumers differ: an end may seem to be before its beginning.
    near = (F.col("sentAt") >= F.col("time") - span) & (F.col("sentAt") <= F.col("time") + F.expr("interval 1 minute"))
    took = F.unix_millis("time") - F.unix_millis("sentAt")
    joined = end.join(start, (F.col("msgId") == F.col("sentId")) & near, "leftOuter")
    return joined.select(
        F.lit("consume").alias("kind"),
        "time",
        F.coalesce("topic", F.lit("?")).alias("topic"),
        "group",
        F.when(F.col("sentAt").isNotNull(), F.greatest(took, F.lit(0))).alias("latency"),
        "cost",
        "success",
    )


def sendings(sent: DataFrame, watermark: str) -> DataFrame:
    """Sends in the form of journeys: what they cost is their latency."""
    return sent.withWatermark("time", watermark).select(
        F.lit("send").alias("kind"), "time", "topic", "group", F.col("cost").alias("latency"), "cost", "success"
    )


def windows(steps: DataFrame, window: str) -> DataFrame:
    """Counts, failures and percentiles for each window of time, kind, topic and group. Latencies are of successes."""
    latency = F.when(F.col("success"), F.col("latency"))
    return (
        steps.groupBy(F.window("time", window), "kind", "topic", "group")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.count(F.when(~F.col("success"), 1)).alias("failures"),
            *(F.percentile_approx(latency, part, 1000).alias(name) for name, part in PERCENTILES.items()),
            F.max(latency).alias("max"),
            F.percentile_approx("cost", 0.95, 1000).alias("cost_p95"),
        )
        .select(F.col("window.start").alias("time"), "kind", "topic", "group", *FIGURES)
    )


#: The figures of a window. `cost_p95` is the time of processing, or of sending, alone.
FIGURES: Final = ("count", "failures", *PERCENTILES, "max", "cost_p95")
