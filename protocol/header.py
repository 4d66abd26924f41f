"""How a typed header is declared, and what follows from a declaration.

A header (RocketMQ's CommandCustomHeader, the `extFields` of a command) is declared once, as a struct:

    class QueryConsumerOffset(Header):
        consumer_group: str
        topic: str
        queue_id: I32
        set_zero_if_not_found: bool | None = None

The wire's key is the field's name in camelCase unless `field(name=...)` says otherwise. A field without default is
required, and required fields come first. On the wire every value is text; the types here are the logical ones. From
the declaration come the encoders and decoders of the three header forms (`json_header`, `binary_header`,
`msgpack_header`), the error that names a bad field, and the tables of docs/protocol.md.

Declare the fields in the order in which Java writes them into a binary header, where that order is fixed: the
generated decoder expects it first.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import field

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import HeaderError

__all__ = [
    "I32",
    "I64",
    "FieldSpec",
    "H",
    "Header",
    "NoHeader",
    "Operation",
    "PerType",
    "field",
    "fields_of",
    "from_ext",
    "text_of",
    "to_ext",
]

I32_MIN, I32_MAX = -(2**31), 2**31 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1

I32 = Annotated[int, msgspec.Meta(ge=I32_MIN, le=I32_MAX)]
I64 = Annotated[int, msgspec.Meta(ge=I64_MIN, le=I64_MAX)]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", re.ASCII)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class Header(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all typed headers."""


H = TypeVar("H", bound=Header)
F = TypeVar("F")


class NoHeader(Header, frozen=True):
    """The header of commands that carry no keys of their own."""


class PerType(dict[type[Header], F]):
    """Something generated from a header's declaration, made when first asked for."""

    def __init__(self, make: Callable[[type[Header]], F]) -> None:
        self._make = make

    def __missing__(self, header_type: type[Header]) -> F:
        made = self[header_type] = self._make(header_type)
        return made


class FieldSpec(NamedTuple):
    """One field of a declaration."""

    name: str  # in Python
    key: str  # on the wire
    kind: str  # "str", "i32", "i64" or "bool"
    required: bool
    default: Any  # msgspec.NODEFAULT when required

    def parse(self, text: str) -> str | int | bool:
        """The typed value of the wire's text; ValueError says what is wrong with it."""
        if self.kind == "str":
            return text
        if self.kind == "bool":
            try:
                return _BOOLEANS[text.lower()]
            except KeyError:
                raise ValueError(f"is {_short(text)}, expected true or false") from None
        if _INTEGER.fullmatch(text):
            value = int(text)
        elif _DECIMAL.fullmatch(text) and float(text).is_integer():
            # The JSON decoder reads a whole number in this spelling too, and the forms of a header must agree.
            value = int(float(text))
        else:
            raise ValueError(f"is {_short(text)}, expected an integer")
        low, high = (I32_MIN, I32_MAX) if self.kind == "i32" else (I64_MIN, I64_MAX)
        if not low <= value <= high:
            raise ValueError(f"is {_short(text)}, outside the range of {self.kind}")
        return value


class Operation(NamedTuple):
    """What the protocol says about one request code."""

    code: RequestCode
    request: type[Header]
    response: type[Header] = NoHeader
    direction: str = "client → broker"
    oneway: bool = False  # usually sent without waiting for an answer


def _short(text: str) -> str:
    """A piece of the peer's text that fits into a remark."""
    return repr(text if len(text) <= 64 else text[:61] + "...")


def _kind_of(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    if hint is str:
        return "str"
    if hint is bool:
        return "bool"
    if get_origin(hint) is Annotated:
        base, meta = get_args(hint)[:2]
        if base is int and isinstance(meta, msgspec.Meta):
            return "i32" if meta.le == I32_MAX else "i64"
    raise TypeError(f"a header field is str, I32, I64 or bool (or one of them | None), not {hint}")


@cache
def fields_of(header_type: type[Header]) -> tuple[FieldSpec, ...]:
    """The declaration of a header type, in its order."""
    hints = get_type_hints(header_type, include_extras=True)
    return tuple(
        FieldSpec(f.name, f.encode_name, _kind_of(hints[f.name]), f.required, f.default)
        for f in msgspec.structs.fields(header_type)
    )


def to_ext(header: Header) -> dict[str, str]:
    """The header as the string map that travels, e.g. for signing. Absent values are left out."""
    ext = {}
    for spec in fields_of(type(header)):
        value = getattr(header, spec.name)
        if value is None:
            continue
        ext[spec.key] = value if spec.kind == "str" else text_of(value)
    return ext


def text_of(value: Any) -> str:
    """A boolean or an integer as it travels."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def from_ext(header_type: type[H], ext: Mapping[str, str], request: str) -> H:
    """A typed header from a string map; the careful way, whose errors name the field and the request.

    The fast decoders fall back to this one when they stumble, so it also decides what is accepted.
    """
    values = []
    for spec in fields_of(header_type):
        text = ext.get(spec.key)
        if text is None or (text == "null" and spec.default is None and spec.kind != "str"):
            if spec.required:
                raise HeaderError(request, spec.key, "is missing")
            values.append(spec.default)
            continue
        try:
            values.append(spec.parse(text))
        except ValueError as error:
            raise HeaderError(request, spec.key, str(error)) from None
    return header_type(*values)
