"""The consume queue of topics that keep client batches together: a unit for each batch. RocketMQ's BatchConsumeQueue.

A topic with the attribute `queue.type=BatchCQ` has such queues. A record of the log may hold several messages there, so
that a queue offset is no position: units are found by the offset of their first message.

| position | type | field |
|---|---|---|
| 0 | i64 | physical offset of the record |
| 8 | i32 | size of the record |
| 12 | i64 | tags code |
| 20 | i64 | store time |
| 28 | i64 | queue offset of the first message |
| 36 | i16 | number of messages |
| 38 | i32 | compacted offset, -1 |
| 42 | i32 | reserved, 0 |

Files are named by the bytes of the queue, whatever the queue offset of the first message was.
"""

import logging
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.consume_queue import Boundary, Entry, StoreTimeOf
from cometmq.broker.store.log_files import LogFiles
from cometmq.broker.store.unit_log import UnitLog, UnitShape

log = logging.getLogger(__name__)

BATCH_UNIT: Final = Struct(">qiqqqhii")
BATCH_UNIT_SIZE: Final = 46
MAX_BATCH_COUNT: Final = 32767

_STORE_TIME = 3
_BASE = 4
_COUNT = 5

#: The fields of a unit in their order on disk.
BatchUnit = tuple[int, int, int, int, int, int, int, int]

_pack = BATCH_UNIT.pack


class BatchConsumeQueue(UnitLog):
    """One queue of a topic of batches. Offsets are queue offsets unless the name says otherwise."""

    __slots__ = ("max_offset", "min_offset", "next_offset", "queue_id", "topic")

    SHAPE = UnitShape(BATCH_UNIT_SIZE, not_negative=((0, 8), (28, 8)), positive=((8, 4), (36, 2)))
    is_batch = True
    #: Batch queues have no extension.
    ext = None

    def __init__(self, topic: str, queue_id: int, upkeep: Upkeep, files: LogFiles) -> None:
        super().__init__(upkeep, files)
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        #: One more than the last message that a reader can find.
        self.max_offset = 0
        #: The offset after the last message that was appended.
        self.next_offset = 0

    def __repr__(self) -> str:
        return f"<BatchConsumeQueue {self.topic}-{self.queue_id} {self.min_offset}..{self.max_offset}>"

    # Appending

    def append(
        self,
        queue_offset: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_time: int = 0,
        *,
        batch_count: int = 1,
    ) -> bool:
        """Adds the unit of a record to what the turn will write. False when the queue has it already."""
        end = physical_offset + size
        if end <= self.max_physical:
            return False
        if queue_offset < 0 or not 0 < batch_count <= MAX_BATCH_COUNT:
            log.warning("%s-%d: %d messages from %d on", self.topic, self.queue_id, batch_count, queue_offset)
            return False
        if self.written == 0 and not self._pending:
            self.min_offset = queue_offset
        self._append_bytes(_pack(physical_offset, size, tags_code, store_time, queue_offset, batch_count, -1, 0))
        self.max_physical = end
        self.next_offset = queue_offset + batch_count
        return True

    def write_out(self) -> None:
        super().write_out()
        self.max_offset = self.next_offset

    # Reading

    def batch_unit(self, number: int) -> BatchUnit | None:
        """A unit by its number in the queue; None when it is not there."""
        data = self.read(number * BATCH_UNIT_SIZE, BATCH_UNIT_SIZE)
        return BATCH_UNIT.unpack(data) if len(data) == BATCH_UNIT_SIZE else None

    def units(self, offset: int, max_count: int) -> bytes:
        """Units from the one that holds this message on, up to `max_count`: as they are in one file. Empty where none
        are.
        """
        if not self.min_offset <= offset < self.max_offset:
            return b""
        number = self._last_where(lambda unit: unit[_BASE] <= offset)
        return b"" if number is None else self.read(number * BATCH_UNIT_SIZE, max_count * BATCH_UNIT_SIZE)

    def entries(self, offset: int, max_count: int) -> Iterator[Entry]:
        """The same as values; the first one may begin before the offset."""
        units = BATCH_UNIT.iter_unpack(self.units(offset, max_count))
        return ((unit[_BASE], unit[0], unit[1], unit[2], unit[_COUNT]) for unit in units)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Physical offset, size and tags code of the record with this message; None when it is not there."""
        for entry in self.entries(offset, 1):
            return entry[1:4]
        return None

    def next_file_offset(self, offset: int) -> int:
        """The first offset of the file after the one with this offset; the end when there is none."""
        for file in self.files.files:
            unit = self.batch_unit(file.start // BATCH_UNIT_SIZE)
            if unit is not None and unit[_BASE] > offset:
                return unit[_BASE]
        return self.max_offset

    def offset_by_time(
        self, timestamp: int, boundary: Boundary, store_time_of: StoreTimeOf | None = None, *, min_physical: int = 0
    ) -> int:
        """The first message of the batch of a moment. The units hold the store times themselves."""
        if boundary is Boundary.LOWER:
            before = self._last_where(lambda unit: unit[_STORE_TIME] < timestamp)
            number = self.first_unit if before is None else before + 1
            # As RocketMQ has it: a moment after everything is the last batch, not the end of the queue.
            number = min(number, self.unit_count - 1)
        else:
            found = self._last_where(lambda unit: unit[_STORE_TIME] <= timestamp)
            number = self.first_unit if found is None else found
        unit = self.batch_unit(number) if number >= 0 else None
        return min(max(unit[_BASE] if unit else 0, self.min_offset), self.max_offset)

    def _last_where(self, holds: Callable[[BatchUnit], bool]) -> int | None:
        """The last unit for which it holds, when it holds for all before it; None when it holds for none.

        The newest file is looked at first: that is where consumers are.
        """
        for file in reversed(self.files.files):
            first = file.start // BATCH_UNIT_SIZE
            low, high = first, min(first + self._per_file, self.unit_count)
            while low < high:
                middle = (low + high) // 2
                unit = self.batch_unit(middle)
                if unit is not None and holds(unit):
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                return low - 1
        return None

    # Opening, cutting, expiring

    def recover(self, *, thorough: bool) -> None:
        super().recover(thorough=thorough)
        self._find_offsets()

    def truncate(self, physical: int) -> None:
        """Removes the batches whose records begin at `physical` or after it."""
        cuts = self.cuts
        self.truncate_units(physical)
        if self.cuts > cuts:
            lowest = self.min_offset
            self._find_offsets()
            self.min_offset = min(max(lowest, self.min_offset), self.max_offset)

    def _find_offsets(self) -> None:
        count = self.unit_count
        last = self.batch_unit(count - 1) if count else None
        first = self.batch_unit(self.first_unit) if count else None
        self.max_offset = self.next_offset = last[_BASE] + last[_COUNT] if last else 0
        self.min_offset = first[_BASE] if first else self.max_offset

    def correct_min(self, min_physical: int) -> None:
        """Moves the lowest offset to the first batch whose record is at `min_physical` or after it."""
        number = self.first_unit_from(min_physical, self.first_unit)
        unit = self.batch_unit(number)
        self.min_offset = max(self.min_offset, unit[_BASE] if unit else self.max_offset)

    def delete_expired(self, min_physical: int) -> int:
        """Removes the files whose records are all gone; returns how many. The last file always stays."""
        dropped = self.drop_expired(min_physical)
        self.correct_min(min_physical)
        return dropped

    def destroy(self) -> None:
        super().destroy()
        self.max_physical = -1
        self.min_offset = self.max_offset = self.next_offset = 0
