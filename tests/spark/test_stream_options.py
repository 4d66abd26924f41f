"""Every option that decides what a stream reads, on a real Spark, against the real RocketMQ 5.3 and our broker."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cometmq
from support.spark_queries import Batches, run_now, stream_of, wait_until
from support.spark_topics import TopicKit

# The first test against the real one pays for its start, and on a fresh machine for its download.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HALF = 5
#: Offsets by queue.
Offsets = dict[int, set[int]]

ALL: Offsets = {0: set(range(2 * HALF)), 1: set(range(2 * HALF))}


class Filled(NamedTuple):
    """A topic with two queues of ten messages: five of tag a, and after `between` five of tag b."""

    kit: TopicKit
    topic: str
    #: Milliseconds.
    between: int

    def read(self, spark: SparkSession, folder: Path, **options: Any) -> Batches:
        return run_now(self.frame(spark, **options), folder / "checkpoint")

    def frame(self, spark: SparkSession, schema: str | None = None, **options: Any) -> DataFrame:
        chosen = {"nameServer": self.kit.nameserver} | {name: str(value) for name, value in options.items()}
        if not {"subscribePattern", "assign"} & set(options):
            chosen["subscribe"] = self.topic
        if not any(name.startswith("starting") for name in options):
            chosen["startingOffsets"] = "earliest"
        return stream_of(spark, chosen, schema)


CLUSTERS = [pytest.param("real", marks=pytest.mark.interop), pytest.param("ours", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=CLUSTERS)
def filled(request: pytest.FixtureRequest) -> Filled:
    if request.param == "ours":
        kit = TopicKit(request.getfixturevalue("broker").nameserver)
    else:
        kit = request.getfixturevalue("real")
    topic = kit.make("T_stream_options", 2)

    def send(tag: str) -> None:
        messages = [cometmq.Message(b"x" * 1000, tag=tag, properties={"n": str(n)}) for n in range(HALF)]
        kit.send(topic, {0: messages, 1: messages})

    send("a")
    between = round(time.time() * 1000) + 2
    wait_until(lambda: time.time() * 1000 > between)  # the brokers' clock is this machine's
    send("b")
    return Filled(kit, topic, between)


def offsets_of(batches: Batches) -> Offsets:
    """What was read; nothing twice."""
    found: Offsets = {}
    for row in batches.rows:
        numbers = found.setdefault(row.queueId, set())
        assert row.queueOffset not in numbers
        numbers.add(row.queueOffset)
    return found


@pytest.mark.slow
def test_which_topics_and_queues(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    assert offsets_of(filled.read(spark, tmp_path / "1", subscribePattern="T_stream_option.")) == ALL
    chosen = json.dumps({filled.topic: {filled.kit.broker_name: [1]}})
    assert offsets_of(filled.read(spark, tmp_path / "2", assign=chosen)) == {1: ALL[1]}


def test_where_it_starts(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    late = set(range(HALF, 2 * HALF))
    queues = {filled.topic: {filled.kit.broker_name: {"0": 3, "1": -1}}}
    assert offsets_of(filled.read(spark, tmp_path / "1", startingOffsets=json.dumps(queues))) == {0: set(range(3, 10))}
    assert offsets_of(filled.read(spark, tmp_path / "2", startingTimestamp=filled.between)) == {0: late, 1: late}
    times = json.dumps({filled.topic: {"0": filled.between, "1": filled.between + 86_400_000}})
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    found = filled.read(spark, tmp_path / "3", startingOffsetsByTimestamp=times, **strategy)
    assert offsets_of(found) == {0: late}
    assert offsets_of(filled.read(spark, tmp_path / "4", startingOffsets="latest")) == {}


def test_how_large_batches_are(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    rows = filled.read(spark, tmp_path / "1", maxOffsetsPerTrigger=8)
    assert (rows.sizes, offsets_of(rows)) == ([8, 8, 4], ALL)
    rows = filled.read(spark, tmp_path / "2", maxBytesPerTrigger=8 * 1200)
    assert len(rows.sizes) in (3, 4)
    assert offsets_of(rows) == ALL
    rows = filled.read(spark, tmp_path / "3", minOffsetsPerTrigger=10, maxTriggerDelay="1h", maxOffsetsPerTrigger=10)
    assert (rows.sizes, offsets_of(rows)) == ([10, 10], ALL)


@pytest.mark.slow
def test_how_many_tasks_and_pulls(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    for number, (options, tasks) in enumerate(
        [
            ({}, 1),  # small queues share one
            ({"minRecordsPerPartition": 1}, 2),
            ({"minPartitions": 4, "pullBatchSize": 3, "pullBytes": 1024, "batchRows": 2}, 4),
            ({"maxRecordsPerPartition": 2, "batchBytes": 1024, "readFrom": "slave"}, 10),
        ]
    ):
        frame = filled.frame(spark, **options).withColumn("task", F.spark_partition_id())
        rows = run_now(frame, tmp_path / str(number))
        assert offsets_of(rows) == ALL
        assert len({row.task for row in rows.rows}) == tasks


def test_what_the_brokers_let_through(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    group = "G_stream_options"
    rows = filled.read(spark, tmp_path / "1", subExpression="b || c", consumerGroup=group)
    assert offsets_of(rows) == {0: set(range(HALF, 10)), 1: set(range(HALF, 10))}
    assert {row.tags for row in rows.rows} == {"b"}
    wait_until(lambda: filled.kit.progress(group, filled.topic) == {0: (10, 10), 1: (10, 10)})


@pytest.mark.slow
def test_which_columns(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    without = filled.frame(spark, includeProperties="false")
    assert "properties" not in without.columns
    rows = run_now(filled.frame(spark, propertiesAsJson="true"), tmp_path / "1").rows
    assert {json.loads(row.properties)["n"] for row in rows} == {str(n) for n in range(HALF)}
    few = filled.frame(spark, "queueOffset long, queueId int")
    assert few.columns == ["queueOffset", "queueId"]
    assert offsets_of(run_now(few, tmp_path / "2")) == ALL
