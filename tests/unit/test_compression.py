"""Compressed bodies: round trips, bombs, broken bytes, missing libraries."""

import sys
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.compression import MAX_DECOMPRESSED_SIZE, CodecMissing, compress, decompress
from cometmq.protocol.errors import RecordError
from cometmq.protocol.sysflag import CompressionType

KINDS = list(CompressionType)
BODY = b"The quick brown fox. " * 500


@given(st.binary(max_size=2000), st.sampled_from(KINDS))
def test_round_trip(body: bytes, kind: CompressionType) -> None:
    assert decompress(compress(body, kind), kind) == body


def test_formats_are_the_ones_of_the_libraries() -> None:
    assert zlib.decompress(compress(BODY, CompressionType.ZLIB)) == BODY
    assert compress(BODY, CompressionType.ZLIB) == zlib.compress(BODY, 5)
    assert lz4.frame.decompress(compress(BODY, CompressionType.LZ4)) == BODY
    assert compress(BODY, CompressionType.LZ4)[:4] == bytes.fromhex("04224d18")
    assert zstandard.decompress(compress(BODY, CompressionType.ZSTD)) == BODY
    assert compress(BODY, CompressionType.ZSTD)[:4] == bytes.fromhex("28b52ffd")


def zstd_stream(body: bytes) -> bytes:
    """A frame without a content size, as Java's streams write it."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


def test_zstd_frame_without_content_size() -> None:
    frame = zstd_stream(BODY)
    assert zstandard.get_frame_parameters(frame).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert decompress(frame, CompressionType.ZSTD) == BODY


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_exact(kind: CompressionType) -> None:
    packed = compress(bytes(10_000), kind)
    assert decompress(packed, kind, limit=10_000) == bytes(10_000)
    with pytest.raises(RecordError, match="9999 bytes that are allowed"):
        decompress(packed, kind, limit=9_999)


def test_the_limit_holds_for_zstd_streams_too() -> None:
    frame = zstd_stream(bytes(10_000))
    assert decompress(frame, CompressionType.ZSTD, limit=10_000) == bytes(10_000)
    with pytest.raises(RecordError, match="zstd body"):
        decompress(frame, CompressionType.ZSTD, limit=9_999)


def test_a_zstd_frame_may_claim_what_it_likes() -> None:
    # Magic, a descriptor for an 8-byte content size in a single segment, and 2^62 bytes.
    claim = bytes.fromhex("28b52ffd") + b"\xe0" + (1 << 62).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(RecordError, match="more than the"):
        decompress(claim, CompressionType.ZSTD)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused(kind: CompressionType) -> None:
    with pytest.raises(RecordError, match="allowed"):
        decompress(compress(bytes(MAX_DECOMPRESSED_SIZE + 1), kind), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_body_is_refused(kind: CompressionType) -> None:
    packed = compress(BODY, kind)
    for length in (0, 1, 4, 10, len(packed) // 2, len(packed) - 1):
        with pytest.raises(RecordError, match=f"{kind.name.lower()} body of {length} bytes"):
            decompress(packed[:length], kind)


@given(st.binary(max_size=60), st.sampled_from(KINDS), st.booleans())
def test_any_bytes_are_a_body_or_refused(junk: bytes, kind: CompressionType, with_magic: bool) -> None:
    head = {CompressionType.LZ4: "04224d18", CompressionType.ZSTD: "28b52ffd", CompressionType.ZLIB: "789c"}[kind]
    try:
        plain = decompress((bytes.fromhex(head) if with_magic else b"") + junk, kind, limit=100_000)
    except RecordError:
        return
    assert len(plain) <= 100_000


@given(st.sampled_from(KINDS), st.data())
def test_flipped_bytes_are_a_body_or_refused(kind: CompressionType, data: st.DataObject) -> None:
    packed = bytearray(compress(BODY[:300], kind))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        plain = decompress(bytes(packed), kind, limit=100_000)
    except RecordError:
        return
    assert len(plain) <= 100_000


@pytest.mark.parametrize(("kind", "module"), [(CompressionType.LZ4, "lz4.frame"), (CompressionType.ZSTD, "zstandard")])
def test_a_missing_library_is_named(kind: CompressionType, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(BODY, kind)
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails now
    with pytest.raises(CodecMissing, match=r"install cometmq\[compress\]") as caught:
        decompress(packed, kind)
    assert "cometmq[compress]" in caught.value.remedy
    with pytest.raises(CodecMissing):
        compress(BODY, kind)
    assert decompress(compress(BODY, CompressionType.ZLIB), CompressionType.ZLIB) == BODY
