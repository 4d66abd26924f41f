"""Hash codes equal Java's; MurmurHash3 equals its published values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.hashing import (
    hash_code,
    hash_code_bytes,
    murmur3_32,
    murmur3_64,
    tags_code,
    tags_code_bytes,
)


def java_rule(text: str) -> int:
    """`String.hashCode`, step by step."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("\u6807\u7b7e", 857175),
        ("_RECALL_TAG_", -847619372),
        ("polygenelubricants", -2147483648),
        ("TopicTest#KEY1", -1656969516),
        # Two surrogates: 0xD83D * 31 + 0xDE00.
        ("\U0001f600", 1772899),
    ],
)
def test_hash_code_of_java(text: str, code: int) -> None:
    assert hash_code(text) == code
    assert hash_code_bytes(text.encode()) == code
    assert tags_code(text) == code
    assert tags_code_bytes(text.encode()) == code


@given(st.text(st.characters(), max_size=200))
def test_hash_code_of_any_text(text: str) -> None:
    assert hash_code(text) == java_rule(text)


@given(st.text(st.characters(max_codepoint=127), min_size=50, max_size=400))
def test_hash_code_of_long_text(text: str) -> None:
    assert hash_code(text) == java_rule(text)
    assert hash_code_bytes(text.encode()) == java_rule(text)


@given(st.binary(max_size=40))
def test_bytes_that_are_not_text_have_a_code_too(raw: bytes) -> None:
    assert hash_code_bytes(raw) == java_rule(raw.decode("utf-8", "replace"))


def test_tags_code_keeps_its_sign_in_64_bits() -> None:
    assert tags_code("_RECALL_TAG_").to_bytes(8, "big", signed=True).hex() == "ffffffffcd7a5ad4"
    assert tags_code("TagA").to_bytes(8, "big", signed=True).hex() == "000000000027a807"


# Values of the reference implementation (SMHasher).
@pytest.mark.parametrize(
    ("data", "seed", "value"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"hello", 0, 0x248BFA47),
        (b"hello, world", 0, 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0, 0x2E4FF723),
    ],
)
def test_murmur3_32(data: bytes, seed: int, value: int) -> None:
    assert murmur3_32(data, seed) == value


def test_murmur3_64() -> None:
    assert murmur3_64(b"") == 0
    assert murmur3_64(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3_64(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C


def test_murmur3_of_text_is_that_of_its_utf8() -> None:
    assert murmur3_32("标签") == murmur3_32("标签".encode())
    assert murmur3_64("标签", 7) == murmur3_64("标签".encode(), 7)
