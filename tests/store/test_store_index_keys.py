"""The hashes of index keys: Java's, however many are computed together."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.index_keys import KeyHashes, key_hash


def java_hash(text: str) -> int:
    """`Math.abs(text.hashCode())`, with RocketMQ's care for the number that has no positive twin."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[position : position + 2])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)


def hash_one(topic: str, key: str) -> int:
    return KeyHashes().hash_all([topic], [key.encode()])[0]


@pytest.mark.parametrize("hash_key", [key_hash, hash_one])
class TestOne:
    def test_known_values(self, hash_key):
        # hashCode is -1656969516.
        assert hash_key("TopicTest", "KEY1") == 1656969516
        assert hash_key("TopicTest", "KEY1") % 5_000_000 == 1969516

    @pytest.mark.parametrize(
        ("topic", "key"),
        [("", "Kzo\x7f|a"), ("polygenelubricants", ""), ("T", "ÄÖ"), ("t", "\U0001f600 key"), ("x", "")],
    )
    def test_edges(self, hash_key, topic, key):
        assert hash_key(topic, key) == java_hash(f"{topic}#{key}")

    def test_the_number_without_a_positive_twin_is_0(self, hash_key):
        """Found by trying: the hash code of `T#` and this key is -2147483648."""
        key = key_of_lowest_hash("T")
        assert java_hash(f"T#{key}") == 0
        assert hash_key("T", key) == 0


def key_of_lowest_hash(topic: str) -> str:
    """A key of printable characters with which the hash code is -2^31."""
    prefix = 0
    for unit in f"{topic}#".encode():
        prefix = (31 * prefix + unit) & 0xFFFFFFFF
    # Eight characters, the last ones chosen so that the rest comes out: digits in base 31, each from 64 on.
    for first in range(64, 127):
        start = (31 * prefix + first) & 0xFFFFFFFF
        want = ((1 << 31) - start * 31**7 - sum(64 * 31**n for n in range(7))) % (1 << 32)
        digits = []
        for _ in range(7):
            want, digit = divmod(want, 31)
            digits.append(digit)
        if want == 0:
            return chr(first) + "".join(chr(64 + digit) for digit in reversed(digits))
    raise AssertionError("no such key")


topics = st.sampled_from(["T", "TopicTest", "%RETRY%group", "Thema-ä", ""])
keys = st.one_of(
    st.text(max_size=70),
    st.text("ABCDEF0123456789", min_size=30, max_size=34),
    st.integers(0, 10**6).map(lambda n: f"C000020258374E0E2F2A50D7{n:08X}"),
    st.integers(0, 10**6).map(lambda n: f"order-{n}"),
)


class TestTurns:
    @given(st.lists(st.tuples(topics, keys), max_size=150))
    def test_are_what_each_key_alone_gives(self, pairs):
        hashes = KeyHashes()
        wanted = [java_hash(f"{topic}#{key}") for topic, key in pairs]
        for _ in range(2):
            # The second time the beginnings of the keys are remembered.
            assert hashes.hash_all([t for t, _ in pairs], [k.encode() for _, k in pairs]) == wanted

    @pytest.mark.parametrize("count", [1, 11, 12, 13, 63, 64, 65, 128, 200])
    def test_of_every_length(self, count):
        dice = random.Random(count)
        keys = ["".join(chr(dice.randrange(128)) for _ in range(n % 40)) for n in range(count)]
        found = KeyHashes().hash_all(["TopicTest"] * count, [key.encode() for key in keys])
        assert found == [java_hash(f"TopicTest#{key}") for key in keys]

    def test_a_key_that_is_not_utf_8_has_a_hash_all_the_same(self):
        found = KeyHashes().hash_all(["T", "T"], [b"\xff\xfe", b"plain"])
        assert found == [java_hash("T#\ufffd\ufffd"), java_hash("T#plain")]

    def test_memory_stays_small(self):
        hashes = KeyHashes()
        for start in range(0, 20_000, 100):
            keys = [b"%020d%032d" % (n, n) for n in range(start, start + 100)]
            assert hashes.hash_all(["T"] * 100, keys) == [java_hash(f"T#{key.decode()}") for key in keys]
        assert len(hashes._topics["T"].heads) <= 1024
        for number in range(5000):
            hashes.hash_all([f"T{number}"], [b"k"])
        assert len(hashes._topics) <= 4096
