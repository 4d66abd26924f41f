"""One index file: a hash table on disk from keys to physical offsets. RocketMQ's IndexFile.

| part | bytes | fields |
|---|---|---|
| header | 40 | i64 begin and end time, i64 begin and end offset, i32 slots in use, i32 number of the next entry |
| slots | 4 * maxHashSlotNum | i32 number of the newest entry of a chain; 0: none |
| entries | 20 * maxIndexNum | i32 hash, i64 physical offset, i32 seconds since begin, i32 entry before it in chain |

Entry 0 is not used: an empty file has 1 as its next number. Slots and entries are stored through a writable map, as
they lie all over the file. A page is written once with `write` before that, so that a full disk is an `OSError` here
and not a signal that ends the process. How keys are hashed, and which file is the last, is the business of `index`.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from cometmq.broker.store.disk import Disk, DiskFile
from cometmq.broker.store.errors import FileLengthWrong

HEADER: Final = Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT: Final = Struct(">i")
SLOT_SIZE: Final = 4
ENTRY: Final = Struct(">iqii")
ENTRY_SIZE: Final = 20

_MAX_SECONDS: Final = 2**31 - 1
#: Entries that a search looks at in one step: below a millisecond.
ENTRIES_PER_STEP: Final = 500
_PAGE: Final = 4096
#: Entries that are made ready at a time, in bytes.
_STEP: Final = 16 * _PAGE
#: From how many entries on it is faster to put them all at once, and how many that are at most.
_WORTH_IT: Final = 10
_AT_ONCE: Final = 256

_read_slot = SLOT.unpack_from
_store_slot = SLOT.pack_into
_store_entry = ENTRY.pack_into


@lru_cache(maxsize=_AT_ONCE)
def _columns(count: int) -> tuple[Struct, Struct, Struct]:
    """So many numbers as this machine has them and as the file has them, and so many entries."""
    return Struct(f"={count}i"), Struct(f">{count}i"), Struct(">" + "iqii" * count)


class NewEntries(NamedTuple):
    """What is to be put, one after the other: the hashes of the keys, and of which record each is."""

    hashes: Sequence[int]
    physical_offsets: Sequence[int]
    store_times: Sequence[int]


class IndexFileWrong(FileLengthWrong):
    """Is raised when an index file has not the length that the options say."""

    remedy = (
        "start with the maxHashSlotNum and maxIndexNum that the directory was written with, or remove the index folder:"
        " the check with --repair builds it anew"
    )


class IndexFile:
    """An index file. The fields of its header are kept here; a turn's entries bring them to the disk."""

    __slots__ = (
        "_disk", "_entries_ready", "_file", "_first_entry", "_holds", "_is_named", "_slot_pages", "_slot_view",
        "_slots_ready", "_view",
        "begin_physical", "begin_time", "count", "end_physical", "end_time", "entries", "name", "path", "retired",
        "slots", "slots_used",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, name: str, slots: int, entries: int) -> None:
        self.name = name
        self.path = f"{folder}/{name}"
        self.slots = slots
        self.entries = entries
        self.begin_time = self.end_time = self.begin_physical = self.end_physical = 0
        self.slots_used = 0
        #: The number of the next entry.
        self.count = 1
        self.retired = False
        self._disk = disk
        self._file: DiskFile | None = None
        self._view: memoryview | None = None
        # The slots of it, as numbers of this machine.
        self._slot_view: memoryview | None = None
        self._first_entry = HEADER_SIZE + SLOT_SIZE * slots
        # Pages of the slots, and entries, that may be stored through the map.
        self._slots_ready = bytearray(self._first_entry // _PAGE + 1)
        self._slot_pages = 0
        self._entries_ready = 0
        self._holds = 0
        # Whether the name of the file survives a power loss.
        self._is_named = True

    def __repr__(self) -> str:
        return f"<IndexFile {self.name} {self.count - 1} entries to {self.end_physical}>"

    @property
    def size(self) -> int:
        return self._first_entry + ENTRY_SIZE * self.entries

    @property
    def is_full(self) -> bool:
        return self.count >= self.entries

    # Opening

    def create(self, end_physical: int, end_time: int) -> None:
        """Makes the file. It begins where the one before it ended, until the first entry says better."""
        self._file = self._disk.open(self.path, size=self.size, create=True)
        self._is_named = False
        self.begin_physical = self.end_physical = max(0, end_physical)
        self.begin_time = self.end_time = max(0, end_time)
        self._make_ready(0, HEADER_SIZE)
        # As RocketMQ leaves it: no count before the first entry.
        HEADER.pack_into(
            self._stored(), 0, self.begin_time, self.end_time, self.begin_physical, self.end_physical, 0, 0
        )

    def load(self, *, named: bool = True) -> None:
        """Reads the header. `named`: a power loss cannot take the file's name any more."""
        self._is_named = named
        head = self._opened().read(0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0")
        begin_time, end_time, begin_physical, end_physical, used, count = HEADER.unpack(head)
        self.begin_time, self.end_time = begin_time, end_time
        self.begin_physical, self.end_physical = begin_physical, end_physical
        self.slots_used, self.count = used, max(count, 1)

    def check_length(self) -> None:
        length = self._opened().size
        if length != self.size:
            raise IndexFileWrong(self.path, length, self.size)

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def _stored(self) -> memoryview:
        """What entries are stored through."""
        if self._view is None:
            self._view = self._opened().writable_view()
        return self._view

    # Storing

    def put(self, entries: NewEntries, start: int = 0) -> int:
        """Adds entries from `start` on. Returns how many it took: fewer when the file is full.

        Called for every turn. An `OSError` leaves the file as if it had ended before the entry that it struck, or
        before an earlier one.
        """
        hashes, physicals, times = entries
        end = start + min(len(hashes) - start, self.entries - self.count)
        at = start
        while at < end:
            till = min(at + _AT_ONCE, end)
            some = entries
            if till - at < len(hashes):
                some = NewEntries(hashes[at:till], physicals[at:till], times[at:till])
            if till - at < _WORTH_IT or self.count == 1 or not self._put_all(some):
                self._put_each(some)
            at = till
        return at - start

    def _put_all(self, entries: NewEntries) -> bool:
        """Puts entries of one moment, each in a chain of its own, by columns: 0.35 us a key, half of `_put_each`.

        False, and nothing is put, when they are not like that. As there, all entries are stored before a slot points
        to one of them, and the header comes last.
        """
        hashes, physicals, times = entries
        count = len(hashes)
        time = times[0]
        modulus = self.slots
        slots = [key_hash % modulus for key_hash in hashes]
        if len({*slots}) < count or times.count(time) < count:
            return False
        self._make_all_ready(slots)
        view = self._stored()
        slot_view = self._slot_view
        if slot_view is None:
            slot_view = self._slot_view = view[HEADER_SIZE : self._first_entry].cast("i")
        number = self.count
        native, numbers, rows = _columns(count)
        befores = numbers.unpack(native.pack(*itemgetter(*slots)(slot_view)))
        if min(befores) < 0 or max(befores) > number:
            # Damage: there is no such entry, and the chain begins anew.
            befores = tuple([before if 0 < before <= own else 0 for own, before in enumerate(befores, number)])
        fields = [self._seconds(time)] * (4 * count)
        fields[0::4] = hashes
        fields[1::4] = physicals
        fields[3::4] = befores
        rows.pack_into(view, self._first_entry + ENTRY_SIZE * number, *fields)
        for slot, stored in zip(slots, native.unpack(numbers.pack(*range(number, number + count))), strict=True):
            slot_view[slot] = stored
        self.count = number + count
        self.slots_used += befores.count(0)
        self.end_physical, self.end_time = physicals[-1], time
        self._store_header()
        return True

    def _make_all_ready(self, slots: list[int]) -> None:
        if self._slot_pages < len(self._slots_ready):
            ready = self._slots_ready
            for page in {(HEADER_SIZE + SLOT_SIZE * slot) // _PAGE for slot in slots}:
                if not ready[page]:
                    self._make_slots_ready(page * _PAGE)
        while self.count + len(slots) > self._entries_ready:
            self._make_entries_ready(max(self.count, self._entries_ready))

    def _put_each(self, entries: NewEntries) -> None:
        """Puts any entries, one after the other: 0.6 us a key."""
        view = self._view or self._stored()
        number = first = self.count
        slots, slots_ready, entries_ready = self.slots, self._slots_ready, self._entries_ready
        place = self._first_entry + ENTRY_SIZE * number
        last_time, seconds, used = -1, 0, 0
        try:
            for key_hash, physical, store_time in zip(*entries, strict=True):
                slot = HEADER_SIZE + SLOT_SIZE * (key_hash % slots)
                if not slots_ready[slot // _PAGE]:
                    self._make_slots_ready(slot)
                if number >= entries_ready:
                    entries_ready = self._make_entries_ready(number)
                if store_time != last_time:
                    seconds = self._seconds(store_time)
                    last_time = store_time
                before = _read_slot(view, slot)[0]
                if before <= 0 or before > number:
                    before = 0
                    used += 1
                _store_entry(view, place, key_hash, physical, seconds, before)
                _store_slot(view, slot, number)
                if number == 1:
                    # After its entry was stored: that one still counts its seconds from the file before.
                    self.begin_physical, self.begin_time = physical, store_time
                    last_time = -1
                number += 1
                place += ENTRY_SIZE
        finally:
            if number > first:
                self.count = number
                self.slots_used += used
                last = number - first - 1
                self.end_physical, self.end_time = entries.physical_offsets[last], entries.store_times[last]
                self._store_header()

    def _seconds(self, store_time: int) -> int:
        if self.begin_time <= 0:
            return 0
        return min(max((store_time - self.begin_time) // 1000, 0), _MAX_SECONDS)

    def _store_header(self) -> None:
        """Writes what the entries of a turn changed."""
        HEADER.pack_into(
            self._stored(), 0,
            self.begin_time, self.end_time, self.begin_physical, self.end_physical, self.slots_used, self.count,
        )  # fmt: skip

    def _make_slots_ready(self, slot: int) -> None:
        # A slot never lies on two pages: header and pages are multiples of its size.
        page = slot // _PAGE
        self._make_ready(page * _PAGE, (page + 1) * _PAGE)
        self._slots_ready[page] = 1
        self._slot_pages += 1

    def _make_entries_ready(self, number: int) -> int:
        begin = self._first_entry + ENTRY_SIZE * number
        end = min(begin + _STEP, self.size)
        self._make_ready(begin // _PAGE * _PAGE, end)
        self._entries_ready = (end - self._first_entry) // ENTRY_SIZE
        return self._entries_ready

    def _make_ready(self, begin: int, end: int) -> None:
        """Lets the file system give blocks to a part of the file, or say that it has none."""
        end = min(end, self.size)
        self._opened().write(begin, (bytes(self._stored()[begin:end]),))

    # Looking up

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether the times of the file and the question have something in common."""
        return begin <= self.end_time and end >= self.begin_time

    def select(self, key_hash: int, begin: int, end: int, found: list[int], max_count: int) -> None:
        """Adds the offsets of a hash with times from `begin` to `end`, newest first, until there are `max_count`.

        Chains go back in the file: damage can end one early, but never make it endless.
        """
        for _ in self.selecting(key_hash, begin, end, found, max_count):
            pass

    def selecting(self, key_hash: int, begin: int, end: int, found: list[int], max_count: int) -> Iterator[None]:
        """The same in steps: a key that many messages have makes a chain of millions of entries."""
        number = self._slot(key_hash)
        walked = 0
        while 0 < number < self.entries and number <= self.count and len(found) < max_count:
            walked += 1
            if walked % ENTRIES_PER_STEP == 0:
                yield
            stored_hash, physical, seconds, before = self.entry(number)
            if seconds < 0:
                return
            time = self.begin_time + seconds * 1000
            if stored_hash == key_hash and begin <= time <= end:
                found.append(physical)
            if before >= number or time < begin:
                return
            number = before

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Hash, physical offset, seconds since the begin time, the entry before it in the chain."""
        data = self._read(self._first_entry + ENTRY_SIZE * number, ENTRY_SIZE)
        return ENTRY.unpack(data)

    def _slot(self, key_hash: int) -> int:
        number: int = SLOT.unpack(self._read(HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots), SLOT_SIZE))[0]
        return number

    def _read(self, position: int, length: int) -> bytes | memoryview:
        if self._view is not None:
            return self._view[position : position + length]
        return self._opened().read(position, length).ljust(length, b"\0")

    def entries_of(self, physical: int) -> int:
        """How many entries at the end belong to the record at this offset."""
        number = min(self.count, self.entries)
        while number > 1 and self.entry(number - 1)[1] == physical:
            number -= 1
        return min(self.count, self.entries) - number

    def cut(self, physical: int) -> None:
        """Removes the entries of records at `physical` or after it: the newest, each from the head of its chain."""
        view = self._stored()
        number = min(self.count, self.entries)
        while number > 1:
            key_hash, offset, _, before = self.entry(number - 1)
            if offset < physical:
                break
            number -= 1
            slot = HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots)
            if key_hash >= 0 and _read_slot(view, slot)[0] == number:
                _store_slot(view, slot, before)
                if before <= 0:
                    self.slots_used -= 1
        self.count = number
        if number > 1:
            _, self.end_physical, seconds, _ = self.entry(number - 1)
            # The entries count whole seconds: no later than this.
            self.end_time = min(self.end_time, self.begin_time + seconds * 1000 + 999)
        self._store_header()

    def take_back_unfinished(self) -> None:
        """Takes back entries that the header does not know: the process died in the middle of a turn.

        Each was stored before its slot pointed to it; newest first, the slots get back what they pointed to before.
        """
        view = self._stored()
        last = self.count
        while last < self.entries and self.entry(last) != (0, 0, 0, 0):
            last += 1
        for number in range(last - 1, self.count - 1, -1):
            key_hash, _, _, before = self.entry(number)
            slot = HEADER_SIZE + SLOT_SIZE * (key_hash % self.slots)
            if _read_slot(view, slot)[0] == number:
                _store_slot(view, slot, before)

    # Syncing and leaving

    def hold(self) -> None:
        """Keeps the file open until `release`: it is being synced in a thread."""
        self._opened()
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self.close()

    def sync(self) -> None:
        """Returns when the file is on the disk, with its name. May run in a thread between `hold` and `release`."""
        self._opened().sync()
        if not self._is_named:
            self._disk.sync_dir(self.path.rpartition("/")[0])
            self._is_named = True

    def close(self) -> None:
        """Gives the file back; it opens again when it is used. While it is held, it stays open."""
        if self._holds > 0:
            return
        self._view = self._slot_view = None
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def destroy(self) -> None:
        self.retired = True
        self._disk.unlink(self.path)
        self.close()
