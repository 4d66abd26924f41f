"""kill -9 of the driver in the middle of batches: nothing is lost and nothing comes twice, whatever was half done."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.spark_driver import SINKS, Home, start_queries
from support.spark_kills import PATIENCE, QUEUES, Killed, filled_topic, kill_drivers, options_of
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def test_killed_drivers_lose_nothing_and_repeat_nothing(spark: SparkSession, topics: TopicKit, killed: Killed) -> None:
    in_the_middle = [sinks for line in killed.lines for sinks in line.result()]
    assert len(in_the_middle) == 6
    _check(spark, topics, killed.topic, killed.each, killed.home, in_the_middle)


@pytest.mark.slow
def test_drivers_killed_many_times(
    spark: SparkSession, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    topic, home, line = name("T"), Home(tmp_path), [SINKS] * 25
    each = filled_topic(topics, topic, [line])
    in_the_middle = kill_drivers(home, options_of(topics, topic), line, 0, threading.Event())
    _check(spark, topics, topic, each, home, in_the_middle)


def _check(
    spark: SparkSession, topics: TopicKit, topic: str, each: int, home: Home, in_the_middle: list[list[str]]
) -> None:
    """Every life ended in the middle; a last one reads to the end, and every message is there once."""
    assert all(in_the_middle), in_the_middle
    assert {sink for sinks in in_the_middle for sink in sinks} == set(SINKS)
    options = options_of(topics, topic) | {"maxOffsetsPerTrigger": "100000"}
    for query in start_queries(spark, options, home, availableNow=True):
        assert query.awaitTermination(PATIENCE)
    expected = rows_expected(topic, {queue: range(each) for queue in range(QUEUES)})
    for sink in SINKS:
        read = spark.read.parquet(str(home.output(sink))).collect()
        assert rows_of(read) == expected, sink
