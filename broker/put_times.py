"""How long puts took: a histogram that begins anew each minute, and what RocketMQ's tools show of it.

The buckets and their names are those of RocketMQ's StoreStatsService: fine ones for the percentiles, and 13 coarse ones
that `brokerStatus` prints.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from typing import Final

#: Upper ends of the fine buckets in milliseconds: 0, then (width, how many) as RocketMQ has them. One more is open.
_WIDTHS: Final = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))
BOUNDS: Final[tuple[int, ...]] = (
    0,
    *accumulate(chain.from_iterable(repeat(width, count) for width, count in _WIDTHS)),
)

#: The coarse buckets: name and upper end. Each end is one of the fine ones too.
_COARSE: Final = (
    ("[<=0ms]", 0),
    ("[0~10ms]", 10),
    ("[10~50ms]", 50),
    ("[50~100ms]", 100),
    ("[100~200ms]", 200),
    ("[200~500ms]", 500),
    ("[500ms~1s]", 1000),
    ("[1~2s]", 2000),
    ("[2~3s]", 3000),
    ("[3~4s]", 4000),
    ("[4~5s]", 5000),
    ("[5~10s]", 10_000),
)
_OPEN: Final = "[10s~]"


class PutTimes:
    """The histogram of this minute and of the last one."""

    __slots__ = ("_last", "counts", "longest")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self._last: list[int] = self.counts
        #: Ever, in milliseconds.
        self.longest = 0

    def add(self, milliseconds: int, count: int = 1) -> None:
        """Hot: once a put, or once for all puts of a turn. Budget: 0.2 us."""
        self.counts[bisect_left(BOUNDS, milliseconds)] += count
        if milliseconds > self.longest:
            self.longest = milliseconds

    def roll(self) -> None:
        """A minute is over."""
        self._last = self.counts
        self.counts = [0] * (len(BOUNDS) + 1)

    def distribution(self) -> str:
        """The coarse buckets of this minute, as RocketMQ prints them."""
        texts = []
        begin = 0
        for name, bound in _COARSE:
            end = BOUNDS.index(bound) + 1
            texts.append(f"{name}:{sum(self.counts[begin:end])} ")
            begin = end
        texts.append(f"{_OPEN}:{sum(self.counts[begin:])} ")
        return "".join(texts)

    def percentile(self, part: float) -> float:
        """The time that `part` of the puts of the last whole minute did not exceed, between the ends of its bucket."""
        return _percentile(self._last if any(self._last) else self.counts, part)


def _percentile(counts: Sequence[int], part: float) -> float:
    rank = math.ceil(sum(counts) * part)
    passed = 0
    for number, count in enumerate(counts):
        if rank <= passed + count:
            # The open bucket has no end: its beginning is what is known.
            high = BOUNDS[min(number, len(BOUNDS) - 1)]
            low = BOUNDS[number - 1] if number else 0
            return low + ((high - low) * (rank - passed) / count if count else 0.0)
        passed += count
    return 0.0
