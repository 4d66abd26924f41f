"""Hash functions: Java's where RocketMQ's bytes depend on it, MurmurHash3 for hashing of our own.

`hash_code` is `java.lang.String.hashCode` (index keys, queue selection), `tags_code` is what a consume queue unit and
a subscription's code set hold for a tag. The text of a subscription is parsed elsewhere.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import unpack
from typing import Final

import mmh3

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000

# Up to this many UTF-16 units the number may grow (to some 330 bits) and is wrapped once at the end: a quarter faster
# than wrapping at every step, and tags and index keys are shorter than this.
_WRAP_AT_END: Final = 64


def _polynomial(units: Sequence[int]) -> int:
    value = 0
    if len(units) <= _WRAP_AT_END:
        for unit in units:
            value = 31 * value + unit
    else:
        for unit in units:
            value = (31 * value + unit) & _MASK
    return ((value + _SIGN) & _MASK) - _SIGN


def hash_code(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, a signed 32-bit number."""
    if text.isascii():
        return _polynomial(text.encode("ascii"))
    raw = text.encode("utf-16-be", "surrogatepass")
    return _polynomial(unpack(f">{len(raw) // 2}H", raw))


def hash_code_bytes(text: bytes) -> int:
    """`hash_code` of UTF-8 text that has not been decoded."""
    if text.isascii():
        return _polynomial(text)
    return hash_code(text.decode("utf-8", "replace"))


# A broker sees the same few tags again and again; 1024 of them take some 100 KiB.
@lru_cache(maxsize=1024)
def tags_code(tags: str) -> int:
    """The tag's code, to be stored as i64 (sign-extended). No tag, or an empty one: 0."""
    return hash_code(tags)


@lru_cache(maxsize=1024)
def tags_code_bytes(tags: bytes) -> int:
    """`tags_code` of UTF-8 text that has not been decoded."""
    return hash_code_bytes(tags)


# MurmurHash3 for what only we read: consistent hashing, bloom filters. Python's own hash() changes from process to
# process; these numbers never do, in no process, on no platform and in no version: they may be stored and sent.


def murmur3_32(data: bytes | str, seed: int = 0) -> int:
    """MurmurHash3_x86_32, unsigned. Text is hashed as UTF-8."""
    return mmh3.hash(data, seed, signed=False)


def murmur3_64(data: bytes | str, seed: int = 0) -> int:
    """The first 64 bits of MurmurHash3_x64_128, unsigned. Text is hashed as UTF-8."""
    return mmh3.hash64(data, seed, x64arch=True, signed=False)[0]
