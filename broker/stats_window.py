"""Windows over running totals: from numbers that only grow to sums and rates of the last minute, hour and day.

A total is looked at every 10 seconds, 10 minutes and hour; a window is the first and the last of the looks that are
kept. RocketMQ's StatsItem and StatsSnapshot. Who counts, and under which name, is in `stats`.
"""

from typing import Final, NamedTuple

#: Looks that are kept of a minute, an hour and a day.
MINUTE_LOOKS: Final = 7
HOUR_LOOKS: Final = 7
DAY_LOOKS: Final = 25

#: Seconds between two looks of each kind.
MINUTE_STEP: Final = 10
HOUR_STEP: Final = 600
DAY_STEP: Final = 3600


class Rate(NamedTuple):
    """What a window says: the sum, that a second, and that a call."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0


#: Nothing was looked at yet.
NOTHING: Final = Rate()


class Rates(NamedTuple):
    """The same over a minute, an hour and a day."""

    minute: Rate = NOTHING
    hour: Rate = NOTHING
    day: Rate = NOTHING


class Counter:
    """Totals of something that is counted: messages, calls, bytes, and milliseconds spent on it.

    The looks at it are tuples (seconds, messages, calls, bytes, milliseconds, timed calls), oldest first; lists are
    made when there is something to put in: a broker has thousands of counters.
    """

    __slots__ = ("calls", "day", "hour", "milliseconds", "minute", "nums", "size", "timed")

    def __init__(self) -> None:
        self.nums = 0
        self.calls = 0
        self.size = 0
        self.milliseconds = 0
        self.timed = 0
        self.minute: list[tuple[float, ...]] | None = None
        self.hour: list[tuple[float, ...]] | None = None
        self.day: list[tuple[float, ...]] | None = None

    def now(self) -> tuple[int, int, int, int, int]:
        """The totals in the order of a look."""
        return self.nums, self.calls, self.size, self.milliseconds, self.timed

    def look(self, at: float, kind: "Kind") -> None:
        """Look at the totals, `at` seconds of the monotonic clock."""
        name, step, kept = kind
        looks = getattr(self, name)
        if looks is None:
            # As if it had been there, at zero, one step before.
            looks = [(at - step, 0, 0, 0, 0, 0)]
            setattr(self, name, looks)
        looks.append((at, *self.now()))
        if len(looks) > kept:
            del looks[0]

    def rates(self, figure: "Figure") -> Rates:
        """Sum, rate and average of one of the totals."""
        return Rates(_rate(self.minute, figure), _rate(self.hour, figure), _rate(self.day, figure))

    def tps(self, figure: "Figure") -> float:
        """The rate over the last minute."""
        return _rate(self.minute, figure).tps


class SumCounter(Counter):
    """The sum of other counters: a topic, of which only the queues are counted."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Counter] = []

    def now(self) -> tuple[int, int, int, int, int]:
        parts = self.parts
        return (
            sum([part.nums for part in parts]),
            sum([part.calls for part in parts]),
            sum([part.size for part in parts]),
            sum([part.milliseconds for part in parts]),
            sum([part.timed for part in parts]),
        )


class Kind(NamedTuple):
    """A kind of look: the counter's list, seconds between two of them, and how many are kept."""

    name: str
    step: int
    kept: int


KINDS: Final = (
    Kind("minute", MINUTE_STEP, MINUTE_LOOKS),
    Kind("hour", HOUR_STEP, HOUR_LOOKS),
    Kind("day", DAY_STEP, DAY_LOOKS),
)


class Figure(NamedTuple):
    """Which of the totals is meant, and which says how often: places in a look."""

    value: int
    times: int


#: Messages a call, bytes a call, milliseconds a call that was timed.
NUMS: Final = Figure(1, 2)
SIZE: Final = Figure(3, 2)
TIME: Final = Figure(4, 5)


def _rate(looks: list[tuple[float, ...]] | None, figure: Figure) -> Rate:
    if looks is None:
        return NOTHING
    first, last = looks[0], looks[-1]
    total = int(last[figure.value] - first[figure.value])
    span = last[0] - first[0]
    times = last[figure.times] - first[figure.times]
    return Rate(total, total / span if span > 0 else 0.0, total / times if times > 0 else 0.0)
