"""The consume queue: for each message of one queue of a topic, where its record is. RocketMQ's ConsumeQueue.

Unit n, the message with queue offset n, is at byte 20 * n:

| position | type | field |
|---|---|---|
| 0 | i64 | physical offset of the record |
| 8 | i32 | size of the record |
| 12 | i64 | tags code, delivery time, or an address in the extension |

Here live the rules of appending, the offsets, and the search by time. Records are never read here: who searches brings
a function that knows the store time of a record.

Where RocketMQ and we differ: blank units, with which a queue that does not begin at 0 is filled, never become visible
and never count as the last record; an all-zero file is not taken for a queue with units; what a truncation or a crash
leaves behind the end is zeroed.
"""

import enum
import logging
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, TypeAlias

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.consume_queue_ext import ConsumeQueueExt, is_address
from cometmq.broker.store.log_files import LogFile, LogFiles
from cometmq.broker.store.unit_log import BLANK_SIZE, POINTER, UnitLog, UnitShape

log = logging.getLogger(__name__)

UNIT: Final[Struct] = POINTER
UNIT_SIZE: Final = 20
#: Bytes that are read at once for whoever goes through a queue: units of some pulls, and little enough for many queues.
AHEAD: Final = 4080
#: Fills the file of a queue whose first message does not have the offset 0.
BLANK_UNIT: Final = UNIT.pack(0, BLANK_SIZE, 0)

_pack = UNIT.pack

#: The store time of the record with this physical offset and size; -1 when it cannot be read.
StoreTimeOf: TypeAlias = Callable[[int, int], int]

#: Queue offset, physical offset, size, tags code, number of messages.
Entry: TypeAlias = tuple[int, int, int, int, int]


class Boundary(enum.Enum):
    """Which offset a search by time is after."""

    #: The first message that is not older.
    LOWER = "lower"
    #: The last message that is not younger.
    UPPER = "upper"


class ConsumeQueue(UnitLog):
    """One queue of a topic. Offsets are queue offsets unless the name says otherwise."""

    __slots__ = ("_ahead", "_read_to", "ext", "min_offset", "queue_id", "topic")

    SHAPE = UnitShape(UNIT_SIZE, not_negative=((0, 8),), positive=((8, 4),))
    is_batch = False

    def __init__(
        self, topic: str, queue_id: int, upkeep: Upkeep, files: LogFiles, ext: ConsumeQueueExt | None = None
    ) -> None:
        super().__init__(upkeep, files)
        self.topic = topic
        self.queue_id = queue_id
        self.ext = ext
        #: The first message whose record is still there. Not on disk: it follows from the commit log.
        self.min_offset = 0
        # Where the last read of units ended; and units that were read ahead: from where, how often the queue had been
        # cut until then, and their bytes.
        self._read_to = 0
        self._ahead = (0, 0, b"")

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}-{self.queue_id} {self.min_offset}..{self.max_offset}>"

    @property
    def max_offset(self) -> int:
        """One more than the last message that a reader can find: what was appended but not written is not in it."""
        return self.written // UNIT_SIZE

    @property
    def next_offset(self) -> int:
        """The offset of the next message to be appended."""
        return (self.written + len(self._pending)) // UNIT_SIZE

    # Appending

    def append(
        self,
        queue_offset: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_time: int = 0,
        *,
        bit_map: bytes | None = None,
        extended: bool = True,
    ) -> bool:
        """Adds the unit of a record to what the turn will write. False when the queue has it already: replays may come.

        Called for every message: half a microsecond.
        """
        end = physical_offset + size
        if end <= self.max_physical:
            return False
        pending = self._pending
        if queue_offset * UNIT_SIZE != self.written + len(pending) and not self._falls_in_step(queue_offset):
            return False
        if extended and self.ext is not None:
            address = self.ext.put(tags_code, store_time, bit_map)
            if address is not None:
                tags_code = address
        if not pending:
            self._upkeep.appended.append(self)
        pending += _pack(physical_offset, size, tags_code)
        self.max_physical = end
        return True

    def append_run(self, queue_offset: int, physical_offset: int, units: bytes | bytearray, end: int) -> bool:
        """Adds the units of messages in a row, the first one with these offsets and the last record ending at `end`.

        False, and nothing is added, when they are not simply the next ones: then they are to be appended one by one.
        """
        pending = self._pending
        if (
            self.ext is not None
            or physical_offset < self.max_physical
            or queue_offset * UNIT_SIZE != self.written + len(pending)
        ):
            return False
        self._append_bytes(units)
        self.max_physical = end
        return True

    def _falls_in_step(self, queue_offset: int) -> bool:
        """What to do with a message that is not the next one. False when it is to be passed over."""
        expected = self.next_offset
        if queue_offset > 0 and self._is_empty():
            self._fill_to(queue_offset)
            return True
        if 0 < queue_offset < expected:
            log.warning("%s-%d: message %d is in the queue already", self.topic, self.queue_id, queue_offset)
            return False
        log.error(
            "%s-%d: message %d comes where %d was expected; it is appended as %d",
            self.topic, self.queue_id, queue_offset, expected, expected,
        )  # fmt: skip
        return True

    def _is_empty(self) -> bool:
        """Whether there is no unit at all. A queue whose units have all expired still has a file with its numbers."""
        return not self._pending and self.written == self.start == 0

    def _fill_to(self, queue_offset: int) -> None:
        """Lets an empty queue begin with this message: blank units stand in its file for those before it."""
        for file in reversed(self.files.files):
            # An all-zero file of a crash: the queue begins anew.
            self._drop(file)
        blanks = queue_offset % self._per_file
        self.written = self.flushed = (queue_offset - blanks) * UNIT_SIZE
        if blanks:
            self._append_bytes(BLANK_UNIT * blanks)
        self.min_offset = queue_offset
        log.info("%s-%d begins with message %d", self.topic, self.queue_id, queue_offset)

    def write_out(self) -> None:
        if self.ext is not None:
            # First: a unit must never point to something that is not there.
            self.ext.write_out()
        super().write_out()

    # Reading

    def units(self, offset: int, max_count: int) -> bytes:
        """Units from this offset on, up to `max_count`: one read, which ends with the file. Empty where none are.

        Who goes through the queue gets most of them without a read: units never change.
        """
        if offset < self.min_offset:
            return b""
        position = offset * UNIT_SIZE
        length = min(max_count * UNIT_SIZE, self.written - position)
        start, cuts, ahead = self._ahead
        inside = position - start
        if inside >= 0 and 0 < length <= len(ahead) - inside and cuts == self.cuts:
            self._read_to = position + length
            return ahead[inside : inside + length]
        if position == self._read_to and length < AHEAD:
            ahead = self.read(position, AHEAD)
            self._ahead = (position, self.cuts, ahead)
            units = ahead[:length]
        else:
            units = self.read(position, length)
        self._read_to = position + len(units)
        return units

    def entries(self, offset: int, max_count: int) -> Iterator[Entry]:
        """The same as values."""
        units = UNIT.iter_unpack(self.units(offset, max_count))
        return ((number, place, size, tags, 1) for number, (place, size, tags) in enumerate(units, offset))

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of one message; None when it is not there."""
        return self.pointer(offset) if offset >= self.min_offset else None

    def next_file_offset(self, offset: int) -> int:
        """The first offset of the file after the one with this offset."""
        return offset + self._per_file - offset % self._per_file

    def offset_by_time(
        self, timestamp: int, boundary: Boundary, store_time_of: StoreTimeOf, *, min_physical: int = 0
    ) -> int:
        """The message of a moment, between the lowest and the highest offset. Store times do not decrease."""
        found = 0
        file = self._file_by_time(timestamp, boundary, store_time_of)
        if file is not None:
            found = self._search_time(file, timestamp, boundary, store_time_of, min_physical)
        return min(max(found, self.min_offset), self.max_offset)

    def _file_by_time(self, timestamp: int, boundary: Boundary, store_time_of: StoreTimeOf) -> LogFile | None:
        files = [file for file in self.files.files if not file.retired and file.start < self.written]
        if boundary is Boundary.LOWER:
            # The first whose last message is not older; the last file is for all that is left.
            for file in files[:-1]:
                if self._store_time(file.end // UNIT_SIZE - 1, store_time_of) >= timestamp:
                    return file
            return files[-1] if files else None
        # The last whose first message is not younger.
        for file in reversed(files):
            if self._store_time(file.start // UNIT_SIZE, store_time_of) <= timestamp:
                return file
        return None

    def _store_time(self, number: int, store_time_of: StoreTimeOf) -> int:
        unit = self.pointer(number)
        return store_time_of(unit[0], unit[1]) if unit else -1

    def _search_time(
        self, file: LogFile, timestamp: int, boundary: Boundary, store_time_of: StoreTimeOf, min_physical: int
    ) -> int:
        first = file.start // UNIT_SIZE
        low = max(first, self.min_offset)
        high = min(first + self._per_file, self.max_offset)
        is_lower = boundary is Boundary.LOWER
        if low >= high or self._store_time(high - 1, store_time_of) < timestamp:
            return high if is_lower else high - 1
        if self._store_time(low, store_time_of) > timestamp:
            return first if is_lower else 0
        # The first message that is not older, or for the upper boundary the first that is younger.
        while low < high:
            middle = (low + high) // 2
            unit = self.pointer(middle)
            if unit is None:
                return 0
            if unit[0] < min_physical:
                low = middle + 1
                continue
            time = store_time_of(unit[0], unit[1])
            if time < 0:
                log.warning("%s-%d: no store time at %d for a search", self.topic, self.queue_id, unit[0])
                return 0
            if time < timestamp or (time == timestamp and not is_lower):
                low = middle + 1
            else:
                high = middle
        return low if is_lower else low - 1

    # Opening, cutting, expiring

    def recover(self, *, thorough: bool) -> None:
        super().recover(thorough=thorough)
        if thorough and self.ext is not None:
            self._cut_at_falling_address()
        self.min_offset = self.first_unit
        if self.ext is not None:
            self.ext.recover(self._last_address(), thorough=thorough)

    def truncate(self, physical: int) -> None:
        """Removes the messages whose records begin at `physical` or after it."""
        cuts = self.cuts
        self.truncate_units(physical)
        self._follow_cut(cuts)

    def truncate_to(self, offset: int) -> None:
        """Removes the messages from this offset on, whatever their units say."""
        cuts = self.cuts
        self.write_out()
        self.cut(offset * UNIT_SIZE)
        self._recover_max_physical(-1)
        self._follow_cut(cuts)

    def _follow_cut(self, cuts: int) -> None:
        self.min_offset = min(self.min_offset, self.max_offset)
        if self.ext is not None and self.cuts > cuts:
            if self.written == self.start:
                self.ext.clear()
            elif (address := self._last_address()) is not None:
                self.ext.truncate_after(address)

    def _cut_at_falling_address(self) -> None:
        """Ends the queue before a unit whose address lies before that of an earlier one: it was torn in the middle.

        Only what was written last can be torn, so that the last few thousand units are enough to look at.
        """
        floor = None
        position = max(self.start, self.written - 4096 * UNIT_SIZE)
        while position < self.written:
            # One read ends with its file; the address before that counts for the next file too.
            units = self.read(position, self.written - position)
            if not units:
                # A file is missing.
                position = self.next_file_offset(position // UNIT_SIZE) * UNIT_SIZE
                continue
            for number, (_, _, code) in enumerate(UNIT.iter_unpack(units)):
                if not is_address(code):
                    continue
                if floor is not None and code <= floor:
                    end = position + number * UNIT_SIZE
                    self.settle(end, flushed=min(self.flushed, end))
                    self.wipe_rest()
                    self._recover_max_physical(-1)
                    return
                floor = code
            position += len(units)

    def _last_address(self) -> int | None:
        """The last address in the extension that a unit of the last three files holds."""
        files = self.files.files[-3:]
        low = files[0].start if files else 0
        high = self.written
        while high > low:
            begin = max(low, high - 4096 * UNIT_SIZE, (high - 1) // self.files.file_size * self.files.file_size)
            codes: list[int] = [tags for _, _, tags in UNIT.iter_unpack(self.read(begin, high - begin))]
            for code in reversed(codes):
                if is_address(code):
                    return code
            high = begin
        return None

    def correct_min(self, min_physical: int) -> None:
        """Moves the lowest offset to the first message whose record is at `min_physical` or after it, never back.

        A queue whose records are all gone is empty but keeps its numbering.
        """
        low = max(self.min_offset, self.first_unit)
        high = self.max_offset
        if low < high:
            # Without reading where that is enough.
            low = high if self.max_physical <= min_physical else self.first_unit_from(min_physical, low)
        self.min_offset = min(low, high)
        if self.ext is not None and (unit := self.pointer(self.min_offset)) and is_address(unit[2]):
            self.ext.drop_before(unit[2])

    def delete_expired(self, min_physical: int) -> int:
        """Removes the files whose records are all gone; returns how many. The last file always stays."""
        dropped = self.drop_expired(min_physical)
        self.correct_min(min_physical)
        return dropped

    def destroy(self) -> None:
        super().destroy()
        self.max_physical = -1
        self.min_offset = 0
        if self.ext is not None:
            self.ext.destroy()
