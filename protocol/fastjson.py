"""The JSON dialect of RocketMQ's bodies, in both directions: fastjson's.

Strict JSON is read by msgspec; what only fastjson reads (see `fastjson_reader`) by a reader of our own. Two dialects
are written: fastjson's default, where integer keys and objects as keys stand without quotes, and the standard one that
the nameserver gives to clients that ask for it. Types of bodies do not belong here: see `cometmq.protocol.bodies`.
"""

import base64
import enum
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

import msgspec

from cometmq.protocol import fastjson_reader, fastjson_references
from cometmq.protocol.errors import BodyError
from cometmq.protocol.fastjson_reader import MAX_DEPTH, ObjectKey
from cometmq.protocol.fastjson_strict import NOT_STRICT, has_reference, quote_integer_keys

__all__ = [
    "MAX_DEPTH",
    "NOT_STRICT",
    "ObjectKey",
    "dumps",
    "has_reference",
    "java_double",
    "loads",
    "quote_integer_keys",
]

_strict = msgspec.json.Decoder().decode


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value of a JSON text in any form that fastjson reads.

    Unquoted integer keys become int, objects as keys become `ObjectKey`. References are resolved, so that the value may
    be shared or even cyclic where the text has some. Raises `BodyError` and nothing else.
    """
    raw = bytes(data)
    if not has_reference(raw):
        try:
            return _strict(raw)
        except NOT_STRICT:
            pass
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"JSON is not UTF-8 at byte {error.start}") from None
    value = fastjson_reader.parse(text)
    return fastjson_references.resolve(value) if "$ref" in text else value


def dumps(value: Any, *, standard: bool = False) -> bytes:
    """The compact JSON text of a value: the fields of structs in alphabetical order, None left out of objects.

    In the standard dialect integer keys are quoted, maps are sorted and what is not ASCII is escaped. Objects as keys
    stay objects: there is no other form of them. Raises `BodyError` for a value nested too deep.
    """
    try:
        text = (_STANDARD if standard else _DEFAULT).dump(value)
    except RecursionError:
        raise BodyError(f"value is nested deeper than {MAX_DEPTH}") from None
    # Java replaces half surrogate pairs too.
    return text.encode("utf-8", "replace")


def java_double(value: float) -> str:
    """A double as Java writes it: `0.0`, `1.0E10`, `1.0E-5`."""
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return text
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The power of ten of the first digit that counts.
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


#: Writes a value that sits at this depth.
_Write = Callable[[Any, int], str]


class _Dialect(dict[type, _Write]):
    """How each type is written. What a type needs is worked out once, when its first value comes by.

    The budget of a route of 100 brokers, some 1200 fields, is half a millisecond.
    """

    def __init__(self, quote: Callable[[str], str], *, standard: bool) -> None:
        super().__init__()
        self.quote = quote
        self.standard = standard
        #: Types that need no depth: a call less for nearly all fields.
        self.scalars: dict[type, Callable[[Any], str]] = {
            str: quote,
            int: int.__repr__,
            bool: lambda value: "true" if value else "false",
            float: java_double,
            type(None): lambda value: "null",
            bytes: lambda value: quote(base64.b64encode(value).decode()),
        }

    def dump(self, value: Any) -> str:
        return self[type(value)](value, 0)

    def __missing__(self, kind: type) -> _Write:
        self[kind] = write = self._writer(kind)
        return write

    def _writer(self, kind: type) -> _Write:
        if issubclass(kind, msgspec.Struct):
            return self._struct(kind)
        if issubclass(kind, ObjectKey):
            return lambda value, depth: self._object(
                [self.quote(name) + ":" for name, _ in value], dict(value).values(), depth
            )
        if issubclass(kind, Mapping):
            return self._sorted_map if self.standard else self._map
        if issubclass(kind, list | tuple | set | frozenset):
            return self._array
        if issubclass(kind, enum.Enum):
            return lambda value, depth: self[type(value.value)](value.value, depth)
        # bool is an int: the type itself comes before those it derives from.
        for base in kind.__mro__:
            if scalar := self.scalars.get(base):
                return lambda value, depth: scalar(value)
        raise TypeError(f"a body cannot hold a {kind.__name__}")

    def _struct(self, kind: type) -> _Write:
        fields = sorted(msgspec.structs.fields(kind), key=lambda field: field.encode_name)
        names = [self.quote(field.encode_name) + ":" for field in fields]
        if len(fields) < 2:
            attributes = [field.name for field in fields]
            return lambda value, depth: self._object(names, [getattr(value, name) for name in attributes], depth)
        values = operator.attrgetter(*(field.name for field in fields))
        return lambda value, depth: self._object(names, values(value), depth)

    def _object(self, names: Iterable[str], values: Iterable[Any], depth: int) -> str:
        if depth >= MAX_DEPTH:
            raise BodyError(f"value is nested deeper than {MAX_DEPTH}")
        scalars, inner = self.scalars, depth + 1
        parts = [
            name + (scalar(value) if (scalar := scalars.get(kind := type(value))) else self[kind](value, inner))
            for name, value in zip(names, values, strict=True)
            if value is not None
        ]
        return "{" + ",".join(parts) + "}"

    def _map(self, value: Mapping[Any, Any], depth: int) -> str:
        return self._object([self._key(key, depth) for key in value], value.values(), depth)

    def _sorted_map(self, value: Mapping[Any, Any], depth: int) -> str:
        keys = sorted(value, key=self._order)
        return self._object([self._key(key, depth) for key in keys], [value[key] for key in keys], depth)

    def _array(self, value: Iterable[Any], depth: int) -> str:
        if depth >= MAX_DEPTH:
            raise BodyError(f"value is nested deeper than {MAX_DEPTH}")
        inner = depth + 1
        return "[" + ",".join([self[type(item)](item, inner) for item in value]) + "]"

    def _key(self, key: Any, depth: int) -> str:
        if isinstance(key, str):
            return self.quote(key) + ":"
        if isinstance(key, int) and not isinstance(key, bool):
            return f'"{key:d}":' if self.standard else f"{key:d}:"
        if isinstance(key, _OBJECTS):
            return self[type(key)](key, depth + 1) + ":"
        raise TypeError(f"a key of a map is text, an integer or an object, not {type(key).__name__}")

    def _order(self, key: Any) -> tuple[bool, Any]:
        """Integers by value and before text, as Java's sorted maps have them."""
        return (False, key) if isinstance(key, int) else (True, key if isinstance(key, str) else self.dump(key))


_OBJECTS = (msgspec.Struct, ObjectKey)
_DEFAULT = _Dialect(encode_basestring, standard=False)
_STANDARD = _Dialect(encode_basestring_ascii, standard=True)
