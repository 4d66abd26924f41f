"""Stored records: bytes of the layout, round trips, and whatever else may stand in a buffer."""

import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import sysflag
from cometmq.protocol.checksum import crc32, reserve_property_crc, seal_property_crc, verify_property_crc
from cometmq.protocol.compression import CodecMissing, compress
from cometmq.protocol.errors import RecordError
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    Record,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    record_size,
)
from cometmq.protocol.sysflag import CompressionType

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))

FIELDS: dict[str, Any] = {
    "queue_id": 3,
    "flag": 7,
    "queue_offset": 0x0102030405060708,
    "physical_offset": 0x1112131415161718,
    "sys_flag": 0,
    "born_timestamp": 1_700_000_000_123,
    "born_host": pack_host("192.0.2.2", 51_234),
    "store_timestamp": 1_700_000_000_456,
    "store_host": pack_host("127.0.0.1", 10_911),
    "reconsume_times": 2,
    "prepared_transaction_offset": 99,
    "body": b"hello",
    "topic": b"TopicTest",
    "properties": b"TAGS\x01TagA\x02",
}


def encode(**changes: Any) -> bytes:
    fields = FIELDS | changes
    hosts = len(fields["born_host"]) + len(fields["store_host"])
    buffer = bytearray(record_size(len(fields["body"]), len(fields["topic"]), len(fields["properties"]), hosts))
    assert encode_record(buffer, 0, **fields) == len(buffer)
    return bytes(buffer)


FIELD_VALUES = st.fixed_dictionaries(
    {
        "queue_id": I32,
        "flag": I32,
        "queue_offset": I64,
        "physical_offset": I64,
        "sys_flag": I32,
        "born_timestamp": I64,
        "born_host": HOSTS,
        "store_timestamp": I64,
        "store_host": HOSTS,
        "reconsume_times": I32,
        "prepared_transaction_offset": I64,
        "body": st.binary(max_size=80),
        "topic": st.text(max_size=150).map(lambda text: text.encode("utf-8", "replace")),
        "properties": st.binary(max_size=80),
    }
)


def test_the_layout() -> None:
    assert encode() == bytes.fromhex(
        "00000073"  # totalSize
        "daa320a7"  # magic V1
        "3610a686"  # bodyCRC: 907060870
        "00000003"  # queueId
        "00000007"  # flag
        "0102030405060708"  # queueOffset
        "1112131415161718"  # physicalOffset
        "00000000"  # sysFlag
        "0000018bcfe5687b"  # bornTimestamp
        "c00002020000c822"  # bornHost
        "0000018bcfe569c8"  # storeTimestamp
        "7f00000100002a9f"  # storeHost
        "00000002"  # reconsumeTimes
        "0000000000000063"  # preparedTransactionOffset
        "0000000568656c6c6f"  # body
        "09546f70696354657374"  # topic
        "000a5441475301" + "5461674102"  # properties
    )


def test_values_come_back() -> None:
    record = decode_record(encode())
    assert record == Record(
        size=115,
        magic=MAGIC_V1,
        body_crc=907060870,
        queue_id=3,
        flag=7,
        queue_offset=0x0102030405060708,
        physical_offset=0x1112131415161718,
        sys_flag=0,
        born_timestamp=1_700_000_000_123,
        born_host=FIELDS["born_host"],
        store_timestamp=1_700_000_000_456,
        store_host=FIELDS["store_host"],
        reconsume_times=2,
        prepared_transaction_offset=99,
        body=b"hello",
        topic="TopicTest",
        properties=b"TAGS\x01TagA\x02",
    )
    assert record.born_address == ("192.0.2.2", 51_234)
    assert record.store_address == ("127.0.0.1", 10_911)
    assert record.message_id == "7F00000100002A9F1112131415161718"
    assert record.property_map() == {"TAGS": "TagA"}


def test_a_record_cannot_be_changed() -> None:
    record = decode_record(encode())
    with pytest.raises(AttributeError):
        record.queue_id = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("born", "store", "bits", "overhead"),
    [
        ("192.0.2.2", "127.0.0.1", 0x00, 91),
        ("fd00::2", "127.0.0.1", 0x10, 103),
        ("192.0.2.2", "fd00::1", 0x20, 103),
        ("fd00::2", "fd00::1", 0x30, 115),
    ],
)
def test_hosts_decide_their_bits(born: str, store: str, bits: int, overhead: int) -> None:
    hosts = {"born_host": pack_host(born, 1), "store_host": pack_host(store, 2)}
    # The bits of the caller are wrong on purpose.
    raw = encode(**hosts, sys_flag=0x309 | (0x30 ^ bits), body=b"", topic=b"", properties=b"")
    assert len(raw) == overhead
    record = decode_record(raw)
    assert record.sys_flag == 0x309 | bits
    assert record.born_address == (born, 1)
    assert record.store_address == (store, 2)


def test_a_long_topic_needs_version_2() -> None:
    short, long = b"%RETRY%" + b"g" * 120, b"%RETRY%" + b"g" * 121
    assert decode_record(encode(topic=short)).magic == MAGIC_V1
    raw = encode(topic=long)
    assert len(raw) == len(encode(topic=short)) + 2
    record = decode_record(raw)
    assert (record.magic, record.topic) == (MAGIC_V2, long.decode())
    assert raw[93:95] == b"\x00\x80"


def test_magic_numbers() -> None:
    assert [magic & 0xFFFFFFFF for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)] == [0xDAA320A7, 0xDAA320AB, 0xCBD43194]


def test_an_empty_record_is_the_smallest() -> None:
    raw = encode(body=b"", topic=b"", properties=b"")
    assert len(raw) == MIN_RECORD_SIZE == 91
    record = decode_record(raw)
    assert (record.body, record.body_crc, record.topic, record.properties) == (b"", 0, "", b"")


@given(FIELD_VALUES, st.integers(0, 9), st.booleans())
def test_round_trip(fields: dict[str, Any], offset: int, as_view: bool) -> None:
    hosts = len(fields["born_host"]) + len(fields["store_host"])
    size = record_size(len(fields["body"]), len(fields["topic"]), len(fields["properties"]), hosts)
    buffer = bytearray(b"\xee" * (offset + size + 4))
    target: Any = memoryview(buffer) if as_view else buffer
    assert encode_record(target, offset, **fields) == size
    # Nothing is written outside, and the buffer keeps its length.
    assert buffer[:offset] == b"\xee" * offset
    assert buffer[offset + size :] == b"\xee" * 4
    record = decode_record(target, offset)
    bits = (len(fields["born_host"]) == 20) * 0x10 + (len(fields["store_host"]) == 20) * 0x20
    expected = fields | {"sys_flag": fields["sys_flag"] & ~0x30 | bits, "topic": fields["topic"].decode()}
    assert {name: getattr(record, name) for name in fields} == expected
    assert record.size == size
    assert record.body_crc == crc32(fields["body"])


def test_a_known_checksum_is_not_computed_again() -> None:
    assert encode(body_crc=5)[8:12] == b"\x00\x00\x00\x05"


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_id": 2**31},
        {"flag": -(2**31) - 1},
        {"queue_offset": 2**63},
        {"reconsume_times": 2**40},
        {"properties": bytes(32_768)},
        {"topic": bytes(32_768)},
        {"born_host": bytes(7)},
        {"store_host": bytes(16)},
    ],
)
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    buffer = bytearray(100_000)
    with pytest.raises(RecordError):
        encode_record(buffer, 0, **FIELDS | changes)
    assert len(buffer) == 100_000


@pytest.mark.parametrize("room", [0, 20, 100, 114])
def test_a_buffer_without_room_is_refused(room: int) -> None:
    for offset in (0, 5):
        buffer = bytearray(offset + room)
        with pytest.raises(RecordError, match="115 bytes does not fit"):
            encode_record(buffer, offset, **FIELDS)
        assert buffer == bytes(offset + room)


class TestBroken:
    def test_every_cut_is_found(self) -> None:
        raw = encode()
        for length in range(len(raw)):
            with pytest.raises(RecordError, match="record at 0"):
                decode_record(raw[:length])

    @pytest.mark.parametrize(
        ("position", "value", "reason"),
        [
            (0, struct.pack(">i", 114), "do not end it"),
            (0, struct.pack(">i", 116), "bytes are left"),
            (0, struct.pack(">i", -1), "bytes are left"),
            (0, struct.pack(">i", 0), "bytes are left"),
            (0, struct.pack(">i", 90), "bytes are left"),
            (4, struct.pack(">i", 0), "unknown magic 0x0"),
            (4, struct.pack(">I", 0xDAA320A8), "unknown magic 0xdaa320a8"),
            (4, struct.pack(">i", MAGIC_BLANK), "a blank record"),
            (8, struct.pack(">i", 1), "the record says 1"),
            (84, struct.pack(">i", -1), "a body of -1"),
            (84, struct.pack(">i", 2**31 - 1), "a body of 2147483647"),
            (88, b"H", "body has CRC"),
            (93, b"\x80", "topic of 128 bytes"),
            (93, b"\x7f", "topic of 127 bytes"),
            (94, b"\xff", "topic is not UTF-8"),
            (103, struct.pack(">h", -1), "properties of -1"),
            (103, struct.pack(">h", 9), "properties of 9"),
            (103, struct.pack(">h", 11), "properties of 11"),
        ],
    )
    def test_structure(self, position: int, value: bytes, reason: str) -> None:
        raw = bytearray(b"\0" * 10 + encode())
        raw[10 + position : 10 + position + len(value)] = value
        with pytest.raises(RecordError, match=f"record at 10: .*{reason}"):
            decode_record(raw, 10)

    def test_a_negative_topic_length_of_version_2(self) -> None:
        raw = bytearray(encode(topic=bytes(200)))
        raw[93:95] = b"\xff\xff"
        with pytest.raises(RecordError, match="topic of -1 bytes"):
            decode_record(raw)

    def test_the_checksum_can_be_left_out(self) -> None:
        raw = bytearray(encode())
        raw[88] ^= 1
        assert decode_record(raw, check_crc=False).body == b"iello"

    @given(st.binary(max_size=200))
    def test_any_bytes(self, junk: bytes) -> None:
        with pytest.raises(RecordError):
            decode_record(junk)

    @given(st.data())
    def test_any_change_of_a_record(self, data: st.DataObject) -> None:
        raw = bytearray(encode(born_host=pack_host("fd00::2", 1)))
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        for options in ({}, {"check_crc": False, "decompress": True}, {"read_body": False}):
            try:
                record = decode_record(raw, **options)
            except RecordError:
                continue
            assert record.size == len(raw)


class TestBody:
    def test_is_left_out_on_request(self) -> None:
        record = decode_record(encode(), read_body=False)
        assert record.body == b""
        assert (record.size, record.topic, record.body_crc) == (115, "TopicTest", 907060870)
        raw = bytearray(encode())
        raw[88] ^= 1
        with pytest.raises(RecordError, match="CRC"):
            decode_record(raw, read_body=False)

    @pytest.mark.parametrize("kind", list(CompressionType))
    def test_is_decompressed_on_request(self, kind: CompressionType) -> None:
        packed = compress(b"x" * 5000, kind)
        raw = encode(body=packed, sys_flag=sysflag.with_compression(sysflag.TRANSACTION_COMMIT, kind))
        assert decode_record(raw).body == packed
        record = decode_record(raw, decompress=True)
        assert record.body == b"x" * 5000
        assert not sysflag.is_compressed(record.sys_flag)
        assert record.sys_flag & sysflag.TRANSACTION_COMMIT
        assert record.body_crc == crc32(packed)

    def test_of_an_old_client_is_zlib(self) -> None:
        raw = encode(body=compress(b"old", CompressionType.ZLIB), sys_flag=1)
        assert decode_record(raw, decompress=True).body == b"old"

    def test_broken_compression_names_the_record(self) -> None:
        with pytest.raises(RecordError, match="record at 0: zlib body of 5 bytes"):
            decode_record(encode(sys_flag=1), decompress=True)
        with pytest.raises(RecordError, match=r"record at 0: .*unknown compression type 7"):
            decode_record(encode(sys_flag=0x701), decompress=True)

    def test_a_bomb_is_refused(self) -> None:
        raw = encode(body=compress(bytes(10_000), CompressionType.ZLIB), sys_flag=1)
        with pytest.raises(RecordError, match=r"record at 0: .*9999 bytes that are allowed"):
            decode_record(raw, decompress=True, max_body_size=9_999)

    def test_a_missing_library_is_still_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = encode(body=compress(b"x", CompressionType.ZSTD), sys_flag=0x201)
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(CodecMissing):
            decode_record(raw, decompress=True)


class TestRecords:
    def test_in_a_row(self) -> None:
        raw = encode(queue_offset=1) + encode(queue_offset=2, body=b"") + encode(queue_offset=3, topic=b"t" * 200)
        for buffer in (raw, bytearray(raw), memoryview(raw)):
            assert [record.queue_offset for record in decode_records(buffer)] == [1, 2, 3]
        assert list(decode_records(b"")) == []

    def test_options_reach_every_record(self) -> None:
        raw = encode(body=compress(b"a", CompressionType.ZLIB), sys_flag=1) * 2
        assert [record.body for record in decode_records(raw, decompress=True)] == [b"a", b"a"]
        assert [record.body for record in decode_records(raw, read_body=False)] == [b"", b""]

    def test_sound_ones_before_a_broken_one_are_given(self) -> None:
        records = decode_records(encode(queue_offset=1) + encode(queue_offset=2) + b"\0" * 100)
        assert [next(records).queue_offset, next(records).queue_offset] == [1, 2]
        with pytest.raises(RecordError, match="record at 230"):
            next(records)

    @given(st.binary(max_size=300))
    def test_any_bytes_behind_a_record(self, junk: bytes) -> None:
        records = decode_records(encode() + junk)
        assert next(records).size == 115
        if junk:
            with pytest.raises(RecordError, match="record at 115"):
                next(records)


class TestBlank:
    def test_bytes(self) -> None:
        buffer = bytearray(b"\xee" * 20)
        assert encode_blank(buffer, 4, 1854) == 8
        assert buffer == b"\xee" * 4 + bytes.fromhex("0000073e cbd43194") + b"\xee" * 8

    def test_needs_eight_bytes(self) -> None:
        with pytest.raises(RecordError):
            encode_blank(bytearray(20), 13, 100)
        with pytest.raises(RecordError):
            encode_blank(bytearray(20), 0, 7)


def test_property_crc_covers_the_whole_record() -> None:
    raw = bytearray(encode(properties=reserve_property_crc(b"TAGS\x01TagA")))
    seal_property_crc(raw, 0, len(raw))
    assert verify_property_crc(raw, 0, len(raw))
    assert decode_record(raw).property_map()["TAGS"] == "TagA"
    raw[20] ^= 1  # the queue offset, which no body CRC covers
    assert decode_record(raw)
    assert not verify_property_crc(raw, 0, len(raw))
