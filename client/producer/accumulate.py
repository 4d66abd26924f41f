"""Accumulation: messages that are sent at the same time to one topic go out as batches.

A batch is closed by its size or its age, whichever comes first; every sender gets the receipt of its own message, and a
failure fails them all. RocketMQ's ProduceAccumulator (autoBatch).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from cometmq.client.errors import own_copy
from cometmq.client.message import SendReceipt
from cometmq.client.producer.batch import Batch, PlainPlace, Together
from cometmq.client.producer.outgoing import Outgoing, Packer
from cometmq.client.producer.receipts import receipts_of
from cometmq.client.producer.short_way import FirstAttempt, ShortWay
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.remoting.pending import Answer


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


#: Runs an iterator to its end, without a turn of the interpreter for each item.
_consume: Final = deque[None](maxlen=0).extend

#: Writes a batch at once, if nothing stands in its way; else None.
BeginBatch = Callable[[Outgoing], FirstAttempt | None]
#: Sends a batch to a queue, or to any.
SendBatch = Callable[[Outgoing, TopicRoute, MessageQueue | None], Coroutine[Any, Any, SendReceipt]]


class Accumulator:
    """The batches of one producer that are being filled or sent.

    A batch that may go to any queue is written when it is full and settled when its answer comes, by plain callbacks: a
    task is made only for one that has to wait, or that fails.
    """

    def __init__(
        self, options: Accumulate, packer: Packer, short: ShortWay, *, begin: BeginBatch, send: SendBatch
    ) -> None:
        self._max_bytes = options.max_bytes
        #: Bodies up to this size need no look.
        self._small = min(options.max_bytes, packer.max_message_size)
        self._max_delay = options.max_delay
        self._packer = packer
        self._plain_overhead = packer.plain_overhead
        self._short = short
        self._begin = begin
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._filling: dict[Together, Batch] = {}
        #: All that are being filled: those of the table, and those of plain messages.
        self._open: set[Batch] = set()
        #: Those whose answer is awaited, by its future, and the tasks of the others.
        self._written: dict[asyncio.Future[Answer], tuple[Batch, FirstAttempt]] = {}
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
        future: asyncio.Future[SendReceipt] = self._new_future()
        batch.bodies.append(body)
        batch.futures.append(future)
        size += self._plain_overhead
        self.held += size
        batch.size = size = batch.size + size
        if size > self._max_bytes:
            self._close_batch(batch)
        return future

    def add(
        self, together: Together, route: TopicRoute, body: bytes, item: tuple[str, int, bytes, bytes]
    ) -> asyncio.Future[SendReceipt]:
        """Take in any message, of which `item` is the rest; await the future for its receipt. Hot."""
        batch = self._filling.get(together)
        if batch is None:
            batch = self._filling[together] = self._opened(Batch(together, route))
        future: asyncio.Future[SendReceipt] = self._new_future()
        key, size, head, tail = item
        batch.pieces += (head, body, tail)
        batch.keys.append(key)
        batch.futures.append(future)
        self.held += size
        batch.size = size = batch.size + size
        if size > self._max_bytes:
            self._close_batch(batch)
        return future

    def _opened(self, batch: Batch) -> Batch:
        batch.timer = self._loop.call_later(self._max_delay, self._close_batch, batch)
        self._open.add(batch)
        return batch

    def _close_batch(self, batch: Batch) -> None:
        """Nothing more joins the batch, and it goes out."""
        if batch not in self._open:
            return
        self._open.remove(batch)
        if batch.place is not None:
            batch.place.filling = None
        else:
            del self._filling[batch.together]
        if batch.timer is not None:
            batch.timer.cancel()
        topic, queue, wait_store_ok, _ = batch.together
        if batch.place is not None:
            batch.pieces, batch.keys = self._packer.plain_items(batch.bodies)
        outgoing = self._packer.batch(topic, batch.pieces, batch.keys, wait_store_ok=wait_store_ok)
        first: FirstAttempt | None = None
        if queue is None:
            try:
                first = self._begin(outgoing)
            except Exception as error:
                # It belongs to all of them, not to the one who came last.
                self._failed(batch, error)
                return
        if first is None:
            self._spawn(batch, self._send(outgoing, batch.route, queue))
            return
        self._written[first.future] = batch, first
        first.future.add_done_callback(self._answered)

    def _answered(self, future: asyncio.Future[Answer]) -> None:
        batch, first = self._written.pop(future)
        try:
            receipt = self._short.receipt_now(first)
        except Exception as error:
            self._failed(batch, error)
            return
        if receipt is None:
            self._spawn(batch, self._short.end(first))
        else:
            self._stored(batch, receipt)

    def _spawn(self, batch: Batch, sending: Coroutine[Any, Any, SendReceipt]) -> None:
        task = self._loop.create_task(self._finish(batch, sending), name=f"batch for {batch.together[0]}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _finish(self, batch: Batch, sending: Coroutine[Any, Any, SendReceipt]) -> None:
        try:
            receipt = await sending
        except asyncio.CancelledError:
            self.held -= batch.size
            for future in batch.futures:
                future.cancel()
            raise
        except Exception as error:
            self._failed(batch, error)
        else:
            self._stored(batch, receipt)

    def _stored(self, batch: Batch, receipt: SendReceipt) -> None:
        """Every sender gets its receipt. Hot."""
        self.held -= batch.size
        receipts = receipts_of(receipt, batch.keys)
        try:
            _consume(map(asyncio.Future.set_result, batch.futures, receipts))
        except asyncio.InvalidStateError:
            # Somebody gave up waiting: from there on, one look at each.
            for future, own in zip(batch.futures, receipts, strict=True):
                if not future.done():
                    future.set_result(own)

    def _failed(self, batch: Batch, error: Exception) -> None:
        self.held -= batch.size
        for future in batch.futures:
            if not future.done():
                future.set_exception(own_copy(error))

    async def close(self) -> None:
        """Send what waits, and wait until everything has ended."""
        for batch in list(self._open):
            self._close_batch(batch)
        while self._written or self._sending:
            under_way: list[asyncio.Future[Any]] = [*self._written, *self._sending]
            await asyncio.wait(under_way)
