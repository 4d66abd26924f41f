"""Replay: an archive, or a range of time of topics, to a topic; in queue order, at a rate, at least once.

All messages of one source queue go to one queue of the target, in their order: the i-th source queue to the i-th of the
target's, round and round. A slice is sent, its acknowledgements are awaited, then the checkpoint moves on: after a kill
the slice that was under way is sent again, in the same order and, at the same rate, with the same stamps. Every message
says where it comes from in the property `REPLAY_ORIGIN`, by which a repeat can be told, too.

A rate is kept by the tasks that send (`pacing`); slices are then short, so that a stop need not wait long.
"""

import json
import math
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cometmq.client.client import Client
from cometmq.client.errors import NoRoute
from cometmq.client.routes import TopicRoute
from cometmq.spark import options as source_options
from cometmq.spark import sink_options
from cometmq.spark.access import Access
from cometmq.spark.access_options import of_access
from cometmq.spark.cluster import Cluster
from cometmq.spark.jobs.archive_files import read_archive
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.messages import FORMAT, Messages, names_in, schema_of
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, Silence
from cometmq.spark.jobs.pacing import paced
from cometmq.spark.jobs.replay_plan import ReplayCheckpoint, ReplayPlan
from cometmq.spark.link import link_to
from cometmq.spark.offsets import nested
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.resolving import resolve
from cometmq.spark.sink import BatchWriter, batch_writer
from cometmq.spark.sink_sender import route_to
from cometmq.spark.starting import EARLIEST

if TYPE_CHECKING:
    import pyarrow as pa

#: The property that says where a replayed message was: topic/broker/queue/offset.
ORIGIN: Final = "REPLAY_ORIGIN"

#: Messages of a slice without a rate; with one, the messages of so many seconds.
SLICE_ROWS: Final = 500_000
SLICE_SECONDS: Final = 5.0
#: How much faster than its rate a replay may be while it makes up for the time between two slices.
_CATCH_UP: Final = 1.25
#: Messages a second that one task sends without pains: up to there a rate is kept by one, and evenly over all queues.
_RATE_OF_TASK: Final = 20_000

#: Seconds for the brokers to say where queues begin and end.
_PATIENCE: Final = 30.0

_COLUMNS: Final = ("topic", "brokerName", "queueId", "queueOffset", "body", "tags", "keys", "properties", "flag")


def replay(
    spark: SparkSession,
    target: str,
    topics: str | Iterable[str] = (),
    *,
    archive: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    rate: float | None = None,
    name_server: str | None = None,
    to_name_server: str | None = None,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
    slice_rows: int | None = None,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Send what topics, or an archive (some of its topics), stored from `since` to before `until`, to a topic.

    `rate` is messages a second over all queues. A replay that was stopped goes on with the same `checkpoint`, which is
    `<archive or topics>.replay-to-<target>` unless it is given; for another cluster with `-at-<its nameservers>`.
    """
    if rate is not None and rate <= 0:
        raise JobError(f"a rate of {rate:g} sends nothing", "give messages a second, above 0")
    names = names_in(topics)
    source: _Source
    if archive is not None:
        archive = Lake(spark, archive).root  # however it was written: it is the name of the checkpoint, too
        source = _Archive(read_archive(spark, archive, names, since=since, until=until), names, archive)
    else:
        source = _Topics(spark, Messages.of(names, name_server, options, since, until))
    if archive is None and (to_name_server or name_server) == name_server and target in names:
        raise JobError(f"{target} would be replayed to itself", "choose another topic to replay to")
    sending = sink_of(target, name_server, to_name_server, options)
    queues = target_queues(sending)
    servers = _servers(sink_options.parse(sending).access)
    if checkpoint is None:
        elsewhere = re.sub(r"[^\w.]+", "-", f"-at-{servers}") if to_name_server else ""
        checkpoint = f"{archive or '-'.join(names)}.replay-to-{target}{elsewhere}"
    place = ReplayCheckpoint(Lake(spark, checkpoint))
    asked = f"{source.name} from {since or 'the beginning'} to {until or 'the end'}"
    asked_to = f"{target} at {servers}"
    meter = Meter("replay", counts_bytes=True)
    with place.held(), display or Silence() as shown:
        plan = place.plan(asked, asked_to)
        if plan is None:
            plan = ReplayPlan.of(asked, asked_to, source.ranges(), queues)
            place.begin(plan)
        size = plan.steps_of(slice_rows or (rate * SLICE_SECONDS if rate else SLICE_ROWS))
        if plan.steps and place.done() == plan.steps:
            meter.details["note"] = (
                f"done before, by {place.directory}: give another --checkpoint to replay it once more"
            )
        sender = _Sender(plan, source, plan.ways(queues, place.done()), sending, meter)
        _send_slices(place, plan, size, sender, rate, shown, stop or threading.Event())
    meter.details["slicesLeft"] = math.ceil((plan.steps - place.done()) / size)
    return meter.metrics()


def _send_slices(
    place: ReplayCheckpoint,
    plan: ReplayPlan,
    size: int,
    sender: "_Sender",
    rate: float | None,
    shown: Display,
    stop: threading.Event,
) -> None:
    """Send what is left, in slices of so many steps; with a rate, none begins before those of this run were due."""
    due = time.monotonic()
    for first in range(place.done(), plan.steps, size):
        sender.meter.backlog = plan.rows_from(first)
        shown.show(sender.meter)
        if stop.wait(0.0 if rate is None else max(0.0, due - time.monotonic())):
            return
        after, before = min(first + size, plan.steps), sender.meter.rows
        if rate is None:
            sender.send(first, after)
        else:
            # To plan and to start a slice takes its time, too: the next one makes up for it.
            late = min(SLICE_SECONDS, time.monotonic() - due)
            rows = max(1, plan.rows_from(first) - plan.rows_from(after))
            sender.send(first, after, rate / max(1 / _CATCH_UP, 1 - late * rate / rows))
            due = max(due, time.monotonic() - SLICE_SECONDS) + (sender.meter.rows - before) / rate
        place.advance(after)
    sender.meter.backlog = 0
    shown.show(sender.meter)


class _Sender:
    """Sends slices of a plan."""

    def __init__(
        self,
        plan: ReplayPlan,
        source: "_Source",
        ways: Mapping[QueueId, QueueId],
        options: Mapping[str, str],
        meter: Meter,
    ) -> None:
        self._plan = plan
        self._source = source
        self._options = options
        self._targets = ways
        self.meter = meter

    def send(self, first: int, after: int, pace: float | None = None) -> None:
        """Send a slice, in one go or at a pace of messages a second."""
        ranges = self._plan.slice(first, after)
        if not ranges:
            return
        messages, counted = self._source.read(ranges), Observation()
        tasks = max(1, len({self._targets[each.queue] for each in ranges}))
        if pace is not None:
            spark = messages.sparkSession
            tasks = min(tasks, spark.sparkContext.defaultParallelism) if pace > _RATE_OF_TASK else 1
        rows = self._outgoing(messages, ranges, tasks, is_paced=pace is not None).observe(
            counted, F.count(F.lit(1)).alias("rows"), F.coalesce(F.sum(F.length("body")), F.lit(0)).alias("bytes")
        )
        options = {**self._options, "writeId": f"{self._plan.replay_id}.{first}-{after}"}
        if pace is None:
            rows.write.format(FORMAT).options(**options).mode("append").save()
        else:
            _send_paced(rows, batch_writer(options, rows.schema), pace / tasks)
        found = counted.get
        self.meter.add(int(found["rows"]), int(found["bytes"]))

    def _outgoing(self, messages: DataFrame, ranges: Sequence[QueueRange], tasks: int, *, is_paced: bool) -> DataFrame:
        """The columns of the sink; the rows of a target queue in one task, those of a source queue in their order.

        At a pace all queues of a task move on together; else one goes after the other, which makes larger requests.
        """
        origin = F.concat_ws("/", *(F.col(name).cast("string") for name in _COLUMNS[:4]))
        # An archive may have files without this column.
        properties = F.coalesce("properties", F.create_map().cast("map<string,string>"))
        properties = F.map_filter(properties, lambda key, _: key != ORIGIN)
        properties = F.map_concat(properties, F.create_map(F.lit(ORIGIN), origin))
        placed = messages.withColumn("place", self._place_column(ranges)).withColumn("outgoing", properties)
        way = (F.col("queueOffset") - F.col("place.start")) / F.col("place.size") if is_paced else F.col("place.target")
        ordered = placed.repartition(tasks, "place.target").sortWithinPartitions(way, *_COLUMNS[:4])
        return ordered.select(
            "body",
            "tags",
            "keys",
            F.col("outgoing").alias("properties"),
            "flag",
            F.col("place.target.broker").alias("brokerName"),
            F.col("place.target.queue").alias("queueId"),
        )

    def _place_column(self, ranges: Sequence[QueueRange]) -> Column:
        """The queue that the messages of each source queue go to, and where the slice of the source queue is."""
        pairs: list[Column] = []
        for each in ranges:
            queue = self._targets[each.queue]
            target = F.struct(F.lit(queue.broker).alias("broker"), F.lit(queue.queue_id).alias("queue"))
            start, size = F.lit(each.start).cast("long"), F.lit(each.size).cast("long")
            pairs.append(F.lit(f"{each.topic}/{each.broker}/{each.queue_id}"))
            pairs.append(F.struct(target.alias("target"), start.alias("start"), size.alias("size")))
        return F.create_map(*pairs)[F.concat_ws("/", "topic", "brokerName", F.col("queueId").cast("string"))]


def _send_paced(rows: DataFrame, writer: BatchWriter, pace: float) -> None:
    """What `rows.write` does, with an even number of rows a second of each task: Spark gives a sink 10,000 at once."""

    def send(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        writer.write(paced(batches, pace))
        return iter(())

    rows.mapInArrow(send, "sent long").collect()


def target_queues(options: Mapping[str, str]) -> list[QueueId]:
    """The queues of the target that can be written, sorted; those it will have if brokers make it."""
    parsed = sink_options.parse(options)
    link = link_to(parsed.access)
    try:
        route = link.run(_route_now(link.client, parsed.access.wire_topic(parsed.topic)), _PATIENCE)
    except NoRoute:
        raise JobError(
            f"topic {parsed.topic} to replay to does not exist, and the brokers make none by themselves",
            f"make it: mqadmin updateTopic -c <cluster> -t {parsed.topic}",
        ) from None
    if not route.publish:
        raise JobError(
            f"topic {parsed.topic} to replay to has no queue that can be written", "check that a master is up, and perm"
        )
    return sorted(QueueId(parsed.topic, each.broker_name, each.queue_id) for each in route.publish)


async def _route_now(client: Client, topic: str) -> TopicRoute:
    """Not what this process has heard once: a notebook lives for days."""
    client.routes.forget(topic)
    return await route_to(client, topic)


def _servers(access: Access) -> str:
    """What a cluster is known by: names of clusters and brokers are the same in many of them."""
    return ";".join(sorted(access.name_servers))


def sink_of(
    target: str, name_server: str | None, to_name_server: str | None, options: Mapping[str, str] | None
) -> dict[str, str]:
    """Options of the sink: the target, and those of the source that say how to reach a cluster."""
    sending = of_access(options or {}) | {"topic": target}
    if to_name_server or name_server:
        sending["nameServer"] = str(to_name_server or name_server)
    return sending


# Where messages come from


class _Source:
    """Something that has queues with offsets."""

    name: str

    def ranges(self) -> list[QueueRange]:
        raise NotImplementedError

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        raise NotImplementedError


class _Topics(_Source):
    """Topics of a cluster: the range of time is looked up once, slices are read by offsets."""

    def __init__(self, spark: SparkSession, messages: Messages) -> None:
        messages.check()
        self._spark = spark
        self._messages = messages
        servers = _servers(source_options.parse(messages.source_options).access)
        self.name = f"topics {','.join(messages.topics)} at {servers}"

    def ranges(self) -> list[QueueRange]:
        found = source_options.parse(self._messages.source_options)
        cluster = Cluster(found.access, found.topics)
        queues = cluster.queues()
        starts = resolve(found.starting or EARLIEST, queues, cluster, patience=_PATIENCE)
        ends = resolve(found.ending, queues, cluster, patience=_PATIENCE)
        return [QueueRange(*each, starts[each], ends[each]) for each in queues if starts[each] < ends[each]]

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        assign: dict[str, dict[str, list[int]]] = {}
        for each in ranges:
            assign.setdefault(each.topic, {}).setdefault(each.broker, []).append(each.queue_id)
        # Those of the caller that say from where to where are in the plan.
        chosen = {
            key: value
            for key, value in self._messages.options.items()
            if not key.lower().startswith(("starting", "ending"))
        }
        if self._messages.name_server:
            chosen["nameServer"] = self._messages.name_server
        chosen["assign"] = json.dumps(assign)
        chosen["startingOffsets"] = json.dumps(nested({each.queue: each.start for each in ranges}))
        chosen["endingOffsets"] = json.dumps(nested({each.queue: each.stop for each in ranges}))
        return self._spark.read.format(FORMAT).options(**chosen).schema(schema_of(*_COLUMNS)).load()


class _Archive(_Source):
    """An archive, or some topics of it."""

    def __init__(self, messages: DataFrame, topics: Sequence[str], name: str) -> None:
        missing = [column for column in _COLUMNS if column not in messages.columns]
        if missing:
            raise JobError(f"the archive {name} has no column {missing[0]}", "archive with includeProperties=true")
        self._messages = messages
        self.name = f"archive {name}{' topics ' if topics else ''}{','.join(topics)}"

    def ranges(self) -> list[QueueRange]:
        ends = self._messages.groupBy(*_COLUMNS[:3]).agg(F.min("queueOffset"), F.max("queueOffset") + 1)
        return [QueueRange(*row) for row in ends.collect()]

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        wanted = F.lit(False)
        for each in ranges:
            queue = (F.col("topic") == each.topic) & (F.col("brokerName") == each.broker)
            queue = queue & (F.col("queueId") == each.queue_id)
            wanted = wanted | (queue & (F.col("queueOffset") >= each.start) & (F.col("queueOffset") < each.stop))
        return self._messages.where(wanted).select(*_COLUMNS)
