"""What of fastjson's dialect a strict parser reads as it is, or nearly: all that healthy peers send of most bodies.

Small on purpose: who meets only this loads no reader of our own (see `fastjson`).
"""

import re

import msgspec

#: What a strict parser raises for text that the tolerant one may still read.
NOT_STRICT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

#: A string with its quotes. One without end reaches to the end of the text: no quote is looked at twice.
_STRING = rb'("[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z))'
_INTEGER_KEY = rb"([{,]\s*)(-?[0-9]+)(?=\s*:)"


def has_reference(data: bytes) -> bool:
    """Whether a body may hold references: strict parsers take them for plain objects."""
    return b'"$ref"' in data


def quote_integer_keys(data: bytes) -> bytes:
    """The same text with quotes around its integer keys: strict JSON, if nothing else was wrong with it."""
    # Every second part is a string. The others are worked on in one go; a zero byte is legal in none of them.
    parts = re.split(_STRING, data, flags=re.S)
    outside = b"\0".join(parts[::2])
    if outside.count(b"\0") != len(parts) // 2:
        return data
    parts[::2] = re.sub(_INTEGER_KEY, rb'\1"\2"', outside).split(b"\0")
    return b"".join(parts)
