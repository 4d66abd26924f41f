"""The native twin of the decoder: what it takes, and what it leaves to numpy. That both give the same: test_decode."""

import random
import zlib

import pytest

from cometmq.protocol import sysflag
from cometmq.protocol.message_id import pack_host
from cometmq.spark import native
from support.spark_records import Given, encode, inner_batch, packed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not native.IS_BUILT, reason="there was no compiler to build the native twin"),
]


def rows(data: bytes) -> int | None:
    found = native._native.columns(data, (b"TAGS", b"KEYS", b"UNIQ_KEY"), True, True, True)
    return None if found is None else len(found[0]) // 4


@pytest.mark.parametrize(
    "records",
    [
        [Given()] * 3,
        [Given(b"", b""), Given(bytes(range(256)) * 8, b"a\x01b")],  # Java 4 leaves the last terminator out
        [Given(properties=b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02"), Given(properties=b"x\x01y\x02")],
        [Given(born_host=pack_host("10.9.8.7", number), flag=-number) for number in range(1, 5000)],
    ],
    ids=["alike", "sizes", "properties", "many"],
)
def test_usual_records(records):
    data = encode(records)
    assert rows(data) == len(records)


@pytest.mark.parametrize(
    "unusual",
    [
        Given(topic=b"U"),
        Given(topic=b"x" * 128),
        Given(born_host=pack_host("::1", 1), sys_flag=sysflag.BORN_HOST_V6),
        packed(b"x", sysflag.CompressionType.ZLIB),
        inner_batch([(b"a", b"")]),
        Given(properties=b"a\x01b\x02a\x01c\x02"),
        Given(properties=b"a\x01\x02"),
        Given(properties=b"\x01a\x02"),
        Given(properties=b"a\x01b\x01c\x02"),
        Given(properties=b"a\x02b\x01c\x02"),
        Given(properties=b"a"),
        Given(properties="a\x01ü\x02".encode()),
    ],
)
def test_unusual_records_are_left_to_numpy(unusual):
    assert rows(encode([Given(), unusual])) is None


def test_damage_is_left_to_numpy():
    data = bytearray(encode([Given(b"first"), Given(b"second")]))
    data[data.find(b"second")] ^= 1
    assert rows(bytes(data)) is None
    assert rows(b"") is None


def test_its_checksum_is_that_of_zlib():
    chance = random.Random(1)
    for length in [*range(300), 1024, 4095, 70_001]:
        data = chance.randbytes(length)
        assert native._native.crc32(data) == zlib.crc32(data), length
