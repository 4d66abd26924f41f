"""The source against the real Apache RocketMQ: what a broker of ours does by agreement, and theirs by itself."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cometmq
from support.spark_queries import Batches, run_now, started, stream_of, table_of, wait_until
from support.spark_topics import TopicKit, rows_expected, rows_of

# The first test pays for the start of a broker, and on a fresh machine for its download.
pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.timeout(900)]

Name = Callable[[str], str]


def earliest(kit: TopicKit, topic: str, **more: Any) -> dict[str, str]:
    options = {"nameServer": kit.nameserver, "subscribe": topic, "startingOffsets": "earliest"}
    return options | {name: str(value) for name, value in more.items()}


def test_a_backlog_in_batches_and_a_restart(spark: SparkSession, real: TopicKit, name: Name, checkpoint: str) -> None:
    topic, group = real.made(name("T"), [700, 300]), name("G")
    options = earliest(real, topic, maxOffsetsPerTrigger=400, consumerGroup=group)
    first = run_now(stream_of(spark, options), checkpoint)
    assert first.sizes == [400, 400, 200]
    assert rows_of(first.rows) == rows_expected(topic, {0: range(700), 1: range(300)})
    real.fill(topic, {1: 5})
    assert rows_of(run_now(stream_of(spark, options), checkpoint).rows) == rows_expected(topic, {1: range(300, 305)})

    wait_until(lambda: real.progress(group, topic) == {0: (700, 700), 1: (305, 305)})


def test_brokers_filter_by_tag_and_by_sql(spark: SparkSession, real: TopicKit, name: Name, tmp_path: Path) -> None:
    topic = real.make(name("T"), 1)
    messages = [cometmq.Message(b"0:%d" % n, tag="ab"[n % 2], properties={"n": str(n)}) for n in range(100)]
    real.send(topic, {0: messages})
    tagged = run_now(stream_of(spark, earliest(real, topic, subExpression="b")), tmp_path / "1")
    assert rows_of(tagged.rows) == rows_expected(topic, {0: range(1, 100, 2)})
    sql = earliest(real, topic, expressionType="SQL92", subExpression="n >= 90 AND TAGS = 'a'")
    assert rows_of(run_now(stream_of(spark, sql), tmp_path / "2").rows) == rows_expected(topic, {0: range(90, 100, 2)})


def test_an_expression_that_is_none_is_told_by_load(spark: SparkSession, real: TopicKit, name: Name) -> None:
    wrong = earliest(real, real.made(name("T"), [1]), expressionType="SQL92", subExpression="n >> 90")
    for load in (stream_of, table_of):
        with pytest.raises(PySparkException, match="OptionError: subExpression=n >> 90: a broker cannot filter by it"):
            load(spark, wrong)


def test_a_running_query_sees_new_messages_and_queues(
    spark: SparkSession, real: TopicKit, name: Name, checkpoint: str
) -> None:
    topic = real.made(name("T"), [5])
    batches = Batches()
    options = earliest(real, topic, startingOffsets="latest", discoveryInterval="200ms")
    query = started(stream_of(spark, options), checkpoint, batches)
    try:
        wait_until(lambda: bool(batches.by_id), query)
        real.fill(topic, {0: 3})
        wait_until(lambda: len(batches.rows) == 3, query)
        real.make(topic, 2)
        real.fill(topic, {1: 2})
        wait_until(lambda: len(batches.rows) == 5, query)
    finally:
        query.stop()
    assert rows_of(batches.rows) == rows_expected(topic, {0: range(5, 8), 1: range(2)})


def test_ranges_and_times_of_a_batch(spark: SparkSession, real: TopicKit, name: Name) -> None:
    topic = real.made(name("T"), [100])
    everything = table_of(spark, earliest(real, topic)).collect()
    assert rows_of(everything) == rows_expected(topic, {0: range(100)})
    last = max(row.storeTimestamp for row in everything)
    middle = round(last.timestamp() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > middle)  # the broker's clock is this machine's
    real.fill(topic, {0: 10})
    later = table_of(spark, {"nameServer": real.nameserver, "subscribe": topic, "startingTimestamp": str(middle)})
    assert rows_of(later.collect()) == rows_expected(topic, {0: range(100, 110)})
    earlier = table_of(spark, earliest(real, topic, endingTimestamp=middle))
    assert rows_of(earlier.collect()) == rows_expected(topic, {0: range(100)})
    bounds = {"startingOffsets": json.dumps({topic: 40}), "endingOffsets": json.dumps({topic: 50})}
    some = table_of(spark, earliest(real, topic) | bounds)
    assert rows_of(some.collect()) == rows_expected(topic, {0: range(40, 50)})
