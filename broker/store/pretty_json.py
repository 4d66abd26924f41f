"""The layout of RocketMQ's configuration files: fastjson's pretty format, to the byte.

Tabs, one entry a line, no blank after a colon. Where fastjson is odd, so is this: entries of maps with integer keys
stand on one line without quotes, arrays and sets on one line, Java's lists item by item. Reading is fastjson's reader:
it does not care for layout.
"""

import enum
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any

import msgspec

from cometmq.protocol.fastjson import java_double

#: Fields that are a `List` in Java; all other arrays of configuration files are sets and plain arrays.
JAVA_LISTS = frozenset({"o", "hostedQueues"})


def dumps(value: Any) -> bytes:
    """The text of a value: fields of structs in alphabetical order, maps in their own, None left out of both."""
    return _dump(value, 0, False).encode("utf-8", "replace")


def _dump(value: Any, depth: int, is_list: bool) -> str:
    match value:
        case None:
            return "null"
        case enum.Enum():
            return _dump(value.value, depth, is_list)
        case str():
            return encode_basestring(value)
        case bool():
            return "true" if value else "false"
        case int():
            return int.__repr__(value)
        case float():
            return java_double(value)
        case msgspec.Struct():
            fields = sorted(msgspec.structs.fields(value), key=lambda field: field.encode_name)
            return _lines(
                "{}",
                (
                    f"{encode_basestring(field.encode_name)}:{_dump(item, depth + 1, field.encode_name in JAVA_LISTS)}"
                    for field in fields
                    if (item := getattr(value, field.name)) is not None
                ),
                depth,
            )
        case Mapping():
            return _map(value, depth, is_list)
        case list() | tuple() if is_list:
            return _lines("[]", (_dump(item, depth + 1, False) for item in value), depth)
        case list() | tuple():
            return "[" + ",".join(_dump(item, depth, False) for item in value) + "]"
    raise TypeError(f"a configuration file cannot hold a {type(value).__name__}")


def _map(value: Mapping[Any, Any], depth: int, is_list: bool) -> str:
    entries = [(key, item) for key, item in value.items() if item is not None]
    if not entries or isinstance(entries[0][0], str):
        texts = (f"{encode_basestring(key)}:{_dump(item, depth + 1, is_list)}" for key, item in entries)
        return _lines("{}", texts, depth)
    inner = ",".join(f"{key:d}:{_dump(item, depth + 1, is_list)}" for key, item in entries)
    return "{" + inner + "\n" + "\t" * depth + "}"


def _lines(brackets: str, texts: Iterable[str], depth: int) -> str:
    start = "\n" + "\t" * (depth + 1)
    inner = ("," + start).join(texts)
    if not inner:
        return brackets
    return brackets[0] + start + inner + "\n" + "\t" * depth + brackets[1]
