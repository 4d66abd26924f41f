"""Latency fault tolerance: a broker that was slow or failed is left alone for a while.

The table gives how long, by how slow it was. RocketMQ's MQFaultStrategy and LatencyFaultToleranceImpl. No clock of its
own and no I/O.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

#: A broker that failed counts as this slow (ms), whatever the time it took.
ISOLATED: Final = 10_000


class LatencyTable(NamedTuple):
    """From a latency on (ms) a broker is not used for as long as stands at the same place."""

    latency: tuple[int, ...]
    unavailable: tuple[int, ...]
    isolated: int = ISOLATED

    def pause(self, latency: float) -> int:
        """How long a broker with this latency is left alone, in ms."""
        place = bisect_right(self.latency, latency) - 1
        return self.unavailable[place] if place >= 0 else 0


#: Clients since 5.1.4.
TABLE_5 = LatencyTable((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10000, 30000))
#: Clients before that: long breaks.
TABLE_4 = LatencyTable(
    (50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30000, 60000, 120000, 180000, 600000), isolated=30_000
)
PRESETS: Final = {"5.x": TABLE_5, "4.x": TABLE_4}


def table_of(given: str | tuple[Sequence[int], Sequence[int]] | None) -> LatencyTable:
    """The table of a preset's name or of two rows."""
    if given is None:
        return TABLE_5
    if isinstance(given, str):
        if given not in PRESETS:
            raise ValueError(f"latency_table {given!r}: the presets are {', '.join(PRESETS)}")
        return PRESETS[given]
    latency, unavailable = (tuple(row) for row in given)
    if len(latency) != len(unavailable) or list(latency) != sorted(latency):
        raise ValueError("latency_table takes two rows of one length, the first one rising")
    return LatencyTable(latency, unavailable)


class BrokerLatency:
    """What is known of one broker."""

    __slots__ = ("available_at", "is_reachable", "latency")

    def __init__(self) -> None:
        self.latency = 0.0
        #: Seconds of the loop's clock.
        self.available_at = 0.0
        self.is_reachable = True


class Latencies:
    """The brokers that a producer has sent to."""

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self.brokers: dict[str, BrokerLatency] = {}

    def update(self, broker: str, seconds: float, now: float, *, isolate: bool = False, reachable: bool = True) -> None:
        """A send to a broker took so long; `isolate` when it failed."""
        known = self.brokers.get(broker)
        if known is None:
            known = self.brokers[broker] = BrokerLatency()
        known.latency = seconds
        known.is_reachable = reachable
        pause = self._table.pause(self._table.isolated if isolate else seconds * 1000)
        if pause:
            known.available_at = max(known.available_at, now + pause / 1000)

    def is_available(self, broker: str, now: float) -> bool:
        known = self.brokers.get(broker)
        return known is None or now >= known.available_at

    def is_reachable(self, broker: str) -> bool:
        known = self.brokers.get(broker)
        return known is None or known.is_reachable

    def reached(self, broker: str) -> None:
        """A broker answered something: it is in reach. Whether it is fast enough, its pause says."""
        known = self.brokers.get(broker)
        if known is not None:
            known.is_reachable = True

    def forget(self, broker: str) -> None:
        self.brokers.pop(broker, None)
