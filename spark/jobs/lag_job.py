"""Lag: how many messages groups have still to consume, sampled over time to a table and a chart.

The brokers are asked as `mqadmin consumerProgress` asks them, by the driver; Spark keeps the table. Samples are
published every half a minute: a kill loses those, and the next run adds to the same table.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.client.admin.admin import Admin
from cometmq.client.errors import GroupNotFound, NoNameserver
from cometmq.protocol import names
from cometmq.protocol.bodies.message_queue import MessageQueue as WireQueue
from cometmq.protocol.bodies.stats import OffsetWrapper
from cometmq.protocol.errors import CometMQError
from cometmq.remoting.errors import TransportError
from cometmq.spark.access import Access
from cometmq.spark.access_options import ACCESS, access_of
from cometmq.spark.errors import Unreachable
from cometmq.spark.jobs.chart import Chart, Panel, Series
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, ResultTable, Silence
from cometmq.spark.jobs.publication import Batch, Publication
from cometmq.spark.jobs.results import SAMPLES, claim
from cometmq.spark.link import Link, link_to
from cometmq.spark.option_texts import OptionTexts

log = logging.getLogger(__name__)

SCHEMA: Final = (
    "time timestamp, `group` string, topic string, brokerName string, queueId int, "
    "brokerOffset long, consumerOffset long, backlog long, lastConsumed timestamp"
)
#: Seconds of samples that are kept in memory, and that one sample may take.
_FLUSH: Final = 30.0
_ASK: Final = 60.0
_SHOWN: Final = 8


class Sample(NamedTuple):
    """How far a group was in a queue at a time."""

    time: datetime
    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    backlog: int
    last_consumed: datetime | None


def lag(
    spark: SparkSession,
    output: str,
    groups: str | Iterable[str] = (),
    *,
    name_server: str | None = None,
    interval: float = 10.0,
    samples: int | None = 1,
    chart: str | None = None,
    options: Mapping[str, str] | None = None,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Sample the backlog of groups, or of all, every `interval` seconds, so many times (None: until `stop` is set).

    `output` is a directory of Parquet; samples are added to it. `chart` is drawn of the whole table. When brokers are
    away for a while after the first sample, samples are missing.
    """
    meter = Meter("lag")
    wanted = [each for each in (groups.split(",") if isinstance(groups, str) else groups) if each]
    sampler = _Sampler(_access(name_server, options or {}), wanted)
    is_new = claim(spark, output, SAMPLES)
    publication = Publication(spark, output)
    with display or Silence() as shown, publication.opened(is_new=lambda: is_new):
        pending: list[Sample] = []
        flushed, tried = time.monotonic(), 0
        stopped = stop or threading.Event()
        meter.details |= {"samples": 0, "missedSamples": 0}
        while not stopped.is_set():
            tried += 1
            try:
                found = sampler.sample(datetime.now(UTC))
            except CometMQError as error:
                # What never worked is a mistake of the caller; later somebody is away, and comes back.
                if not meter.details["samples"]:
                    raise
                log.warning("a sample is missing: %s", error)
                meter.count("missedSamples")
            else:
                pending += found
                meter.count("samples")
                meter.add(len(found))
                meter.backlog = sum(each.backlog for each in found)
            shown.show(meter)
            is_last = samples is not None and tried >= samples
            if is_last or time.monotonic() - flushed >= _FLUSH:
                flushed = _flush(spark, publication, pending, chart)
            if is_last or stopped.wait(interval):
                break
        _flush(spark, publication, pending, chart)
    table = spark.read.schema(SCHEMA).parquet(output) if meter.rows else spark.createDataFrame([], SCHEMA)
    meter.tables["groups"] = ResultTable.of(_latest(table), 1000)
    if chart is not None:
        meter.details["chart"] = chart
    return meter.metrics()


def check_groups(groups: Iterable[str], name_server: str | None, options: Mapping[str, str]) -> None:
    """Raise what is wrong with the options, the nameservers or the groups, before Spark does anything."""
    _Sampler(_access(name_server, options), list(groups)).sample(datetime.now(UTC))


def _access(name_server: str | None, options: Mapping[str, str]) -> Access:
    given = ({"nameServer": name_server} if name_server else {}) | dict(options)
    texts = OptionTexts(given, ACCESS.values())
    texts.check_names()
    return access_of(texts)


class _Sampler:
    """Asks the brokers. Groups that were named have to exist; of all groups those count that have offsets."""

    def __init__(self, access: Access, groups: list[str]) -> None:
        self._link: Link = link_to(access)
        self._admin: Admin = self._link.client.admin(request_timeout=access.request_timeout)
        self._groups = groups
        self._servers = ";".join(access.name_servers)

    def sample(self, now: datetime) -> list[Sample]:
        try:
            return self._link.run(self._sample(now), _ASK)
        except (NoNameserver, TransportError) as error:
            raise Unreachable(
                f"the cluster at {self._servers} does not answer ({error})", "check the addresses, and that it runs"
            ) from error

    async def _sample(self, now: datetime) -> list[Sample]:
        found: list[Sample] = []
        for group in self._groups or await self._admin.groups():
            if not self._groups and names.is_system_group(group):
                continue
            found += await self._of(group, now)
        return found

    async def _of(self, group: str, now: datetime) -> list[Sample]:
        """All brokers are asked: groups that only commit offsets, as Spark's, have no retry topic to be found by."""
        table: dict[WireQueue, OffsetWrapper] = {}
        for address in await self._admin.masters():
            with suppress(GroupNotFound):
                table |= (await self._admin.consume_stats_on(address, group)).offset_table
        if self._groups and not table:
            raise JobError(
                f"the group {group} has no offsets at {self._servers}",
                "check its name (mqadmin consumerProgress lists the groups); it has some once it has consumed",
            )
        return [
            Sample(
                now,
                group,
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                offset.broker_offset,
                offset.consumer_offset,
                max(0, offset.broker_offset - offset.consumer_offset),
                _moment(offset.last_timestamp),
            )
            for queue, offset in table.items()
        ]


def _moment(millis: int) -> datetime | None:
    return datetime.fromtimestamp(millis / 1000, UTC) if millis > 0 else None


def _flush(spark: SparkSession, publication: Publication, pending: list[Sample], chart: str | None) -> float:
    if pending:
        rows: list[Any] = [tuple(each) for each in pending]
        first = round(pending[0].time.timestamp() * 1000)
        publication.publish(spark.createDataFrame(rows, SCHEMA).coalesce(1), Batch(f"samples-{first:016d}"))
        pending.clear()
        if chart is not None:
            draw(spark.read.schema(SCHEMA).parquet(publication.directory), chart)
    return time.monotonic()


def _latest(table: DataFrame) -> DataFrame:
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
