"""The stored message: one record of the commit log, and of the bodies that carry messages to clients.

Encoding writes into the caller's buffer with everything final; decoding takes nothing on trust. Files, offsets and
what a record means are the business of the store. RocketMQ's `MessageExtEncoder` and `MessageDecoder`.

| field | width | | field | width |
|---|---|---|---|---|
| totalSize | i32 | | bornHost | 8 or 20 |
| magic | i32 | | storeTimestamp | i64 |
| bodyCRC | i32 | | storeHost | 8 or 20 |
| queueId | i32 | | reconsumeTimes | i32 |
| flag | i32 | | preparedTransactionOffset | i64 |
| queueOffset | i64 | | body | i32 and as many bytes |
| physicalOffset | i64 | | topic | i8 (V1) or i16 (V2) and as many bytes |
| sysFlag | i32 | | properties | i16 and as many bytes |
| bornTimestamp | i64 | | | |
"""

from collections.abc import Iterator
from struct import Struct, error
from typing import Final

import msgspec

from cometmq.protocol import compression, sysflag
from cometmq.protocol.checksum import ReadableBuffer, WritableBuffer, crc32
from cometmq.protocol.errors import RecordError
from cometmq.protocol.message_id import HOST_V4_LENGTH, HOST_V6_LENGTH, encode_message_id, unpack_host
from cometmq.protocol.properties import decode_properties

MAGIC_V1: Final = -626843481  # 0xDAA320A7
#: Only for topics that a signed byte cannot count; Go and Java 4 cannot read it.
MAGIC_V2: Final = -626843477  # 0xDAA320AB
#: "Nothing more in this file": fills the end of a commit log file and must never reach a client.
MAGIC_BLANK: Final = -875286124  # 0xCBD43194

MAX_V1_TOPIC_LENGTH: Final = 127

#: A V1 record with two IPv4 hosts and no body, topic and properties, in bytes: the smallest there is.
MIN_RECORD_SIZE: Final = 91
#: A blank record, in bytes; that many are always left free at the end of a file.
BLANK_SIZE: Final = 8

# Positions that do not depend on the hosts.
SYS_FLAG_POSITION: Final = 36
QUEUE_OFFSET_POSITION: Final = 20
PHYSICAL_OFFSET_POSITION: Final = 28

# Everything from totalSize to bodyLength; the key is the two host bits of sysFlag.
_HEADS: Final = {
    0: Struct(">iiiiiqqiq8sq8siqi"),
    sysflag.BORN_HOST_V6: Struct(">iiiiiqqiq20sq8siqi"),
    sysflag.STORE_HOST_V6: Struct(">iiiiiqqiq8sq20siqi"),
    sysflag.HOSTS_V6: Struct(">iiiiiqqiq20sq20siqi"),
}
#: Everything before the body of a record with two IPv4 hosts, for those who write many of them.
HEAD_V4: Final = _HEADS[0]
# Topic with its length, and the length of the properties, for each length of a V1 topic: one call instead of three.
_TAILS_V1: Final = tuple(Struct(f">b{length}sh") for length in range(MAX_V1_TOPIC_LENGTH + 1))
_I16: Final = Struct(">h")
_BLANK: Final = Struct(">ii")
# What `record_size` adds to the hosts: the head without them, and the lengths of topic (V1) and properties.
_FIXED: Final = HEAD_V4.size - 2 * HOST_V4_LENGTH + 1 + 2
_HOSTS_V6: Final = sysflag.HOSTS_V6


class Record(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Hosts are packed (see `message_id`), properties are text in bytes."""

    #: Of the whole record, in bytes.
    size: int
    magic: int
    #: CRC of the body as stored, in 31 bits.
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    #: Empty when the decoder was told not to read it.
    body: bytes
    topic: str
    properties: bytes

    @property
    def born_address(self) -> tuple[str, int]:
        """Address and port of the producer."""
        return unpack_host(self.born_host)

    @property
    def store_address(self) -> tuple[str, int]:
        """Advertised address and port of the broker that stored it."""
        return unpack_host(self.store_host)

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return encode_message_id(self.store_host, self.physical_offset)

    def property_map(self) -> dict[str, str]:
        """The properties, parsed anew at each call."""
        return decode_properties(self.properties)


def record_size(body_length: int, topic_length: int, properties_length: int, hosts_length: int = 16) -> int:
    """How many bytes `encode_record` will write; `hosts_length` is that of both packed hosts together."""
    size = _FIXED + hosts_length + body_length + topic_length + properties_length
    return size if topic_length <= MAX_V1_TOPIC_LENGTH else size + 1


def magic_of(topic: bytes) -> int:
    """The magic of a record with this topic."""
    return MAGIC_V1 if len(topic) <= MAX_V1_TOPIC_LENGTH else MAGIC_V2


def topic_part(topic: bytes) -> bytes:
    """The topic of a record with its length: what stands after the body."""
    return len(topic).to_bytes(1 if len(topic) <= MAX_V1_TOPIC_LENGTH else 2, "big") + topic


def encode_record(
    buffer: WritableBuffer,
    offset: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
    body_crc: int | None = None,
) -> int:
    """Write a record into `buffer` at `offset` and give its size. The arguments stand in the order of the layout.

    Offsets and store time are final: nothing is patched later. The host bits of `sys_flag` are set from the hosts, the
    magic from the topic's length. `body_crc` saves the checksum where it is known, as for a message that is stored
    again. On an error the buffer beyond `offset` holds rubbish, and its length is what it was.

    Hot path, once for each message. Budget: 2 us with a body of 1 KiB (`bench/record.py`), a quarter of it zlib's CRC.
    """
    if len(born_host) == 8 and len(store_host) == 8:
        head = HEAD_V4
        host_bits = 0
    else:
        host_bits = _host_bits(born_host, store_host)
        head = _HEADS[host_bits]
    body_length = len(body)
    topic_length = len(topic)
    properties_length = len(properties)
    if topic_length <= MAX_V1_TOPIC_LENGTH:
        magic = MAGIC_V1
        tail = _TAILS_V1[topic_length]
    else:
        magic = MAGIC_V2
        tail = Struct(f">h{topic_length}sh")
    body_start = offset + head.size
    body_end = body_start + body_length
    properties_start = body_end + tail.size
    end = properties_start + properties_length
    if end > len(buffer):
        raise RecordError(f"record of {end - offset} bytes does not fit into {len(buffer)} bytes at {offset}")
    if body_crc is None:
        body_crc = crc32(body)
    try:
        head.pack_into(
            buffer,
            offset,
            end - offset,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            (sys_flag & ~_HOSTS_V6) | host_bits,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
        # Refuses properties above 32,767 bytes, and topics too: their lengths are i16.
        tail.pack_into(buffer, body_end, topic_length, topic, properties_length)
    except error as reason:
        raise RecordError(
            f"record with a topic of {topic_length} and properties of {properties_length} bytes: {reason}"
        ) from None
    # Slices of the same length as what they take: a bytearray must neither grow nor shrink here.
    buffer[body_start:body_end] = body
    buffer[properties_start:end] = properties
    return end - offset


def _host_bits(born_host: bytes, store_host: bytes) -> int:
    lengths = (HOST_V4_LENGTH, HOST_V6_LENGTH)
    if len(born_host) not in lengths or len(store_host) not in lengths:
        raise RecordError(f"packed hosts take 8 or 20 bytes, not {len(born_host)} and {len(store_host)}")
    return sysflag.with_host_flags(
        0, born_v6=len(born_host) == HOST_V6_LENGTH, store_v6=len(store_host) == HOST_V6_LENGTH
    )


def encode_blank(buffer: WritableBuffer, offset: int, remaining: int) -> int:
    """Write the blank record that closes a file; `remaining` is all that is left of the file, the blank included.

    Gives the 8 bytes that it takes. The bytes after it have no meaning.
    """
    if remaining < BLANK_SIZE or offset + BLANK_SIZE > len(buffer):
        raise RecordError(f"blank record of {remaining} bytes does not fit into {len(buffer)} bytes at {offset}")
    _BLANK.pack_into(buffer, offset, remaining, MAGIC_BLANK)
    return BLANK_SIZE


def decode_record(
    buffer: ReadableBuffer,
    offset: int = 0,
    *,
    check_crc: bool = True,
    read_body: bool = True,
    decompress: bool = False,
    max_body_size: int = compression.MAX_DECOMPRESSED_SIZE,
) -> Record:
    """The record at `offset`. Whatever the bytes are, nothing but RecordError is raised.

    `decompress` gives the plain body and clears the COMPRESSED bit, so that the record still describes its body;
    `max_body_size` bounds what comes out. `body_crc` stays that of the stored bytes.
    """
    try:
        fields = HEAD_V4.unpack_from(buffer, offset)
        sys_flag = fields[7]
        head = HEAD_V4
        if sys_flag & _HOSTS_V6:
            head = _HEADS[sys_flag & _HOSTS_V6]
            fields = head.unpack_from(buffer, offset)
    except error:
        raise RecordError(f"record at {offset}: cut off, {len(buffer) - offset} bytes are left") from None
    size: int
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        _,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = fields
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        what = "a blank record" if magic == MAGIC_BLANK else f"unknown magic {magic & 0xFFFFFFFF:#x}"
        raise RecordError(f"record at {offset}: {what}")
    end = offset + size
    body_start = offset + head.size
    body_end = body_start + body_length
    topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
    # Each part is bounded by the record's own end before its length is read; 2 is the length of the properties.
    if end > len(buffer) or body_length < 0 or topic_start + 2 > end:
        raise RecordError(
            f"record at {offset}: {size} bytes with a body of {body_length}, {len(buffer) - offset} bytes are left"
        )
    topic_length = buffer[body_end] if magic == MAGIC_V1 else _I16.unpack_from(buffer, body_end)[0]
    topic_end = topic_start + topic_length
    # V1 counts the topic in a signed byte.
    if topic_length < 0 or (magic == MAGIC_V1 and topic_length > MAX_V1_TOPIC_LENGTH) or topic_end + 2 > end:
        raise RecordError(f"record at {offset}: topic of {topic_length} bytes in a record of {size}")
    (properties_length,) = _I16.unpack_from(buffer, topic_end)
    if properties_length < 0 or topic_end + 2 + properties_length != end:
        raise RecordError(f"record at {offset}: properties of {properties_length} bytes do not end it at {size}")
    try:
        topic = str(buffer[topic_start:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise RecordError(f"record at {offset}: topic is not UTF-8") from None
    body = bytes(buffer[body_start:body_end]) if read_body else b""
    if check_crc and body_length:
        computed = crc32(body if read_body else memoryview(buffer)[body_start:body_end])
        if computed != body_crc:
            raise RecordError(f"record at {offset}: body has CRC {computed}, the record says {body_crc}")
    if decompress and body and sys_flag & sysflag.COMPRESSED:
        try:
            body = compression.decompress(body, sysflag.compression_type(sys_flag), limit=max_body_size)
        except compression.CodecMissing:
            raise
        except RecordError as reason:
            raise RecordError(f"record at {offset}: {reason}") from None
        sys_flag = sysflag.without_compression(sys_flag)
    return Record(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        bytes(buffer[topic_end + 2 : end]),
    )


def decode_records(
    buffer: ReadableBuffer,
    *,
    check_crc: bool = True,
    read_body: bool = True,
    decompress: bool = False,
    max_body_size: int = compression.MAX_DECOMPRESSED_SIZE,
) -> Iterator[Record]:
    """The records of a pull answer, one after the other; the sound ones before a broken one are still given."""
    offset = 0
    end = len(buffer)
    while offset < end:
        record = decode_record(
            buffer,
            offset,
            check_crc=check_crc,
            read_body=read_body,
            decompress=decompress,
            max_body_size=max_body_size,
        )
        yield record
        offset += record.size
