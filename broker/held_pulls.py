"""Long polling: pulls that found nothing wait here for a message, or for the end of their patience or of their client.

A held pull costs memory and no time: there is no task, no timer and no periodic look for each of them. An arrival looks
up its queue; ends of patience are gathered in buckets of a tenth of a second, with one timer for the first of them; and
only queues in which messages arrived that nobody wanted are looked at again after 5 s, so that filtered consumers move
on. What is woken is executed in later turns of the loop, so many a turn, by the handler of pulls, which repeats all
checks. Nothing here reads the store or a header. RocketMQ's PullRequestHoldService and NotifyMessageArrivingListener.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.light_queues import light_targets
from cometmq.broker.store.reading import MessageFilter
from cometmq.broker.store.runner import Handle, Runner
from cometmq.broker.store.turn import Turn
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import NO_ANSWER, Request

log = logging.getLogger(__name__)

#: Pulls that may be held at once; a broker's limit of open replies has to lie above this by what its sends may need.
#: A held pull takes some 2 KiB (bench/pull.py), so that these are 200 MiB.
HELD_LIMIT: Final = 100_000
#: Seconds after which a queue is looked at whose arrivals woke nobody.
RECHECK: Final = 5.0
#: Ends of patience are told apart by this many seconds; a pull is never answered early.
BUCKET: Final = 0.1
#: The longest that a pull is held, whatever it asks for (seconds). Clients ask for 20, and give up after 30.
LONGEST: Final = 600.0
#: Pulls executed in one turn of the loop: some 5 ms, which is what others may have to wait.
WAKES_A_TURN: Final = 200

Queue = tuple[str, int]


class HeldPull:
    """A pull that waits. Compared by identity."""

    __slots__ = ("_bucket", "offset", "queue", "request", "wanted")

    def __init__(self, request: Request[Any], queue: Queue, offset: int, wanted: MessageFilter | None) -> None:
        self.request = request
        #: Topic and queue id.
        self.queue = queue
        #: It waits for a message at this queue offset or after it.
        self.offset = offset
        #: None: any message.
        self.wanted = wanted
        self._bucket = 0


# Sets in the order of coming.
_Pulls = dict[HeldPull, None]


class HeldPulls:
    """All held pulls of a broker. Its mutable state: where each of them is found, and the two timers."""

    def __init__(
        self,
        clock: Clock,
        runner: Runner,
        max_offset: Callable[[str, int], int],
        *,
        limit: int = HELD_LIMIT,
        multi_dispatch: bool = False,
    ) -> None:
        """`max_offset` answers for the store; with `multi_dispatch` records may be in light message queues too."""
        self._clock = clock
        self._runner = runner
        self._max_offset = max_offset
        self._multi_dispatch = multi_dispatch
        self.limit = limit
        #: Executes a pull again: set by the handler of pulls. It answers whatever happens, and does not hold again.
        self.execute: Callable[[Request[Any]], None] = _refuse_to_guess
        #: Pulls that are held now.
        self.count = 0
        #: Nothing more is held: the broker shuts down.
        self.is_closed = False
        self._by_queue: dict[Queue, _Pulls] = {}
        self._by_connection: dict[Connection, _Pulls] = {}
        self._by_bucket: dict[int, _Pulls] = {}
        self._buckets: list[int] = []
        self._timer: Handle | None = None
        self._timer_bucket = 0
        #: Queues in which something arrived that a held pull did not want.
        self._passed: set[Queue] = set()
        self._recheck: Handle | None = None
        #: Woken, and waiting for their turn.
        self._woken: deque[HeldPull] = deque()

    @property
    def is_full(self) -> bool:
        return self.count >= self.limit

    def hold(self, held: HeldPull, seconds: float) -> None:
        """Keep a pull until something happens. Budget: 2 us."""
        patience = min(max(seconds, 0.0), LONGEST)
        held._bucket = bucket = int((self._clock.monotonic() + patience) / BUCKET) + 1
        pulls = self._by_bucket.get(bucket)
        if pulls is None:
            pulls = self._by_bucket[bucket] = {}
            heapq.heappush(self._buckets, bucket)
            if self._timer is None or bucket < self._timer_bucket:
                self._set_timer()
        pulls[held] = None
        _enter(self._by_queue, held.queue, held)
        _enter(self._by_connection, held.request.connection, held)
        self.count += 1

    # What wakes them

    def arrived(self, requests: Sequence[DispatchRequest]) -> None:
        """Messages have come into queues. Once per turn of dispatch; 0.15 us for a queue that nobody waits for."""
        by_queue = self._by_queue
        if not by_queue:
            return
        if not self._multi_dispatch and isinstance(requests, Turn) and self._concerns_nobody(requests):
            return
        for request in requests:
            queue = (request.topic, request.queue_id)
            pulls = by_queue.get(queue)
            if pulls is not None and not request.sys_flag & 0x4:
                self._offer(queue, pulls, request.queue_offset + request.batch_size, request)
        if self._multi_dispatch:
            for request in requests:
                if request.properties.rfind(b"INNER_MULTI_DISPATCH\x01") >= 0:
                    for name, offset in light_targets(request.properties):
                        pulls = by_queue.get((name, 0))
                        if pulls is not None:
                            self._offer((name, 0), pulls, offset + 1, request)

    def _concerns_nobody(self, turn: Turn) -> bool:
        """By the queues of a turn, where they are known: mostly nobody waits for any of them."""
        return turn.plain and not any(run[:2] in self._by_queue for run in turn.runs)

    def _offer(self, queue: Queue, pulls: _Pulls, end: int, request: DispatchRequest) -> None:
        """A message came; `end` is the offset after it."""
        woken = [held for held in pulls if end > held.offset and _matches(held.wanted, request)]
        self._wake(woken)
        if pulls and queue not in self._passed:
            self._passed.add(queue)
            if self._recheck is None:
                self._recheck = self._runner.call_later(RECHECK, self.check)

    def check(self) -> None:
        """Wake who waits behind messages that it did not want: its next offset has to move on."""
        self._recheck = None
        passed, self._passed = self._passed, set()
        for queue in passed:
            pulls = self._by_queue.get(queue)
            if pulls is not None:
                end = self._max_offset(*queue)
                self._wake([held for held in pulls if end > held.offset])

    def _expire(self) -> None:
        self._timer = None
        now = int(self._clock.monotonic() / BUCKET)
        while self._buckets and self._buckets[0] <= now:
            self._wake(self._by_bucket.pop(heapq.heappop(self._buckets)))
        if self._buckets:
            self._set_timer()

    def wake_topic(self, topic: str) -> None:
        """Something about a topic has changed; who waits for it is told by the checks."""
        for queue in [queue for queue in self._by_queue if queue[0] == topic]:
            self._wake(list(self._by_queue[queue]))

    def wake_all(self) -> None:
        """Execute all: each is answered with what there is now."""
        for pulls in list(self._by_queue.values()):
            self._wake(list(pulls))

    def close(self) -> None:
        """Everybody is answered in the next turns, and nobody is held any more."""
        self.is_closed = True
        self.wake_all()
        for timer in (self._timer, self._recheck):
            if timer is not None:
                timer.cancel()
        self._timer = self._recheck = None
        self._by_bucket.clear()
        self._buckets.clear()
        self._passed.clear()

    def drop_connection(self, connection: Connection) -> None:
        """The client has gone: its pulls are forgotten at once."""
        pulls = self._by_connection.get(connection)
        if pulls is None:
            return
        for held in list(pulls):
            self._remove(held)
            held.request.reply(NO_ANSWER)

    # Inside

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        bucket = self._timer_bucket = self._buckets[0]
        delay = max(bucket * BUCKET - self._clock.monotonic(), 0.0)
        self._timer = self._runner.call_later(delay, self._expire)

    def _wake(self, pulls: Iterable[HeldPull]) -> None:
        woken = self._woken
        idle = not woken
        for held in pulls:
            self._remove(held)
            woken.append(held)
        if idle and woken:
            self._runner.call_soon(self._execute_woken)

    def _execute_woken(self) -> None:
        woken = self._woken
        for _ in range(min(len(woken), WAKES_A_TURN)):
            self.execute(woken.popleft().request)
        if woken:
            self._runner.call_soon(self._execute_woken)

    def _remove(self, held: HeldPull) -> None:
        self.count -= 1
        _leave(self._by_queue, held.queue, held)
        _leave(self._by_connection, held.request.connection, held)
        pulls = self._by_bucket.get(held._bucket)
        if pulls is not None:
            # An empty bucket stays until its time: others of the same moment may follow.
            pulls.pop(held, None)


def _enter(table: dict[Any, _Pulls], key: Any, held: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is None:
        table[key] = {held: None}
    else:
        pulls[held] = None


def _leave(table: dict[Any, _Pulls], key: Any, held: HeldPull) -> None:
    pulls = table[key]
    del pulls[held]
    if not pulls:
        del table[key]


def _matches(wanted: MessageFilter | None, request: DispatchRequest) -> bool:
    if wanted is None:
        return True
    if not wanted.matches_unit(request.tags_code, None):
        return False
    return not wanted.needs_record or wanted.matches_record(request.properties)


def _refuse_to_guess(request: Request[Any]) -> None:
    raise RuntimeError("nobody said how a held pull is executed")
