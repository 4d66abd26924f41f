"""The body of SEND_BATCH_MESSAGE: messages in a row, each with flag, body and properties of its own.

Topic, queue and everything else stands once in the request's header. Magic and checksum of an item are sent as 0 and
never looked at: the broker computes the checksum when it stores. RocketMQ's `MessageDecoder.encodeMessages`.
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

import msgspec

from cometmq.protocol.checksum import ReadableBuffer
from cometmq.protocol.errors import RecordError
from cometmq.protocol.properties import MAX_PROPERTIES_LENGTH

# totalSize, magic, bodyCRC, flag, bodyLength; after the body a length of the properties in an i16.
_HEAD: Final = Struct(">iiiii")
_PROPERTIES_LENGTH: Final = Struct(">h")
_OVERHEAD: Final = _HEAD.size + _PROPERTIES_LENGTH.size


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch; `properties` is property text in bytes."""

    flag: int
    body: bytes
    properties: bytes


def item_size(body_length: int, properties_length: int) -> int:
    """How many bytes an item takes in a batch."""
    return _OVERHEAD + body_length + properties_length


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The body of a batch request. Budget: 1 us an item."""
    parts = []
    pack = _HEAD.pack
    pack_length = _PROPERTIES_LENGTH.pack
    for item in items:
        body, properties = item.body, item.properties
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise RecordError(f"properties take {len(properties)} bytes, an item holds at most {MAX_PROPERTIES_LENGTH}")
        try:
            parts.append(pack(_OVERHEAD + len(body) + len(properties), 0, 0, item.flag, len(body)))
        except error as reason:
            raise RecordError(f"batch item does not fit its fields: {reason}") from None
        parts += body, pack_length(len(properties)), properties
    return b"".join(parts)


def decode_batch(buffer: ReadableBuffer) -> list[BatchItem]:
    """The items of a batch body. Every length must agree with every other. Budget: 1 us an item."""
    items = []
    unpack_head = _HEAD.unpack_from
    unpack_length = _PROPERTIES_LENGTH.unpack_from
    end = len(buffer)
    at = 0
    while at < end:
        try:
            size, _, _, flag, body_length = unpack_head(buffer, at)
            body_start = at + 20
            body_end = body_start + body_length
            # The item's own end, not the buffer's, bounds its parts; checked before they are read.
            if body_length < 0 or at + size > end or body_end + 2 > at + size:
                raise RecordError(f"batch item at {at}: {size} bytes with a body of {body_length} of {end - at} left")
            (properties_length,) = unpack_length(buffer, body_end)
        except error:
            raise RecordError(f"batch item at {at}: cut off, {end - at} bytes are left") from None
        properties_start = body_end + 2
        at += size
        if properties_length < 0 or properties_start + properties_length != at:
            raise RecordError(f"batch item at {at - size}: properties of {properties_length} bytes do not end it")
        body = bytes(buffer[body_start:body_end])
        items.append(BatchItem(flag, body, bytes(buffer[properties_start:at])))
    return items
