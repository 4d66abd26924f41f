"""The part of a check that looks at RocketMQ's timers: `timerlog/` and `timerwheel`.

A unit of the timer log stands for one message that waits for its time, and points to its record and to the unit before
it in its slot; a slot of the wheel stands for one moment, and points to the first and last unit of it. Compared are
units with the log, and slots with the units.

| what | bytes | fields |
|---|---|---|
| unit of the timer log | 52 | i32 size, i64 unit before it (-1: none), i32 magic, i64 written at, i32 delay in ms, |
| | | i64 record, i32 size of the record, i32 hash of the topic, i64 unused |
| slot of the wheel | 32 | i64 moment, i64 first unit, i64 last unit, i32 number of units, i32 unused |
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from cometmq.broker.store.check_log import find_files
from cometmq.broker.store.check_report import Kind, Report
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.log_files import LogFile
from cometmq.protocol.record import MAGIC_BLANK

UNIT: Final = Struct(">iqiqiqiiq")
SLOT: Final = Struct(">qqqii")
#: The size of what closes a file: the bytes that are left, a zero, and the magic of blank records.
_BLANK: Final = Struct(">iqi")
#: Bits of a unit's magic: default, roll, delete, and one that is free.
_MAGIC_BITS: Final = 0xF
_STEP: Final = SLOT.size * 32_768


class TimerCheck:
    """Looks at the timers of one store. `begin` and `end` are those of the commit log."""

    def __init__(self, disk: Disk, root: str, report: Report, begin: int, end: int, *, clean: bool) -> None:
        self._disk = disk
        self._root = root
        self._report = report
        self._begin, self._end = begin, end
        #: A start after a crash cuts the timer log where it cannot be read, and sets the wheel right.
        self._say = report.defect if clean else report.note
        #: A repair may have moved the records away.
        self._say_gone = report.note if disk.list_dir(f"{root}/quarantine") else self._say
        #: What the timer log holds, from and to.
        self._first = self._last = 0

    def run(self, file_size: int) -> None:
        folder = f"{self._root}/timerlog"
        if file_size:
            files, _ = find_files(self._disk, folder, file_size, Kind.TIMER, self._report)
            if files:
                self._first = self._last = files[0].start
                for file in files:
                    if not self._units(file):
                        break
        if self._disk.exists(f"{self._root}/timerwheel"):
            self._wheel(f"{self._root}/timerwheel")

    def _units(self, file: LogFile) -> bool:
        """Whether the file is full and right: then the next one counts."""
        data = file.read(0, file.size)
        file.close()
        position = 0
        while position + UNIT.size <= len(data):
            size, before, magic, _, _, record, record_size, _, _ = UNIT.unpack_from(data, position)
            at = file.start + position
            if size != UNIT.size:
                return self._is_end(file.path, data, position)
            what, say = "", self._say
            if magic | _MAGIC_BITS != _MAGIC_BITS:
                what = f"magic {magic & 0xFFFFFFFF:#x}"
            elif before >= at or before < -1:
                what = f"the unit before it is said to be at {before}"
            elif record < 0 or record_size <= 0:
                what = f"its record is said to be at {record} with {record_size} bytes"
            elif record >= self._begin and record + record_size > self._end:
                what = f"its record is said to be at {record}, the log ends at {self._end}"
                say = self._say_gone
            if what:
                say(Kind.TIMER, file.path, position, what)
            position += UNIT.size
            self._last = at + UNIT.size
            self._report.timers += 1
        return True

    def _is_end(self, path: str, data: bytes, position: int) -> bool:
        """What is no unit: the end of the file or of the log. Gives whether the next file counts."""
        if position + _BLANK.size <= len(data) and _BLANK.unpack_from(data, position)[2] == MAGIC_BLANK:
            return True
        if any(data[position : position + UNIT.size]):
            self._say(Kind.TIMER, path, position, "no unit; what follows is not reached")
        return False

    def _wheel(self, path: str) -> None:
        for position, (moment, first, last, count, _) in self._slots(path):
            if count < 0 or moment < 0:
                self._say(Kind.TIMER, path, position, f"{count} messages at {moment}")
            elif count and last >= self._last:
                self._say(Kind.TIMER, path, position, f"its last unit is at {last}, the timer log ends at {self._last}")
            elif count and first > last:
                self._say(Kind.TIMER, path, position, f"its first unit, {first}, comes after its last, {last}")

    def _slots(self, path: str) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The slots that are not empty, and where they stand."""
        file = self._disk.open(path)
        try:
            if file.size % SLOT.size:
                self._say(Kind.TIMER, path, None, f"{file.size} bytes are no whole number of slots")
            for start in range(0, file.size - file.size % SLOT.size, _STEP):
                data = file.read(start, min(_STEP, file.size - file.size % SLOT.size - start))
                if data.count(0) < len(data):
                    for number, slot in enumerate(SLOT.iter_unpack(data)):
                        if slot[0]:
                            yield start + number * SLOT.size, slot
        finally:
            file.close()
