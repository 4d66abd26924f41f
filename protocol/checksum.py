"""The one checksum of RocketMQ: CRC-32 with its top bit cut off, so that it is never negative in an i32.

Used for bodyCRC of records, `bodyCrc32` of registrations, and the optional `__CRC32#` trailer that covers a whole
record. Nothing here knows the layout of a record beyond "the trailer is its last 20 bytes".
"""

import zlib
from collections.abc import Callable
from typing import Final, TypeAlias

from cometmq.protocol import properties as props
from cometmq.protocol.errors import RecordError

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
WritableBuffer: TypeAlias = bytearray | memoryview


def _pick_crc32() -> Callable[[ReadableBuffer], int]:
    # zlib_ng needs a fifth of zlib's time for 1 KiB; it is a pleasure, not a need.
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        return zlib.crc32
    fast: Callable[[ReadableBuffer], int] = zlib_ng.crc32
    return fast


#: All 32 bits, for loops in which the call of `crc32` would count; to be cut with `CRC_MASK`.
raw_crc32: Final = _pick_crc32()

CRC_MASK: Final = 0x7FFFFFFF


def crc32(data: ReadableBuffer) -> int:
    """CRC-32 of `data` in 31 bits. Of no bytes: 0."""
    return raw_crc32(data) & CRC_MASK


# The trailer is a property of fixed length at the very end of a record: name, 0x01, ten digits, 0x02.
_TRAILER_HEAD: Final = props.CRC32.encode() + b"\x01"
_DIGITS: Final = 10
PROPERTY_CRC_LENGTH: Final = len(_TRAILER_HEAD) + _DIGITS + 1


def property_crc(value: int) -> bytes:
    """The 20-byte trailer for a checksum. Its digits stand least significant first, filled up with zeros."""
    return _TRAILER_HEAD + str(value)[::-1].ljust(_DIGITS, "0").encode() + b"\x02"


def reserve_property_crc(properties: bytes) -> bytes:
    """Property text with room for the trailer at its end; an older checksum is taken out first."""
    return props.append(props.remove(properties, props.CRC32.encode()), property_crc(0))


def seal_property_crc(buffer: WritableBuffer, offset: int, size: int) -> None:
    """Write the trailer of the record at `offset`, whose text was made by `reserve_property_crc`.

    It covers everything before it, offsets and store time too: so it is the last thing done to a record.
    """
    end = offset + size
    start = end - PROPERTY_CRC_LENGTH
    if start < offset or end > len(buffer):
        raise RecordError(f"record at {offset}: {size} bytes leave no room for a property checksum")
    buffer[start:end] = property_crc(crc32(memoryview(buffer)[offset:start]))


def verify_property_crc(buffer: ReadableBuffer, offset: int, size: int) -> bool:
    """Whether the record at `offset` ends in a trailer and the trailer is right."""
    end = offset + size
    start = end - PROPERTY_CRC_LENGTH
    if start < offset or end > len(buffer):
        return False
    return bytes(buffer[start:end]) == property_crc(crc32(memoryview(buffer)[offset:start]))
