"""What the driver plans when topics, queues and brokers are not what the checkpoint knows."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from cometmq.client import Client
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.queues import MessageQueue
from cometmq.protocol import sysflag
from cometmq.remoting.errors import Timeout
from cometmq.spark import frontier, planning
from cometmq.spark.batch import FilteringBatchReader
from cometmq.spark.cluster import UNKNOWN_TIME, Answers, Bounds, Cluster
from cometmq.spark.columns import full_schema
from cometmq.spark.errors import DataLoss, OptionError, Unreachable
from cometmq.spark.link import close_links
from cometmq.spark.options import parse
from cometmq.spark.queue_range import QueueId
from cometmq.testing import EmbeddedBroker
from support.fake_cluster import FakeCluster
from support.spark_source_run import SourceRun
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

Name = Callable[[str], str]

BOTH = pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])


@pytest.fixture(autouse=True)
def short_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SECOND_LOOK", 0.05)


def text(flag: bool) -> str:
    return str(flag).lower()


def delete(topics: TopicKit, topic: str) -> None:
    topics.run(lambda mq: mq.admin().delete_topic(topic))


# Topics that were made anew


@BOTH
def test_a_topic_that_was_made_anew(topics: TopicKit, name: Name, fails: bool) -> None:
    topic = topics.made(name("T"), [50])
    run = SourceRun(topics, topic, startingOffsets="earliest", failOnDataLoss=text(fails))
    assert run.batch() == {0: (0, 50)}
    delete(topics, topic)
    topics.made(topic, [3])
    if fails:
        with pytest.raises(DataLoss, match=r"offset 50 is gone, the nearest one there is 3: .*failOnDataLoss=false"):
            run.wait_for_batch()
    else:
        assert run.wait_for_batch() == {0: (0, 3)}


def test_what_was_decided_about_an_empty_topic_is_kept(
    topics: TopicKit, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.made(name("T"), [50])
    run = SourceRun(topics, topic, startingOffsets="earliest", failOnDataLoss="false")
    assert run.batch() == {0: (0, 50)}
    delete(topics, topic)
    topics.make(topic, 1)
    with caplog.at_level(logging.WARNING):
        while run.batch() is None:
            pass
        assert run.batch() is None
    assert [record.message for record in caplog.records if "read anew" in record.message] == [
        f"queue 0 of topic {topic} on broker broker-a ends at 0, before 50: it is read anew"
    ]
    topics.fill(topic, {0: 80})  # more than it had before
    again = SourceRun(topics, topic, failOnDataLoss="false")
    again.start = run.start
    for each in (run, again):
        assert each.wait_for_batch() == {0: (0, 80)}


def test_a_second_look_without_an_answer_decides_nothing(
    topics: TopicKit, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.made(name("T"), [50])
    run = SourceRun(topics, topic, startingOffsets="earliest")
    assert run.batch() == {0: (0, 50)}
    queue = QueueId(topic, "broker-a", 0)
    answers = [Answers({queue: 7}, {}), Answers({}, {queue: TimeoutError()})]
    asked = Cluster.latest
    monkeypatch.setattr(Cluster, "latest", lambda self, queues: answers.pop(0) if answers else asked(self, queues))
    monkeypatch.setattr(frontier, "LOOK_INTERVAL", 0.0)
    assert run.batch() is None
    assert not answers
    topics.fill(topic, {0: 2})
    assert run.wait_for_batch() == {0: (50, 52)}


# Topics that are gone


@BOTH
def test_a_deleted_topic_of_several(topics: TopicKit, name: Name, fails: bool) -> None:
    stays, goes = topics.made(name("A"), [5]), topics.made(name("B"), [5])
    options = {"startingOffsets": "earliest", "unreachableTimeout": "300ms", "failOnDataLoss": text(fails)}
    run = SourceRun(topics, f"{stays},{goes}", **options)
    assert run.batch() == {0: (0, 5)}
    delete(topics, goes)
    if fails:
        with pytest.raises((DataLoss, OptionError), match=goes):
            run.wait_for_batch()
        return
    began = time.monotonic()
    while time.monotonic() - began < 0.6:  # longer than it would be waited for
        run.batch()
    topics.fill(stays, {0: 2})
    topics.make(stays, 2)
    topics.fill(stays, {1: 3})
    read: dict[int, tuple[int, int]] = {}
    while len(read) < 2:
        read |= run.wait_for_batch()
    assert read == {0: (5, 7), 1: (0, 3)}, "new queues of the other topic are found, too"


def test_a_topic_that_comes_back_with_less_is_read_anew(topics: TopicKit, name: Name) -> None:
    stays, goes = topics.made(name("A"), [5]), topics.made(name("B"), [0, 5])
    options = {"startingOffsets": "earliest", "unreachableTimeout": "100ms", "failOnDataLoss": "false"}
    run = SourceRun(topics, f"{stays},{goes}", **options)
    assert run.batch() == {0: (0, 5), 1: (0, 5)}
    delete(topics, goes)
    began = time.monotonic()
    while time.monotonic() - began < 0.4:
        run.batch()
    topics.made(goes, [0, 3])
    assert run.wait_for_batch() == {1: (0, 3)}


# Brokers and queues that the checkpoint knows and the route does not


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster("broker-a", "broker-b") as running:
        for broker in running.brokers.values():
            broker.max_offset = 5
        yield running
        await asyncio.to_thread(close_links)


def run_on(cluster: FakeCluster, **options: str) -> SourceRun:
    run = SourceRun(TopicKit(cluster.nameserver), "T", **{"unreachableTimeout": "200ms", **options})
    ends = {broker: {"0": 3, "1": 3} for broker in ("broker-a", "broker-b")}
    run.start = {"q": {"T": ends}, "v": 1}
    return run


@BOTH
@pytest.mark.parametrize("available_now", [True, False])
async def test_a_broker_that_no_route_has(cluster: FakeCluster, fails: bool, available_now: bool) -> None:
    cluster.known.remove("broker-b")
    run = run_on(cluster, failOnDataLoss=text(fails))

    def runs() -> Any:
        if available_now:
            run.reader.prepareForTriggerAvailableNow()
        found = [run.wait_for_batch()]
        while not available_now or (batch := run.batch()) is not None:
            found.append(run.wait_for_batch() if not available_now else batch)
        return found

    if fails:
        with pytest.raises(Unreachable, match="broker broker-b of topic T did not answer"):
            await asyncio.to_thread(runs)
        return
    if available_now:
        assert await asyncio.to_thread(runs) == [{0: (3, 5), 1: (3, 5)}]
    else:
        assert await asyncio.to_thread(run.wait_for_batch) == {0: (3, 5), 1: (3, 5)}
    assert run.start is not None
    assert run.start["q"]["T"] == {"broker-a": {"0": 5, "1": 5}, "broker-b": {"0": 3, "1": 3}}


async def test_available_now_waits_for_where_new_queues_begin(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_on(cluster, unreachableTimeout="30s")
    assert run.start is not None
    del run.start["q"]["T"]["broker-b"]
    answers = [Answers({}, {QueueId("T", "broker-b", queue): Timeout("silent") for queue in (0, 1)})]
    monkeypatch.setattr(
        Cluster, "earliest", lambda self, queues: answers.pop() if answers else Answers(dict.fromkeys(queues, 1), {})
    )

    def planned() -> Any:
        run.reader.prepareForTriggerAvailableNow()
        return run.batch()

    await asyncio.to_thread(planned)
    assert run.start["q"]["T"] == {each: {"0": 5, "1": 5} for each in ("broker-a", "broker-b")}
    assert run.start["from"]["T"] == {"broker-b": {"0": 1, "1": 1}}


async def test_queues_that_a_broker_does_not_list_are_asked_for_one_by_one(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.admin.queues.QueueAdmin.min_offset", lambda self, queue: _number(2))
    cluster["broker-a"].listed = 1
    given = parse({"nameServer": cluster.nameserver, "subscribe": "T"})
    queues = [QueueId("T", "broker-a", queue) for queue in (0, 1)]
    found = await asyncio.to_thread(Cluster(given.access, given.topics).bounds, queues, 1.0)
    assert found == {queues[0]: Bounds(0, 5, 1000), queues[1]: Bounds(2, 5, UNKNOWN_TIME)}


async def _number(number: int) -> int:
    return number


# Messages that are gone, damaged or not asked for


def test_what_is_gone_does_not_count_for_a_limit(name: Name) -> None:
    config = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 16, "fileReservedTime": 0}
    with EmbeddedBroker(config=config | {"deleteCommitLogFilesInterval": 0}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.make(name("T"), 1)
        for _ in range(10):
            topics.fill(topic, {0: 20}, size=1000)
        queue = MessageQueue(topic, "broker-a", 0)

        async def trim(mq: Client) -> int:
            await mq.admin().delete_expired_log_files(broker.address)
            return await mq.admin().min_offset(queue)

        while (first := topics.run(trim)) == 0:
            pass
        options = {"startingOffsets": json.dumps({topic: -2}), "maxOffsetsPerTrigger": 3}
        run = SourceRun(topics, topic, failOnDataLoss="false", **options)
        run.start = {"q": {topic: {"broker-a": {"0": 1}}}, "v": 1}
        assert run.batch() == {0: (first, first + 3)}


def test_damaged_messages_have_a_size(topics: TopicKit, name: Name) -> None:
    topic = topics.make(name("T"), 1)

    async def send(mq: Client) -> None:
        async with mq.producer("spark-tests", compression=None) as producer:
            outgoing = Outgoing(topic, b"not zlib", "UNIQ_KEY\x01k\x02", "k", sys_flag=sysflag.COMPRESSED)
            await producer.send_prepared(outgoing, MessageQueue(topic, "broker-a", 0))

    topics.run(send)
    run = SourceRun(topics, topic, startingOffsets="earliest", maxBytesPerTrigger=10_000, corruptMessages="skip")
    assert run.batch() == {0: (0, 1)}


def test_filters_leave_the_offsets_of_other_queues_alone(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [9, 9])
    options = {"nameServer": topics.nameserver, "subscribe": topic, "filterPushDown": "true"}
    starts = {"startingOffsets": json.dumps({topic: {"broker-a": {"0": 5, "1": 7}}})}
    reader = FilteringBatchReader({**options, **starts}, full_schema())
    reader.pushFilters([EqualTo(("queueId",), 0)])
    assert [(each.queue_id, each.start, each.stop) for part in reader.partitions() for each in part.ranges] == [
        (0, 5, 9)
    ]
