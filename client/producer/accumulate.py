"""Accumulation: messages that are sent at the same time to one topic go out as batches.

A batch is closed by its size or its age, whichever comes first; every sender gets the receipt of its own message, and a
failure fails them all. RocketMQ's ProduceAccumulator (autoBatch).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from cometmq.client.errors import own_copy
from cometmq.client.message import SendReceipt
from cometmq.client.producer.outgoing import Outgoing, Packer
from cometmq.client.producer.receipts import receipts_of
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute


class Accumulate(msgspec.Struct, frozen=True):
    """When a batch goes out, and how much may wait."""

    #: Bytes of a batch (batchMaxBytes).
    max_bytes: int = 32 * 1024
    #: Seconds that a message waits for others (batchMaxDelayMs).
    max_delay: float = 0.010
    #: Bytes that wait or are on the way; above it messages are sent one by one (totalBatchMaxBytes).
    total_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.max_bytes <= 2 * 1024 * 1024:
            raise ValueError(f"max_bytes is {self.max_bytes}: 1 byte to 2 MiB make sense")
        if not 0.001 <= self.max_delay <= 30:
            raise ValueError(f"max_delay is {self.max_delay} s: 1 ms to 30 s make sense")
        if self.total_bytes <= 0:
            raise ValueError("total_bytes must be more than 0")

    @classmethod
    def of(cls, given: "Accumulate | bool | None") -> "Accumulate | None":
        return cls() if given is True else given or None


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


#: Sends a batch to a queue, or to any.
SendBatch = Callable[[Outgoing, TopicRoute, MessageQueue | None], Awaitable[SendReceipt]]


class Accumulator:
    """The batches of one producer that are being filled or sent."""

    def __init__(self, options: Accumulate, packer: Packer, send: SendBatch) -> None:
        self._max_bytes = options.max_bytes
        #: Bodies up to this size need no look.
        self._small = min(options.max_bytes, packer.max_message_size)
        self._max_delay = options.max_delay
        self._packer = packer
        self._plain_overhead = packer.plain_overhead
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._filling: dict[Together, Batch] = {}
        #: All that are being filled: those of the table, and those of plain messages.
        self._open: set[Batch] = set()
        self._sending: set[asyncio.Task[None]] = set()
        #: Bytes that wait or are on the way; from the limit on, messages go out one by one.
        self.held = 0
        self.limit = options.total_bytes

    @property
    def is_full(self) -> bool:
        """Nothing more is held: messages go out one by one."""
        return self.held >= self.limit

    def add_plain(self, place: PlainPlace, body: bytes) -> asyncio.Future[SendReceipt]:
        """Take in a message without any options; await the future for its receipt. Hot: everything that can be done
        for all messages of a batch together is done when it goes out."""
        size = len(body)
        if not 0 < size <= self._small:
            self._packer.check_size(body)
        batch = place.filling
        if batch is None:
            batch = place.filling = self._opened(Batch((place.topic, None, True, None), place.route, place))
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        batch.bodies.append(body)
        batch.futures.append(future)
        size += self._plain_overhead
        self.held += size
        batch.size += size
        if batch.size > self._max_bytes:
            self._close_batch(batch)
        return future

    def add(
        self, together: Together, route: TopicRoute, body: bytes, item: tuple[str, int, bytes, bytes]
    ) -> asyncio.Future[SendReceipt]:
        """Take in any message, of which `item` is the rest; await the future for its receipt. Hot."""
        batch = self._filling.get(together)
        if batch is None:
            batch = self._filling[together] = self._opened(Batch(together, route))
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        key, size, head, tail = item
        batch.pieces += (head, body, tail)
        batch.keys.append(key)
        batch.futures.append(future)
        self.held += size
        batch.size += size
        if batch.size > self._max_bytes:
            self._close_batch(batch)
        return future

    def _opened(self, batch: Batch) -> Batch:
        batch.timer = self._loop.call_later(self._max_delay, self._close_batch, batch)
        self._open.add(batch)
        return batch

    def _close_batch(self, batch: Batch) -> None:
        if batch not in self._open:
            return
        self._open.remove(batch)
        if batch.place is not None:
            batch.place.filling = None
        else:
            del self._filling[batch.together]
        if batch.timer is not None:
            batch.timer.cancel()
        task = self._loop.create_task(self._send_batch(batch), name=f"batch for {batch.together[0]}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, batch: Batch) -> None:
        topic, queue, wait_store_ok, _ = batch.together
        pieces, keys = (batch.pieces, batch.keys) if batch.place is None else self._packer.plain_items(batch.bodies)
        outgoing = self._packer.batch(topic, pieces, keys, wait_store_ok=wait_store_ok)
        try:
            receipt = await self._send(outgoing, batch.route, queue)
        except asyncio.CancelledError:
            for future in batch.futures:
                future.cancel()
            raise
        except Exception as error:
            for future in batch.futures:
                if not future.done():
                    future.set_exception(own_copy(error))
        else:
            for future, own in zip(batch.futures, receipts_of(receipt, keys), strict=True):
                if not future.done():
                    future.set_result(own)
        finally:
            self.held -= batch.size

    async def close(self) -> None:
        """Send what waits, and wait until everything has ended."""
        for batch in list(self._open):
            self._close_batch(batch)
        if self._sending:
            await asyncio.wait(self._sending)
