"""kill -9 around the sink: of a broker in the middle of a stream, and of drivers in the middle of batches.

No row is lost whatever dies, and `without_repeats` gives each of them once.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark import without_repeats
from support.spark_driver import Home
from support.spark_kills import LOOK, PATIENCE, options_of
from support.spark_queries import table_of, wait_until
from support.spark_sink_driver import COPY, SinkDriver, start_copy
from support.spark_topics import TopicKit, body_of
from support.standalone import StandaloneProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Name = Callable[[str], str]


def check(spark: SparkSession, target: TopicKit, topic: str, sent: list[bytes]) -> int:
    """Every row is there, and once without repeats; how many repeats there were."""
    table = table_of(spark, {"nameServer": target.nameserver, "subscribe": topic}).cache()
    found = Counter(bytes(row.body) for row in table.collect())
    assert found.keys() == set(sent)
    assert Counter(bytes(row.body) for row in without_repeats(table).collect()) == Counter(sent)
    return found.total() - len(sent)


def test_a_broker_that_dies_under_a_stream_loses_nothing(
    spark: SparkSession, topics: TopicKit, name: Name, tmp_path: Path
) -> None:
    source, batch, each = name("S"), 100, 300
    topics.made(source, [each] * 2)
    with StandaloneProcess(tmp_path) as broker:
        target = TopicKit(broker.nameserver)
        target.make("T", 2)
        options = options_of(topics, source) | {"maxOffsetsPerTrigger": str(batch)}
        # One row a request: many are under way when the broker dies.
        sink = {"nameServer": broker.nameserver, "topic": "T", "sendBytes": "1", "sendRetries": "20"}
        query = start_copy(spark, options, Home(tmp_path), sink, availableNow=True)
        wait_until(lambda: sum(target.ends("T").values()) > batch, query)
        broker.kill()
        assert query.isActive
        broker.boot()
        assert query.awaitTermination(PATIENCE)
        check(spark, target, "T", [body_of(queue, number) for queue in range(2) for number in range(each)])


@pytest.mark.slow
def test_drivers_that_die_in_the_middle_of_a_batch_lose_nothing(
    spark: SparkSession, topics: TopicKit, name: Name, tmp_path: Path
) -> None:
    source, target, home, batch, each = name("S"), topics.make(name("T"), 2), Home(tmp_path), 200, 4000
    topics.made(source, [each] * 2)
    options = options_of(topics, source) | {"maxOffsetsPerTrigger": str(batch)}
    for _ in range(3):
        with SinkDriver(home, options, target) as driver:
            before, sent = home.committed(COPY), sum(topics.ends(target).values())

            def has_sent_of_a_batch(before: int = before, sent: int = sent) -> bool:
                done = home.committed(COPY)
                more = sum(topics.ends(target).values()) - sent
                return done > before and home.planned(COPY) > done and more > (done - before) * batch

            driver.begin()
            _kill_when(driver, home, has_sent_of_a_batch)
    sink = {"nameServer": topics.nameserver, "topic": target}
    last = start_copy(spark, options | {"maxOffsetsPerTrigger": "100000"}, home, sink, availableNow=True)
    assert last.awaitTermination(PATIENCE)
    repeats = check(spark, topics, target, [body_of(queue, n) for queue in range(2) for n in range(each)])
    assert repeats > 0


def _kill_when(driver: SinkDriver, home: Home, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert driver.is_running, f"the driver died by itself, {driver.last_words}"
        if home.planned(COPY) > home.committed(COPY):
            driver.stop()  # so that the batch does not end while it is looked at
            if condition():
                driver.kill()
                return
            driver.cont()
        time.sleep(LOOK)
    raise TimeoutError(f"no batch to kill in within {PATIENCE:g} s")
