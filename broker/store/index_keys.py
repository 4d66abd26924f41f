"""The hashes of index keys: Java's `String.hashCode` of `topic#key` without its sign, fast enough for every message.

The hash is a polynomial in 31 over the characters. So the part of the topic is computed once for each length of a key
and remembered, and the last 32 characters of all keys of a turn are computed together: as lanes of one large number, in
a handful of multiplications. Most keys are no longer than that; of those that are, the beginning is remembered too (the
unique keys of a producer differ in their last characters only).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from cometmq.protocol.hashing import hash_code, hash_code_bytes

_MODULUS: Final = 1 << 32
_MASK: Final = _MODULUS - 1
_SIGN: Final = 1 << 31

#: Characters at the end of a key that are computed, not remembered.
_TAIL: Final = 32
#: Beginnings of keys that a topic remembers; some 100 bytes each.
_MAX_HEADS: Final = 1024
_MAX_TOPICS: Final = 4096

#: From how many keys on lanes are faster than one by one.
_WORTH_IT: Final = 2


def key_hash(topic: str, key: str) -> int:
    """The hash of a key in the index."""
    value = abs(hash_code(f"{topic}#{key}"))
    # The one number whose negative Java cannot hold.
    return 0 if value == _SIGN else value


class _Topic:
    """What the characters before the tail of a key give to its hash."""

    __slots__ = ("_prefix", "by_length", "heads")

    def __init__(self, topic: str) -> None:
        self._prefix = hash_code(f"{topic}#")
        #: By the length of a key that is all tail.
        self.by_length = [self._prefix * pow(31, length, _MODULUS) & _MASK for length in range(_TAIL + 1)]
        #: By the characters before the tail, of longer keys.
        self.heads: dict[bytes, int] = {}

    def base(self, key: bytes) -> int:
        if len(key) <= _TAIL:
            return self.by_length[len(key)]
        head = key[:-_TAIL]
        value = self.heads.get(head)
        if value is None:
            if len(self.heads) >= _MAX_HEADS:
                self.heads.clear()
            before = self._prefix * pow(31, len(head), _MODULUS) + hash_code_bytes(head)
            value = self.heads[head] = before * pow(31, _TAIL, _MODULUS) & _MASK
        return value


class KeyHashes:
    """Hashes the keys of a turn."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def hash_all(self, topics: Sequence[str], keys: Sequence[bytes]) -> list[int]:
        """The hashes of keys, UTF-8, each of the topic at its place. Budget: 0.3 us a key of 32 characters."""
        tails = b"".join(keys)
        if not tails.isascii():
            return [key_hash(topic, key.decode("utf-8", "replace")) for topic, key in zip(topics, keys, strict=True)]
        lengths = [*map(len, keys)]
        if lengths and max(lengths) <= _TAIL and topics.count(topics[0]) == len(keys):
            bases = [*map(self._topic(topics[0]).by_length.__getitem__, lengths)]
        else:
            bases = [self._topic(topic).base(key) for topic, key in zip(topics, keys, strict=True)]
        if lengths.count(_TAIL) != len(lengths):
            # Zeros in front change nothing.
            tails = b"".join([key[-_TAIL:].rjust(_TAIL, b"\0") for key in keys])
        hashes = _add_polynomials(bases, tails)
        if _SIGN in hashes:
            # The absolute value of the lowest number becomes 0.
            return [0 if value == _SIGN else value for value in hashes]
        return hashes

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= _MAX_TOPICS:
                self._topics.clear()
            topic = self._topics[name] = _Topic(name)
        return topic


def _add_polynomials(bases: list[int], tails: bytes) -> list[int]:
    """The sum of each base and the polynomial of its tail, as the absolute value of Java's int."""
    count = len(bases)
    if count < _WORTH_IT:
        return [_add_polynomial(base, tails[n * _TAIL : (n + 1) * _TAIL]) for n, base in enumerate(bases)]
    values: list[int] = []
    start = 0
    while start < count:
        lanes = next((each for each in _LANES if each.count >= count - start), _LANES[-1])
        end = min(start + lanes.count, count)
        values += lanes.add(bases[start:end], tails[start * _TAIL : end * _TAIL])
        start = end
    return values


def _add_polynomial(value: int, tail: bytes) -> int:
    sum_ = 0
    for unit in tail:
        sum_ = 31 * sum_ + unit
    return abs(((sum_ + value + _SIGN) & _MASK) - _SIGN)


class _Lanes:
    """Adds up many polynomials at once: each is a lane of 32 bytes in one number.

    Each step adds to the right half of a field the left half times 31, 31^2, 31^4, 31^8, 31^16: 32 numbers become 16,
    8, 4, 2, 1. After the first two, which stay below 2^12 and 2^22, only the lower 32 bits of a field are right, and
    only they count; what is above them never reaches the next lane.
    """

    __slots__ = ("_bases", "_ones", "_results", "_size", "_steps", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._size = count * _TAIL
        self._bases = Struct(">" + "28xI" * count)
        self._ones = self._low(1, _TAIL) // 255
        self._results = Struct(">" + "28xi" * count)
        # Of each step: by how many bits the left half is moved, which bits of it count, and how often it is added.
        self._steps = (
            # The left half stands there as well, 256 or 65,536 times: that is taken away.
            (8, self._low(1, 2), 31 - (1 << 8)),
            (16, self._low(2, 4), 961 - (1 << 16)),
            (32, self._low(4, 8), pow(31, 4)),
            (64, self._low(4, 16), pow(31, 8, _MODULUS)),
            (128, self._low(4, 32), pow(31, 16, _MODULUS)),
        )

    def _low(self, part: int, field: int) -> int:
        """A mask for the low `part` bytes of each field of `field` bytes."""
        return int.from_bytes((bytes(field - part) + b"\xff" * part) * (self._size // field), "big")

    def add(self, bases: list[int], tails: bytes) -> list[int]:
        count = len(bases)
        if count < self.count:
            bases += [0] * (self.count - count)
            tails = tails.ljust(self._size, b"\0")
        number = int.from_bytes(tails, "big")
        for shift, mask, factor in self._steps:
            number += (number >> shift & mask) * factor
        if bases.count(bases[0]) == self.count:
            number += bases[0] * self._ones
        else:
            number += int.from_bytes(self._bases.pack(*bases), "big")
        values = self._results.unpack(number.to_bytes(self._size, "big"))
        return [*map(abs, values[:count] if count < self.count else values)]


_LANES: Final = (_Lanes(4), _Lanes(8), _Lanes(16), _Lanes(32), _Lanes(64))
