"""Frames to commands and back: picks the header form by the frame's type byte.

A frame is given without its length word, as `remoting` cuts it out of the stream. Decoding raises `FrameError` when
the connection has to be closed, and `BadHeader` when the request can be answered with an error.
"""

from collections.abc import Mapping
from importlib import import_module
from struct import Struct, error
from typing import Any, NamedTuple, Protocol, TypeAlias

from cometmq.protocol import json_header
from cometmq.protocol.codes import CURRENT_VERSION
from cometmq.protocol.command import FLAG_ONEWAY, Command, SerializeType
from cometmq.protocol.errors import FrameError
from cometmq.protocol.frame import frame_head
from cometmq.protocol.header import H, Header

_HEADER_WORD = Struct(">I")


class _Form(Protocol):
    """What the module of a header form offers."""

    def decode_request(self, data: bytes) -> Command: ...
    def read_ext(self, data: bytes) -> dict[str, str]: ...
    def read_header(self, header_type: type[H], data: bytes, request: str) -> H: ...
    def encode_response(
        self,
        opaque: int,
        code: int,
        header: Header | None,
        remark: str | None,
        body_length: int,
        ext: Mapping[str, str] | None,
    ) -> bytes: ...
    def encode_command(self, command: Command, ext: Mapping[str, str] | None) -> bytes: ...


class _Later:
    """A form that most connections never speak: its module is loaded with its first header, and takes its place."""

    def __init__(self, kind: SerializeType, module: str) -> None:
        self._kind = kind
        self._module = module

    def __getattr__(self, name: str) -> Any:
        _FORMS[self._kind] = form = import_module(self._module)
        return getattr(form, name)


_JSON, _BINARY, _MSGPACK = SerializeType
#: By SerializeType.
_FORMS: list[_Form] = [
    json_header,
    _Later(_BINARY, "cometmq.protocol.binary_header"),
    _Later(_MSGPACK, "cometmq.protocol.msgpack_header"),
]


class Decoded(NamedTuple):
    """A frame taken apart."""

    command: Command
    kind: SerializeType
    raw_header: bytes  # for `read_ext` and `read_header`
    body: bytes


#: The same without names: where it is made for each frame, that counts.
Parts: TypeAlias = tuple[Command, SerializeType, bytes, bytes]


def decode(frame: bytes | memoryview, *, expect_response: bool = False) -> Decoded:
    """Takes a frame apart that starts with its header word."""
    try:
        word: int = _HEADER_WORD.unpack_from(frame)[0]
    except error:
        raise FrameError(f"frame of {len(frame)} bytes has no header word") from None
    end = 4 + (word & 0xFFFFFF)
    if end > len(frame):
        raise FrameError(f"header claims {end - 4} bytes, the frame has {len(frame) - 4}")
    raw = bytes(frame[4:end])
    body = bytes(frame[end:])
    number = word >> 24
    if number == _JSON:
        command = json_header.decode_response(raw) if expect_response else json_header.decode_request(raw)
        return Decoded(command, _JSON, raw, body)
    if number == _BINARY:
        return Decoded(_FORMS[_BINARY].decode_request(raw), _BINARY, raw, body)
    if number == _MSGPACK:
        return Decoded(_FORMS[_MSGPACK].decode_request(raw), _MSGPACK, raw, body)
    raise FrameError(f"unknown serialize type {number}")


def read_ext(kind: SerializeType, raw_header: bytes) -> dict[str, str]:
    """All keys of a header as text: for signatures, zones and the keys that every request may carry."""
    return _FORMS[kind].read_ext(raw_header)


def read_header(kind: SerializeType, raw_header: bytes, header_type: type[H], request: str) -> H:
    """The typed header of a response; `request` names what was asked in the error about a bad field."""
    return _FORMS[kind].read_header(header_type, raw_header, request)


def encode_response(
    kind: SerializeType,
    opaque: int,
    code: int,
    header: Header | None = None,
    remark: str | None = None,
    body_length: int = 0,
    *,
    ext: Mapping[str, str] | None = None,
) -> bytes:
    """The head of a response's frame; the bytes of its body follow. Budget: 1 us for the answer to a send."""
    if not kind and header is not None and remark is None and ext is None:  # JSON is 0
        return json_header.responders[type(header)](header, code, opaque, "", body_length)
    return _FORMS[kind].encode_response(opaque, code, header, remark, body_length, ext)


def encode_request(
    kind: SerializeType,
    code: int,
    opaque: int,
    header: Header | None = None,
    body_length: int = 0,
    *,
    oneway: bool = False,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
) -> bytes:
    """The head of a request's frame; the bytes of its body follow."""
    flag = FLAG_ONEWAY if oneway else 0
    command = Command(code, flag, opaque, CURRENT_VERSION, json_header.LANGUAGE, remark, header)
    return encode_command(kind, command, body_length, ext=ext)


def encode_command(
    kind: SerializeType, command: Command, body_length: int = 0, *, ext: Mapping[str, str] | None = None
) -> bytes:
    """The head of a frame with any command in it."""
    return frame_head(kind, _FORMS[kind].encode_command(command, ext), body_length)
