"""Streams on a real Spark: what arrives, in which batches, after restarts, and while the cluster changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import cometmq
from cometmq.client import Client
from cometmq.client.admin import NoProgress
from cometmq.spark.offsets import lag
from cometmq.testing import EmbeddedBroker
from support.spark_queries import Batches, run_now, started, stream_of, wait_until
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


def earliest(kit: TopicKit, topic: str, **more: Any) -> dict[str, str]:
    options = {"nameServer": kit.nameserver, "subscribe": topic, "startingOffsets": "earliest"}
    return options | {name: str(value) for name, value in more.items()}


def test_a_topic_is_read_once_in_batches_of_the_limit_and_a_restart_goes_on(
    spark: SparkSession, topics: TopicKit, name: Name, checkpoint: str
) -> None:
    topic = topics.made(name("T"), [60, 40])
    options = earliest(topics, topic, maxOffsetsPerTrigger=40, consumerGroup=name("G"))
    first = run_now(stream_of(spark, options), checkpoint)
    assert first.sizes == [40, 40, 20]
    assert rows_of(first.rows) == rows_expected(topic, {0: range(60), 1: range(40)})
    topics.fill(topic, {0: 5})
    second = run_now(stream_of(spark, options), checkpoint)
    assert list(second.by_id) == [3]
    assert rows_of(second.rows) == rows_expected(topic, {0: range(60, 65)})

    async def committed(mq: Client) -> dict[int, int]:
        try:
            stats = await mq.admin().consume_stats(name("G"), topic)
        except NoProgress:
            return {}  # not told yet
        return {queue.queue_id: each.consumer_offset for queue, each in stats.offset_table.items()}

    # The end of the last batch too, although Spark never commits it to the source.
    wait_until(lambda: topics.run(committed) == {0: 65, 1: 40})


def test_columns_are_what_was_sent(spark: SparkSession, topics: TopicKit, name: Name, checkpoint: str) -> None:
    topic = topics.make(name("T"), 1)
    messages = [
        cometmq.Message(b"a", tag="red", keys="k1", properties={"x": "1"}),
        cometmq.Message(b"b", tag="blue"),
        cometmq.Message(b"c" * 5000, tag="red", keys=["k2", "k3"]),
    ]
    topics.send(topic, {0: messages})
    frame = stream_of(spark, earliest(topics, topic, subExpression="red"))
    assert frame.columns[:8] == ["topic", "brokerName", "queueId", "queueOffset", "body", "tags", "keys", "properties"]
    rows = run_now(frame, checkpoint).rows
    assert [(row.queueOffset, bytes(row.body)[:1], row.tags, row.keys) for row in rows] == [
        (0, b"a", "red", "k1"),
        (2, b"c", "red", "k2 k3"),
    ]
    assert rows[0].properties["x"] == "1"
    assert rows[0].brokerName == "broker-a"
    assert rows[0].storeTimestamp >= rows[0].bornTimestamp


def test_a_schema_chooses_the_columns(spark: SparkSession, topics: TopicKit, name: Name, tmp_path: Path) -> None:
    topic = topics.made(name("T"), [3])
    chosen = stream_of(spark, earliest(topics, topic), "queueOffset long, body binary, properties string")
    rows = run_now(chosen, tmp_path / "1").rows
    assert [(row.queueOffset, bytes(row.body)) for row in rows] == [(0, b"0:0"), (1, b"0:1"), (2, b"0:2")]
    assert "UNIQ_KEY" in json.loads(rows[0].properties)
    assert "properties" not in stream_of(spark, earliest(topics, topic, includeProperties="false")).columns
    as_json = stream_of(spark, earliest(topics, topic, propertiesAsJson="true"))
    assert dict(as_json.dtypes)["properties"] == "string"


def test_one_queue_in_several_tasks_and_many_in_one(
    spark: SparkSession, topics: TopicKit, name: Name, tmp_path: Path
) -> None:
    topic = topics.made(name("T"), [50, 1, 2, 3])
    split = stream_of(spark, earliest(topics, topic, maxRecordsPerPartition=10, minRecordsPerPartition=1))
    tasks: list[int] = []
    query = split.writeStream.foreachBatch(lambda batch, _: tasks.append(batch.rdd.getNumPartitions()))
    query.option("checkpointLocation", str(tmp_path / "1")).trigger(availableNow=True).start().awaitTermination()
    assert tasks == [8]
    batches = run_now(split, tmp_path / "2")
    assert rows_of(batches.rows) == rows_expected(topic, {0: range(50), 1: range(1), 2: range(2), 3: range(3)})


def test_a_running_query_meets_new_messages_new_queues_and_a_restarted_broker(
    spark: SparkSession, name: Name, tmp_path: Path
) -> None:
    config = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    with EmbeddedBroker(store=tmp_path / "store", config=config) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [5])
        options = {
            "nameServer": broker.nameserver,
            "subscribe": topic,
            "startingOffsets": "latest",
            "discoveryInterval": "200ms",
            "requestTimeoutMs": "500",
        }
        batches = Batches()
        query = started(stream_of(spark, options), tmp_path / "checkpoint", batches)
        try:
            wait_until(lambda: bool(batches.by_id), query)  # the start is recorded
            topics.fill(topic, {0: 5})
            wait_until(lambda: len(batches.rows) == 5, query)
            topics.make(topic, 3)
            topics.fill(topic, {2: 4})
            wait_until(lambda: len(batches.rows) == 9, query)
            broker.restart()
            topics.fill(topic, {0: 1, 1: 2})
            wait_until(lambda: len(batches.rows) == 12, query)
            wait_until(lambda: _lag(query) == 0, query)
        finally:
            query.stop()
        assert rows_of(batches.rows) == rows_expected(topic, {0: range(5, 11), 1: range(2), 2: range(4)})


def _lag(query: Any) -> int | None:
    """Messages that the last progress says are left, as a user would count them."""
    progress = query.lastProgress
    if progress is None or not progress.sources[0].latestOffset:
        return None
    source = progress.sources[0]
    behind = lag(json.loads(source.endOffset), json.loads(source.latestOffset))
    return sum(behind.values()) if len(behind) == 3 else None


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_is_trimmed_under_the_query(spark: SparkSession, name: Name, tmp_path: Path, fails: bool) -> None:
    config = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": 1 << 16,
        "fileReservedTime": 0,
        "deleteCommitLogFilesInterval": 0,
    }
    with EmbeddedBroker(store=tmp_path / "store", config=config) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [20], size=1000)
        options = earliest(topics, topic, failOnDataLoss=str(fails).lower(), requestTimeoutMs=1000, pullRetries=1)
        assert len(run_now(stream_of(spark, options), tmp_path / "checkpoint").rows) == 20
        for _ in range(14):  # a batch of messages has to fit into a file
            topics.fill(topic, {0: 20}, size=1000)
        first = _trimmed(broker, topics, topic)
        assert first > 20
        if fails:
            with pytest.raises(StreamingQueryException, match=r"offset 20 is gone") as raised:
                run_now(stream_of(spark, options), tmp_path / "checkpoint")
            assert "set failOnDataLoss to false" in str(raised.value)
        else:
            rest = run_now(stream_of(spark, options), tmp_path / "checkpoint")
            assert rows_of(rest.rows) == rows_expected(topic, {0: range(first, 300)})


def _trimmed(broker: EmbeddedBroker, topics: TopicKit, topic: str) -> int:
    """Have the broker delete its old files; the first offset that is left."""

    async def first_offset(mq: Client) -> int:
        admin = mq.admin()
        await admin.delete_expired_log_files(broker.address)
        [queue] = await admin.read_queues_of(topic)
        return await admin.min_offset(queue)

    wait_until(lambda: topics.run(first_offset) > 20)
    # Files go one by one; wait until none does any more.
    while (before := topics.run(first_offset)) != topics.run(first_offset):
        assert before < 300
    return before


def test_mistakes_are_told_by_load(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    good = earliest(topics, topics.made(name("T"), [1]))
    for changes, message in (
        ({"maxOffsetsPerTriger": "5"}, "there is no such option; did you mean maxOffsetsPerTrigger?"),
        ({"startingOffsets": "{oops"}, "startingOffsets={oops: it is not JSON"),
        ({"subscribe": "Nowhere"}, "subscribe=Nowhere: no nameserver knows this topic"),
        ({"nameServer": "127.0.0.1:1"}, "nameServer=127.0.0.1:1: no nameserver answers"),
    ):
        with pytest.raises(PySparkException) as raised:
            stream_of(spark, good | changes)
        assert message in str(raised.value)
        # Only what the user needs: no chain of causes that ends in sockets.
        assert "During handling" not in str(raised.value)
        assert "direct cause" not in str(raised.value)


def test_wrong_columns_and_options_of_batches_are_told_by_start(
    spark: SparkSession, topics: TopicKit, name: Name, checkpoint: str
) -> None:
    good = earliest(topics, topics.made(name("T"), [1]))
    for options, schema, message in (
        (good, "body string", "schema=body string: column body is binary; cast it in the query"),
        (good, "payload binary", "schema=payload: the source has the columns topic, brokerName"),
        (good | {"endingOffsets": "latest"}, None, "endingOffsets: only spark.read has it"),
        (good | {"nope": "1"}, "body binary", "nope: there is no such option"),
    ):
        with pytest.raises(StreamingQueryException) as raised:
            run_now(stream_of(spark, options, schema), checkpoint)
        assert message in str(raised.value)
        assert "UnboundLocalError" not in str(raised.value)
