"""The layout of RocketMQ's configuration files: fastjson's pretty format, to the byte.

Tabs, one entry a line, no blank after a colon. Where fastjson is odd, so is this: entries of maps with integer keys
stand on one line without quotes, arrays and sets on one line, Java's lists item by item. Reading is fastjson's reader:
it does not care for layout.
"""

import enum
import functools
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


class Rewriter:
    """Writes a table again and again of which little changes: entries that are the same objects keep their text.

    For a struct with a map of structs, none of which is changed in place: topics and groups. One of 5,000 entries then
    takes 2 ms, not 100, while everybody waits for it.
    """

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, tuple[msgspec.Struct, str]]] = {}

    def dumps(self, value: msgspec.Struct) -> bytes:
        """The same text as that of `dumps`."""
        texts = []
        for name, label, is_java_list in _fields(type(value)):
            item = getattr(value, name)
            if item is not None:
                text = self._map(name, item) if isinstance(item, dict) else None
                texts.append(label + (_dump(item, 1, is_java_list) if text is None else text))
        return _lines("{}", texts, 0).encode("utf-8", "replace")

    def _map(self, name: str, table: dict[str, Any]) -> str | None:
        """The text of a map of structs; None when it is not that."""
        old, new = self._texts.get(name, {}), {}
        for key, item in table.items():
            if not isinstance(key, str) or not isinstance(item, msgspec.Struct):
                return None
            kept = old.get(key)
            if kept is None or kept[0] is not item:
                kept = item, f"{encode_basestring(key)}:{_dump(item, 2, False)}"
            new[key] = kept
        self._texts[name] = new
        return _lines("{}", [text for _, text in new.values()], 1)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, bool]]:
    """Of each field, in the order of the file: its name here, its label there, and whether it is a Java list."""
    fields = sorted(msgspec.structs.fields(kind), key=lambda field: field.encode_name)
    return [
        (field.name, f"{encode_basestring(field.encode_name)}:", field.encode_name in JAVA_LISTS) for field in fields
    ]


def _dump(value: Any, depth: int, is_list: bool) -> str:
    # Most of a table is plain text and plain numbers, and a topic that is created waits until all are written.
    kind = value.__class__
    if kind is str:
        return encode_basestring(value)
    if kind is int:
        return int.__repr__(value)
    if kind is bool:
        return "true" if value else "false"
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
            return _lines(
                "{}",
                [
                    f"{label}{_dump(item, depth + 1, is_java_list)}"
                    for name, label, is_java_list in _fields(type(value))
                    if (item := getattr(value, name)) is not None
                ],
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
