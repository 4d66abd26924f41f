"""Lives of drivers that end by kill -9 in the middle of a batch.

Each kill waits for a condition: offsets are in Spark's log and the batch is not done, or its first file is written.
"""

import contextlib
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from support.spark_driver import Driver, Home
from support.spark_topics import TopicKit

QUEUES = 4
#: Messages of each queue for a sink of a life. A life sees some batches and never the end of the topic.
EACH = 500
PATIENCE = 240.0
#: Seconds between two looks. A batch takes some tenths of a second.
LOOK = 0.005

#: Lives one after the other; a life is the sinks of its queries.
Line = Sequence[tuple[str, ...]]


class Killed(NamedTuple):
    """Drivers that are being killed, and what they read."""

    home: Home
    topic: str
    #: Messages in each queue of the topic.
    each: int
    #: What `kill_drivers` returns for each line.
    lines: "list[Future[list[list[str]]]]"


def filled_topic(topics: TopicKit, topic: str, lines: Sequence[Line]) -> int:
    """A topic with enough for all of these lives; the number of messages in each queue."""
    each = EACH * sum(len(sinks) for line in lines for sinks in line)
    topics.made(topic, [each] * QUEUES)
    return each


def options_of(topics: TopicKit, topic: str) -> dict[str, str]:
    """A query with small batches."""
    return {
        "nameServer": topics.nameserver,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "200",
        "minPartitions": "2",
    }


def kill_drivers(
    home: Home, options: Mapping[str, str], line: Line, seed: int, is_over: threading.Event
) -> list[list[str]]:
    """Lets drivers live and kills them; for each life the sinks that were in the middle of a batch."""
    chance = random.Random(seed)
    in_the_middle: list[list[str]] = []
    with contextlib.ExitStack() as processes:
        coming = processes.enter_context(Driver(home, options, line[0]))
        for life, sinks in enumerate(line):
            driver = coming
            driver.begin()
            if life + 1 < len(line):  # starts while this one works
                coming = processes.enter_context(Driver(home, options, line[life + 1]))
            victim = sinks[life % len(sinks)]
            _kill_in_the_middle(driver, home, victim, is_over, with_data=chance.random() < 0.5)
            in_the_middle.append([sink for sink in home.in_the_middle() if sink in sinks])
    return in_the_middle


def _kill_in_the_middle(driver: Driver, home: Home, sink: str, is_over: threading.Event, *, with_data: bool) -> None:
    """Kill it when a batch after the first one of this life is planned, or has begun to write, and is not done."""
    before = home.committed(sink)

    def is_in_the_middle() -> bool:
        batch = home.planned(sink)
        return batch > home.committed(sink) > before and (not with_data or home.has_data_of(sink, batch))

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not is_over.is_set():
        assert driver.is_running, f"the driver died by itself, {driver.last_words}"
        if is_in_the_middle():
            driver.stop()  # on a busy machine the batch may have ended before this line
            if is_in_the_middle():
                driver.kill()
                return
            driver.cont()
        time.sleep(LOOK)
    raise TimeoutError(f"no batch to kill in within {PATIENCE:g} s")
