"""Accumulation: messages that are sent at the same time to one topic go out as batches.

A batch is closed by its size or its age, whichever comes first; every sender gets the receipt of its own message, and a
failure fails them all. RocketMQ's ProduceAccumulator (autoBatch).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

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


class _Batch:
    __slots__ = ("futures", "keys", "pieces", "route", "size", "timer")

    def __init__(self, route: TopicRoute) -> None:
        self.route = route
        self.pieces: list[bytes] = []
        self.keys: list[str] = []
        self.futures: list[asyncio.Future[SendReceipt]] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None


#: Sends a batch to a queue, or to any.
SendBatch = Callable[[Outgoing, TopicRoute, MessageQueue | None], Awaitable[SendReceipt]]


class Accumulator:
    """The batches of one producer that are being filled or sent."""

    def __init__(self, options: Accumulate, packer: Packer, send: SendBatch) -> None:
        self._options = options
        self._packer = packer
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._filling: dict[Together, _Batch] = {}
        self._sending: set[asyncio.Task[None]] = set()
        #: Bytes that wait or are on the way.
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Nothing more is held: messages go out one by one."""
        return self.held >= self._options.total_bytes

    def add(
        self, together: Together, route: TopicRoute, body: bytes, item: tuple[str, int, bytes, bytes]
    ) -> asyncio.Future[SendReceipt]:
        """Take in a message, of which `item` is the rest; await the future for its receipt. Hot."""
        batch = self._filling.get(together)
        if batch is None:
            batch = self._filling[together] = _Batch(route)
            batch.timer = self._loop.call_later(self._options.max_delay, self._close_batch, together)
        future: asyncio.Future[SendReceipt] = self._loop.create_future()
        key, size, head, tail = item
        batch.pieces += (head, body, tail)
        batch.keys.append(key)
        batch.futures.append(future)
        self.held += size
        batch.size += size
        if batch.size > self._options.max_bytes:
            self._close_batch(together)
        return future

    def _close_batch(self, together: Together) -> None:
        batch = self._filling.pop(together, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        task = self._loop.create_task(self._send_batch(together, batch), name=f"batch for {together[0]}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, together: Together, batch: _Batch) -> None:
        topic, queue, wait_store_ok, _ = together
        outgoing = self._packer.batch(topic, batch.pieces, batch.keys, wait_store_ok=wait_store_ok)
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
            for future, own in zip(batch.futures, receipts_of(receipt, batch.keys), strict=True):
                if not future.done():
                    future.set_result(own)
        finally:
            self.held -= batch.size

    async def close(self) -> None:
        """Send what waits, and wait until everything has ended."""
        for together in list(self._filling):
            self._close_batch(together)
        if self._sending:
            await asyncio.wait(self._sending)
