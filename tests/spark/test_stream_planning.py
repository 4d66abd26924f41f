"""The driver's half of the stream reader against a real broker, called as Spark calls it; no Spark is started."""

import asyncio
import json
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.spark.errors import OptionError, Unreachable
from cometmq.testing import EmbeddedBroker
from support.spark_source_run import SourceRun
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

Name = Callable[[str], str]

SMALL = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}


def test_latest_starts_at_the_end_and_stays_there_after_a_crash(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5, 3])
    driver = SourceRun(topics, topic)
    assert driver.batch() == {}
    first = driver.start
    topics.fill(topic, {0: 2})
    assert driver.wait_for_batch() == {0: (5, 7)}
    assert driver.batch() is None
    # Killed before the first batch was committed: Spark plans it again by the offsets in its log.
    again = SourceRun(topics, topic)
    assert first is not None
    assert again.reader.partitions({"v": 1, "init": True}, first) == []
    again.start = first
    assert again.batch() == {0: (5, 7)}


def test_earliest_reads_everything_once(topics: TopicKit, name: Name) -> None:
    driver = SourceRun(topics, topics.made(name("T"), [5, 0, 3]), startingOffsets="earliest")
    assert driver.batch() == {0: (0, 5), 2: (0, 3)}
    assert driver.batch() is None
    assert driver.start is not None
    assert driver.reader.reportLatestOffset() == {"q": driver.start["q"], "v": 1}


def test_offsets_for_each_queue(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5, 5, 5])
    driver = SourceRun(topics, topic, startingOffsets=json.dumps({topic: {"broker-a": {"0": 2, "1": -2, "2": -1}}}))
    assert driver.batch() == {0: (2, 5), 1: (0, 5)}


def test_offsets_that_the_queue_does_not_have(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5, 5])
    with pytest.raises(OptionError, match=r"startingOffsets: queue 0 .* ends at 5, 6 is beyond that"):
        SourceRun(topics, topic, startingOffsets=json.dumps({topic: 6})).batch()
    with pytest.raises(OptionError, match=r"startingOffsets: it says nothing about queue 1 of topic"):
        SourceRun(topics, topic, startingOffsets=json.dumps({topic: {"0": 1}})).batch()
    with pytest.raises(OptionError, match="startingOffsets: the topic other is not read"):
        SourceRun(topics, topic, startingOffsets=json.dumps({topic: 1, "other": 1})).batch()


def test_start_at_a_time(name: Name) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [5, 5])
        broker.advance(timedelta(hours=1))
        between = round((time.time() + 1800) * 1000)
        topics.fill(topic, {0: 2})
        with pytest.raises(OptionError, match=r"startingTimestamp=.*queue 1 .* has no message of that time or later"):
            SourceRun(topics, topic, startingTimestamp=between).batch()
        lenient = {"startingOffsetsByTimestampStrategy": "latest"}
        assert SourceRun(topics, topic, startingTimestamp=between, **lenient).batch() == {0: (5, 7)}
        times = json.dumps({topic: {"broker-a": {"0": between, "1": 0}}})
        assert SourceRun(topics, topic, startingOffsetsByTimestamp=times).batch() == {0: (5, 7), 1: (0, 5)}


def test_a_pattern_takes_new_topics_from_their_beginning(topics: TopicKit, name: Name) -> None:
    first = topics.made(name("P1"), [2])
    driver = SourceRun(topics, subscribePattern=name("P[0-9]"), startingOffsets="latest")
    assert driver.batch() == {}
    topics.made(name("P2"), [4])
    assert driver.wait_for_batch() == {0: (0, 4)}
    assert driver.start is not None
    assert set(driver.start["q"]) == {first, name("P2")}
    with pytest.raises(OptionError, match=r"subscribePattern=nothing\.like\.it: no topic has such a name"):
        SourceRun(topics, subscribePattern="nothing.like.it").reader.initialOffset()


def test_assigned_queues_only(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [2, 3, 4])
    assign = json.dumps({topic: {"broker-a": [0, 2]}})
    assert SourceRun(topics, assign=assign, startingOffsets="earliest").batch() == {0: (0, 2), 2: (0, 4)}
    with pytest.raises(OptionError, match=r"assign: there is no queue 7 of topic .*; the topic has broker-a: 0"):
        SourceRun(topics, assign=json.dumps({topic: {"broker-a": [7]}})).reader.initialOffset()


def test_several_topics_in_one_query(topics: TopicKit, name: Name) -> None:
    one, two = topics.made(name("A"), [2]), topics.made(name("B"), [0, 3])
    assert SourceRun(topics, f"{one}, {two}", startingOffsets="earliest").batch() == {0: (0, 2), 1: (0, 3)}


def test_a_queue_that_is_added_is_read_from_its_beginning(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5])
    driver = SourceRun(topics, topic)
    assert driver.batch() == {}
    before = driver.start
    topics.make(topic, 2)
    topics.fill(topic, {1: 4})
    assert driver.wait_for_batch() == {1: (0, 4)}
    assert driver.start is not None
    # The beginning is in the log, so a batch that is planned again is the same one.
    assert driver.start["from"] == {topic: {"broker-a": {"1": 0}}}
    assert before is not None
    topics.fill(topic, {1: 1})
    assert driver.wait_for_batch() == {1: (4, 5)}
    assert driver.start.get("from") is None


def test_no_batch_is_larger_than_the_limit(topics: TopicKit, name: Name) -> None:
    driver = SourceRun(topics, topics.made(name("T"), [90, 10]), startingOffsets="earliest", maxOffsetsPerTrigger=20)
    sizes = []
    seen = {0: 0, 1: 0}
    while batch := driver.batch():
        sizes.append(sum(stop - start for start, stop in batch.values()))
        for queue, (start, stop) in batch.items():
            assert start == seen[queue]
            seen[queue] = stop
    assert sizes == [20] * 5
    assert seen == {0: 90, 1: 10}


def test_spark_may_ask_for_everything_whatever_the_limit(topics: TopicKit, name: Name) -> None:
    driver = SourceRun(topics, topics.made(name("T"), [90]), startingOffsets="earliest", maxOffsetsPerTrigger=20)
    assert driver.batch(everything=True) == {0: (0, 90)}


def test_a_limit_of_bytes_is_kept_by_the_size_of_messages(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [100], size=2000)
    driver = SourceRun(topics, topic, startingOffsets="earliest", maxBytesPerTrigger=50_000)
    batch = driver.batch()
    assert batch is not None
    # 2,000 bytes of body and some 150 of the rest of a message as it is stored.
    assert 22 <= batch[0][1] <= 25


def test_waiting_for_enough_messages_but_not_for_ever(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5])
    driver = SourceRun(topics, topic, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert driver.batch() == {}  # records where the query starts
    assert driver.batch() is None
    topics.fill(topic, {0: 5})
    assert driver.wait_for_batch() == {0: (0, 10)}
    impatient = SourceRun(topics, topic, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="300ms")
    assert impatient.batch() == {}
    assert impatient.wait_for_batch() == {0: (0, 10)}


def test_available_now_ends_where_the_queues_ended_when_it_began(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [25, 0])
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10, "minOffsetsPerTrigger": 10}
    driver = SourceRun(topics, topic, **options)
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.batch() == {0: (0, 10)}
    topics.fill(topic, {0: 100, 1: 1})
    assert driver.batch() == {0: (10, 20)}
    assert driver.batch() == {0: (20, 25)}
    assert driver.batch() is None
    # The next run goes on from the checkpoint.
    again = SourceRun(topics, topic, **options)
    again.start = driver.start
    again.reader.prepareForTriggerAvailableNow()
    taken = 0
    while batch := again.batch():
        taken += sum(stop - start for start, stop in batch.values())
    assert taken == 101


def test_available_now_of_nothing(topics: TopicKit, name: Name) -> None:
    driver = SourceRun(topics, topics.made(name("T"), [3]))
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.batch() == {}
    assert driver.batch() is None


def test_the_brokers_know_how_far_a_group_is(topics: TopicKit, name: Name) -> None:
    topic, group = topics.made(name("T"), [20, 10]), name("G")
    driver = SourceRun(topics, topic, startingOffsets="earliest", maxOffsetsPerTrigger=15, consumerGroup=group)
    driver.batch()
    driver.batch()  # the first one is done when the second one is planned
    assert driver.start is not None

    _until(lambda: topics.progress(group, topic) == {0: (10, 20), 1: (5, 10)})
    driver.reader.commit(driver.start)
    _until(lambda: topics.progress(group, topic) == {0: (20, 20), 1: (10, 10)})


def test_available_now_ends_with_all_of_its_progress_told(topics: TopicKit, name: Name) -> None:
    topic, group = topics.made(name("T"), [20, 10]), name("G")
    driver = SourceRun(topics, topic, startingOffsets="earliest", consumerGroup=group)
    driver.reader.prepareForTriggerAvailableNow()
    assert driver.batch() == {0: (0, 20), 1: (0, 10)}
    assert driver.batch() is None
    assert topics.progress(group, topic) == {0: (20, 20), 1: (10, 10)}, "Spark kills the process now"


def test_a_group_that_consumes_elsewhere_keeps_its_members(topics: TopicKit, name: Name) -> None:
    topic, group = topics.made(name("T"), [3]), name("G")
    queue = MessageQueue(topic, "broker-a", 0)

    async def with_a_consumer(mq: Client) -> list[str]:
        async with mq.push_consumer(group, {topic: "*"}, lambda message: None):
            driver = SourceRun(topics, topic, startingOffsets="earliest", consumerGroup=group)
            await asyncio.to_thread(driver.batch)
            driver.reader.commit({"v": 1, "q": {topic: {"broker-a": {"0": 3}}}})
            admin = mq.admin()
            while await admin.committed_offset(group, queue) != 3:  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(0.02)
            connection = await admin.consumer_connection(group)
            return [each.client_id for each in connection.connection_set]

    members = topics.run(with_a_consumer)
    assert len(members) == 1


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, name: Name) -> None:
    with EmbeddedBroker(
        store=tmp_path, config={"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    ) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [5])
        driver = SourceRun(topics, topic, startingOffsets="earliest", requestTimeoutMs=500)
        assert driver.batch() == {0: (0, 5)}
        broker.restart()
        topics.fill(topic, {0: 2})
        assert driver.wait_for_batch() == {0: (5, 7)}


def test_a_broker_that_stays_away_ends_the_query_some_time(tmp_path: Path, name: Name) -> None:
    with EmbeddedBroker(
        store=tmp_path, config={"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    ) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [5])
        driver = SourceRun(topics, topic, startingOffsets="earliest", requestTimeoutMs=300, unreachableTimeout="500ms")
        assert driver.batch() == {0: (0, 5)}
    with pytest.raises((Unreachable, OptionError)):
        driver.wait_for_batch()


def test_nobody_at_the_address() -> None:
    kit = TopicKit("127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"nameServer=127\.0\.0\.1:1: no nameserver answers .*: check the addresses"):
        SourceRun(kit, "T").reader.initialOffset()


def test_a_topic_that_is_not_there(topics: TopicKit) -> None:
    with pytest.raises(OptionError, match=r"subscribe=Nowhere: no nameserver knows this topic; .*mqadmin updateTopic"):
        SourceRun(topics, "Nowhere").reader.initialOffset()


def test_columns_that_are_not_there(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [1])
    with pytest.raises(OptionError, match="schema=bodi: the source has the columns topic"):
        SourceRun(topics, topic, schema=StructType().add("bodi", "binary")).reader.initialOffset()
    with pytest.raises(OptionError, match="schema=body string: column body is binary"):
        SourceRun(topics, topic, schema=StructType().add("body", "string")).reader.initialOffset()


def test_a_reader_travels_to_the_executors_without_its_connections(topics: TopicKit, name: Name) -> None:
    driver = SourceRun(topics, topics.made(name("T"), [2]), startingOffsets="earliest")
    assert driver.batch() == {0: (0, 2)}
    copy = pickle.loads(pickle.dumps(driver.reader))
    assert copy._planner is None
    assert driver.start is not None
    assert len(copy.partitions({"v": 1, "init": True}, driver.start)) == 1


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.05)
