"""The extension of a consume queue: what a unit of 20 bytes has no room for. RocketMQ's ConsumeQueueExt.

A unit of the queue then holds an address instead of the tags code; at the address stand the tags code, the store time
and the bits of the filters that the message passed. The units are of different lengths and are found by address only.

| position | type | field |
|---|---|---|
| 0 | i16 | size of the unit, 20 to 32767 |
| 2 | i64 | tags code |
| 10 | i64 | store time |
| 18 | i16 | length of the bit map |
| 20 | | the bit map |

An i16 of -1 ends a file whose rest is too short for the next unit.
"""

from struct import Struct
from typing import Final

import msgspec

from cometmq.broker.store.append_log import AppendLog

#: Addresses are this or less: no tags code, which is an i32, ever is.
MAX_ADDRESS: Final = -(1 << 31) - 1
_LOWEST: Final = -(1 << 63)
_MAX_OFFSET: Final = MAX_ADDRESS - _LOWEST

HEAD: Final = Struct(">hqqh")
MAX_UNIT_SIZE: Final = 32767
#: That many bytes stay free for the end mark.
_END_ROOM: Final = 4
_END_MARK: Final = b"\xff\xff"
_SIZE: Final = Struct(">h")
#: How much of a file a walk over its units reads at a time.
_WALK: Final = 1024 * 1024


class ExtUnit(msgspec.Struct, frozen=True, gc=False):
    """What is known of a message beside its place."""

    tags_code: int
    store_time: int
    #: One bit for each filter that it passed; empty when none was computed.
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        return HEAD.size + len(self.bit_map)


def is_address(tags_code: int) -> bool:
    """Whether a unit of a consume queue points into the extension."""
    return tags_code <= MAX_ADDRESS


class ConsumeQueueExt(AppendLog):
    """The extension of one consume queue."""

    __slots__ = ()

    def put(self, tags_code: int, store_time: int, bit_map: bytes | None = None) -> int | None:
        """Appends a unit. Returns its address; None when it is too long: then the queue keeps the plain tags code."""
        bits = bit_map or b""
        size = HEAD.size + len(bits)
        file_size = self.files.file_size
        if size > MAX_UNIT_SIZE or size > file_size - _END_ROOM or self.end + size > _MAX_OFFSET:
            return None
        inside = self.end % file_size
        if inside and size > file_size - inside - _END_ROOM:
            self._end_file()
        address = self.end + _LOWEST
        self._append_bytes(HEAD.pack(size, tags_code, store_time, len(bits)) + bits)
        return address

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None when there is none: then the client filters by the tag itself."""
        if not is_address(address):
            return None
        position = address - _LOWEST
        # Nearly all units are short.
        data = self.read(position, 256)
        if len(data) < HEAD.size:
            return None
        size, tags_code, store_time, length = HEAD.unpack_from(data)
        if size != HEAD.size + length or length < 0:
            return None
        if size > len(data):
            data = self.read(position, size)
            if len(data) < size:
                return None
        return ExtUnit(tags_code, store_time, data[HEAD.size : size])

    def _end_file(self) -> None:
        self.write_out()
        file = self._file_for_write(self.written)
        file.write(self.written - file.start, (_END_MARK,))
        self._upkeep.written[self] = None
        self.written = file.end

    # Opening and cutting

    def recover(self, last_address: int | None, *, thorough: bool) -> None:
        """Finds the end: after the unit that the queue used last, or by a walk over all units when it used none."""
        flushed = self.files.files[-1].start if thorough and self.files.files else None
        if not self.files.files:
            self.settle(0)
            return
        if last_address is not None:
            # Everything may be read until the end is known.
            self.written = self.files.files[-1].end
            unit = self.get(last_address)
            if unit is not None:
                self.settle(last_address - _LOWEST + unit.size, flushed=flushed)
                return
        self.settle(self._walk(), flushed=flushed)

    def _walk(self) -> int:
        end = 0
        for file in self.files.files:
            self._upkeep.open_files.use(file)
            inside, base, data = 0, 0, b""
            while inside + HEAD.size <= file.size:
                if inside + 2 - base > len(data):
                    base, data = inside, file.read(inside, _WALK)
                size = _SIZE.unpack_from(data, inside - base)[0]
                if size < HEAD.size or inside + size > file.size:
                    break
                inside += size
            end = file.start + inside
        return end

    def truncate_after(self, address: int) -> None:
        """Removes what comes after the unit at this address: the last one that the queue still uses."""
        self.write_out()
        unit = self.get(address)
        if unit is not None:
            self.cut(address - _LOWEST + unit.size)

    def clear(self) -> None:
        """Removes all units: the queue has none that could use them."""
        self.write_out()
        self.cut(self.start)

    def drop_before(self, address: int) -> None:
        """Removes the files whose units all come before this address, but never the last file."""
        while len(self.files.files) > 1 and self.files.files[0].end < address - _LOWEST:
            if not self.drop_first():
                break
