"""A22, the consumer's half: one that is slow holds at most 1,000 messages, 100 MiB and a span of 2,000 of a queue.

The limits are RocketMQ's; what a pull brings when the limit is not reached yet comes on top of it, as there.
"""

import asyncio
from collections.abc import Iterator

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer.options import PushOptions
from cometmq.client.consumer.push import PushConsumer
from cometmq.client.message import ReceivedMessage
from support.standalone import StandaloneProcess, make_topic
from support.wire import until

BATCH = PushOptions().pull_batch_size
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    files = {"mappedFileSizeCommitLog": str(64 * MIB)}
    with StandaloneProcess(tmp_path_factory.mktemp("a22"), **files) as running:
        yield running


async def fill_queue(mq: Client, topic: str, count: int, body: bytes) -> None:
    (queue,) = await make_topic(mq, topic, 1)
    async with mq.producer("PG", send_timeout=30) as producer:
        await producer.send_batch(topic, [body] * count, queue=queue)


class Slow:
    """A handler that stays with its first messages until it may go on; it knows how much was held meanwhile."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.done = 0

    async def __call__(self, message: ReceivedMessage) -> None:
        await self.go.wait()
        self.done += 1


def window(consumer: PushConsumer, topic: str) -> tuple[int, int, int]:
    """Messages, bytes and span that are held of the topic's one queue."""
    held = [each.window for queue, each in consumer.assignments.items() if queue.topic == topic]
    return (len(held[0]), held[0].size, held[0].span) if held else (0, 0, 0)


async def stands(consumer: PushConsumer, topic: str) -> None:
    """Wait until the pull loop waits for room: from then on nothing more is taken."""

    def is_full() -> bool:
        held = [each for queue, each in consumer.assignments.items() if queue.topic == topic]
        return bool(held) and not held[0]._has_room()

    await until(is_full)


@pytest.mark.parametrize(
    ("count", "size", "options", "most"),
    [
        pytest.param(1500, 10, {}, (1000 + BATCH, 100 * MIB, 2000), id="messages"),
        pytest.param(60, 100 * 1024, {"max_cached_bytes": 2 * MIB}, (1000, 2 * MIB + 3.3 * MIB, 2000), id="bytes"),
    ],
)
async def test_a_slow_consumer_stays_within_its_limits(
    broker: StandaloneProcess, count: int, size: int, options: dict[str, int], most: tuple[int, int, int]
) -> None:
    topic = f"TopicA22_{count}"
    slow = Slow()
    async with connect(broker.nameserver) as mq:
        await fill_queue(mq, topic, count, b"x" * size)
        async with mq.push_consumer("CG", {topic: "*"}, slow, start_from="first", **options) as consumer:
            await stands(consumer, topic)
            held = window(consumer, topic)
            assert all(have <= limit for have, limit in zip(held, most, strict=True)), held
            assert held[0] < count, "not everything was taken"
            slow.go.set()
            await until(lambda: slow.done == count)


async def test_the_queues_of_a_topic_share_its_limit(broker: StandaloneProcess) -> None:
    topic, slow = "TopicA22topic", Slow()
    async with connect(broker.nameserver) as mq:
        queues = await make_topic(mq, topic, 4)
        async with mq.producer("PG", send_timeout=30) as producer:
            for queue in queues:
                await producer.send_batch(topic, [b"x"] * 100, queue=queue)
        options = {"start_from": "first", "max_cached_of_topic": 80, "pull_batch_size": 10, "rebalance_interval": 0.1}
        async with mq.push_consumer("CG_topic", {topic: "*"}, slow, **options) as consumer:
            await until(lambda: all(queue in consumer.assignments for queue in queues))
            mine = [consumer.assignments[queue] for queue in queues]
            await until(lambda: all(not each._has_room() for each in mine))
            # What a first queue took before the others came is more than its part.
            assert sorted(len(each.window) for each in mine)[0] <= 20 + 10
            assert sum(len(each.window) for each in mine) < 4 * 100
            slow.go.set()
            await until(lambda: slow.done == 400)


async def test_one_message_that_hangs_stops_its_queue_at_a_span_of_2000(broker: StandaloneProcess) -> None:
    topic, total = "TopicA22span", 4000
    go, seen = asyncio.Event(), set[int]()

    async def handle(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            await go.wait()
        seen.add(message.queue_offset)

    async with connect(broker.nameserver) as mq:
        await fill_queue(mq, topic, total, b"x")
        async with mq.push_consumer("CG_span", {topic: "*"}, handle, start_from="first") as consumer:
            await stands(consumer, topic)
            messages, _, span = window(consumer, topic)
            assert messages <= 1000 + BATCH
            assert 2000 < span <= 2000 + BATCH
            assert max(seen) < total - 1
            go.set()
            await until(lambda: len(seen) == total)
