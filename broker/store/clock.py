"""The two clocks of the store: `wall` for what is written to disk, `monotonic` for waiting.

Store times, retention and delays follow the wall clock, which may jump; timeouts and intervals never do. The fake is
shipped: tests of the broker and its users move time through it.
"""

import sys
import time
from datetime import UTC, datetime, tzinfo
from typing import Final, Protocol

if sys.platform != "win32":
    import resource

#: Linux alone counts for each thread.
_RUSAGE_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None) if sys.platform != "win32" else None


class Clock(Protocol):
    """Where the time comes from."""

    def wall(self) -> int:
        """Milliseconds since 1970: RocketMQ's timestamps."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def local(self, wall: int) -> datetime:
        """A timestamp in the time zone of the machine: the hours of `deleteWhen`, the names of index files."""

    def waits(self) -> int:
        """A number that changes when the thread that asks has had to wait, and not when it was only kept from running.

        Tells a slow disk from a busy processor.
        """


class SystemClock:
    """The clocks of the machine."""

    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def local(self, wall: int) -> datetime:
        return datetime.fromtimestamp(wall / 1000)

    def waits(self) -> int:
        if _RUSAGE_THREAD is None:
            return time.monotonic_ns()  # nobody tells: every delay is a wait
        return resource.getrusage(_RUSAGE_THREAD).ru_nvcsw


class FakeClock:
    """Clocks that stand still until they are moved."""

    def __init__(self, wall: int = 1_700_000_000_000, monotonic: float = 0.0, zone: tzinfo = UTC) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._zone = zone
        self._waits = 0

    def wall(self) -> int:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def local(self, wall: int) -> datetime:
        return datetime.fromtimestamp(wall / 1000, self._zone).replace(tzinfo=None)

    def waits(self) -> int:
        self._waits += 1  # time that goes by here is never the processor's fault
        return self._waits

    def advance(self, seconds: float) -> None:
        """Time goes by: both clocks move on."""
        if seconds < 0:
            raise ValueError("time does not go back; see set_wall")
        self._wall += round(seconds * 1000)
        self._monotonic += seconds

    def set_wall(self, wall: int) -> None:
        """Somebody sets the clock on the wall, forwards or back; waiting is not touched."""
        self._wall = wall
