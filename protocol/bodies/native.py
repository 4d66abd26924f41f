"""fastjson's text at msgspec's speed, where msgspec's own text can be turned into it.

msgspec writes fields in the order of their declaration and leaves None out, as `Body` asks for. Two things are left:
integer keys, which it quotes and the default dialect does not, and the order of maps in the standard dialect. Bodies
with doubles or objects as keys are none of its business. Everything here may say None: then `fastjson.dumps` writes.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

#: More different integer keys than this are cheaper to write one by one. Routes have 0 and a few slaves.
MAX_KEYS = 8


class Shape:
    """What a body type holds, as far as its JSON text cares."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        info = inspect.type_info(kind)
        types = list(_types(info))
        keys = [part.key_type for part in types if isinstance(part, inspect.DictType)]
        self.has_integer_keys = any(isinstance(key, inspect.IntType) for key in keys)
        self.has_object_keys = any(isinstance(key, inspect.StructType) for key in keys)
        has_doubles = any(isinstance(part, inspect.FloatType) for part in types)
        #: Whether `encode` is worth a try.
        self.is_native = not self.has_object_keys and not has_doubles
        self._gather = _gatherer(info)

    def encode(self, body: msgspec.Struct, *, standard: bool) -> bytes | None:
        """The body's text in the dialect, or None."""
        if not self.is_native:
            return None
        try:
            text = msgspec.json.encode(body)
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        if self._gather is None or not (standard or self.has_integer_keys):
            return text if text.isascii() or not standard else None
        by_integer: list[dict[int, Any]] = []
        by_text: list[dict[str, Any]] = []
        self._gather(body, by_integer, by_text)
        if standard:
            in_order = all(_in_order(table) for table in by_integer) and all(_in_order(table) for table in by_text)
            return text if in_order and text.isascii() else None
        return _unquote(text, set().union(*by_integer), by_text)


def _in_order(table: dict[Any, Any]) -> bool:
    return len(table) < 2 or list(table) == sorted(table)


def _unquote(text: bytes, keys: set[int], by_text: list[dict[str, Any]]) -> bytes | None:
    """Takes the quotes off integer keys.

    A quote inside a string is always escaped, so that `{"1":` and `,"1":` can only be keys of an object, and only a
    map by text could have a key that looks the same.
    """
    if len(keys) > MAX_KEYS or any(key.isdigit() or key.startswith("-") for table in by_text for key in table):
        return None
    for key in keys:
        name = b'"%d":' % key
        for before in (b"{", b","):
            text = text.replace(before + name, before + b"%d:" % key)
    return text


@functools.cache
def shape(kind: type[msgspec.Struct]) -> Shape:
    return Shape(kind)


#: Puts all maps inside a value into two lists: those with integer keys and those with text.
_Gatherer = Callable[[Any, list[dict[int, Any]], list[dict[str, Any]]], None]


def _gatherer(info: inspect.Type) -> _Gatherer | None:
    """None for a type that holds no maps."""
    match info:
        case inspect.DictType(key_type=key, value_type=item):
            return _gather_map(isinstance(key, inspect.IntType), _gatherer(item))
        case inspect.ListType(item_type=item):
            return _gather_each(_gatherer(item))
        case inspect.StructType(fields=fields):
            return _gather_fields([(field.name, inner) for field in fields if (inner := _gatherer(field.type))])
        case inspect.UnionType(types=types):
            return next(filter(None, map(_gatherer, types)), None)
    return None


def _gather_map(is_integer: bool, inner: _Gatherer | None) -> _Gatherer:
    def gather(value: Any, by_integer: list[dict[int, Any]], by_text: list[dict[str, Any]]) -> None:
        (by_integer if is_integer else by_text).append(value)
        if inner is not None:
            for item in value.values():
                inner(item, by_integer, by_text)

    return gather


def _gather_each(inner: _Gatherer | None) -> _Gatherer | None:
    if inner is None:
        return None

    def gather(value: Any, by_integer: list[dict[int, Any]], by_text: list[dict[str, Any]]) -> None:
        for item in value:
            inner(item, by_integer, by_text)

    return gather


def _gather_fields(fields: list[tuple[str, _Gatherer]]) -> _Gatherer | None:
    if not fields:
        return None

    def gather(value: Any, by_integer: list[dict[int, Any]], by_text: list[dict[str, Any]]) -> None:
        for name, inner in fields:
            if (item := getattr(value, name)) is not None:
                inner(item, by_integer, by_text)

    return gather


def _types(info: inspect.Type) -> Iterator[inspect.Type]:
    """A type and all types inside it. Bodies are never recursive."""
    yield info
    inner: tuple[inspect.Type, ...] = ()
    match info:
        case inspect.StructType(fields=fields):
            inner = tuple(field.type for field in fields)
        case inspect.DictType(key_type=key, value_type=value):
            inner = (key, value)
        case inspect.ListType(item_type=item):
            inner = (item,)
        case inspect.UnionType(types=types):
            inner = types
    for part in inner:
        yield from _types(part)
