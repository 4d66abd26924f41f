"""The table of the lag job: samples in folders by day (UTC), and the chart of the last days.

    <output>/day=2026-01-31/samples-0001769846400000-1f0c2a-00000.snappy.parquet

Samples are written every half a minute. That is thousands of files a day, so those of a day are joined again and again;
and neither the chart nor the report reads more than the last days, however old the table is.
"""

import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs.backlog import Sample
from cometmq.spark.jobs.chart import Chart, Panel, Redraw, Series
from cometmq.spark.jobs.lake import literal
from cometmq.spark.jobs.messages import utc_day
from cometmq.spark.jobs.metrics import ResultTable
from cometmq.spark.jobs.publication import Batch, Publication

SCHEMA: Final = (
    "time timestamp, `group` string, topic string, brokerName string, queueId int, "
    "brokerOffset long, consumerOffset long, backlog long, lastConsumed timestamp"
)
#: Days that the chart and the report are about.
SHOWN_DAYS: Final = 7
#: Files of a day before they are joined.
MOST_FILES: Final = 60
#: Seconds of samples that are kept in memory.
_FLUSH: Final = 30.0
#: Lines of the chart.
_SHOWN: Final = 8


class SampleTable:
    """Mutable state: samples that are not written yet, and when some were written the last time."""

    def __init__(
        self,
        spark: SparkSession,
        publication: Publication,
        chart: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._publication = publication
        self._chart = chart
        self._clock = clock
        self._pending: list[Sample] = []
        self._flushed = clock()
        self._redraw = Redraw(clock)

    def add(self, samples: Iterable[Sample]) -> None:
        """Keep samples, and write them when it is time."""
        self._pending += samples
        if self._clock() - self._flushed >= _FLUSH:
            self.flush()
            if self._chart is not None and self._redraw.is_due():
                draw(self.recent(), self._chart)

    def flush(self) -> None:
        """Write what is kept."""
        self._flushed = self._clock()
        if not self._pending:
            return
        rows: list[Any] = [tuple(each) for each in self._pending]
        first = round(self._pending[0].time.timestamp() * 1000)
        frame = self._spark.createDataFrame(rows, SCHEMA).withColumn("day", utc_day(F.col("time"))).coalesce(1)
        batch = Batch(f"samples-{first:016d}-{secrets.token_hex(3)}")
        added = self._publication.publish(frame, batch, partition_by=["day"])
        self._pending.clear()
        for folder in {file.name.rpartition("/")[0] for file in added or ()}:
            self._join(folder)

    def close(self) -> None:
        """Write what is kept, and draw the chart."""
        self.flush()
        if self._chart is not None:
            draw(self.recent(), self._chart)

    def recent(self) -> DataFrame:
        """The samples of the last days."""
        lake, first = self._publication.lake, (datetime.now(UTC) - timedelta(days=SHOWN_DAYS)).date().isoformat()
        days = [name for name in lake.children(lake.root) if name >= f"day={first}" and name.startswith("day=")]
        if not days:
            return self._spark.createDataFrame([], SCHEMA)
        return self._spark.read.schema(SCHEMA).parquet(*(literal(f"{lake.root}/{day}") for day in days))

    def _join(self, folder: str) -> None:
        place = f"{self._publication.directory}/{folder}"
        if len(self._publication.lake.files(place)) <= MOST_FILES:
            return
        rows = self._spark.read.schema(SCHEMA).parquet(literal(place))
        joined = rows.coalesce(1).sortWithinPartitions("time", "group", "topic", "brokerName", "queueId")
        self._publication.replace(folder, joined, f"joined-{secrets.token_hex(6)}", rows=rows.count())


def latest(table: DataFrame) -> DataFrame:
    """The last sample of each group, by topic."""
    newest = table.groupBy("group").agg(F.max("time").alias("time"))
    return (
        table.join(newest, ["group", "time"])
        .groupBy("group", "topic")
        .agg(F.max("time").alias("time"), F.count(F.lit(1)).alias("queues"), F.sum("backlog").alias("backlog"))
        .orderBy(F.desc("backlog"), "group", "topic")
    )


def draw(table: DataFrame, chart: str) -> None:
    """The backlog of the groups that had most, over time: 1,000 moments at most, the highest backlog of each."""
    ends = table.agg(F.min("time"), F.max("time")).first()
    assert ends is not None
    step = max(1, int((ends[1] - ends[0]).total_seconds()) // 1000) if ends[0] is not None else 1
    moments = table.groupBy("group", "time").agg(F.sum("backlog").alias("backlog"))
    slots = F.timestamp_seconds(F.floor(F.unix_timestamp("time") / step) * step)
    highest_of = moments.groupBy("group", slots.alias("time")).agg(F.max("backlog").alias("backlog"))
    lines: dict[str, list[tuple[datetime, float]]] = {}
    for row in ResultTable.of(highest_of.orderBy("time"), 1_000_000).objects():
        lines.setdefault(row["group"], []).append((row["time"], float(row["backlog"])))
    highest = sorted(lines.items(), key=lambda line: (-max(value for _, value in line[1]), line[0]))
    series = tuple(Series(group, tuple(points)) for group, points in highest[:_SHOWN])
    Chart("Backlog of consumer groups", (Panel("Messages to be consumed", "messages", series),)).save(chart)
