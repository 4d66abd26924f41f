"""From a parsed JSON tree to a typed body, with fastjson's leniency.

This is the slow way of decoding, for what msgspec refuses: text for numbers and numbers for text, null where a
collection or a number belongs (it leaves the default), objects as keys of maps, other spellings of a field's name.
No JSON is parsed here. Everything that is wrong ends as a `BodyError` with the path of the field.
"""

import base64
import binascii
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from cometmq.protocol.errors import BodyError
from cometmq.protocol.fastjson_reader import ObjectKey

#: Values that one body may expand to, or as many as its text has characters. Only references can make more than that.
MAX_VALUES = 100_000

_INTEGER = re.compile(r"[ \t\r\n]*[+-]?[0-9]{1,64}[ \t\r\n]*")
_TRUE = frozenset({"true", "1", "y", "yes", "t"})
_FALSE = frozenset({"false", "0", "n", "no", "f"})


class _Budget:
    """Counts the values that were converted."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _Mismatch("expands to too many values through its references")


class _Mismatch(Exception):
    """A value that does not fit; the path grows on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


#: Takes a value that is not null and gives the typed one, or `_NULL` where fastjson reads the value as null.
_Converter = Callable[[Any, _Budget], Any]
_NULL: Any = object()
_T = TypeVar("_T", bound=msgspec.Struct)


def convert(tree: Any, kind: type[_T], *, size: int = 0) -> _T:
    """The tree as a struct of this kind. `size` is the length of the text it came from."""
    try:
        value: _T = _struct(kind)(tree, _Budget(max(size, MAX_VALUES)))
    except _Mismatch as mismatch:
        path = "$" + "".join(reversed(mismatch.path))
        raise BodyError(f"{kind.__name__}: {path} {mismatch.reason}") from None
    return value


@functools.cache
def _struct(kind: type[msgspec.Struct]) -> _Converter:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    aliases: dict[str, str] = {name: alias for alias, name in getattr(kind, "ALIASES", {}).items()}
    fields = [
        (field.name, field.encode_name, aliases.get(field.encode_name, ""), field.required, _converter(field.type))
        for field in info.fields
    ]

    def to_struct(value: Any, budget: _Budget) -> Any:
        if isinstance(value, ObjectKey):
            value = dict(value)
        if not isinstance(value, dict):
            raise _wanted("an object", value)
        budget.spend(1)
        found: dict[str, Any] = {}
        for attribute, name, alias, required, to in fields:
            item = value.get(name)
            if item is None and alias:
                item = value.get(alias)
            try:
                if item is not None and (item := to(item, budget)) is not _NULL:
                    found[attribute] = item
                elif required:
                    raise _Mismatch("is missing")
            except _Mismatch as mismatch:
                mismatch.path.append(f".{name}")
                raise
        return kind(**found)

    return to_struct


def _converter(info: inspect.Type) -> _Converter:
    match info:
        case inspect.IntType(ge=low, le=high):
            return functools.partial(_to_int, low, high)
        case inspect.DictType(key_type=key, value_type=value):
            return _dict(key, value)
        case inspect.ListType(item_type=item):
            return _list(item)
        case inspect.StructType(cls=kind):
            return _struct(kind)
        case inspect.UnionType(types=types):
            (only,) = (kind for kind in types if not isinstance(kind, inspect.NoneType))
            return _converter(only)
    return _SCALARS[type(info)]


def _list(info: inspect.Type) -> _Converter:
    to = _converter(info)

    def to_list(value: Any, budget: _Budget) -> Any:
        if not isinstance(value, list):
            raise _wanted("an array", value)
        budget.spend(len(value))
        items = []
        for index, item in enumerate(value):
            try:
                # A null in a collection is an error waiting to happen on every side: it is left out.
                if item is not None and (item := to(item, budget)) is not _NULL:
                    items.append(item)
            except _Mismatch as mismatch:
                mismatch.path.append(f"[{index}]")
                raise
        return items

    return to_list


def _dict(key_info: inspect.Type, value_info: inspect.Type) -> _Converter:
    to_key, to_value = _converter(key_info), _converter(value_info)
    has_object_keys = isinstance(key_info, inspect.StructType)

    def to_dict(value: Any, budget: _Budget) -> Any:
        if has_object_keys and isinstance(value, list):
            value = _pairs(value)
        if not isinstance(value, dict):
            raise _wanted("an object", value)
        budget.spend(len(value))
        table = {}
        for key, item in value.items():
            try:
                if item is not None and (item := to_value(item, budget)) is not _NULL:
                    table[to_key(key, budget)] = item
            except _Mismatch as mismatch:
                mismatch.path.append(f"[{dict(key) if isinstance(key, ObjectKey) else key!r}]")
                raise
        return table

    return to_dict


def _pairs(value: list[Any]) -> dict[Any, Any]:
    """The form that peers without objects as keys use: an array of pairs."""
    table = {}
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], dict):
            raise _Mismatch("expected an array of pairs of an object and a value")
        table[ObjectKey.of(pair[0])] = pair[1]
    return table


def _to_int(low: int | None, high: int | None, value: Any, budget: _Budget) -> Any:
    match value:
        case bool():
            number = int(value)
        case int():
            number = value
        case float() if value.is_integer():
            number = int(value)
        case str() if _INTEGER.fullmatch(value):
            number = int(value)
        case "" | "null":
            return _NULL
        case _:
            raise _wanted("an integer", value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise _Mismatch(f"is out of range: {number}")
    return number


def _to_float(value: Any, budget: _Budget) -> Any:
    match value:
        case bool() | int() | float():
            try:
                return float(value)
            except OverflowError:
                raise _wanted("a number", value) from None
        case "" | "null":
            return _NULL
        case str():
            try:
                return float(value)
            except ValueError:
                pass
    raise _wanted("a number", value)


def _to_bool(value: Any, budget: _Budget) -> Any:
    match value:
        case bool():
            return value
        case int():
            return value != 0
        case "" | "null":
            return _NULL
        case str() if value.lower() in _TRUE:
            return True
        case str() if value.lower() in _FALSE:
            return False
    raise _wanted("a boolean", value)


def _to_text(value: Any, budget: _Budget) -> Any:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
    raise _wanted("text", value)


def _to_bytes(value: Any, budget: _Budget) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise _wanted("Base64", value)


_SCALARS: Mapping[type[inspect.Type], _Converter] = {
    inspect.AnyType: lambda value, budget: value,
    inspect.BoolType: _to_bool,
    inspect.BytesType: _to_bytes,
    inspect.FloatType: _to_float,
    inspect.StrType: _to_text,
}


def _wanted(what: str, value: Any) -> _Mismatch:
    match value:
        case dict() | ObjectKey():
            found = "an object"
        case list() | tuple():
            found = "an array"
        case str():
            found = f"text {value[:40]!r}"
        case _:
            found = repr(value)
    return _Mismatch(f"expected {what}, got {found}")
