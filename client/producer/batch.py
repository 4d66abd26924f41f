"""A batch that is being filled: messages of one topic that were sent at the same time. What becomes of it is decided in
`accumulate`."""

import asyncio
from typing import Protocol, TypeAlias

from cometmq.client.message import SendReceipt
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute

#: What messages of one batch have in common: topic, the queue that a key or the user chose (None: any), wait_store_ok,
#: tag. A bare tuple, because one is made for each message.
Together: TypeAlias = tuple[str, MessageQueue | None, bool, str | None]


class Batch:
    """Messages that wait for each other. Those without any options are bodies until it goes out, others are packed."""

    __slots__ = ("bodies", "futures", "keys", "pieces", "place", "route", "size", "timer", "together")

    def __init__(self, together: Together, route: TopicRoute, place: "PlainPlace | None" = None) -> None:
        self.together = together
        self.route = route
        #: Where others find it to fill it; None: in the table by what its messages have in common.
        self.place = place
        self.bodies: list[bytes] = []
        self.pieces: list[bytes] = []
        self.keys: list[str] = []
        self.futures: list[asyncio.Future[SendReceipt]] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None


class PlainPlace(Protocol):
    """The way to a topic, where the batch of its plain messages is at hand."""

    topic: str
    route: TopicRoute
    filling: Batch | None
