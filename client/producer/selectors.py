"""Who chooses the queue of a message: round robin by default, or a selector.

A selector gets the queues that can be sent to, the message and its sharding key, and gives one of them. The hash
selectors choose the same queue as the clients of the named languages do. RocketMQ's MessageQueueSelector.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from cometmq.client.message import Message
from cometmq.client.queues import MessageQueue
from cometmq.protocol.hashing import hash_code, murmur3_32

Selector = Callable[[Sequence[MessageQueue], Message, str | None], MessageQueue]

#: Points of a queue on the ring of the consistent hash: shares differ by some ten per cent.
VIRTUAL_NODES: Final = 160

_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619


def java_hash(queues: Sequence[MessageQueue], message: Message, key: str | None) -> MessageQueue:
    """The queue that a Java producer chooses for the same key (SelectMessageQueueByHash)."""
    # Java's % keeps the sign, so that the remainder is that of the absolute value.
    return queues[abs(hash_code(key or "")) % len(queues)]


def go_hash(queues: Sequence[MessageQueue], message: Message, key: str | None) -> MessageQueue:
    """The queue that a Go producer chooses for the same key: FNV-1a; any queue without a key."""
    if not key:
        return random.choice(queues)
    value = _FNV_OFFSET
    for byte in key.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return queues[value % len(queues)]


def at_random(queues: Sequence[MessageQueue], message: Message, key: str | None) -> MessageQueue:
    """Any queue."""
    return random.choice(queues)


def consistent_hash(queues: Sequence[MessageQueue], message: Message, key: str | None) -> MessageQueue:
    """A queue by a ring: when queues are added, keys move only to the new ones."""
    points, owners = _ring(tuple(queues))
    place = bisect_left(points, murmur3_32(key or ""))
    return owners[place if place < len(points) else 0]


@lru_cache(maxsize=256)
def _ring(queues: tuple[MessageQueue, ...]) -> tuple[list[int], list[MessageQueue]]:
    nodes = sorted((murmur3_32(f"{queue}-{number}"), queue) for queue in queues for number in range(VIRTUAL_NODES))
    return [point for point, _ in nodes], [queue for _, queue in nodes]


def machine_room(rooms: Sequence[str]) -> Selector:
    """Round robin over the queues of brokers in these rooms: their names are `<room>@<broker>`."""
    turn = random.randrange(1 << 16)

    def select(queues: Sequence[MessageQueue], message: Message, key: str | None) -> MessageQueue:
        nonlocal turn
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in rooms] or queues
        turn += 1
        return near[turn % len(near)]

    return select


SELECTORS: Final[dict[str, Selector]] = {
    "java_hash": java_hash,
    "go_hash": go_hash,
    "random": at_random,
    "consistent_hash": consistent_hash,
}
