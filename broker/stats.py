"""What a broker counts: messages and bytes in and out, by topic, queue and group, and how long puts took.

RocketMQ's BrokerStatsManager, BrokerStats and StoreStatsService: VIEW_BROKER_STATS_DATA asks for one item by name and
key, GET_BROKER_RUNTIME_INFO for the totals. Counting is adding to a few attributes; topics are the sum of their queues,
made when somebody looks. One timer looks at everything, a tenth of the counters each second, so that a broker with many
of them does not stall.

A delayed message counts twice, as in RocketMQ: under the topic of the delay when it is sent, under its own when it is
delivered. The topic to count under is always the one that the record is stored under.
"""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.broker.put_times import PutTimes
from cometmq.broker.stats_window import KINDS, NUMS, SIZE, TIME, Counter, Figure, Rates, SumCounter
from cometmq.broker.store.clock import Clock
from cometmq.broker.store.runner import Handle, Runner
from cometmq.protocol import names

#: Seconds between two ticks of the timer, and how many of them go by until every counter was looked at once.
TICK: Final = 1.0
PHASES: Final = 10
#: Totals are kept for this many seconds: the longest rate of the runtime info is over ten minutes.
KEPT_SECONDS: Final = 600

#: Ticks until the times of puts begin anew.
_MINUTE: Final = 60
#: In place of a queue id: all queues of a topic are counted together.
_ALL_QUEUES: Final = -1

# Names of items that are counted by `add`.
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS: Final = "DLQ_PUT_NUMS"
SNDBCK2DLQ_TIMES: Final = "SNDBCK2DLQ_TIMES"
CHANNEL_ACTIVITY: Final = "CHANNEL_ACTIVITY"
CONSUMER_REGISTER_TIME: Final = "CONSUMER_REGISTER_TIME"
PRODUCER_REGISTER_TIME: Final = "PRODUCER_REGISTER_TIME"
#: Those of them that go with their topic or group.
_OF_GROUPS: Final = frozenset({SNDBCK_PUT_NUMS, DLQ_PUT_NUMS, SNDBCK2DLQ_TIMES})

_C = TypeVar("_C", bound=Counter)


class Totals(NamedTuple):
    """What was counted since the start: of the store's puts and reads."""

    put: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


class Day(NamedTuple):
    """Messages in or out since the start, at the last two midnights and now. System topics do not count."""

    yesterday_morning: int
    today_morning: int
    now: int


class _QueueCounter(Counter):
    """Counts a queue (of a group), and all queues together."""

    __slots__ = ("total",)

    def __init__(self, total: Counter) -> None:
        super().__init__()
        self.total = total


class BrokerStats:
    """The counters of one broker. Mutable state: the counters by their keys, and what was seen of them."""

    def __init__(
        self,
        cluster: str,
        clock: Clock,
        *,
        is_system: Callable[[str], bool] = names.is_system_topic,
        detail: bool = True,
        auto_delete: bool = True,
    ) -> None:
        """`detail`: queues are counted apart (`enableDetailStat`); `auto_delete`: what is deleted is forgotten
        (`autoDeleteUnusedStats`).
        """
        self._cluster = cluster
        self._clock = clock
        self._is_system = is_system
        self.configure(detail=detail, auto_delete=auto_delete)
        #: By topic and queue; by group, topic and queue. Without detail all queues of a topic have one counter.
        self._puts: dict[tuple[str, int], _QueueCounter] = {}
        self._gets: dict[tuple[str, str, int], _QueueCounter] = {}
        self._topic_puts: dict[str, SumCounter] = {}
        #: By topic and group.
        self._group_gets: dict[tuple[str, str], SumCounter] = {}
        #: Everything that is counted rarely: by name and key.
        self._items: dict[tuple[str, str], Counter] = {}
        # Topics of users and of the system, and both.
        self._put_user, self._put_system, self._put_all = Counter(), Counter(), SumCounter()
        self._get_user, self._get_system, self._get_all = Counter(), Counter(), SumCounter()
        self._put_all.parts = [self._put_user, self._put_system]
        self._get_all.parts = [self._get_user, self._get_system]
        self.found_calls = 0
        self.missed_calls = 0
        self.failed_puts = 0
        #: The longest read of messages, in milliseconds.
        self.longest_get = 0
        self.put_times = PutTimes()
        #: Totals of the last ten minutes, one a second.
        self._seconds: deque[tuple[float, Totals]] = deque(maxlen=KEPT_SECONDS + 1)
        self._seconds.append((clock.monotonic(), Totals()))
        #: The counters that each phase looks at.
        self._phases: list[list[Counter]] = [[] for _ in range(PHASES)]
        self._entered = 0
        for counter in (self._put_user, self._get_user, self._put_all, self._get_all):
            self._enter(counter)
        self._ticks = 0
        self._today = self._date()
        self._put_mornings = self._get_mornings = (0, 0)
        self._runner: Runner | None = None
        self._timer: Handle | None = None

    def configure(self, *, detail: bool, auto_delete: bool) -> None:
        """Take over settings that changed; what is counted already is counted on."""
        self._detail = detail
        self._auto_delete = auto_delete

    # Counting. Hot: each is called once a request. Budget: 0.5 us.

    def put(self, topic: str, queue_id: int, count: int, size: int, calls: int = 1) -> None:
        """Messages were stored: so many, with so many bytes of records, by one request or by several."""
        counter = self._puts.get((topic, queue_id)) or self._new_put(topic, queue_id)
        counter.nums += count
        counter.calls += calls
        counter.size += size
        total = counter.total
        total.nums += count
        total.calls += calls
        total.size += size

    def put_latency(self, milliseconds: int, topic: str | None = None, queue_id: int = 0) -> None:
        """One put took so long; for a broker that wants to know it by queue."""
        self.put_times.add(milliseconds)
        if topic is not None:
            counter = self._puts.get((topic, queue_id)) or self._new_put(topic, queue_id)
            counter.milliseconds += milliseconds
            counter.timed += 1

    def turn_written(self, count: int, seconds: float) -> None:
        """All puts of one turn of the store are written; the oldest took so long."""
        self.put_times.add(int(seconds * 1000), count)

    def put_failed(self) -> None:
        """A message was not stored."""
        self.failed_puts += 1

    def got(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """Messages were found for a group."""
        counter = self._gets.get((group, topic, queue_id)) or self._new_get(group, topic, queue_id)
        self.found_calls += 1
        counter.nums += count
        counter.calls += 1
        counter.size += size
        total = counter.total
        total.nums += count
        total.calls += 1

    def got_miss(self) -> None:
        """A read found nothing."""
        self.missed_calls += 1

    def get_latency(self, group: str, topic: str, queue_id: int, milliseconds: int) -> None:
        """A read for a group took so long."""
        counter = self._gets.get((group, topic, queue_id)) or self._new_get(group, topic, queue_id)
        counter.milliseconds += milliseconds
        counter.timed += 1
        if milliseconds > self.longest_get:
            self.longest_get = milliseconds

    # Counting what is rare

    def send_back(self, group: str, topic: str) -> None:
        """A consumer gave a message back."""
        self.add(SNDBCK_PUT_NUMS, f"{topic}@{group}")

    def dlq(self, group: str, topic: str, owner: str | None = None) -> None:
        """A message went to the dead letters of a group. `owner` comes with the request of some clients."""
        # Java writes a missing owner as null.
        self.add(SNDBCK2DLQ_TIMES, f"{'null' if owner is None else owner}@{topic}@{group}@SEND_BACK_TO_DLQ")
        self.add(DLQ_PUT_NUMS, f"{topic}@{group}")

    def channel(self, event: str) -> None:
        """A client's connection: CONNECT, CLOSE, IDLE or EXCEPTION."""
        self.add(CHANNEL_ACTIVITY, event)

    def add(self, name: str, key: str | None = None, value: int = 1, calls: int = 1) -> None:
        """Count an item by its name and key in RocketMQ; the key of what concerns the broker is its cluster."""
        place = (name, self._cluster if key is None else key)
        counter = self._items.get(place)
        if counter is None:
            counter = self._items[place] = self._enter(Counter())
        counter.nums += value
        counter.calls += calls

    # Forgetting

    def topic_deleted(self, topic: str) -> None:
        """Forget a topic that is no more."""
        self._forget(lambda name: name == topic, lambda name, group: name == topic)

    def group_deleted(self, group: str) -> None:
        """Forget a group that is no more."""
        self._forget(lambda topic: False, lambda topic, name: name == group)

    # Asking

    def rates(self, name: str, key: str) -> Rates | None:
        """An item of VIEW_BROKER_STATS_DATA; None when there is none."""
        if (find := _FINDERS.get(name)) is not None:
            counter, figure = find[0](self, key), find[1]
        else:
            counter, figure = self._items.get((name, key)), NUMS
        return None if counter is None else counter.rates(figure)

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second into a topic, over the last minute."""
        counter = self._topic_puts.get(topic)
        return 0.0 if counter is None else counter.tps(NUMS)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages a second of a topic to a group, over the last minute."""
        counter = self._group_gets.get((topic, group))
        return 0.0 if counter is None else counter.tps(NUMS)

    def totals(self) -> Totals:
        """All puts and reads since the start."""
        transferred = self._get_user.nums + self._get_system.nums
        return Totals(self._put_user.nums + self._put_system.nums, self.found_calls, self.missed_calls, transferred)

    @property
    def put_size(self) -> int:
        """Bytes that were stored since the start."""
        return self._put_user.size + self._put_system.size

    def totals_per_second(self, span: int) -> tuple[float, float, float, float]:
        """The totals as rates over the last `span` seconds, or since the start when that is less."""
        seconds = self._seconds
        last_at, last = seconds[-1]
        first_at, first = seconds[max(0, len(seconds) - 1 - span)]
        length = last_at - first_at
        if length <= 0:
            return 0.0, 0.0, 0.0, 0.0
        put, found, missed, transferred = ((after - before) / length for before, after in zip(first, last, strict=True))
        return put, found, missed, transferred

    @property
    def put_day(self) -> Day:
        """Messages in."""
        return Day(*self._put_mornings, self._put_user.nums)

    @property
    def get_day(self) -> Day:
        """Messages out."""
        return Day(*self._get_mornings, self._get_user.nums)

    # Looking

    def start(self, runner: Runner) -> None:
        """From now on the counters are looked at by the clock."""
        self._runner = runner
        self._timer = runner.call_later(TICK, self._on_timer)

    def stop(self) -> None:
        self._runner = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        if self._runner is not None:
            self._timer = self._runner.call_later(TICK, self._on_timer)
            self.tick()

    def tick(self) -> None:
        """Look at the totals and at the counters of one phase. Once a second."""
        now = self._clock.monotonic()
        self._seconds.append((now, self.totals()))
        turn, phase = divmod(self._ticks, PHASES)
        self._ticks += 1
        for kind in KINDS:
            if turn * PHASES * TICK % kind.step == 0:
                for counter in self._phases[phase]:
                    counter.look(now, kind)
        if self._ticks % _MINUTE == 0:
            self.put_times.roll()
        today = self._date()
        if today != self._today:
            self._today = today
            self._put_mornings = self._put_mornings[1], self._put_user.nums
            self._get_mornings = self._get_mornings[1], self._get_user.nums

    # Inside

    def _date(self) -> date:
        return self._clock.local(self._clock.wall()).date()

    def _enter(self, counter: _C) -> _C:
        self._phases[self._entered % PHASES].append(counter)
        self._entered += 1
        return counter

    def _new_put(self, topic: str, queue_id: int) -> _QueueCounter:
        place = (topic, queue_id if self._detail else _ALL_QUEUES)
        counter = self._puts.get(place)
        if counter is None:
            total = self._put_system if self._is_system(topic) else self._put_user
            counter = self._puts[place] = self._enter(_QueueCounter(total))
            whole = self._topic_puts.get(topic)
            if whole is None:
                whole = self._topic_puts[topic] = self._enter(SumCounter())
            whole.parts.append(counter)
        self._puts[topic, queue_id] = counter
        return counter

    def _new_get(self, group: str, topic: str, queue_id: int) -> _QueueCounter:
        place = (group, topic, queue_id if self._detail else _ALL_QUEUES)
        counter = self._gets.get(place)
        if counter is None:
            total = self._get_system if self._is_system(topic) else self._get_user
            counter = self._gets[place] = self._enter(_QueueCounter(total))
            whole = self._group_gets.get((topic, group))
            if whole is None:
                whole = self._group_gets[topic, group] = self._enter(SumCounter())
            whole.parts.append(counter)
        self._gets[group, topic, queue_id] = counter
        return counter

    def _forget(self, is_put: Callable[[str], bool], is_get: Callable[[str, str], bool]) -> None:
        """Drop the counters of topics, and of topics by group, for which that is said."""
        if not self._auto_delete:
            return
        gone: set[int] = set()
        tables: tuple[tuple[dict[Any, Any], Callable[[Any], bool]], ...] = (
            (self._puts, lambda place: is_put(place[0])),
            (self._topic_puts, is_put),
            (self._gets, lambda place: is_get(place[1], place[0])),
            (self._group_gets, lambda place: is_get(*place)),
            (self._items, lambda place: place[0] in _OF_GROUPS and is_get(*_topic_and_group(*place))),
        )
        for table, is_gone in tables:
            for place in [place for place in table if is_gone(place)]:
                gone.add(id(table.pop(place)))
        for number, phase in enumerate(self._phases):
            self._phases[number] = [counter for counter in phase if id(counter) not in gone]

    # Finding items by their keys in RocketMQ

    def _topic(self, key: str) -> Counter | None:
        return self._topic_puts.get(key)

    def _topic_queue(self, key: str) -> Counter | None:
        """`topic@queueId`"""
        topic, _, queue_id = key.partition("@")
        return self._put_queue(topic, queue_id)

    def _queue_topic(self, key: str) -> Counter | None:
        """`queueId@topic`"""
        queue_id, _, topic = key.partition("@")
        return self._put_queue(topic, queue_id)

    def _put_queue(self, topic: str, queue_id: str) -> Counter | None:
        return self._puts.get((topic, int(queue_id))) if self._detail and _is_number(queue_id) else None

    def _topic_group(self, key: str) -> Counter | None:
        """`topic@group`"""
        topic, _, group = key.partition("@")
        return self._group_gets.get((topic, group))

    def _topic_queue_group(self, key: str) -> Counter | None:
        """`topic@queueId@group`"""
        topic, _, rest = key.partition("@")
        queue_id, _, group = rest.partition("@")
        return self._get_queue(group, topic, queue_id)

    def _queue_topic_group(self, key: str) -> Counter | None:
        """`queueId@topic@group`; without detail `topic@group`"""
        queue_id, _, rest = key.partition("@")
        topic, _, group = rest.partition("@")
        return self._get_queue(group, topic, queue_id) if self._detail else self._topic_group(key)

    def _get_queue(self, group: str, topic: str, queue_id: str) -> Counter | None:
        return self._gets.get((group, topic, int(queue_id))) if self._detail and _is_number(queue_id) else None

    def _put_total(self, key: str) -> Counter | None:
        return self._put_all if key == self._cluster else None

    def _put_total_of_users(self, key: str) -> Counter | None:
        return self._put_user if key == self._cluster else None

    def _get_total(self, key: str) -> Counter | None:
        return self._get_all if key == self._cluster else None

    def _get_total_of_users(self, key: str) -> Counter | None:
        return self._get_user if key == self._cluster else None


#: Name of an item -> how it is found by its key, and which of a counter's totals it is.
_FINDERS: Final[Mapping[str, tuple[Callable[[BrokerStats, str], Counter | None], Figure]]] = {
    "TOPIC_PUT_NUMS": (BrokerStats._topic, NUMS),
    "TOPIC_PUT_SIZE": (BrokerStats._topic, SIZE),
    "TOPIC_PUT_LATENCY": (BrokerStats._queue_topic, TIME),
    "QUEUE_PUT_NUMS": (BrokerStats._topic_queue, NUMS),
    "QUEUE_PUT_SIZE": (BrokerStats._topic_queue, SIZE),
    "GROUP_GET_NUMS": (BrokerStats._topic_group, NUMS),
    "GROUP_GET_SIZE": (BrokerStats._topic_group, SIZE),
    "GROUP_GET_LATENCY": (BrokerStats._queue_topic_group, TIME),
    "QUEUE_GET_NUMS": (BrokerStats._topic_queue_group, NUMS),
    "QUEUE_GET_SIZE": (BrokerStats._topic_queue_group, SIZE),
    "BROKER_PUT_NUMS": (BrokerStats._put_total, NUMS),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": (BrokerStats._put_total_of_users, NUMS),
    "BROKER_GET_NUMS": (BrokerStats._get_total, NUMS),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": (BrokerStats._get_total_of_users, NUMS),
}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def _topic_and_group(name: str, key: str) -> tuple[str, str]:
    """Of `topic@group`, and of `owner@topic@group@type`."""
    parts = key.split("@")
    topic, group = (parts[1], parts[2]) if name == SNDBCK2DLQ_TIMES and len(parts) > 2 else (parts[0], parts[-1])
    return topic, group
