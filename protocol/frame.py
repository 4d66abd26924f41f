"""The frame: a length word, a header word, the header, the body.

    i32 length of what follows | i32 (serialize type << 24 | header length) | header | body

Numbers only; what is inside the header is the business of `codec`.
"""

from struct import Struct

from cometmq.protocol.errors import FrameError

#: Longest frame, its length word included: RocketMQ's `com.rocketmq.remoting.frameMaxLength`, 16 MiB.
MAX_FRAME = 16 * 1024 * 1024

#: Bytes of the length word, which does not count itself.
LENGTH_SIZE = 4

#: Bytes of the length word and the header word together: what stands before the header.
PREFIX_SIZE = 8

_PREFIX = Struct(">II")
_LENGTH = Struct(">i")


def frame_length(buffer: bytes | bytearray | memoryview, offset: int = 0, *, limit: int = MAX_FRAME) -> int:
    """The whole length of the frame that starts at `offset` (four bytes must be there)."""
    length: int = _LENGTH.unpack_from(buffer, offset)[0]
    if length < LENGTH_SIZE:
        raise FrameError(f"frame length {length} is too small for a header word")
    if length + LENGTH_SIZE > limit:
        raise FrameError(f"frame of {length + LENGTH_SIZE} bytes is over the limit of {limit}")
    return length + LENGTH_SIZE


def frame_head(kind: int, header: bytes, body_length: int) -> bytes:
    """Length word, header word and header of a frame whose body has the given length."""
    size = len(header)
    if size > 0xFFFFFF or PREFIX_SIZE + size + body_length > MAX_FRAME:
        raise FrameError(
            f"frame of {PREFIX_SIZE + size + body_length} bytes (header {size}) is over the limit of {MAX_FRAME}"
        )
    return _PREFIX.pack(4 + size + body_length, kind << 24 | size) + header
