"""Batch reads on a real Spark: from where to where, and that filters of the query spare work and change no result."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import cometmq
from cometmq.testing import EmbeddedBroker
from support.spark_queries import table_of
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = pytest.mark.spark

Name = Callable[[str], str]

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def of(kit: TopicKit, topic: str, **more: Any) -> dict[str, str]:
    return {"nameServer": kit.nameserver, "subscribe": topic} | {name: str(value) for name, value in more.items()}


def test_everything_and_ranges_of_queues(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [10, 20, 0])
    assert rows_of(table_of(spark, of(topics, topic)).collect()) == rows_expected(topic, {0: range(10), 1: range(20)})
    ranges = {
        "startingOffsets": json.dumps({topic: {"broker-a": {"0": 4, "1": -2, "2": -2}}}),
        "endingOffsets": json.dumps({topic: {"broker-a": {"0": 6, "1": 5, "2": -1}}}),
    }
    some = table_of(spark, of(topics, topic, **ranges))
    assert rows_of(some.collect()) == rows_expected(topic, {0: range(4, 6), 1: range(5)})
    assert table_of(spark, of(topics, topics.made(name("E"), [0]))).collect() == []


def test_a_range_of_time(spark: SparkSession, name: Name) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [3, 1])
        marks = []
        for _ in range(2):
            broker.advance(timedelta(hours=1))
            marks.append(round(time.time() * 1000) + 1_800_000 + len(marks) * 3_600_000)
            topics.fill(topic, {0: 3, 1: 1})
        middle = table_of(spark, of(topics, topic, startingTimestamp=marks[0], endingTimestamp=marks[1]))
        assert rows_of(middle.collect()) == rows_expected(topic, {0: range(3, 6), 1: range(1, 2)})
        by_queue = {
            "startingOffsetsByTimestamp": json.dumps({topic: {"0": marks[1], "1": 0}}),
            "endingOffsetsByTimestamp": json.dumps({topic: {"0": marks[1] + 10**9, "1": marks[0]}}),
        }
        assert rows_of(table_of(spark, of(topics, topic, **by_queue)).collect()) == rows_expected(
            topic, {0: range(6, 9), 1: range(1)}
        )


def test_mistakes_are_told_when_the_query_is_planned(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5])
    for options, schema, message in (
        (of(topics, topic, startingOffsets="latest"), None, "startingOffsets=latest: a batch would be empty"),
        (of(topics, topic, endingOffsets=json.dumps({topic: 6})), None, "ends at 5, 6 is beyond that"),
        (of(topics, topic), "queueId long", "schema=queueId bigint: column queueId is int; cast it in the query"),
        (of(topics, topic, subscribePattern="x"), "queueId int", "only one of subscribe, subscribePattern"),
    ):
        with pytest.raises(PySparkException) as raised:
            table_of(spark, options, schema).collect()
        assert message in str(raised.value)


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.unset(PUSH_DOWN)


def _tasks_and_rows(frame: DataFrame) -> tuple[int, list[tuple[str, int, int, bytes]]]:
    return frame.rdd.getNumPartitions(), rows_of(frame.collect())


def test_filters_change_nothing_with_the_push_down_off(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [10, 20])
    frame = table_of(spark, of(topics, topic)).where("queueId = 1 and queueOffset >= 15")
    assert rows_of(frame.collect()) == rows_expected(topic, {1: range(15, 20)})


@pytest.mark.usefixtures("push_down")
@pytest.mark.slow
def test_filters_spare_queues_and_offsets(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    one, two = topics.made(name("A"), [10, 20]), topics.made(name("B"), [10])
    # One message a task: the number of tasks tells what is read.
    one_by_one = {"maxRecordsPerPartition": 1, "minRecordsPerPartition": 1, "filterPushDown": "true"}
    for condition, tasks, expected in (
        (f.col("topic") == two, 10, rows_expected(two, {0: range(10)})),
        ((f.col("queueId") == 1) & (f.col("queueOffset") >= 15), 5, rows_expected(one, {1: range(15, 20)})),
        (
            (f.col("topic") == one) & f.col("queueOffset").between(3, 4),
            4,
            rows_expected(one, {0: [3, 4], 1: [3, 4]}),
        ),
        ((f.col("queueOffset") == 19) & f.col("queueId").isin(1, 5), 1, rows_expected(one, {1: [19]})),
        ((f.col("queueOffset") == 19) | (f.col("queueId") == 9), 40, rows_expected(one, {1: [19]})),
        (f.col("brokerName") == "broker-z", 1, []),
    ):
        # Loaded anew for each query, as the option demands.
        planned, rows = _tasks_and_rows(table_of(spark, of(topics, f"{one},{two}", **one_by_one)).where(condition))
        assert (planned, rows) == (tasks, expected), str(condition)


@pytest.mark.usefixtures("push_down")
def test_filters_narrow_nothing_unless_asked_for(spark: SparkSession, topics: TopicKit, name: Name) -> None:
    # Spark 4.3 reuses what it planned for a filtered query when the same DataFrame is read without a filter.
    table = table_of(spark, of(topics, topics.made(name("T"), [10, 20])))
    assert table.where("queueId = 1 and queueOffset >= 15").count() == 5
    assert table.count() == 30


@pytest.mark.usefixtures("push_down")
@pytest.mark.slow
def test_filters_by_time_and_tag(spark: SparkSession, name: Name) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.make(name("T"), 1)
        topics.send(topic, {0: [cometmq.Message(b"0:%d" % n, tag="red" if n % 2 else "blue") for n in range(6)]})
        broker.advance(timedelta(hours=1))
        middle = datetime.now(UTC) + timedelta(minutes=30)
        topics.send(topic, {0: [cometmq.Message(b"0:%d" % n, tag="red" if n % 2 else None) for n in range(6, 10)]})
        options = of(topics, topic, maxRecordsPerPartition=1, minRecordsPerPartition=1, filterPushDown="true")
        at = f.lit(middle)
        later = table_of(spark, options).where(f.col("storeTimestamp") > at)
        assert _tasks_and_rows(later) == (4, rows_expected(topic, {0: range(6, 10)}))
        earlier = table_of(spark, options).where(f.col("storeTimestamp") < at)
        assert _tasks_and_rows(earlier)[1] == rows_expected(topic, {0: range(6)})
        assert earlier.rdd.getNumPartitions() < 10
        for condition, offsets in (
            ("tags = 'red'", range(1, 10, 2)),
            ("tags in ('blue', 'none')", range(0, 6, 2)),
            ("tags is null", [6, 8]),
        ):
            rows = table_of(spark, options).where(condition).collect()
            assert rows_of(rows) == rows_expected(topic, {0: offsets}), condition
