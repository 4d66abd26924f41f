"""Priorities: topics by level, as RocketMQ documents them. The higher goes first, the lower is not starved."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from cometmq.client import Client
from cometmq.client.consumer.line import LOWER_TURN, Line
from cometmq.client.consumer.push import PushConsumer
from cometmq.client.consumer.subscriptions import Priorities
from cometmq.client.errors import RetryLater
from cometmq.client.message import ReceivedMessage
from support.wire import until

Name = Callable[[str], str]


class Queue:
    """A source of a line."""

    is_ordered = False
    in_line = False

    def __init__(self, level: int, count: int) -> None:
        self.level = level
        self.ready: deque[Any] = deque([level] * count)


def taken(line: Line, turns: int) -> list[int]:
    found = []
    for _ in range(turns):
        taking = line.take(1)
        assert taking is not None
        found += taking[1]
    return found


def line_of(*counts: int) -> Line:
    line = Line(len(counts))
    for level, count in enumerate(counts):
        line.enter(Queue(level, count))
    return line


def test_of_eight_turns_one_belongs_to_the_lower_levels_in_turn() -> None:
    levels = taken(line_of(1000, 1000, 1000), 800)
    assert Counter(levels) == {0: 700, 1: 50, 2: 50}
    for lower in (1, 2):
        assert max(b - a for a, b in pairwise(places_of(levels, lower))) <= 2 * LOWER_TURN


def places_of(levels: list[int], wanted: int) -> list[int]:
    return [place for place, level in enumerate(levels) if level == wanted]


def test_a_level_alone_has_every_turn() -> None:
    assert taken(line_of(0, 0, 5), 5) == [2] * 5
    assert taken(line_of(0, 16, 2), 18).count(1) == 16


def test_the_next_level_takes_over_when_the_first_is_empty() -> None:
    levels = taken(line_of(14, 14, 14), 42)
    assert Counter(levels) == {0: 14, 1: 14, 2: 14}
    last = {level: max(places_of(levels, level)) for level in range(3)}
    assert last[0] < last[1] < last[2]


# With a broker


class Handler:
    """Notes what it gets; the first call waits until it is let go."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        await self.gate.wait()
        self.got.append(message.topic)
        # A handler that never waits would keep the pulls of the others from running.
        await asyncio.sleep(0)


async def fill(mq: Client, topic: str, count: int) -> None:
    async with mq.producer(f"PG_{topic}"[:100]) as producer:
        await producer.send_batch(topic, [b"x"] * count)


def waiting(consumer: PushConsumer, topic: str) -> int:
    return sum(len(each.ready) for queue, each in consumer.assignments.items() if queue.topic == topic)


async def test_a_higher_topic_is_preferred_while_it_has_messages_and_the_lower_is_not_starved(
    mq: Client, name: Name
) -> None:
    high, normal, low = name("High"), name("Normal"), name("Low")
    for topic in (high, normal, low):
        await fill(mq, topic, 300)
    handle = Handler()
    wanted = Priorities({high: "*", normal: "*", low: "*"})
    async with mq.push_consumer(name("CG"), wanted, handle, start_from="first", concurrency=1) as consumer:
        # One message is taken, before the others have come.
        await until(lambda: sum(waiting(consumer, topic) for topic in wanted) == 899)
        handle.gate.set()
        await until(lambda: len(handle.got) == 900)
    got = handle.got
    counts = Counter(got[:240])
    assert counts[high] >= 205
    assert counts[normal] >= 14
    assert counts[low] >= 14
    ends = {topic: max(place for place, each in enumerate(got) if each == topic) for topic in wanted}
    assert ends[high] < ends[normal] < ends[low]
    assert Counter(got) == {high: 300, normal: 300, low: 300}


async def test_what_is_urgent_overtakes_a_backlog(mq: Client, name: Name) -> None:
    high, low = name("High"), name("Low")
    await fill(mq, low, 500)
    handle, wanted = Handler(), Priorities({high: "*", low: "*"})
    options: dict[str, Any] = {"start_from": "first", "concurrency": 1, "rebalance_interval": 0.2}
    async with mq.push_consumer(name("CG"), wanted, handle, **options) as consumer:
        await until(lambda: waiting(consumer, low) == 499)
        await fill(mq, high, 5)
        await until(lambda: waiting(consumer, high) == 5)
        handle.gate.set()
        await until(lambda: len(handle.got) == 505)
    assert handle.got[0] == low, "it was in hand already"
    assert handle.got[1 : 1 + LOWER_TURN].count(high) == 5


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_failed_message_of_a_level_comes_again(mq: Client, name: Name, ordered: bool) -> None:
    high, low = name("High"), name("Low")
    await fill(mq, high, 1)
    await fill(mq, low, 3)
    got: list[tuple[str, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append((message.topic, message.reconsume_times))
        if message.topic == high and not message.reconsume_times:
            raise RetryLater(delay_level=1)

    options: dict[str, Any] = {"start_from": "first", "ordered": ordered, "suspend": 0.01, "rebalance_interval": 0.2}
    async with mq.push_consumer(name("CG"), Priorities({high: "*", low: "*"}), handle, **options):
        await until(lambda: (high, 1) in got and got.count((low, 0)) == 3)


async def test_a_plain_table_has_no_levels(mq: Client, name: Name) -> None:
    consumer = mq.push_consumer(name("CG"), {name("A"): "*", name("B"): "*"})
    assert {consumer.level_of(name("A")), consumer.level_of(name("B"))} == {0}
    levels = mq.push_consumer(name("CG"), Priorities({name("A"): "*", name("B"): "*"}))
    assert [levels.level_of(name("A")), levels.level_of(name("B")), levels.level_of(levels.retry_topic)] == [0, 1, 1]
