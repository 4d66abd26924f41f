"""What a put gives: a ticket that is settled later. And the lines in which tickets wait for a watermark.

The watermarks of a store are offsets of its log: `appended` >= `flushed`, `confirmed` (up to here dispatch and
replication may read) and `dispatched`. A ticket that has to wait stands in a line for each watermark that it needs;
when its deadline passes there, the line's own status is the ticket's. Replication adds a watermark and a line.

No clock and no I/O here. RocketMQ's PutMessageResult and GroupCommitRequest.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from cometmq.broker.store.message import NO_HOST, Message, PutStatus
from cometmq.protocol.message_id import encode_message_id

if TYPE_CHECKING:
    import asyncio

    from cometmq.broker.store.plain_run import PlainRun

log = logging.getLogger(__name__)


class Ticket(msgspec.Struct):
    """A put that is under way or settled. `status` is None until then; `done` is called once, never inside the put."""

    message: Message | None
    done: Callable[["Ticket"], None] | None = None
    #: Told instead of `done`: of all tickets that a turn settles, together. `context` is whatever it needs to know.
    sink: Callable[[list["Ticket"]], None] | None = None
    context: Any = None
    #: In place of a message: many of them. See `plain_run`.
    run: "PlainRun | None" = None
    #: Of a plain message: the slot of its queue and what its properties say. See `gather`.
    slot: Any = None
    facts: tuple[int, bytes | None, bytes | None] | None = None
    status: PutStatus | None = None
    #: Words for the refusal or the failure.
    remark: str = ""
    #: Of the record; of the first one of a batch.
    physical_offset: int = -1
    queue_offset: int = -1
    store_timestamp: int = 0
    #: Where the (last) record ends: what the watermarks must reach.
    end_offset: int = -1
    #: How many messages the put holds.
    count: int = 1
    #: The physical offset of each message of a client batch.
    offsets: list[int] = []
    store_host: bytes = NO_HOST
    #: Whether the body of the message is a client batch.
    batch: bool = False
    #: Lines in which it still stands.
    pending: int = 0
    #: What a line that failed made of it.
    failure: PutStatus | None = None

    @property
    def message_id(self) -> str:
        """The offset message id; for a batch the ids of all messages, separated by commas."""
        if self.offsets:
            one = encode_message_id(self.store_host, 0)[:-16] + "%016X"
            return ",".join([one] * len(self.offsets)) % tuple(self.offsets)
        return encode_message_id(self.store_host, self.physical_offset)

    def settle(self, status: PutStatus, remark: str = "") -> None:
        """The put has ended. Whoever waits is told; what that does must not stop others from being told."""
        self.status = status
        if remark:
            self.remark = remark
        self.message = None
        done, sink = self.done, self.sink
        self.done = self.sink = None
        try:
            if done is not None:
                done(self)
            if sink is not None:
                sink([self])
        except Exception:
            log.exception("whoever waited for a put failed")

    def future(self) -> "asyncio.Future[Ticket]":
        """The ticket as something to await, on a running loop. Ask once; callbacks are cheaper."""
        import asyncio

        future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        if self.status is not None:
            future.set_result(self)
            return future
        before: Callable[[Ticket], None] | None = self.done

        def wake(ticket: Ticket) -> None:
            if not future.done():
                future.set_result(ticket)
            if before is not None:
                before(ticket)

        self.done = wake
        return future


def settle_all(tickets: Iterable[Ticket]) -> None:
    """Settle tickets in order: each with its failure, or well. Those that have one sink are told of together."""
    ok = PutStatus.PUT_OK
    told: list[Ticket] = []
    last: Callable[[list[Ticket]], None] | None = None
    for ticket in tickets:
        if ticket.status is not None:
            continue
        sink = ticket.sink
        if sink is None:
            ticket.settle(ticket.failure or ok)
            continue
        if sink is not last:
            _tell(last, told)
            last, told = sink, []
        ticket.status = ticket.failure or ok
        told.append(ticket)
    _tell(last, told)


def _tell(sink: Callable[[list[Ticket]], None] | None, tickets: list[Ticket]) -> None:
    if sink is not None and tickets:
        try:
            sink(tickets)
        except Exception:
            log.exception("whoever waited for %d puts failed", len(tickets))


class WaitLine:
    """Tickets that wait for one watermark, in the order of the log.

    All of a line wait equally long, so deadlines are in order too. When the timeout is made shorter on the run, a
    ticket may wait for the one before it: no harm.
    """

    __slots__ = ("_line", "late")

    def __init__(self, late: PutStatus) -> None:
        #: What becomes of a ticket whose deadline passes here.
        self.late = late
        self._line: deque[tuple[int, float, Ticket]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def deadline(self) -> float | None:
        """When the first one has waited enough."""
        return self._line[0][1] if self._line else None

    def add(self, ticket: Ticket, deadline: float) -> None:
        ticket.pending += 1
        self._line.append((ticket.end_offset, deadline, ticket))

    def add_all(self, tickets: list[Ticket], deadline: float) -> None:
        """The same for the tickets of a turn."""
        for ticket in tickets:
            ticket.pending += 1
        self._line.extend([(ticket.end_offset, deadline, ticket) for ticket in tickets])

    def advance(self, offset: int) -> None:
        """The watermark has come to `offset`."""
        line = self._line
        free: list[Ticket] = []
        while line and line[0][0] <= offset:
            ticket = line.popleft()[2]
            ticket.pending -= 1
            if ticket.pending == 0:
                free.append(ticket)
        settle_all(free)

    def expire(self, now: float) -> None:
        """Settle those that have waited too long. The message is in the log all the same."""
        line = self._line
        while line and line[0][1] <= now:
            ticket = line.popleft()[2]
            ticket.failure = self.late
            self._leave(ticket)

    def fail(self, status: PutStatus, remark: str) -> None:
        """The watermark will never move again: nobody in the line is acknowledged."""
        line, self._line = self._line, deque()
        for _, _, ticket in line:
            ticket.failure = status
            ticket.remark = remark
            self._leave(ticket)

    @staticmethod
    def _leave(ticket: Ticket) -> None:
        ticket.pending -= 1
        if ticket.pending == 0:
            ticket.settle(ticket.failure or PutStatus.PUT_OK)


class Watermarks:
    """How far the log has come, for each purpose. All mutable progress of a store's log is here."""

    __slots__ = ("_grown", "appended", "confirmed", "dispatched", "flushed")

    def __init__(self) -> None:
        self.appended = 0
        self.flushed = 0
        #: What a power loss (SYNC_FLUSH) or the end of the process (ASYNC_FLUSH) cannot take back.
        self.confirmed = 0
        self.dispatched = 0
        self._grown: list[tuple[int, Callable[[], None]]] = []

    def reset(self, offset: int) -> None:
        """Everything stands at `offset`: after recovery."""
        self.appended = self.flushed = self.confirmed = self.dispatched = offset

    def when_grown(self, offset: int, callback: Callable[[], None]) -> None:
        """Call once as soon as the log can be read beyond `offset`; at once when it can already."""
        if self.confirmed > offset:
            callback()
        else:
            self._grown.append((offset, callback))

    def confirm(self, offset: int) -> None:
        """The log may be read up to `offset`; tell those who waited for that."""
        if offset <= self.confirmed:
            return
        self.confirmed = offset
        if self._grown:
            ready = [callback for at, callback in self._grown if at < offset]
            if ready:
                self._grown = [entry for entry in self._grown if entry[0] >= offset]
                for callback in ready:
                    callback()
