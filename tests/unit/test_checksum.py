"""CRC in 31 bits, and the trailer that covers a whole record."""

import sys
import types
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import checksum
from cometmq.protocol.checksum import (
    PROPERTY_CRC_LENGTH,
    crc32,
    property_crc,
    reserve_property_crc,
    seal_property_crc,
    verify_property_crc,
)
from cometmq.protocol.errors import RecordError


def test_known_values() -> None:
    assert crc32(b"") == 0
    assert crc32(b"hello") == 907060870
    assert crc32(b"7-7000\n8-8000\n") == 773307083


@given(st.binary(max_size=100))
def test_crc_is_that_of_zlib_without_its_top_bit(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data) & 0x7FFFFFFF
    assert crc32(memoryview(data)) == crc32(bytearray(data)) == crc32(data)


def test_zlib_ng_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("zlib_ng")
    package.zlib_ng = types.SimpleNamespace(crc32=lambda data: 0xFFFFFFFF)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zlib_ng", package)
    assert checksum._pick_crc32()(b"hello") == 0xFFFFFFFF


def test_zlib_serves_without_zlib_ng(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng", None)  # importing it fails now
    assert checksum._pick_crc32() is zlib.crc32


def test_digits_stand_backwards() -> None:
    assert property_crc(1234) == b"__CRC32#\x014321000000\x02"
    assert property_crc(907060870) == b"__CRC32#\x010780607090\x02"
    assert property_crc(0x7FFFFFFF) == b"__CRC32#\x017463847412\x02"
    assert len(property_crc(0)) == PROPERTY_CRC_LENGTH == 20


@pytest.mark.parametrize(
    ("text", "reserved"),
    [
        (b"", b""),
        (b"A\x01x\x02", b"A\x01x\x02"),
        (b"A\x01x", b"A\x01x\x02"),
        (b"__CRC32#\x01old\x02A\x01x\x02", b"A\x01x\x02"),
        (b"A\x01x\x02__CRC32#\x010000000000\x02", b"A\x01x\x02"),
    ],
)
def test_room_for_the_trailer(text: bytes, reserved: bytes) -> None:
    assert reserve_property_crc(text) == reserved + b"__CRC32#\x010000000000\x02"


@given(st.binary(max_size=60), st.integers(0, 20), st.data())
def test_seal_and_verify(head: bytes, offset: int, data: st.DataObject) -> None:
    buffer = bytearray(offset) + head + reserve_property_crc(b"") + bytearray(5)
    size = len(head) + 20
    seal_property_crc(buffer, offset, size)
    assert buffer[offset + len(head) : offset + size] == property_crc(crc32(head))
    assert verify_property_crc(buffer, offset, size)
    # A CRC finds every single flipped bit, also with 31 of its 32 bits, in all but astronomically long data.
    at = data.draw(st.integers(offset, offset + size - 1))
    buffer[at] ^= 1 << data.draw(st.integers(0, 7))
    assert not verify_property_crc(buffer, offset, size)


def test_no_room_no_seal() -> None:
    with pytest.raises(RecordError, match="no room"):
        seal_property_crc(bytearray(30), 0, 19)
    with pytest.raises(RecordError, match="no room"):
        seal_property_crc(bytearray(30), 10, 21)
    assert not verify_property_crc(bytes(30), 0, 19)
    assert not verify_property_crc(bytes(30), 10, 21)
