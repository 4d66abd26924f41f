"""A pace: rows a second that go on from an iterator of Arrow batches, evenly and not in gusts.

Used in the tasks that send; clock and sleep are parameters. What could not go on in time, because a broker was slow, is
not caught up with here: nothing goes out faster than the pace.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds of rows that go on together: few enough to be even, enough for requests of more than one row.
TICK: Final = 0.05


def paced(
    batches: "Iterable[pa.RecordBatch]",
    rows_per_second: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "Iterator[pa.RecordBatch]":
    """The rows of batches in small pieces, each when its turn is."""
    size = max(1, round(rows_per_second * TICK))
    due = clock()
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            piece = batch.slice(first, size)
            wait = due - clock()
            if wait > 0:
                sleep(wait)
            due = max(due, clock() - TICK) + piece.num_rows / rows_per_second
            yield piece
