"""The msgpack form of a header (serialize type 2): our own, between our SDK and our broker.

    [code, language, version, opaque, flag, remark, keys]

with the keys as a map from the wire's names to values in their own types, absent ones left out. A real RocketMQ peer
never sees it: a connection speaks it only after the SDK has sent `hdr=msgpack` with its first heartbeat and the
broker's answer has repeated it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import msgspec

from cometmq.protocol.codes import CURRENT_VERSION, LanguageCode, request_name
from cometmq.protocol.command import FLAG_RESPONSE, BadHeader, Command, SerializeType
from cometmq.protocol.errors import FrameError, HeaderError
from cometmq.protocol.frame import frame_head
from cometmq.protocol.header import I32_MAX, I32_MIN, H, Header, PerType, from_ext
from cometmq.protocol.requests.operations import OPERATIONS

#: How the SDK announces this form and the broker confirms it: a key of the first heartbeat and of its answer.
ANNOUNCE_KEY, ANNOUNCE_VALUE = "hdr", "msgpack"

#: Bounds for headers whose shape nobody declared: more than any real command has, little enough to be harmless.
MAX_KEYS = 1024
MAX_TEXT = 1024 * 1024

_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
_FIELDS = 7
_LANGUAGES = {int(code): code.name for code in LanguageCode}
_LANGUAGE_CODES = {code.name: int(code) for code in LanguageCode}
_encode = msgspec.msgpack.Encoder().encode


class _Wire(msgspec.Struct, array_like=True, gc=False):
    """The envelope as it stands on the wire."""

    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    header: Any = None


def _make_decoder(header_type: type[Header]) -> Callable[[bytes], Any]:
    wire = msgspec.defstruct(
        header_type.__name__ + "Wire", [("header", header_type, None)], bases=(_Wire,), array_like=True, gc=False
    )
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(wire, strict=False)
    return decoder.decode


_decoders = PerType(_make_decoder)


def _code_of(data: bytes) -> int:
    """The code, read from its place: behind the array's first byte."""
    if len(data) < 6 or data[0] != 0x90 | _FIELDS:
        raise FrameError("header is not a msgpack array of seven")
    first = data[1]
    if first < 0x80:
        return first
    if first == 0xCC:
        return data[2]
    if first == 0xCD:
        return data[2] << 8 | data[3]
    if first == 0xCE:
        return int.from_bytes(data[2:6], "big")
    return -1


def decode_request(data: bytes) -> Command:
    """A command from a msgpack header; a request of a known code comes with its typed header."""
    operation = OPERATIONS.get(_code_of(data))
    if operation is not None:
        try:
            wire = _decoders[operation.request](data)
            if not wire.flag & FLAG_RESPONSE and wire.header is not None:
                return _command(wire, wire.header)
        except _BROKEN:
            pass
    values = _unpack(data)
    command = _command(_Wire(*values), None)
    if command.is_response or operation is None:
        return command
    try:
        command.header = from_ext(operation.request, _ext(values[-1]), request_name(command.code))
    except HeaderError as error:
        raise BadHeader(command, SerializeType.MSGPACK, error) from None
    return command


def _command(wire: _Wire, header: Header | None) -> Command:
    for number in (wire.code, wire.version, wire.opaque, wire.flag):
        if type(number) is not int or not I32_MIN <= number <= I32_MAX:
            raise FrameError(f"number {number!r} of a msgpack header is not an i32")
    if wire.remark is not None and not isinstance(wire.remark, str):
        raise FrameError("remark of a msgpack header is not text")
    language = _LANGUAGES.get(wire.language) if type(wire.language) is int else None
    return Command(wire.code, wire.flag, wire.opaque, wire.version, language, wire.remark, header)


def _unpack(data: bytes) -> list[Any]:
    try:
        values = msgpack.unpackb(data, max_map_len=MAX_KEYS, max_str_len=MAX_TEXT, max_array_len=_FIELDS, max_ext_len=0)
    except (msgpack.UnpackException, ValueError, RecursionError) as error:
        raise FrameError(f"header is not msgpack: {error}") from None
    if not isinstance(values, list) or len(values) != _FIELDS:
        raise FrameError("header is not a msgpack array of seven")
    return values


def _ext(ext: Any) -> dict[str, str]:
    if ext is None:
        return {}
    if not isinstance(ext, dict):
        raise FrameError("keys of a msgpack header are not a map")
    return {str(key): _text(value) for key, value in ext.items() if value is not None}


def _text(value: Any) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)


def read_ext(data: bytes) -> dict[str, str]:
    """All keys of the header, as text."""
    return _ext(_unpack(data)[-1])


def read_header(header_type: type[H], data: bytes, request: str) -> H:
    """The typed header of a command whose type only the caller knows: a response's."""
    try:
        header: H | None = _decoders[header_type](data).header
    except _BROKEN:
        header = None
    return from_ext(header_type, read_ext(data), request) if header is None else header


def _keys(header: Header | None, ext: Mapping[str, str] | None) -> Any:
    if not ext:
        return header
    keys = {} if header is None else msgspec.to_builtins(header)
    return {**keys, **ext}


def encode_response(
    opaque: int, code: int, header: Header | None, remark: str | None, body_length: int, ext: Mapping[str, str] | None
) -> bytes:
    """The head of a response's frame."""
    keys = _keys(header, ext)
    envelope = (int(code), int(LanguageCode.PYTHON), CURRENT_VERSION, opaque, FLAG_RESPONSE, remark, keys)
    return frame_head(SerializeType.MSGPACK, _encode(envelope), body_length)


def encode_command(command: Command, ext: Mapping[str, str] | None) -> bytes:
    """The header of any command."""
    language = _LANGUAGE_CODES.get(command.language or "", int(LanguageCode.OTHER))
    keys = _keys(command.header, ext)
    envelope = (int(command.code), language, command.version, command.opaque, command.flag, command.remark, keys)
    return _encode(envelope)
