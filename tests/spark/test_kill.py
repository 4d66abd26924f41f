"""kill -9 of the driver in the middle of batches: nothing is lost and nothing comes twice, whatever was half done.

Each kill waits for a condition: offsets are in Spark's log and the batch is not done, or its first file is written.
"""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.spark_driver import SINKS, Driver, Home, start_queries
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

QUEUES = 4
PATIENCE = 120.0


def test_killed_drivers_lose_nothing_and_repeat_nothing(
    spark: SparkSession, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    # One sink a life: half of what a life costs is the start of its first queries.
    lives = [(SINKS[life % 2],) for life in range(6)]
    _kill_and_check(spark, topics, name("T"), Home(tmp_path), lives, seed=1)


@pytest.mark.slow
def test_drivers_killed_many_times(
    spark: SparkSession, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    _kill_and_check(spark, topics, name("T"), Home(tmp_path), [SINKS] * 25, seed=2)


def _kill_and_check(
    spark: SparkSession, topics: TopicKit, topic: str, home: Home, lives: Sequence[tuple[str, ...]], *, seed: int
) -> None:
    chance = random.Random(seed)
    each = 500 * len(lives)
    topics.made(topic, [each] * QUEUES)
    # A life sees some batches and never the end of the topic.
    options = {
        "nameServer": topics.nameserver,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
        "minPartitions": "2",
    }
    in_the_middle: list[list[str]] = []
    with contextlib.ExitStack() as processes:
        coming = processes.enter_context(Driver(home, options, lives[0]))
        for life, sinks in enumerate(lives):
            driver = coming
            driver.begin()
            if life + 1 < len(lives):  # starts while this one works
                coming = processes.enter_context(Driver(home, options, lives[life + 1]))
            victim = sinks[life % len(sinks)]
            _wait_for_the_middle(driver, home, victim, with_data=chance.random() < 0.5)
            driver.kill()
            in_the_middle.append([sink for sink in home.in_the_middle() if sink in sinks])
    assert all(in_the_middle), in_the_middle
    assert {sink for sinks in in_the_middle for sink in sinks} == set(SINKS)

    for query in start_queries(spark, options | {"maxOffsetsPerTrigger": "100000"}, home, availableNow=True):
        assert query.awaitTermination(PATIENCE)
    expected = rows_expected(topic, {queue: range(each) for queue in range(QUEUES)})
    for sink in SINKS:
        read = spark.read.parquet(str(home.output(sink))).collect()
        assert rows_of(read) == expected, sink


def _wait_for_the_middle(driver: Driver, home: Home, sink: str, *, with_data: bool) -> None:
    """Wait until a batch after the first one of this life is planned, or has begun to write, and is not done."""
    before = home.committed(sink)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert driver.is_running, "the driver died by itself"
        batch = home.planned(sink)
        done = home.committed(sink)
        if batch > done > before and (not with_data or home.has_data_of(sink, batch)):
            return
        time.sleep(0.001)
    raise TimeoutError(f"no batch to kill in within {PATIENCE:g} s")
