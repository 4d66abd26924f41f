"""The hashes of index keys: Java's `String.hashCode` of `topic#key` without its sign, fast enough for every message.

The hash is a polynomial in 31 over the characters. So the part of the topic and of the beginning of a long key is
computed once and remembered (the unique keys of a producer differ in their last characters only), and the last
characters of all keys of a turn are computed together: as lanes of one large number, in a handful of multiplications.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from cometmq.protocol.hashing import hash_code, hash_code_bytes

_MODULUS: Final = 1 << 32
_MASK: Final = _MODULUS - 1
_SIGN: Final = 1 << 31

#: Characters at the end of a key that are computed, not remembered.
_TAIL: Final = 16
#: Beginnings of keys that a topic remembers; some 100 bytes each.
_MAX_HEADS: Final = 1024
_MAX_TOPICS: Final = 4096

#: Tails that are computed together, and from how many on that is faster than one by one.
_LANES: Final = 64
_WORTH_IT: Final = 12


def key_hash(topic: str, key: str) -> int:
    """The hash of a key in the index."""
    value = abs(hash_code(f"{topic}#{key}"))
    # The one number whose negative Java cannot hold.
    return 0 if value == _SIGN else value


class KeyHashes:
    """Hashes the keys of a turn."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        # What the characters before the tail give to the hash; by topic, and there by the head of the key, or by the
        # length of a key that is all tail.
        self._topics: dict[str, dict[bytes | int, int]] = {}

    def hash_all(self, topics: Sequence[str], keys: Sequence[bytes]) -> list[int]:
        """The hashes of keys, UTF-8, each of the topic at its place. Some 0.8 us a key."""
        if not b"".join(keys).isascii():
            return [key_hash(topic, key.decode("utf-8", "replace")) for topic, key in zip(topics, keys, strict=True)]
        bases: list[int] = []
        tails: list[bytes] = []
        last, heads = None, {}
        for topic, key in zip(topics, keys, strict=True):
            if topic is not last:
                last = topic
                heads = self._topics.get(topic) or self._add_topic(topic)
            head = key[:-_TAIL]
            if head:
                base = heads.get(head)
                if base is None:
                    base = _add_head(heads, topic, head)
                bases.append(base)
                tails.append(key[-_TAIL:])
            else:
                bases.append(heads[len(key)])
                # Zeros in front change nothing.
                tails.append(key.rjust(_TAIL, b"\0"))
        # What is negative in Java counts by its absolute value; that of the lowest number becomes 0.
        return [
            value if (value := (base + tail) & _MASK) < _SIGN else (_MODULUS - value if value != _SIGN else 0)
            for base, tail in zip(bases, _polynomials(tails), strict=True)
        ]

    def _add_topic(self, topic: str) -> dict[bytes | int, int]:
        if len(self._topics) >= _MAX_TOPICS:
            self._topics.clear()
        prefix = hash_code(f"{topic}#") & _MASK
        heads: dict[bytes | int, int] = {n: prefix * pow(31, n, _MODULUS) & _MASK for n in range(_TAIL + 1)}
        self._topics[topic] = heads
        return heads


def _add_head(heads: dict[bytes | int, int], topic: str, head: bytes) -> int:
    if len(heads) >= _MAX_HEADS:
        for remembered in [key for key in heads if isinstance(key, bytes)]:
            del heads[remembered]
    prefix = (hash_code(f"{topic}#") * pow(31, len(head), _MODULUS) + hash_code_bytes(head)) & _MASK
    value = heads[head] = prefix * pow(31, _TAIL, _MODULUS) & _MASK
    return value


def _polynomials(tails: Sequence[bytes]) -> list[int]:
    """The polynomial of each tail; only the lowest 32 bits count."""
    if len(tails) < _WORTH_IT:
        return [_polynomial(tail) for tail in tails]
    values: list[int] = []
    for start in range(0, len(tails), _LANES):
        values += _lanes(tails[start : start + _LANES])
    return values


def _polynomial(tail: bytes) -> int:
    value = 0
    for unit in tail:
        value = 31 * value + unit
    return value


def _low(part: int, lane: int) -> int:
    """A mask for the low `part` bytes of each lane of `lane` bytes."""
    return int.from_bytes((bytes(lane - part) + b"\xff" * part) * (_LANES * _TAIL // lane))


_OF_2, _OF_4, _OF_8, _OF_16 = _low(1, 2), _low(2, 4), _low(4, 8), _low(8, 16)
_31_8: Final = pow(31, 8, _MODULUS)
_LANES_LOW = Struct(">" + "12xI" * _LANES)


def _lanes(tails: Sequence[bytes]) -> Sequence[int]:
    """Each step adds up neighbours, the left one times 31, 31^2, 31^4 and 31^8: 16 numbers, 8, 4, 2, 1.

    The numbers stay below 2^12, 2^22, 2^42 and 2^75: no lane reaches its neighbour.
    """
    number = int.from_bytes(b"".join(tails).ljust(_LANES * _TAIL, b"\0"))
    number = (number >> 8 & _OF_2) * 31 + (number & _OF_2)
    number = (number >> 16 & _OF_4) * 961 + (number & _OF_4)
    number = (number >> 32 & _OF_8) * 923521 + (number & _OF_8)
    number = (number >> 64 & _OF_16) * _31_8 + (number & _OF_16)
    return _LANES_LOW.unpack(number.to_bytes(_LANES * _TAIL))[: len(tails)]
