"""Delay levels: the table `messageDelayLevel` and its arithmetic.

A delayed message names a level, counted from 1, and the broker's table gives the time. Timers of any length are not
delay levels and have no place here.
"""

from typing import Final

import msgspec

from cometmq.protocol.errors import ProtocolError

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MILLIS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

#: What RocketMQ waits for a level that is not in the table, in ms.
UNKNOWN_LEVEL_MILLIS: Final = 1_000


class DelayLevels(msgspec.Struct, frozen=True):
    """A delay level table; `millis[0]` is the time of level 1."""

    millis: tuple[int, ...]

    @classmethod
    def parse(cls, text: str = DEFAULT_DELAY_LEVELS) -> "DelayLevels":
        """Read a table such as `1s 5s 1m 2h`; the units are s, m, h and d."""
        millis = []
        for item in text.split():
            number, unit = item[:-1], item[-1]
            if unit not in _UNIT_MILLIS or not (number.isascii() and number.isdigit()) or len(number) > 9:
                raise ProtocolError(f"delay level table: {item!r} is not a number with one of the units s, m, h, d")
            millis.append(int(number) * _UNIT_MILLIS[unit])
        if not millis:
            raise ProtocolError("delay level table: no level in it")
        return cls(tuple(millis))

    @property
    def max_level(self) -> int:
        return len(self.millis)

    def clamp(self, level: int) -> int:
        """The level that the broker uses: 0 for "no delay" and everything below, the last one for all above."""
        return max(0, min(level, len(self.millis)))

    def millis_of(self, level: int) -> int:
        """How long a message of this level waits, in ms. Levels above the table wait as its last one."""
        if level < 1:
            return UNKNOWN_LEVEL_MILLIS
        return self.millis[min(level, len(self.millis)) - 1]

    def level_of(self, millis: int) -> int | None:
        """The level of exactly this duration, or None: then only a timer can give it."""
        try:
            return self.millis.index(millis) + 1
        except ValueError:
            return None

    def deliver_time(self, level: int, store_timestamp: int) -> int:
        """When a message of this level, stored at `store_timestamp`, is due; epoch ms."""
        return store_timestamp + self.millis_of(level)
