"""Options down to what they do with a broker: nameservers, spellings of offsets, tasks, groups, sizes, timeouts."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cometmq.client import Client
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.queues import MessageQueue
from cometmq.protocol import sysflag
from cometmq.protocol.codes import RequestCode
from cometmq.spark.batch import BatchReader
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.link import close_links
from cometmq.spark.offsets import INITIAL
from cometmq.spark.options import parse
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.reading import read_ranges
from cometmq.spark.splits import RangesPartition
from cometmq.spark.stream import StreamReader
from cometmq.testing import EmbeddedBroker
from support.broker_process import BrokerProcess
from support.spark_queries import table_of, wait_until
from support.spark_readable_cluster import MESSAGES, ReadableCluster
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


def options_of(kit: TopicKit, topic: str, **more: Any) -> dict[str, str]:
    given = {"nameServer": kit.nameserver, "subscribe": topic, **more}
    return {name: str(value) for name, value in given.items()}


def planned(kit: TopicKit, topic: str, **more: Any) -> list[list[tuple[int, int, int]]]:
    """The tasks of a batch: queue, from, to of all that each reads."""
    partitions = BatchReader(options_of(kit, topic, **more), full_schema()).partitions()
    return [[each[2:] for each in partition.ranges] for partition in partitions]


def bodies(kit: TopicKit, topic: str, **more: Any) -> list[bytes]:
    """What all tasks of a batch read."""
    reader = BatchReader(options_of(kit, topic, **more), full_schema())
    return [
        body
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for body in batch["body"].to_pylist()
    ]


def test_a_nameserver_that_is_down_is_passed_over(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [2])
    for servers in (f"127.0.0.1:1;{topics.nameserver}", f"{topics.nameserver},127.0.0.1:1"):
        assert bodies(topics, topic, nameServer=servers) == [b"0:0", b"0:1"]
        reader = StreamReader(options_of(topics, topic, nameServer=servers), full_schema())
        assert reader.initialOffset() == INITIAL


@pytest.mark.parametrize(
    "spelling",
    [
        lambda topic: {topic: {"broker-a": {"0": 2, "1": -2, "2": -1}}},  # RocketMQ's old connector
        lambda topic: {topic: {"0": 2, "1": -2, "2": -1}},  # Kafka's source
        lambda topic: {f"{topic}.broker-a.0": 2, f"{topic}.broker-a.1": -2, f"{topic}.broker-a.2": -1},
    ],
)
def test_spellings_of_offsets(topics: TopicKit, name: Name, spelling: Callable[[str], dict[str, Any]]) -> None:
    topic = topics.made(name("T")[-60:], [5, 5, 5])
    starting = json.dumps(spelling(topic))
    assert planned(topics, topic, startingOffsets=starting, minRecordsPerPartition=1) == [[(0, 2, 5)], [(1, 0, 5)]]
    # As an end, -1 is the end.
    ending = json.dumps({topic: {"0": 3, "1": 0, "2": -1}})
    assert planned(topics, topic, endingOffsets=ending, minRecordsPerPartition=1) == [[(0, 0, 3)], [(2, 0, 5)]]


def test_how_many_tasks_a_batch_has(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [60, 2, 2, 2])
    assert len(planned(topics, topic)) == 1  # small queues share a task
    assert len(planned(topics, topic, minRecordsPerPartition=50)) == 2
    assert len(planned(topics, topic, minRecordsPerPartition=1)) == 4
    assert len(planned(topics, topic, minPartitions=6)) >= 6
    pieces = planned(topics, topic, maxRecordsPerPartition=20, minRecordsPerPartition=1)
    assert max(sum(stop - start for _, start, stop in task) for task in pieces) == 20


def test_a_group_made_of_a_prefix_is_seen_by_mqadmin(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [7])
    options = options_of(topics, topic, groupIdPrefix="nightly", startingOffsets="earliest")
    group = parse(options).access.group
    assert group.startswith("nightly-")
    StreamReader(options, full_schema()).commit({"v": 1, "q": {topic: {"broker-a": {"0": 3}}}})
    wait_until(lambda: topics.progress(group, topic) == {0: (3, 7)})

    command = [sys.executable, "-m", "cometmq.admin", "consumerProgress", "-n", topics.nameserver, "-g", group]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    [line] = [line for line in shown.splitlines() if line.startswith(topic[:20])]
    assert line.split()[1:5] == ["broker-a", "0", "7", "3"]
    assert "Diff Total: 4" in shown


def test_a_broker_that_joins_is_read_from_its_beginning(tmp_path: Path, name: Name) -> None:
    small = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    with EmbeddedBroker(config=small) as first:
        topics = TopicKit(first.nameserver)
        topic = topics.made(name("T"), [3])
        reader = StreamReader(options_of(topics, topic, discoveryInterval="0ms", idleWait="50ms"), full_schema())
        start = reader.latestOffset(dict(INITIAL), reader.getDefaultReadLimit())
        assert start["q"] == {topic: {"broker-a": {"0": 3}}}
        with BrokerProcess(tmp_path, brokerName="broker-b", namesrvAddr=first.nameserver) as second:
            address = second.ready()
            topics.run(lambda mq: mq.admin().create_topic(topic, read_queues=1, write_queues=1, broker=address))
            TopicKit(first.nameserver, "broker-b").send(topic, {0: [b"b0", b"b1"]})
            end = start

            def has_joined() -> bool:
                nonlocal end
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                return bool(end["q"][topic].get("broker-b") == {"0": 2})

            wait_until(has_joined)
            assert end["from"] == {topic: {"broker-b": {"0": 0}}}
            found = [body for part in reader.partitions(start, end) for body in _read(reader, part)]
            assert found == [b"b0", b"b1"]


def _read(reader: StreamReader, partition: RangesPartition) -> list[bytes]:
    return [body for batch in reader.read(partition) for body in batch["body"].to_pylist()]


@pytest.fixture
def damaged(topics: TopicKit, name: Name) -> str:
    """A topic with a good message, one whose body says that it is compressed and is not, and another good one."""
    topic = topics.make(name("T"), 1)

    async def sent(mq: Client) -> None:
        async with mq.producer("spark-tests", compression=None) as producer:
            for body, flag in ((b"good", 0), (b"not zlib", sysflag.COMPRESSED), (b"fine", 0)):
                outgoing = Outgoing(topic, body, "UNIQ_KEY\x01k\x02", "k", sys_flag=flag)
                await producer.send_prepared(outgoing, MessageQueue(topic, "broker-a", 0))

    topics.run(sent)
    return topic


def test_a_body_that_does_not_decompress(spark: SparkSession, topics: TopicKit, damaged: str) -> None:
    with pytest.raises(PySparkException) as raised:
        table_of(spark, options_of(topics, damaged)).collect()
    told = str(raised.value)
    assert f"queue 0 of topic {damaged} on broker broker-a" in told
    assert "corruptMessages" in told
    assert "During handling" not in told
    assert bodies(topics, damaged, corruptMessages="skip") == [b"good", b"fine"]
    assert bodies(topics, damaged, corruptMessages="raw") == [b"good", b"not zlib", b"fine"]


def test_batches_have_about_as_many_bytes_as_told(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [40], size=1000)
    source = QueueRange(topic, "broker-a", 0, 0, 40)

    def sizes(**more: int) -> list[int]:
        given = parse(options_of(topics, topic, **more))
        batches = list(read_ranges([source], given.access, Columns.of(full_schema()), given.read))
        assert [offset for each in batches for offset in each["queueOffset"].to_pylist()] == list(range(40))
        return [batch.nbytes for batch in batches]

    [whole] = sizes()
    assert whole > 40_000
    some = sizes(batchBytes=10_000)
    assert whole / 10_000 <= len(some) <= whole / 10_000 + 2
    assert max(some) < 11_000
    assert len(sizes(batchBytes=1024)) == 40  # a message is not cut
    assert len(sizes(batchBytes=10_000, batchRows=3)) == 14


async def read(cluster: ReadableCluster, **more: str) -> list[Any]:
    """The batches of a task that reads everything."""
    given = parse({"nameServer": cluster.address("names"), "subscribe": "T", **more})
    source = QueueRange("T", "broker-a", 0, 0, MESSAGES)
    columns = Columns.of(full_schema())
    try:
        return await asyncio.to_thread(lambda: list(read_ranges([source], given.access, columns, given.read)))
    finally:
        await asyncio.to_thread(close_links)


async def test_sizes_of_pulls_are_those_of_the_options() -> None:
    async with ReadableCluster() as cluster:
        batches = await read(cluster, pullBatchSize="2", pullBytes="2048", batchRows="1")
        pulls = [request.header for request in cluster.requests if request.code == RequestCode.PULL_MESSAGE]
        assert {(header.max_msg_nums <= 2, header.max_msg_bytes) for header in pulls} == {(True, 2048)}
        assert [batch.num_rows for batch in batches] == [1] * MESSAGES


async def test_a_pull_that_is_not_answered_is_tried_again_after_its_timeout() -> None:
    async with ReadableCluster() as cluster:
        cluster.master.swallows = 1
        began = time.monotonic()
        batches = await read(cluster, pullTimeoutMs="100", requestTimeoutMs="60000")
        assert sum(batch.num_rows for batch in batches) == MESSAGES
        assert cluster.master.pulls >= 2
        assert time.monotonic() - began < 10  # the default of a single pull is 15 s
