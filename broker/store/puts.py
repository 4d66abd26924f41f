"""Puts: from a message to a ticket, and the turns that write what was put.

Everything that is put in one turn of the loop is laid out by `gather`, written with one call a file, and only then do
watermarks move, dispatch runs and tickets are settled, in the order of the puts. While writes are slow they go through
a thread, one at a time, so that reads go on. RocketMQ's `asyncPutMessage` and the checks before it.
"""

import errno
import logging
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch import Dispatch
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.gather import SPECIAL, Gather
from cometmq.broker.store.message import Message, PutStatus, Refusal, integer_property, waits
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.plain_run import PlainRun
from cometmq.broker.store.runner import Runner
from cometmq.broker.store.running_flags import Flag, RunningFlags
from cometmq.broker.store.segments import QueueSlot, Segment
from cometmq.broker.store.text_shape import Facts, look
from cometmq.broker.store.tickets import Ticket, Watermarks, settle_all
from cometmq.broker.store.transforms import TransformList, check_topic
from cometmq.protocol import sysflag
from cometmq.protocol.message_id import HOST_V4_LENGTH

log = logging.getLogger(__name__)

#: A write in the loop that took longer, in seconds, and waited, sends the next ones through a thread ...
SLOW_WRITE: Final = 0.020
#: ... until none was slow for this long.
QUIET: Final = 1.0
#: A put that takes longer, in seconds, is logged.
LOGGED_WRITE: Final = 0.5
#: A write that has lasted this long, in seconds, is rather a clock that jumped than a busy disk.
NOT_BUSY_ANY_MORE: Final = 10_000.0


#: In place of a run.
_ONE: Final = (None,)

#: How many segments were written, what stopped it, how long it took in seconds, and whether it had to wait.
Written = tuple[int, OSError | None, float, bool]


class FlushLine(Protocol):
    """What puts need of the flush: see `flush.Flush`."""

    def appended(self, waiting: list[Ticket]) -> None:
        """The log has grown; these tickets wait until that is on the disk."""


class Puts:
    """The way into the log. Its mutable state: tickets of this turn, and the write under way."""

    def __init__(
        self,
        commit_log: CommitLog,
        marks: Watermarks,
        flags: RunningFlags,
        gather: Gather,
        transforms: TransformList,
        dispatch: Dispatch,
        flush: FlushLine,
        *,
        options: StoreOptions,
        clock: Clock,
        runner: Runner,
        space: Callable[[], str],
    ) -> None:
        self._log = commit_log
        self._marks = marks
        self._flags = flags
        self._gather = gather
        self._transforms = transforms
        transforms.changed = gather.forget_shapes
        self._dispatch = dispatch
        self._flush = flush
        self._clock = clock
        self._runner = runner
        #: How full the disks are, in words.
        self._space = space
        self.configure(options)
        #: Why nothing may be put although the disk is well: the store is closed, or a slave's.
        self.shut: str | None = None
        self._pending: list[Ticket] = []
        self._scheduled = False
        #: When the oldest put of this turn, and that of the turn being written, came.
        self._since = self._turn_since = 0.0
        #: Told at the end of each turn: how many puts it had, and how long the oldest of them took, in seconds.
        self.timed: Callable[[int, float], None] | None = None
        self._writing: list[Segment] | None = None
        self._writing_since = 0.0
        self._slow_until = -1.0
        self._errand: Errand[Written] | None = None
        self.slowest_write = 0.0

    def configure(self, options: StoreOptions) -> None:
        """Take over options, at the start and when they change."""
        self._sync = options.is_sync_flush
        self._max_body = options.max_message_size
        self._gather.max_message_size = options.max_message_size
        self._busy_after = options.os_page_cache_busy_time_out_mills / 1000
        self._put_timeout = options.put_message_timeout / 1000

    # Into the turn

    def put_known(
        self,
        message: Message,
        facts: Facts,
        needles: tuple[bytes, ...],
        sink: Callable[[list[Ticket]], None],
        context: object,
    ) -> None:
        """Put a message whose properties were looked at already: what they say, and that none of the needles is there.

        `sink` is told of all such tickets that a turn settles, together. The hot path of sends. Budget: 0.5 us.
        """
        slot = self._gather.slots.get((message.topic, message.queue_id))
        body = message.body
        transforms = self._transforms
        if (
            slot is None
            or body is None
            or len(body) > self._max_body
            or self._flags.bits
            or self.shut is not None
            or self._writing is not None
            or needles is not transforms.needles
            or transforms.always
            or message.sys_flag & SPECIAL
        ):
            self._put(Ticket(message, None, sink, context))
            return
        self._pending.append(Ticket(message, None, sink, context, slot=slot, facts=facts))
        if not self._scheduled:
            self._schedule()

    @property
    def takes_runs(self) -> bool:
        """Whether a run may be put now, or go on: nothing stands in the way of plain messages."""
        return (
            not self._flags.bits
            and self.shut is None
            and self._writing is None
            and not self._transforms.always
            and self._gather.has_plain
            and len(self._gather.store_host) == HOST_V4_LENGTH
        )

    @property
    def slots(self) -> dict[tuple[str, int], QueueSlot]:
        """The queues that had messages already; another dict when they were forgotten."""
        return self._gather.slots

    @property
    def last_run(self) -> PlainRun | None:
        """The run that was put last, if nothing was put after it: messages may still join it."""
        return self._pending[-1].run if self._pending else None

    def put_run(self, run: PlainRun, sink: Callable[[list[Ticket]], None]) -> None:
        """Put a run; what joins it before the turn goes with it. Ask `takes_runs` first."""
        self._pending.append(Ticket(None, None, sink, run=run))
        if not self._scheduled:
            self._schedule()

    def put(self, message: Message, done: Callable[[Ticket], None] | None = None) -> Ticket:
        """Put one message. The ticket is settled in a later turn, refused ones too. Budget: 1 us."""
        ticket = Ticket(message, done)
        self._put(ticket)
        return ticket

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Names that wake a transform; another tuple when the transforms have changed."""
        return self._transforms.needles

    def _put(self, ticket: Ticket) -> None:
        message = ticket.message
        assert message is not None
        refusal = None
        if self._flags.bits or self.shut is not None or self._writing is not None:
            refusal = self._refusal()
        if refusal is None:
            body = message.body
            text = message.properties
            if body is None or len(body) > self._max_body:
                refusal = self._bad_body(message)
            elif (slot := self._gather.slots.get((message.topic, message.queue_id))) is None:
                refusal = check_topic(message.topic, message.queue_id) or self._transform(ticket, message)
            else:
                # The first shape is tried here: that saves a call for most messages.
                shapes = slot.shapes
                facts = shapes[0].match(text) if shapes else None
                if facts is not None:
                    wakes = shapes[0].wakes
                else:
                    facts, wakes = look(shapes, text, self._transforms.needles)
                # What is stored verbatim asks for nothing, whatever its text says.
                if (wakes and not message.verbatim) or message.sys_flag & SPECIAL or self._transforms.always:
                    refusal = self._transform(ticket, message)
                else:
                    ticket.slot = slot
                    ticket.facts = facts
        if refusal is not None:
            ticket.failure = refusal.status
            ticket.remark = refusal.remark
        self._pending.append(ticket)
        if not self._scheduled:
            self._schedule()

    def _transform(self, ticket: Ticket, message: Message) -> Refusal | None:
        result = self._transforms.run(message)
        if isinstance(result, Refusal):
            return result
        ticket.message = result
        slot = self._gather.slots.get((result.topic, result.queue_id))
        if slot is not None and not result.sys_flag & SPECIAL:
            # Diverted, mostly: from here on it is a plain message of another queue.
            ticket.slot = slot
            ticket.facts, _ = look(slot.shapes, result.properties, self._transforms.needles)
        return None

    def put_batch(
        self,
        message: Message,
        done: Callable[[Ticket], None] | None = None,
        sink: Callable[[list[Ticket]], None] | None = None,
        context: object = None,
    ) -> Ticket:
        """Put a client batch: `message.body` holds its items, everything else counts for all of them."""
        ticket = Ticket(message, done, sink, context, batch=True)
        refusal = self._refusal() or self._bad_batch(message)
        if refusal is None and (message.topic, message.queue_id) not in self._gather.slots:
            refusal = check_topic(message.topic, message.queue_id)
        if refusal is not None:
            ticket.failure = refusal.status
            ticket.remark = refusal.remark
        self._pending.append(ticket)
        if not self._scheduled:
            self._schedule()
        return ticket

    def _refusal(self) -> Refusal | None:
        """Why the store takes nothing right now."""
        if self.shut is not None:
            return Refusal(PutStatus.SERVICE_NOT_AVAILABLE, self.shut)
        if not self._flags.writable:
            return Refusal(PutStatus.SERVICE_NOT_AVAILABLE, f"{self._flags.reason} [{self._space()}]")
        if self._writing is not None:
            lasted = self._clock.monotonic() - self._writing_since
            if self._busy_after < lasted < NOT_BUSY_ANY_MORE:
                return Refusal(PutStatus.OS_PAGE_CACHE_BUSY, f"a write has been under way for {lasted * 1000:.0f} ms")
        return None

    def _bad_body(self, message: Message) -> Refusal:
        if message.body is None:
            return Refusal(PutStatus.MESSAGE_ILLEGAL, "the message has no body")
        remark = f"the body takes {len(message.body)} bytes, at most {self._max_body} are allowed (maxMessageSize)"
        return Refusal(PutStatus.MESSAGE_ILLEGAL, remark)

    def _bad_batch(self, message: Message) -> Refusal | None:
        if message.body is None:
            return self._bad_body(message)
        if message.sys_flag & sysflag.TRANSACTION_MASK:
            return Refusal(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        if integer_property(message.properties, b"DELAY") > 0:
            return Refusal(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be delayed")
        if message.sys_flag & sysflag.INNER_BATCH:
            # Consumers would take each item for a batch of its own.
            return Refusal(PutStatus.MESSAGE_ILLEGAL, "a client batch cannot be marked as an inner batch")
        if len(message.body) > self._max_body:
            # RocketMQ answers this one with a system error.
            return Refusal(PutStatus.UNKNOWN_ERROR, self._bad_body(message).remark)
        return None

    # The turn

    @property
    def idle(self) -> bool:
        """Whether nothing is put and nothing is being written."""
        return not self._pending and self._writing is None

    @property
    def write_age(self) -> float:
        """How long the write under way has lasted, in seconds; 0 without one."""
        return 0.0 if self._writing is None else self._clock.monotonic() - self._writing_since

    @property
    def writing_since(self) -> float | None:
        """When the write under way began, on the monotonic clock; None without one."""
        return None if self._writing is None else self._writing_since

    @property
    def waiting(self) -> int:
        """How many puts wait for a write to begin."""
        return len(self._pending)

    def give_up(self, count: int, status: PutStatus, remark: str) -> None:
        """Settle the first `count` puts that wait for a write to begin: nothing of them will be in the log."""
        given_up, self._pending = self._pending[:count], self._pending[count:]
        for ticket in given_up:
            if ticket.failure is None:
                ticket.settle(status, remark)
            else:
                ticket.settle(ticket.failure)

    def finish(self) -> None:
        """Write everything that is put now, and wait for the write under way: before a close."""
        while self._errand is not None or self._pending:
            if self._errand is not None:
                self._errand.finish()
            else:
                self._turn()

    def _turn(self) -> None:
        self._scheduled = False
        if self._writing is not None or not self._pending:
            return
        tickets, self._pending = self._pending, []
        self._turn_since = self._since
        segments, taken = self._gather.fill(tickets, self._clock.wall())
        now = self._clock.monotonic()
        if taken < len(tickets):
            self._pending = tickets[taken:]
        self._since = now
        if now < self._slow_until:
            self._write_in_thread(segments, now)
            return
        self._written(segments, *self._write(segments))

    def _write_in_thread(self, segments: list[Segment], now: float) -> None:
        self._writing = segments
        self._writing_since = now
        overdue = self._runner.call_later(self._put_timeout, self._give_up)

        def done(result: Written | None, error: Exception | None) -> None:
            overdue.cancel()
            self._writing = self._errand = None
            failed = (0, OSError(errno.EIO, f"the writer failed: {error}"), 0.0, False)
            self._written(segments, *(result or failed))

        self._errand = Errand(self._runner, lambda: self._write(segments), done, lane="write")

    def _give_up(self) -> None:
        """The write hangs. Whoever waits for it hears that nobody knows; it may still succeed."""
        for segment in self._writing or ():
            for ticket in segment.tickets:
                if ticket.status is None:
                    ticket.settle(PutStatus.UNKNOWN_ERROR, f"not written within {self._put_timeout * 1000:.0f} ms")

    def _write(self, segments: list[Segment]) -> Written:
        """Write the segments one after the other. May run in a thread."""
        written = 0
        failure: OSError | None = None
        clock = self._clock
        began, waits = clock.monotonic(), clock.waits()
        for segment in segments:
            if segment.file is not None and segment.parts:
                try:
                    segment.file.write(segment.start - segment.file.start, [b"".join(segment.parts)])
                except OSError as error:
                    failure = error
                    break
            written += 1
        return written, failure, clock.monotonic() - began, clock.waits() != waits

    def _written(
        self, segments: list[Segment], written: int, error: OSError | None, seconds: float, waited: bool
    ) -> None:
        if seconds > SLOW_WRITE:
            # A process that shares its processor is late too; a thread would make that worse.
            if waited:
                self._slow_until = self._clock.monotonic() + QUIET
            self.slowest_write = max(self.slowest_write, seconds)
            if seconds > LOGGED_WRITE:
                log.warning("a write to the commit log took %.0f ms", seconds * 1000)
        if self.timed is not None:
            count = sum([len(ticket.run or _ONE) for segment in segments for ticket in segment.tickets])
            self.timed(count, self._clock.monotonic() - self._turn_since)
        if error is not None:
            self._write_failed(segments[written:], error)
        waiting: list[Ticket] = []
        settled: list[Ticket] = []
        for segment in segments[:written]:
            if segment.turn:
                self._dispatch.feed(segment.start, segment.finish, segment.turn)
            self._marks.appended = segment.finish
            if self._sync:
                for ticket in segment.tickets:
                    message = ticket.message
                    if ticket.failure is None and (waits(message) if message is not None else ticket.run is not None):
                        waiting.append(ticket)
                    else:
                        settled.append(ticket)
            else:
                settled += segment.tickets
        self._log.look_ahead()
        self._flush.appended(waiting)
        settle_all(settled)
        for segment in segments[written:]:
            for ticket in segment.tickets:
                if ticket.status is None:
                    ticket.settle(ticket.failure or PutStatus.UNKNOWN_ERROR)
        if self._pending and not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        if len(self._pending) == 1:
            self._since = self._clock.monotonic()
        self._runner.call_soon(self._turn)

    def _write_failed(self, segments: list[Segment], error: OSError) -> None:
        """Nothing of these segments counts: numbers are taken back, and what may be in the file is erased."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        log.error("cannot write to the commit log: %s", error)
        for segment in reversed(segments):
            segment.take_back()
        if full:
            self._flags.set(Flag.DISK_FULL, "the disk is full")
        else:
            self._flags.set(Flag.NOT_WRITABLE, f"the commit log cannot be written: {error}")
        for segment in segments:
            try:
                if segment.file is not None and segment.size:
                    position = segment.start - segment.file.start
                    self._log.erase(segment.file, position, position + segment.size)
            except OSError as again:
                # Half a record may stand there, and a later, shorter one must not make it look like one.
                self._flags.set(Flag.NOT_WRITABLE, f"a failed write could not be cleaned up: {again}")
            status = PutStatus.SERVICE_NOT_AVAILABLE if full else PutStatus.UNKNOWN_ERROR
            for ticket in segment.tickets:
                if ticket.failure is None:
                    ticket.failure = status
                    ticket.remark = f"{self._flags.reason} [{self._space()}]"
