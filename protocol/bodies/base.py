"""What all bodies share: fields that are always written, integer widths, decoding and encoding.

A body is a frozen msgspec struct with RocketMQ's names in Python's spelling. Its fields are declared in the order of
their names on the wire, which is the order that Java writes. Decoding tries msgspec first; what it refuses goes the
lenient way (`lenient`). Encoding leaves out None and nothing else.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

import msgspec

from cometmq.protocol.bodies.native import shape
from cometmq.protocol.errors import BodyError
from cometmq.protocol.fastjson_strict import NOT_STRICT, has_reference, quote_integer_keys

#: Java's int and long. A peer cannot make us hold a number that we could not send on.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound="Body")


def always(default: _T, *, name: str | None = None) -> _T:
    """A field that is written also while it has its default, as Java writes every primitive.

    `name` is the field's name on the wire where it is not the camel-case form of ours.
    """
    return msgspec.field(default_factory=lambda: default, name=name)


def always_new(factory: Callable[[], _T], *, name: str | None = None) -> _T:
    """Like `always` for collections and structs: every body gets one of its own."""
    # Wrapped, because msgspec leaves out what equals the product of a bare `list` or `dict`.
    return msgspec.field(default_factory=lambda: factory(), name=name)


# omit_defaults leaves out what equals a plain default, and only None is a plain default here.
class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A body of a request or response, or a value inside one."""

    #: Other names that peers give to a field: their name -> the name on the wire.
    ALIASES: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """The body that the bytes stand for. Raises `BodyError` and nothing else."""
        raw = bytes(data)
        if not has_reference(raw):
            for decoder in _decoders(cls):
                try:
                    return cast(Self, decoder(raw))
                except NOT_STRICT:
                    pass
        return _leniently(cls, raw, _tree(cls, raw))

    def encode(self, *, standard: bool = False) -> bytes:
        """The JSON text, in fastjson's default dialect or the standard one."""
        text = shape(type(self)).encode(self, standard=standard)
        return text if text is not None else _dumps(self, standard=standard)


class ArrayBody(Body, frozen=True):
    """A body that is a bare array on the wire: its only field."""

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        (field,) = msgspec.structs.fields(cls)
        raw = bytes(data)
        return _leniently(cls, raw, {field.encode_name: _tree(cls, raw)})

    def encode(self, *, standard: bool = False) -> bytes:
        (items,) = msgspec.structs.astuple(self)
        return _dumps(items, standard=standard)


# The slow ways. Many processes never take them, and Spark starts many processes: what they need is loaded here.


def _leniently(kind: type[_Body], raw: bytes, tree: Any) -> _Body:
    from cometmq.protocol.bodies import lenient

    return lenient.convert(tree, kind, size=len(raw))


def _dumps(value: Any, *, standard: bool) -> bytes:
    from cometmq.protocol import fastjson

    return fastjson.dumps(value, standard=standard)


def _tree(kind: type, raw: bytes) -> Any:
    if not raw:
        raise BodyError(f"{kind.__name__}: the body is empty")
    from cometmq.protocol import fastjson

    try:
        return fastjson.loads(raw)
    except BodyError as error:
        raise BodyError(f"{kind.__name__}: {error}") from None


@functools.cache
def _decoders(kind: type[Body]) -> list[Callable[[bytes], Any]]:
    """The fast ways to decode a body, in order: msgspec's, and that after quoting integer keys."""
    if shape(kind).has_object_keys:
        return []
    decode = msgspec.json.Decoder(kind, strict=False).decode
    if not shape(kind).has_integer_keys:
        return [decode]
    return [decode, lambda raw: decode(quote_integer_keys(raw))]
