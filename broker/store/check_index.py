"""The part of a check that compares the index with the log.

Entries stand in the order of the log, so both are read side by side: each record has the hashes of its keys there, and
each entry has a record. The chains are followed forwards: what the slots hold after the last entry is computed and
compared.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from cometmq.broker.store.check_log import LogCheck
from cometmq.broker.store.check_report import Kind, Report
from cometmq.broker.store.disk import Disk, DiskFile
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.index_file import ENTRY, ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT, SLOT_SIZE
from cometmq.broker.store.index_keys import KeyHashes
from cometmq.protocol import sysflag

_STEP: Final = 8192
#: Entries that are compared at once. When they differ, one record is looked at, then it is tried again.
_AT_ONCE: Final = 512
_MAX_SECONDS: Final = 2**31 - 1
#: RocketMQ's habit: four entries to a slot.
_ENTRIES_PER_SLOT: Final = 4


def _length(slots: int, entries: int) -> int:
    return HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries


def geometry(data: DiskFile, configured: tuple[int, int] | None) -> tuple[int, int] | None:
    """Slots and entries of an index file: as configured, else as its length and content tell; None when they do not."""
    size = data.size - HEADER_SIZE
    if configured is not None and SLOT_SIZE * configured[0] + ENTRY_SIZE * configured[1] == size:
        return configured
    both = SLOT_SIZE + ENTRY_SIZE * _ENTRIES_PER_SLOT
    if size > 0 and size % both == 0 and _fits(data, size // both):
        return size // both, size // both * _ENTRIES_PER_SLOT
    # Slots of 4 bytes before entries of 20: every fifth number is possible.
    for slots in range(size // SLOT_SIZE % 5 or 5, size // SLOT_SIZE, 5):
        if _fits(data, slots):
            return slots, (size - SLOT_SIZE * slots) // ENTRY_SIZE
    return None


def _fits(data: DiskFile, slots: int) -> bool:
    """Whether first and last entry stand where the header says, the last one at the head of its chain."""
    _, _, begin, end, _, count = HEADER.unpack(data.read(0, HEADER_SIZE))
    first = HEADER_SIZE + SLOT_SIZE * slots
    if count <= 1:
        return True
    if first + ENTRY_SIZE * count > data.size:
        return False
    if ENTRY.unpack(data.read(first + ENTRY_SIZE, ENTRY_SIZE))[1] != begin:
        return False
    key_hash, place, _, _ = ENTRY.unpack(data.read(first + ENTRY_SIZE * (count - 1), ENTRY_SIZE))
    slot = SLOT.unpack(data.read(HEADER_SIZE + SLOT_SIZE * (key_hash % slots), SLOT_SIZE))[0]
    return bool(place == end and key_hash >= 0 and slot == count - 1)


class _File:
    """One index file while it is read."""

    def __init__(self, path: str, data: DiskFile, slots: int, entries: int, mended: bool) -> None:
        self.path = path
        self.data = data
        self.slots = slots
        head = HEADER.unpack(data.read(0, HEADER_SIZE))
        self.begin_time, self.end_time, self.begin, self.end, self.used, count = head
        self.count = max(1, count)
        self.entries = entries
        self.first = HEADER_SIZE + SLOT_SIZE * slots
        #: The next start removes the file and builds it anew.
        self.mended = mended
        self.heads = array("i", bytes(4 * slots))

    def place(self, number: int) -> int:
        return self.first + ENTRY_SIZE * number


#: File, number, hash, physical offset, seconds.
_Entry = tuple[_File, int, int, int, int]


class IndexCheck:
    """The index of one store. `feed` takes the log, `finish` tells what was found."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        report: Report,
        *,
        configured: tuple[int, int] | None,
        clean: bool,
        safe_timestamp: int,
        log: LogCheck,
    ) -> None:
        self._disk = disk
        self._folder = f"{root}/index"
        self._report = report
        self._configured = configured
        #: Slots and entries of the files; None until a file has told.
        self.shape: tuple[int, int] | None = None
        self._clean = clean
        self._safe = safe_timestamp
        self._log = log
        self._begin = log.begin
        self._hashes = KeyHashes()
        self._entries = self._read()
        self._chunk: list[_Entry] = []
        self._at = 0
        #: Records that no file covers: count, first and last offset.
        self._hole: list[int] = []
        self._duplicates = 0

    def _say(self, file: _File, offset: int, what: str, kind: Kind = Kind.INDEX_ENTRY) -> None:
        if file.mended:
            self._report.note(kind, file.path, offset, f"{what}; the next start builds the file anew")
        else:
            self._report.defect(kind, file.path, offset, what)
            self._report.bad_index = True

    # The entries, file by file, with their chains

    def _read(self) -> Iterator[list[_Entry]]:
        report = self._report
        for name in self._disk.list_dir(self._folder):
            path = f"{self._folder}/{name}"
            if not (name.isascii() and name.isdigit()) or self._disk.is_dir(path):
                report.note(Kind.INDEX_FILE, path, None, "it is no index file, and passed over")
                continue
            data = self._disk.open(path)
            try:
                if data.size < HEADER_SIZE:
                    empty = data.size == 0
                    what = f"the file has {data.size} bytes"
                    (report.note if empty else report.defect)(Kind.INDEX_FILE, path, None, what)
                    report.bad_index = report.bad_index or not empty
                    continue
                shape = geometry(data, self._configured) if self.shape is None else self.shape
                if shape is not None and (right := _length(*shape)) != data.size:
                    what = f"the file has {data.size} bytes in place of {right}"
                    report.defect(Kind.INDEX_FILE, path, min(data.size, right), what)
                    report.bad_index = True
                    continue
                if shape is None:
                    what = f"its {data.size} bytes do not tell maxHashSlotNum and maxIndexNum, or its header is wrong"
                    report.defect(Kind.INDEX_FILE, path, None, what)
                    report.bad_index = True
                    continue
                # Files of one store have one shape.
                self._configured = self.shape = shape
                head = HEADER.unpack(data.read(0, HEADER_SIZE))
                mended = not self._clean and not (head[5] >= shape[1] and head[1] <= self._safe)
                report.index_files += 1
                yield from self._read_file(_File(path, data, *shape, mended))
            finally:
                data.close()

    def _read_file(self, file: _File) -> Iterator[list[_Entry]]:
        count = file.count
        if count > file.entries:
            self._say(file, 36, f"the header counts {count - 1} entries, there is room for {file.entries - 1}")
            count = file.entries
        heads, slots = file.heads, file.slots
        number, last, used = 1, -1, 0
        while number < count:
            step = min(_STEP, count - number)
            out: list[_Entry] = []
            for key_hash, place, seconds, before in ENTRY.iter_unpack(
                file.data.read(file.place(number), step * ENTRY_SIZE)
            ):
                if key_hash < 0:
                    self._say(file, file.place(number), f"the hash {key_hash} is negative")
                else:
                    slot = key_hash % slots
                    head = heads[slot]
                    if before != head:
                        what = f"the entry before it in its chain is {before} in place of {head}"
                        self._say(file, file.place(number) + 16, what)
                    used += head == 0
                    heads[slot] = number
                if place < last:
                    self._say(file, file.place(number) + 4, f"it points to {place}, the one before it to {last}")
                else:
                    last = place
                out.append((file, number, key_hash, place, seconds))
                number += 1
            self._report.index_entries += len(out)
            yield out
        self._check_head(file, last, used)

    def _check_head(self, file: _File, last: int, used: int) -> None:
        if file.count > 1:
            if file.end != last:
                self._say(file, 24, f"the header ends at {file.end}, the entries at {last}", Kind.INDEX_FILE)
            if file.used != used:
                self._say(file, 32, f"the header counts {file.used} slots, {used} are in use", Kind.INDEX_FILE)
        # What the entries make of the slots.
        for first in range(0, file.slots, _STEP):
            some = min(_STEP, file.slots - first)
            stored = array("i", file.data.read(HEADER_SIZE + SLOT_SIZE * first, SLOT_SIZE * some))
            if sys.byteorder == "little":
                stored.byteswap()
            if stored != (right := file.heads[first : first + some]):
                for index, (found, wanted) in enumerate(zip(stored, right, strict=True)):
                    if found != wanted:
                        at = HEADER_SIZE + SLOT_SIZE * (first + index)
                        self._say(file, at, f"the slot says {found}, its newest entry is {wanted}")

    # Along with the log

    def _peek(self) -> _Entry | None:
        while self._at >= len(self._chunk):
            chunk = next(self._entries, None)
            if chunk is None:
                return None
            self._chunk, self._at = chunk, 0
        return self._chunk[self._at]

    def feed(self, requests: Iterable[DispatchRequest]) -> None:
        """Compare with the next records of the log."""
        topics: list[str] = []
        names: list[bytes] = []
        items: list[tuple[int, int]] = []
        for request in requests:
            if request.sys_flag & 0xC == sysflag.TRANSACTION_ROLLBACK:
                continue
            keys = [request.unique_key or b"", *(request.keys or b"").split(b" ")]
            for key in keys:
                if key:
                    topics.append(request.topic)
                    names.append(key)
                    items.append((request.physical_offset, request.store_timestamp))
        if not names:
            return
        hashes = self._hashes.hash_all(topics, names)
        start = 0
        while start < len(items):
            if (taken := self._same(items, hashes, start)) > 0:
                start += taken
                continue
            place, store_time = items[start]
            end = start + 1
            while end < len(items) and items[end][0] == place:
                end += 1
            self._record(place, store_time, hashes[start:end])
            start = end

    def _same(self, items: list[tuple[int, int]], hashes: list[int], start: int) -> int:
        """How many keys from `start` on are in the index exactly as they should be, looked at all at once; 0: one has
        to look at each.
        """
        if self._peek() is None:
            return 0
        chunk, at = self._chunk, self._at
        if chunk[at][2:4] != (hashes[start], items[start][0]):
            return 0
        count = min(len(items) - start, len(chunk) - at, _AT_ONCE)
        # Whole records, and the entry after them must be seen: it could be of the last one too.
        last = items[start + count - 1][0]
        if at + count == len(chunk) or chunk[at + count][3] == last:
            while count and items[start + count - 1][0] == last:
                count -= 1
        file = chunk[at][0]
        begin = file.begin_time
        if count == 0 or begin <= 0 or chunk[at][1] == 1:
            return 0
        wanted = [
            (key_hash, place, (time - begin) // 1000)
            for key_hash, (place, time) in zip(hashes[start : start + count], items[start : start + count], strict=True)
        ]
        if [entry[2:] for entry in chunk[at : at + count]] != wanted:
            return 0
        self._at += count
        return count

    def _record(self, place: int, store_time: int, hashes: list[int]) -> None:
        found: list[_Entry] = []
        while (entry := self._peek()) is not None and entry[3] <= place:
            self._at += 1
            if entry[3] == place:
                found.append(entry)
            elif entry[3] >= self._begin:
                self._stray(entry)
        for file, number, _, _, seconds in found:
            wanted = min(max((store_time - file.begin_time) // 1000, 0), _MAX_SECONDS) if file.begin_time > 0 else 0
            if seconds != wanted and number != 1:
                self._say(file, file.place(number) + 12, f"it says {seconds} seconds, its record is {wanted}")
        if [entry[2] for entry in found] != hashes:
            self._differ(place, hashes, found, entry)

    def _differ(self, place: int, hashes: list[int], found: list[_Entry], following: _Entry | None) -> None:
        lacking = Counter(hashes)
        for file, number, key_hash, _, _ in found:
            if lacking[key_hash] > 0:
                lacking[key_hash] -= 1
            elif key_hash in hashes:
                # RocketMQ indexes the last record again after a restart.
                self._duplicates += 1
            else:
                self._say(file, file.place(number), f"the record at {place} has no key with the hash {key_hash}")
        if not +lacking:
            return
        if found:
            file, number = found[-1][:2]
            self._say(file, file.place(number), f"the record at {place} has {lacking.total()} more keys")
        elif following is not None and following[1] > 1:
            file, number = following[:2]
            self._say(file, file.place(number), f"the record at {place} should be indexed before this one")
        else:
            self._hole = [self._hole[0] + 1, self._hole[1], place] if self._hole else [1, place, place]

    def _stray(self, entry: _Entry) -> None:
        file, number, _, place, _ = entry
        if self._log.is_bad(place):
            return
        self._say(file, file.place(number) + 4, f"it points to {place}, where no record with a key is")

    def finish(self) -> None:
        """Tell what was found."""
        while (entry := self._peek()) is not None:
            self._at += 1
            if entry[3] >= self._begin:
                self._stray(entry)
        if self._hole:
            count, first, last = self._hole
            what = f"{count} records with keys from {first} to {last} are in no file, as after a crash"
            self._report.note(Kind.INDEX_FILE, self._folder, None, what)
        if self._duplicates:
            what = f"{self._duplicates} entries are there twice, as after a restart of RocketMQ"
            self._report.note(Kind.INDEX_FILE, self._folder, None, what)
