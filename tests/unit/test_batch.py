"""Batch bodies: bytes, round trips, strict bounds."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch, item_size
from cometmq.protocol.errors import RecordError

ITEMS = st.lists(
    st.builds(BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)), max_size=6
)


def test_the_layout() -> None:
    raw = encode_batch([BatchItem(7, b"hello", b"A\x01x\x02"), BatchItem(0, b"", b"")])
    assert raw == bytes.fromhex(
        "0000001f 00000000 00000000 00000007 00000005 68656c6c6f 0004 41017802"
        "00000016 00000000 00000000 00000000 00000000 0000"
    )
    assert len(raw) == item_size(5, 4) + item_size(0, 0)


@given(ITEMS)
def test_round_trip(items: list[BatchItem]) -> None:
    raw = encode_batch(items)
    assert len(raw) == sum(item_size(len(item.body), len(item.properties)) for item in items)
    for buffer in (raw, bytearray(raw), memoryview(raw)):
        assert decode_batch(buffer) == items


def test_magic_and_checksum_are_not_looked_at() -> None:
    raw = bytearray(encode_batch([BatchItem(1, b"a", b"")]))
    raw[4:12] = b"\xff" * 8
    assert decode_batch(raw) == [BatchItem(1, b"a", b"")]


def test_every_cut_is_found() -> None:
    first = encode_batch([BatchItem(1, b"first", b"A\x01x\x02")])
    raw = first + encode_batch([BatchItem(2, b"second", b"B\x01y\x02")])
    for length in range(1, len(raw)):
        if length == len(first):
            continue
        with pytest.raises(RecordError, match=f"batch item at {0 if length < len(first) else len(first)}:"):
            decode_batch(raw[:length])


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, struct.pack(">i", 0)),
        (0, struct.pack(">i", -1)),
        (0, struct.pack(">i", 21)),
        (0, struct.pack(">i", 30)),
        (0, struct.pack(">i", 32)),
        (0, struct.pack(">i", 2**31 - 1)),
        (16, struct.pack(">i", -1)),
        (16, struct.pack(">i", 4)),
        (16, struct.pack(">i", 6)),
        (16, struct.pack(">i", 2**31 - 1)),
        (25, struct.pack(">h", -1)),
        (25, struct.pack(">h", 3)),
        (25, struct.pack(">h", 5)),
        (25, struct.pack(">h", 32_767)),
    ],
)
def test_lengths_must_agree(position: int, value: bytes) -> None:
    item = encode_batch([BatchItem(1, b"hello", b"A\x01x\x02")])
    raw = bytearray(item * 3)
    at = len(item) + position
    raw[at : at + len(value)] = value
    with pytest.raises(RecordError, match=f"batch item at {len(item)}:"):
        decode_batch(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(junk: bytes) -> None:
    try:
        items = decode_batch(junk)
    except RecordError:
        return
    assert sum(item_size(len(item.body), len(item.properties)) for item in items) == len(junk)


@pytest.mark.parametrize("item", [BatchItem(2**31, b"", b""), BatchItem(0, b"", bytes(32_768))])
def test_values_that_do_not_fit_are_refused(item: BatchItem) -> None:
    with pytest.raises(RecordError):
        encode_batch([item])
