"""What happens to a record once it is in the log: consume queues, index, and whoever else wants to know.

Dispatch reads the log up to `confirmed` and hands requests to an ordered list of dispatchers, a turn at a time. The put
feeds it what it has just encoded; after a restart, for raw appends, or when it fell behind, it reads the log itself.
Filter maps, compaction, timers and long polls are further entries of the list. RocketMQ's ReputMessageService and its
CommitLogDispatchers.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.errors import SyncFailed
from cometmq.broker.store.running_flags import Flag, RunningFlags
from cometmq.broker.store.tickets import Watermarks
from cometmq.broker.store.turn import Turn

if TYPE_CHECKING:
    from cometmq.broker.store.runner import Handle, Runner

log = logging.getLogger(__name__)

#: Requests that may wait in memory for `confirmed`; beyond this they are forgotten and read from the log later.
MAX_WAITING: Final = 200_000
#: Requests of one pass when the log is read: bounds the time that a turn takes, to some 10 ms.
PASS_SIZE: Final = 1024
#: Attempts to write queues, and the seconds between them, before the store stops taking messages.
ATTEMPTS: Final = 30
PAUSE: Final = 1.0
#: Nothing is dispatched any more: queues that could not be saved must not grow as if they had been.
_QUEUES_LOST: Final = int(Flag.LOGICS_QUEUE_ERROR)


class Dispatcher(Protocol):
    """One entry of the list. What it raises stops dispatch there; the same requests come again later."""

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        """Take the requests of a turn, in the order of the log. Some of them may have come before."""


class LogReader(Protocol):
    """How dispatch reads the log where it was not fed; `scan.LogScan` is one."""

    def requests(self, start: int, end: int, count: int) -> tuple[list[DispatchRequest], int]:
        """Up to `count` requests from `start`, and where to go on. Not beyond `end`."""


class Dispatch:
    """The list of dispatchers and how far they have come (`Watermarks.dispatched`)."""

    def __init__(
        self,
        marks: Watermarks,
        reader: LogReader,
        flags: RunningFlags,
        runner: "Runner",
        dispatchers: Sequence[Dispatcher],
    ) -> None:
        self._marks = marks
        self._reader = reader
        self._flags = flags
        self._runner = runner
        self._dispatchers = list(dispatchers)
        #: Fed and not yet confirmed: (start, end, requests).
        self._fed: deque[tuple[int, int, Sequence[DispatchRequest]]] = deque()
        self._waiting = 0
        self._failures = 0
        self._retry: Handle | None = None
        self._passing = False
        self._stopped = False
        #: Whether those who wait for a put hear of it before it is dispatched: see `soon`.
        self.comes_last = False
        #: Whether there is something to dispatch that `soon` has put off.
        self.is_put_off = False
        #: Store time of the last record that was dispatched.
        self.timestamp = 0

    @property
    def dispatchers(self) -> tuple[Dispatcher, ...]:
        return tuple(self._dispatchers)

    def insert(self, index: int, dispatcher: Dispatcher) -> None:
        self._dispatchers.insert(index, dispatcher)

    def append(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.append(dispatcher)

    def remove(self, dispatcher: Dispatcher) -> None:
        self._dispatchers.remove(dispatcher)

    @property
    def behind(self) -> int:
        """Bytes that may be dispatched and are not."""
        return self._marks.confirmed - self._marks.dispatched

    def feed(self, start: int, end: int, requests: Sequence[DispatchRequest]) -> None:
        """What was just appended, so that nobody has to read it again."""
        if self._waiting > MAX_WAITING:
            return
        self._waiting += len(requests)
        self._fed.append((start, end, requests))

    def soon(self) -> None:
        """The log has grown. When dispatch comes last, it runs in the next turn: answers leave while it works.

        Whoever lets others look at queues and index in between has to call `run` first when `is_put_off`.
        """
        if not self.comes_last:
            self.run()
        elif not self.is_put_off:
            self.is_put_off = True
            self._runner.call_soon(self.run)

    def run(self) -> None:
        """Bring the dispatchers up to `confirmed`. A long way goes in passes, one a turn."""
        self.is_put_off = False
        if self._retry is not None or self._passing or self._stopped or self._flags.bits & _QUEUES_LOST:
            return
        marks = self._marks
        fed = self._fed
        while marks.dispatched < marks.confirmed:
            at = marks.dispatched
            while fed and fed[0][0] < at:
                self._waiting -= len(fed.popleft()[2])
            if fed and fed[0][0] == at:
                if fed[0][1] > marks.confirmed:
                    return
                _, end, requests = fed[0]
                if not self._hand_out(requests, end):
                    return
                fed.popleft()
                self._waiting -= len(requests)
                continue
            until = min(marks.confirmed, fed[0][0]) if fed else marks.confirmed
            try:
                read, end = self._reader.requests(at, until, PASS_SIZE)
            except OSError as error:
                self._failed(error)
                return
            if end == at:
                # A record that is not complete yet: a replica gets the rest later.
                return
            if not self._hand_out(read, end):
                return
            if end < until:
                self._passing = True
                self._runner.call_soon(self._next_pass)
                return

    def _next_pass(self) -> None:
        self._passing = False
        self.run()

    def catch_up(self) -> None:
        """All of it now, in one go: before a close. What failed a moment ago is tried once more."""
        self._passing = False
        self._end_retry()
        while self.behind and self._retry is None:
            before = self._marks.dispatched
            self.run()
            self._passing = False
            if self._marks.dispatched == before:
                return

    def stop(self) -> None:
        """Nothing is dispatched any more: the directory may be somebody else's soon."""
        self._stopped = True
        self._end_retry()

    def _hand_out(self, requests: Sequence[DispatchRequest], end: int) -> bool:
        if requests:
            try:
                self.hand_over(requests)
            except Exception as error:
                # Whatever it is: those whose messages are in the log already must hear of that.
                self._failed(error)
                return False
        self._failures = 0
        self._marks.dispatched = end
        return True

    def hand_over(self, requests: Sequence[DispatchRequest]) -> None:
        """Give requests to every dispatcher, in order."""
        for dispatcher in self._dispatchers:
            dispatcher.dispatch(requests)
        self.timestamp = requests.time if isinstance(requests, Turn) else requests[-1].store_timestamp

    def _failed(self, error: Exception) -> None:
        if isinstance(error, SyncFailed):
            self._flags.sync_failed("the consume queues", error, Flag.LOGICS_QUEUE_ERROR)
            return
        self._failures += 1
        # Of the disk a line is enough; anything else is an error of a dispatcher.
        trace = None if isinstance(error, OSError) else error
        log.error(
            "cannot write consume queues or index, attempt %d of %d: %s",
            self._failures,
            ATTEMPTS,
            error,
            exc_info=trace,
        )
        if self._failures >= ATTEMPTS:
            self._flags.set(Flag.LOGICS_QUEUE_ERROR, f"consume queues cannot be written: {error}")
            return
        self._retry = self._runner.call_later(PAUSE, self._again)

    def _again(self) -> None:
        self._retry = None
        self.run()

    def _end_retry(self) -> None:
        retry, self._retry = self._retry, None
        if retry is not None:
            retry.cancel()


class TellArrivals:
    """The last entry of the list: calls back for each turn's requests, when queues and index have them."""

    def __init__(self, callback: Callable[[Sequence[DispatchRequest]], None]) -> None:
        self._callback = callback

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        try:
            self._callback(requests)
        except Exception:
            # The messages are where they belong: that somebody cannot hear of them must not stop the store.
            log.exception("whoever waits for messages failed")
