"""Flow control of a Reactor: what waits too long is told so at once, and what is accepted is answered soon.

RocketMQ's requests wait in queues of thread pools, and a cleaner answers those that waited too long. Here they wait in
three places, and each has its rule:

- In the kernel, while the loop is kept from reading: by a slow write, mostly. A timer that comes late tells how long;
  requests read after such a stall are refused, and so is what lay in the buffers of their connections meanwhile.
- Behind a write that is under way in a thread: puts that waited too long there are given up.
- As open sends of any kind: above the capacity of the queue that they would stand in, no more are taken.

On the way of a request this costs two comparisons. Mirrors BrokerFastFailure and the reject tests of the processors.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.store.message import PutStatus
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.dispatch import Handler, Request, Response, Result

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.state import BrokerState
    from cometmq.broker.store.runner import Handle
    from cometmq.remoting.connection import Connection

log = logging.getLogger(__name__)

#: Seconds between two looks while requests come; RocketMQ's cleaner looks every 10 ms.
TICK: Final = 0.025
#: So many looks without a request, and the next one starts the watch again: an idle broker does not wake up.
IDLE_TICKS: Final = 8
_NEVER: Final = float("inf")
_ALWAYS: Final = float("-inf")

_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
REJECTED: Final = Response(_BUSY, remark="[REJECTREQUEST]system busy, start flow control for a while")
OVERLOADED: Final = Response(_BUSY, remark="[OVERLOAD]system busy, start flow control for a while")


def cleaned(why: str, seconds: float, size: int) -> str:
    """RocketMQ's words for a request that waited too long in a queue."""
    return (
        f"[{why}]broker busy, start flow control for a while, period in queue: {seconds * 1000:.0f}ms,"
        f" size of queue: {size}"
    )


class Lane:
    """Requests of one kind: in RocketMQ those of one queue."""

    __slots__ = ("deadline", "limit", "sends")

    def __init__(self, *, sends: bool = False) -> None:
        self.sends = sends
        #: How long they may wait, in seconds.
        self.limit = _NEVER
        #: A request that was read later than this has to be looked at: `Overload.look`.
        self.deadline = _ALWAYS


class Overload:
    """Watches the loop and the puts. Mutable state: the timer, the lanes' deadlines, and who was kept waiting."""

    def __init__(self, state: "BrokerState", *, now: Callable[[], float] | None = None) -> None:
        """`now` is the clock that requests are stamped with, the loop's by default."""
        self._state = state
        self._now = now
        self.sends = Lane(sends=True)
        self.pulls = Lane()
        self.lite_pulls = Lane()
        #: Sends that wait for the end of their put, and how many may.
        self.open_sends = 0
        self.capacity = 0
        #: How many requests were refused, by the first word of the remark.
        self.refused = 0
        self._enabled = True
        self._timer: Handle | None = None
        #: When the next look should be.
        self._due = 0.0
        self._idle = 0
        self._appended = -1
        #: The last stall: how long it was, and whether anybody was refused for it.
        self._stall = 0.0
        self._told = False
        self._after_stall = False
        #: Bytes that lay in the kernel for a connection when a stall was over, and were not read yet.
        self._backlog: dict[Connection, int] = {}
        #: The write under way, by its beginning; when so many puts waited behind it; how many were given up.
        self._write = -1.0
        self._marks: deque[tuple[float, int]] = deque()
        self._given_up = 0
        self.configure(state.config)
        state.on_config.append(self.configure)

    def configure(self, config: "BrokerConfig") -> None:
        """Takes over limits."""
        self._enabled = config.broker_fast_failure_enable
        self.capacity = config.send_thread_pool_queue_capacity
        self.sends.limit = config.wait_time_mills_in_send_queue / 1000
        self.pulls.limit = config.wait_time_mills_in_pull_queue / 1000
        self.lite_pulls.limit = config.wait_time_mills_in_lite_pull_queue / 1000
        self._set_deadlines()

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # A request

    def guard(self, lane: Lane, handler: Handler) -> Handler:
        """A handler that refuses while its lane is too slow; sends do the same by themselves."""

        def guarded(request: Request[Any]) -> "Result | Awaitable[Result]":
            if request.received > lane.deadline:
                refusal = self.look(lane, request)
                if refusal is not None:
                    return refusal
            return handler(request)

        return guarded

    def look(self, lane: Lane, request: Request[Any]) -> Response | None:
        """A closer look at a request that came after its lane's deadline, or above the capacity: a refusal, or None.

        Also what starts the watch.
        """
        refusal = self._refusal(lane, request)
        if refusal is not None:
            self.refused += 1
        return refusal

    def _refusal(self, lane: Lane, request: Request[Any]) -> Response | None:
        if lane.sends:
            if self.is_busy:
                return REJECTED
            if self.open_sends >= self.capacity:
                return OVERLOADED
        if not self._enabled:
            return None
        if self._timer is None:
            self._start(request.received)
            return None
        waited = request.received - self._due
        if waited > lane.limit:
            if not self._told:
                log.warning("nothing was read for %.0f ms: requests that waited so long are refused", waited * 1000)
            self._told = True
            self._note_backlog(request.connection)
            return Response(_BUSY, remark=cleaned("TIMEOUT_CLEAN_QUEUE", waited, self.open_sends))
        if self._stall > lane.limit and (self._after_stall or self._was_kept_waiting(request)):
            self._told = True
            return Response(_BUSY, remark=cleaned("TIMEOUT_CLEAN_QUEUE", self._stall, self.open_sends))
        return None

    @property
    def is_busy(self) -> bool:
        """Whether a write has been under way for so long that sends are turned away: RocketMQ's page cache busy."""
        options = self._state.store.options
        return self._state.store.puts.write_age * 1000 > options.os_page_cache_busy_time_out_mills

    def _note_backlog(self, connection: "Connection") -> None:
        if connection not in self._backlog:
            self._backlog[connection] = connection.waiting_bytes()

    def _was_kept_waiting(self, request: Request[Any]) -> bool:
        """Whether a request lay in the kernel during the stall: counts its bytes off what lay there."""
        left = self._backlog.get(request.connection)
        if left is None:
            return False
        left -= 8 + len(request.raw_header) + len(request.body)
        if left > 0:
            self._backlog[request.connection] = left
        else:
            del self._backlog[request.connection]
        return left >= 0

    # The watch

    def _start(self, now: float) -> None:
        if self._now is None:
            self._now = asyncio.get_running_loop().time
        self._idle = 0
        self._due = now + TICK
        self._timer = self._state.runner.call_later(TICK, self._tick)
        self._set_deadlines()

    def _tick(self) -> None:
        assert self._now is not None
        now = self._now()
        late = now - self._due
        if late > self.sends.limit:
            self._stall = late
            if not self._told:
                # Loops differ in what comes first, timers or sockets: those that were ready now are still to come.
                self._after_stall = True
                self._state.runner.call_soon(lambda: self._state.runner.call_soon(self._stall_over))
        elif not self._after_stall:
            self._backlog = {each: left for each, left in self._backlog.items() if each.is_open}
            if not self._backlog:
                self._told = False
        self._clean_puts(now)
        self._due = now + TICK
        self._timer = None
        if self._is_needed():
            self._timer = self._state.runner.call_later(TICK, self._tick)
        self._set_deadlines()

    def _stall_over(self) -> None:
        self._after_stall = False
        self._set_deadlines()

    def _is_needed(self) -> bool:
        """Whether to look again by itself: not when nothing happened for a while."""
        store = self._state.store
        appended = store.watermarks.appended
        if appended != self._appended or not store.puts.idle or self._backlog or self._after_stall:
            self._appended = appended
            self._idle = 0
        self._idle += 1
        return self._idle <= IDLE_TICKS

    def _set_deadlines(self) -> None:
        closer = self._timer is None or bool(self._backlog) or self._after_stall or self._write_is_long()
        for lane in (self.sends, self.pulls, self.lite_pulls):
            if not self._enabled and not lane.sends:
                lane.deadline = _NEVER
            else:
                lane.deadline = _ALWAYS if closer else self._due + lane.limit

    def _write_is_long(self) -> bool:
        """A write under way is nearly busy: sends are looked at one by one."""
        store = self._state.store
        return store.puts.write_age * 1000 > store.options.os_page_cache_busy_time_out_mills - 2 * TICK * 1000

    # Puts behind a write

    def _clean_puts(self, now: float) -> None:
        """Gives up the puts that have waited too long behind the write under way."""
        puts = self._state.store.puts
        began = puts.writing_since
        if began is None or not self._enabled:
            self._write = -1.0
            return
        if began != self._write:
            self._write = began
            self._given_up = 0
            self._marks.clear()
        if self.is_busy:
            self._give_up(puts.waiting, "PCBUSY_CLEAN_QUEUE", puts.write_age)
            return
        marks = self._marks
        marks.append((now, self._given_up + puts.waiting))
        late = 0
        waited = 0.0
        while marks and now - marks[0][0] > self.sends.limit:
            waited = waited or now - marks[0][0]
            late = marks.popleft()[1]
        if late > self._given_up:
            self._give_up(late - self._given_up, "TIMEOUT_CLEAN_QUEUE", waited)

    def _give_up(self, count: int, why: str, waited: float) -> None:
        if count:
            puts = self._state.store.puts
            self._given_up += count
            puts.give_up(count, PutStatus.OS_PAGE_CACHE_BUSY, cleaned(why, waited, puts.waiting))
