"""Topics for the tests of the Spark source: made, filled queue by queue, and asked for, from tests without a loop.

Bodies say where a message is: `body_of(queue, number)`. So whatever a query read can be held against what was sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import cometmq
from cometmq.client import Client
from cometmq.client.admin import NoProgress
from cometmq.client.errors import TopicNotFound
from cometmq.client.queues import MessageQueue

_T = TypeVar("_T")

#: Messages of one request.
CHUNK = 500


def body_of(queue_id: int, number: int, size: int = 0) -> bytes:
    """The body of the message at an offset of a queue, at least `size` bytes long."""
    return f"{queue_id}:{number}".encode().ljust(size, b".")


class TopicKit:
    """Makes and fills topics of one cluster. Every call is a client of its own."""

    def __init__(self, nameserver: str, broker_name: str = "broker-a") -> None:
        self.nameserver = nameserver
        self.broker_name = broker_name

    def make(self, topic: str, queues: int = 2) -> str:
        """Make a topic, or give it another number of queues."""
        self.run(lambda mq: mq.admin().create_topic(topic, read_queues=queues, write_queues=queues))
        return topic

    def send(self, topic: str, messages: Mapping[int, Sequence[bytes | cometmq.Message]]) -> None:
        """Send messages to queues, in order."""

        async def sent(mq: Client) -> None:
            async with mq.producer("spark-tests") as producer:
                for queue_id, bodies in messages.items():
                    queue = MessageQueue(topic, self.broker_name, queue_id)
                    for first in range(0, len(bodies), CHUNK):
                        await producer.send_batch(topic, list(bodies[first : first + CHUNK]), queue=queue)

        self.run(sent)

    def fill(self, topic: str, counts: Mapping[int, int], *, size: int = 0) -> None:
        """Append so many messages to each queue; their bodies say their offsets."""
        ends = self.ends(topic)
        self.send(
            topic,
            {
                queue: [body_of(queue, ends[queue] + number, size) for number in range(count)]
                for queue, count in counts.items()
                if count
            },
        )

    def made(self, topic: str, counts: Sequence[int], *, size: int = 0) -> str:
        """A new topic with a queue for each count, filled."""
        self.make(topic, len(counts))
        self.fill(topic, dict(enumerate(counts)), size=size)
        return topic

    def ends(self, topic: str) -> dict[int, int]:
        """The offset of the next message of each queue."""

        async def asked(mq: Client) -> dict[int, int]:
            admin = mq.admin()
            return {queue.queue_id: await admin.max_offset(queue) for queue in await admin.read_queues_of(topic)}

        return self.run(asked)

    def progress(self, group: str, topic: str) -> dict[int, tuple[int, int]]:
        """How far a group is in each queue, and where the queue ends; found by the group alone, as mqadmin
        consumerProgress does. Nothing as long as nobody has told the brokers."""

        async def asked(mq: Client) -> dict[int, tuple[int, int]]:
            try:
                stats = await mq.admin().consume_stats(group)
            except (NoProgress, TopicNotFound):
                return {}
            return {
                queue.queue_id: (each.consumer_offset, each.broker_offset)
                for queue, each in stats.offset_table.items()
                if queue.topic == topic
            }

        return self.run(asked)

    def run(self, work: Callable[[Client], Awaitable[_T]]) -> _T:
        """Do something with a client."""

        async def connected() -> _T:
            async with cometmq.connect(self.nameserver) as mq:
                return await work(mq)

        return asyncio.run(connected())


def rows_expected(topic: str, ranges: Mapping[int, Iterable[int]]) -> list[tuple[str, int, int, bytes]]:
    """The rows (topic, queueId, queueOffset, body) of offsets of queues, sorted."""
    return [(topic, queue, number, body_of(queue, number)) for queue in sorted(ranges) for number in ranges[queue]]


def rows_of(rows: Iterable[Any]) -> list[tuple[str, int, int, bytes]]:
    """The same of what Spark read, padding of the bodies removed, sorted."""
    return sorted((row.topic, row.queueId, row.queueOffset, bytes(row.body).rstrip(b".")) for row in rows)
