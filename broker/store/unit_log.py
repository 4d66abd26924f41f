"""Logs of units of one size, each of which points to a record of the commit log: what both kinds of queues are made of.

Here live which bytes are a unit at all, where a log ends when it is opened, and everything that goes by the position
of the records: truncation, expiry, the first unit whose record is still there. How messages are numbered, and which
fields a unit has besides, is up to the queues.
"""

import re
from struct import Struct
from typing import Final

from cometmq.broker.store.append_log import AppendLog, Upkeep
from cometmq.broker.store.log_files import LogFile, LogFiles

#: The fields that every unit begins with: physical offset and size of the record, tags code.
POINTER: Final = Struct(">qiq")
#: The size of a blank unit: RocketMQ fills a queue that does not begin at 0 with them. No record is that long.
BLANK_SIZE: Final = 0x7FFFFFFF

# Where a scan starts, and how far it grows: most queues are short, and a file is mostly a hole.
_FIRST_SCAN, _LAST_SCAN = 4096, 1024 * 1024
_NEGATIVE: Final = re.compile(rb"[\x80-\xff]")


class UnitShape:
    """How to tell a unit from bytes that are none: fields that are 0 or more, and fields that are more than 0.

    A field is (position in the unit, width in bytes). The test looks at one byte of every unit at a time, so that a
    file of 300,000 units takes milliseconds and no loop over them.
    """

    __slots__ = ("_positive", "_tops", "size")

    def __init__(self, size: int, not_negative: tuple[tuple[int, int], ...], positive: tuple[tuple[int, int], ...]):
        self.size = size
        self._tops = tuple(position for position, _ in (*not_negative, *positive))
        self._positive = positive

    def count_valid(self, data: bytes) -> int:
        """How many units at the beginning of the data are valid; a part of a unit is none."""
        size = self.size
        count = len(data) // size
        if count == 0:
            return 0
        end = count * size
        for top in self._tops:
            column = data[top:end:size]
            if not column.isascii() and (match := _NEGATIVE.search(column)):
                count = min(count, match.start())
        for position, width in self._positive:
            bits = 0
            for place in range(position, position + width):
                bits |= int.from_bytes(data[place:end:size], "little")
            zero = bits.to_bytes(end // size, "little").find(0)
            if zero >= 0:
                count = min(count, zero)
        return count


class UnitLog(AppendLog):
    """Units in files. Positions here are numbers of units, not bytes."""

    __slots__ = ("_per_file", "max_physical")

    SHAPE: UnitShape

    def __init__(self, upkeep: Upkeep, files: LogFiles) -> None:
        super().__init__(upkeep, files)
        #: The end of the last record that has a unit; -1 when there is none.
        self.max_physical = -1
        self._per_file = files.file_size // self.SHAPE.size

    @property
    def first_unit(self) -> int:
        return self.start // self.SHAPE.size

    @property
    def unit_count(self) -> int:
        """One more than the number of the last unit that was written."""
        return self.written // self.SHAPE.size

    def pointer(self, number: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of a unit; None when it is not there."""
        data = self.read(number * self.SHAPE.size, POINTER.size)
        return POINTER.unpack(data) if len(data) == POINTER.size else None

    # Opening

    def recover(self, *, thorough: bool) -> None:
        """Finds the end. A log that was not closed is scanned, from its third last file on, up to the first unit that
        is none; after a clean exit the units have no holes, and a search will do.
        """
        files = self.files.files
        if files:
            recent = files[-3:]
            if thorough:
                self.settle(self._scan(recent), flushed=recent[0].start)
                self.wipe_rest()
            else:
                self.settle(self._search(recent))
        else:
            self.settle(0)
        self._recover_max_physical(-1)

    def _scan(self, files: list[LogFile]) -> int:
        shape = self.SHAPE
        end = files[0].start
        floor = b""
        for file in files:
            valid, floor = self._scan_file(file, floor)
            end = file.start + valid * shape.size
            if valid < self._per_file:
                break
        return end

    def _scan_file(self, file: LogFile, floor: bytes) -> tuple[int, bytes]:
        """How many units of a file are sound, and the physical offset of the last one, as it stands in the file."""
        size = self.SHAPE.size
        whole = self._per_file * size
        position, length = 0, _FIRST_SCAN
        self._upkeep.open_files.use(file)
        while position < whole:
            data = file.read(position, min(length // size * size, whole - position))
            valid, floor = _count_rising(data, self.SHAPE.count_valid(data), size, floor)
            position += valid * size
            if valid * size < len(data) or not data:
                break
            length = min(length * 8, _LAST_SCAN)
        return position // size, floor

    def _search(self, files: list[LogFile]) -> int:
        size = self.SHAPE.size
        for file in reversed(files):
            first = min(_FIRST_SCAN // size, self._per_file)
            low = self.SHAPE.count_valid(self._upkeep.open_files.use(file).read(0, first * size))
            if low == 0 and file is not files[0]:
                continue
            if low == first:
                # In growing steps: most queues are short, and looking into the hole behind the end is not for free.
                high = min(2 * low, self._per_file)
                while low < high and self._is_valid(file, high - 1):
                    low, high = high, min(2 * high, self._per_file)
                while low < high:
                    middle = (low + high) // 2
                    if self._is_valid(file, middle):
                        low = middle + 1
                    else:
                        high = middle
            return file.start + low * size
        return files[0].start

    def _is_valid(self, file: LogFile, number: int) -> bool:
        size = self.SHAPE.size
        return self.SHAPE.count_valid(self._upkeep.open_files.use(file).read(number * size, size)) == 1

    def _recover_max_physical(self, otherwise: int) -> None:
        last = self.pointer(self.unit_count - 1) if self.unit_count else None
        # RocketMQ counts a blank unit as a record and then refuses all that come before its end.
        self.max_physical = last[0] + last[1] if last and last[1] != BLANK_SIZE else otherwise

    # Going by the positions of records

    def _first_from(self, file: LogFile, physical: int, low: int = 0) -> int:
        """The first unit of a file, counted from its start, whose record is not before `physical`; its end if none.

        Blank units are before everything.
        """
        size = self.SHAPE.size
        high = min(self._per_file, self.unit_count - file.start // size)
        self._upkeep.open_files.use(file)
        if low < high and _is_from(file.read(low * size, POINTER.size), physical):
            # Nearly always: nothing has expired.
            return low
        while low < high:
            middle = (low + high) // 2
            if _is_from(file.read(middle * size, POINTER.size), physical):
                high = middle
            else:
                low = middle + 1
        return low

    def truncate_units(self, physical: int) -> None:
        """Removes the units of records that begin at `physical` or after it."""
        self.write_out()
        if self.max_physical <= physical:
            return
        size = self.SHAPE.size
        end = self.start
        for file in reversed(self.files.files):
            kept = self._first_from(file, physical)
            end = file.start + kept * size
            if kept:
                break
        self.cut(end)
        self._recover_max_physical(physical)

    def first_unit_from(self, physical: int, low: int) -> int:
        """The number of the first unit, not before `low`, whose record is not before `physical`."""
        size = self.SHAPE.size
        for file in self.files.files:
            first = file.start // size
            if file.retired or first + self._per_file <= low or first >= self.unit_count:
                continue
            inside = self._first_from(file, physical, max(0, low - first))
            if inside < min(self._per_file, self.unit_count - first):
                return first + inside
        return self.unit_count

    def drop_expired(self, physical: int) -> int:
        """Removes the files at the beginning whose last record is before `physical`, but never the last file."""
        dropped = 0
        while len(self.files.files) > 1:
            file = self.files.files[0]
            last = self._per_file - 1
            if file.end > self.written or self._first_from(file, physical, last) == last or not self.drop_first():
                break
            dropped += 1
        return dropped


def _is_from(data: bytes, physical: int) -> bool:
    if len(data) < POINTER.size:
        return False
    offset, size, _ = POINTER.unpack(data)
    return bool(offset >= physical and size != BLANK_SIZE)


def _count_rising(data: bytes, valid: int, size: int, floor: bytes) -> tuple[int, bytes]:
    """How many of the valid units point no further back than the one before them, and where the last one points.

    A unit that was torn while it was wiped may look valid, but its offset falls back. Offsets are big-endian and not
    negative, so that their bytes compare as their values do.
    """
    offsets = [data[at : at + 8] for at in range(0, valid * size, size)]
    if not offsets:
        return 0, floor
    if offsets[0] >= floor and offsets == sorted(offsets):
        return valid, offsets[-1]
    for count, offset in enumerate(offsets):
        if offset < floor:
            return count, floor
        floor = offset
    return valid, floor
