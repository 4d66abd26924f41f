"""The bits of a message's sysFlag: one i32 that travels with the send request and is stored in the record.

Names for bits and small functions over them; nothing here reads a body or a host. RocketMQ's `MessageSysFlag`.
"""

from enum import IntEnum
from typing import Final

from cometmq.protocol.errors import RecordError

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

# Transaction state, two bits. A stored half message carries NOT: its topic tells it from others.
TRANSACTION_MASK: Final = 0xC
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_TYPE_MASK: Final = 0x700
COMPRESSION_TYPE_SHIFT: Final = 8


class CompressionType(IntEnum):
    """How a body is compressed; the number stands in bits 8 to 10."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def is_compressed(sys_flag: int) -> bool:
    return bool(sys_flag & COMPRESSED)


def compression_type(sys_flag: int) -> CompressionType:
    """The compression of a body whose COMPRESSED bit is set. Type 0 is zlib: clients before the type bits set none."""
    number = (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT
    if number == 0:
        return CompressionType.ZLIB
    try:
        return CompressionType(number)
    except ValueError:
        raise RecordError(f"sysFlag {sys_flag:#x} names the unknown compression type {number}") from None


def with_compression(sys_flag: int, kind: CompressionType) -> int:
    """Mark a body as compressed by `kind`."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | COMPRESSED | (kind << COMPRESSION_TYPE_SHIFT)


def without_compression(sys_flag: int) -> int:
    """Mark a body as plain. The type bits stay, as in the Java client: they mean nothing while COMPRESSED is clear."""
    return sys_flag & ~COMPRESSED


def transaction_state(sys_flag: int) -> int:
    """One of TRANSACTION_NOT, _PREPARED, _COMMIT, _ROLLBACK."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_state(sys_flag: int, state: int) -> int:
    return (sys_flag & ~TRANSACTION_MASK) | (state & TRANSACTION_MASK)


def with_host_flags(sys_flag: int, *, born_v6: bool, store_v6: bool) -> int:
    """Set or clear the two host bits: a bit that disagrees with its host would shift every later field of a record."""
    return (sys_flag & ~HOSTS_V6) | (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
