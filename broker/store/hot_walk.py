"""The short way of a read by queue offset: messages that are all in memory and in one file of the log.

That is what nearly every pull of a consumer finds that keeps up. Here the units are looked at by columns, or by their
tags alone; whatever is unusual (cold or missing records, damaged units, a limit of bytes that is near, other filters)
is left to the walks of `reading`, which give the same result where both can.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import islice
from operator import add, le
from struct import Struct
from typing import Final, NamedTuple

from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.unit_log import POINTER

_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1


#: Units that are unpacked with one call.
_AT_ONCE: Final = 256


@lru_cache(maxsize=_AT_ONCE)
def _places(count: int) -> Struct:
    """Offsets and sizes of so many units, by turns."""
    return Struct(">" + "qi8x" * count)


def _all_places(units: bytes) -> Sequence[int]:
    """The same of however many there are."""
    count = len(units) // POINTER.size
    if count <= _AT_ONCE:
        return _places(count).unpack(units)
    odd = _places(count % _AT_ONCE)
    fields = list(odd.unpack_from(units))
    many = _places(_AT_ONCE)
    for at in range(odd.size, len(units), many.size):
        fields += many.unpack_from(units, at)
    return fields


class HotRecords(NamedTuple):
    """What was taken. Without a record there is no file."""

    #: Units that were looked at.
    scanned: int
    #: Where the last of their records begins.
    last: int
    messages: int = 0
    size: int = 0
    file: LogFile | None = None
    #: Where stretches of the log begin and end, in its order.
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()


def take_all(log: CommitLog, units: bytes, hot_from: int, most_bytes: int) -> HotRecords | None:
    """Every message of these units; None when it is not as simple as that. Budget: 0.2 us a message."""
    if not units:
        return None
    fields = _all_places(units)
    starts, sizes = fields[::2], fields[1::2]
    total = sum(sizes)
    if total > most_bytes:
        return None
    return _in_one_file(log, starts, sizes, total, hot_from, len(starts), starts[-1])


def take_tagged(
    log: CommitLog, units: bytes, codes: Collection[int], most: int, hot_from: int, most_bytes: int
) -> HotRecords | None:
    """Up to `most` messages with one of these tags codes; None when it is not as simple as that.

    Budget: 0.1 us a unit and 0.3 us a message.
    """
    starts: list[int] = []
    sizes: list[int] = []
    largest = physical = scanned = 0
    for physical, size, code in POINTER.iter_unpack(units):
        scanned += 1
        if size > largest:
            largest = size
        if code in codes:
            starts.append(physical)
            sizes.append(size)
            if len(starts) >= most:
                break
        elif not _INT_MIN <= code <= _INT_MAX:
            # An address in the extension of the queue, or a time: not for here.
            return None
    if not scanned:
        return None
    if not starts:
        return HotRecords(scanned, physical)
    total = sum(sizes)
    # The careful walk stops at a message that would be too much, wanted or not.
    if total + largest > most_bytes:
        return None
    return _in_one_file(log, starts, sizes, total, hot_from, scanned, physical)


def _in_one_file(
    log: CommitLog, starts: Sequence[int], sizes: Sequence[int], total: int, hot_from: int, scanned: int, last: int
) -> HotRecords | None:
    first = starts[0]
    if first < hot_from or first < 0 or min(sizes) <= 0:
        return None
    ends = list(map(add, starts, sizes))
    end = ends[-1]
    file = log.files.find(first)
    if file is None or file.retired or end > min(file.end, log.max_offset):
        return None
    # In the order of the log, and none reaches into the next.
    if not all(map(le, ends, islice(starts, 1, None))):
        return None
    messages = len(starts)
    if end - first == total:
        starts, ends = [first], [end]
    return HotRecords(scanned, last, messages, total, file, starts, ends)
