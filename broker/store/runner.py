"""Who runs things later: the event loop of a broker, or a test that steps through them.

The store itself knows no asyncio. It asks its runner for a callback in the next turn, after some time, or for work in a
thread; every callback comes back on the one thread that owns the store.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from cometmq.broker.store.clock import FakeClock

_T = TypeVar("_T")

#: Takes what the work gave, or what it raised. The other one is None.
Done = Callable[[_T | None, Exception | None], None]

#: Threads of a lane; a lane that is not here has one, so that its work is done in order.
LANE_THREADS = {"read": 4}


class Handle(Protocol):
    """Something that will run later."""

    def cancel(self) -> None:
        """It will not run. Nothing happens when it has run."""


class Runner(Protocol):
    """Runs callbacks on the thread that owns the store, and work in others."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """In the next turn, in the order of the calls."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle:
        """Once, when that many seconds of the monotonic clock are over."""

    def in_thread(self, work: Callable[[], _T], done: Done[_T], *, lane: str = "io") -> None:
        """Runs `work` in a thread of the lane, then `done(value, error)` in a turn of the owner.

        Lanes do not wait for each other: a flush must never stand behind a cold read.
        """


class AsyncioRunner:
    """The event loop of the broker, and a thread pool for each lane.

    Make it on the loop's thread; close it after the store.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self.call_later = self._loop.call_later

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def in_thread(self, work: Callable[[], _T], done: Done[_T], *, lane: str = "io") -> None:
        pool = self._lanes.get(lane)
        if pool is None:
            pool = self._lanes[lane] = ThreadPoolExecutor(LANE_THREADS.get(lane, 1), thread_name_prefix=f"store-{lane}")
        pool.submit(self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Done[Any]) -> None:
        try:
            value, error = work(), None
        except Exception as caught:
            value, error = None, caught
        try:
            self._loop.call_soon_threadsafe(done, value, error)
        except RuntimeError:
            # The loop was closed while the work ran: its owner has gone, and nobody waits for the answer.
            if not self._loop.is_closed():
                raise

    def close(self) -> None:
        """Waits for the work that has begun, and ends the threads."""
        for pool in self._lanes.values():
            pool.shutdown(wait=True, cancel_futures=True)
        self._lanes.clear()


class _Timer:
    """An entry of the fake's calendar."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualRunner:
    """Runs nothing by itself: a test steps through turns, time and threads, the same way each time.

    Work for threads is done at once (and its `done` in the next turn), unless its lane is held.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._held: set[str] = set()
        #: Work that waits because its lane is held: (lane, what runs it), oldest first.
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    # What the store calls

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.clock.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def in_thread(self, work: Callable[[], _T], done: Done[_T], *, lane: str = "io") -> None:
        def run() -> None:
            try:
                value = work()
            except Exception as caught:
                error = caught
                self._soon.append(lambda: done(None, error))
            else:
                self._soon.append(lambda: done(value, None))

        if lane in self._held:
            self._waiting.append((lane, run))
        else:
            run()

    # What the test calls

    def hold(self, lane: str) -> None:
        """From now on work of the lane waits for `step`."""
        self._held.add(lane)

    def let_go(self, lane: str) -> None:
        """Does the work of the lane that waits, and all that comes."""
        self._held.discard(lane)
        while self.step(lane):
            pass

    def waiting(self, lane: str | None = None) -> int:
        """How many pieces of work are held."""
        return sum(1 for name, _ in self._waiting if lane in (None, name))

    def step(self, lane: str | None = None) -> bool:
        """Does the oldest piece of held work; its `done` comes with the next turn. False when there is none."""
        for index, (name, run) in enumerate(self._waiting):
            if lane in (None, name):
                del self._waiting[index]
                run()
                return True
        return False

    def turn(self) -> int:
        """Runs what is queued now, not what that queues. Returns how many callbacks ran."""
        count = len(self._soon)
        for _ in range(count):
            self._soon.popleft()()
        return count

    def run(self, turns: int = 1000) -> None:
        """Turns until nothing is queued. Time stands still."""
        for _ in range(turns):
            if not self.turn():
                return
        raise RuntimeError(f"still busy after {turns} turns")

    def advance(self, seconds: float) -> None:
        """Moves the clock, and runs every timer at its moment with the turns that follow from it."""
        end = self.clock.monotonic() + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            moment, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self.clock.advance(max(0.0, moment - self.clock.monotonic()))
            timer.callback()
            self.run()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))

    def timers(self) -> int:
        """How many timers are set."""
        return sum(1 for _, _, timer in self._timers if timer.callback is not None)
