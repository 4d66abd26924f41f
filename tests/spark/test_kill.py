"""kill -9 of the driver in the middle of batches: nothing is lost and nothing comes twice, whatever was half done.

Each kill waits for a condition: offsets are in Spark's log and the batch is not done, or its first file is written.
"""

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.spark_driver import SINKS, Driver, Home, start_queries
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

QUEUES = 4
PATIENCE = 240.0
#: Seconds between two looks. A batch takes some tenths of a second.
LOOK = 0.005


def test_killed_drivers_lose_nothing_and_repeat_nothing(
    spark: SparkSession, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    # One sink a life: half of what a life costs is the start of its first queries. Lives of two sinks side by side.
    _kill_and_check(spark, topics, name("T"), Home(tmp_path), [[(sink,)] * 3 for sink in SINKS])


@pytest.mark.slow
def test_drivers_killed_many_times(
    spark: SparkSession, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    _kill_and_check(spark, topics, name("T"), Home(tmp_path), [[SINKS] * 25])


def _kill_and_check(
    spark: SparkSession, topics: TopicKit, topic: str, home: Home, lines: Sequence[Sequence[tuple[str, ...]]]
) -> None:
    """Lines of lives, side by side; in a line one life comes after the other. A life is its sinks."""
    each = 500 * sum(map(len, lines))
    topics.made(topic, [each] * QUEUES)
    # A life sees some batches and never the end of the topic.
    options = {
        "nameServer": topics.nameserver,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
        "minPartitions": "2",
    }
    with ThreadPoolExecutor(len(lines)) as pool:
        killed = [pool.submit(_lives, home, options, lives, seed) for seed, lives in enumerate(lines)]
    in_the_middle = [sinks for line in killed for sinks in line.result()]
    assert all(in_the_middle), in_the_middle
    assert {sink for sinks in in_the_middle for sink in sinks} == set(SINKS)

    for query in start_queries(spark, options | {"maxOffsetsPerTrigger": "100000"}, home, availableNow=True):
        assert query.awaitTermination(PATIENCE)
    expected = rows_expected(topic, {queue: range(each) for queue in range(QUEUES)})
    for sink in SINKS:
        read = spark.read.parquet(str(home.output(sink))).collect()
        assert rows_of(read) == expected, sink


def _lives(home: Home, options: Mapping[str, str], lives: Sequence[tuple[str, ...]], seed: int) -> list[list[str]]:
    """Lets drivers live and kills them; for each life the sinks that were in the middle of a batch."""
    chance = random.Random(seed)
    in_the_middle: list[list[str]] = []
    with contextlib.ExitStack() as processes:
        coming = processes.enter_context(Driver(home, options, lives[0]))
        for life, sinks in enumerate(lives):
            driver = coming
            driver.begin()
            if life + 1 < len(lives):  # starts while this one works
                coming = processes.enter_context(Driver(home, options, lives[life + 1]))
            victim = sinks[life % len(sinks)]
            _kill_in_the_middle(driver, home, victim, with_data=chance.random() < 0.5)
            in_the_middle.append([sink for sink in home.in_the_middle() if sink in sinks])
    return in_the_middle


def _kill_in_the_middle(driver: Driver, home: Home, sink: str, *, with_data: bool) -> None:
    """Kill it when a batch after the first one of this life is planned, or has begun to write, and is not done."""
    before = home.committed(sink)

    def is_in_the_middle() -> bool:
        batch = home.planned(sink)
        return batch > home.committed(sink) > before and (not with_data or home.has_data_of(sink, batch))

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert driver.is_running, f"the driver died by itself, {driver.last_words}"
        if is_in_the_middle():
            driver.stop()  # on a busy machine the batch may have ended before this line
            if is_in_the_middle():
                driver.kill()
                return
            driver.cont()
        time.sleep(LOOK)
    raise TimeoutError(f"no batch to kill in within {PATIENCE:g} s")
