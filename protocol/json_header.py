"""The JSON form of a header (serialize type 0).

Two ways in. The fast one reads envelope and typed header in one pass of msgspec, by a decoder made for the request
code, which is found without parsing because every client writes `{"code":` first. Whatever it does not like goes the
careful way, which accepts all that Java accepts (absent and null keys, numbers where text is due, any order) and
names the field that is wrong.

Budget, on a 381-byte send header: typed decode <= 1.5 us, response encode <= 1 us (bench/headers.py).
"""

from collections.abc import Callable, Mapping
from functools import cache
from json.encoder import encode_basestring as quote
from struct import Struct
from typing import Any, Literal

import msgspec

from cometmq.protocol.codes import CURRENT_VERSION, LanguageCode, request_name
from cometmq.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, BadHeader, Command, SerializeType
from cometmq.protocol.errors import FrameError, HeaderError
from cometmq.protocol.frame import MAX_FRAME, PREFIX_SIZE, frame_head
from cometmq.protocol.header import (
    I32_MAX,
    I32_MIN,
    FieldSpec,
    H,
    Header,
    Operation,
    PerType,
    fields_of,
    from_ext,
    text_of,
)

#: What our side calls itself in headers.
LANGUAGE = LanguageCode.PYTHON.name

#: What a decoder raises for bytes that it does not like.
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
_START = b'{"code":'


# A command whose keys are left as they are.
_Envelope = msgspec.defstruct(
    "_Envelope",
    [("header", msgspec.Raw, msgspec.field(name="extFields", default=msgspec.Raw(b"{}")))],
    bases=(Command,),
    rename="camel",
    gc=False,
)
#: Envelopes with their keys left as they are: for answers, whose type only the asker knows.
envelope_decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(_Envelope)
_ext_decoder = msgspec.json.Decoder(dict[str, str])
_any_decoder = msgspec.json.Decoder()


def _make_decoder(code: int, header_type: type[Header]) -> Callable[[bytes], Command]:
    """One pass from bytes to envelope and typed header; refuses what is not a plain request of this code."""
    empty = {} if any(spec.required for spec in fields_of(header_type)) else {"default": header_type()}
    command_type = msgspec.defstruct(
        header_type.__name__ + "Command",
        [
            ("header", header_type, msgspec.field(name="extFields", **empty)),
            ("code", Literal[code], msgspec.field(default=code)),
            ("flag", Literal[0, FLAG_ONEWAY], msgspec.field(default=0)),
        ],
        bases=(Command,),
        rename="camel",
        gc=False,
        kw_only=True,
    )
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(command_type, strict=False)
    return decoder.decode


class _Decoders(dict[bytes, Callable[[bytes], Command]]):
    """The first twelve bytes of a header -> decoder of that request; made when first needed."""

    def __missing__(self, start: bytes) -> Callable[[bytes], Command]:
        code, comma, _ = start[len(_START) :].partition(b",")
        if not start.startswith(_START) or not code.isdigit() or not comma:
            raise ValueError("the code does not stand in its usual place")
        decoder = _decoder_of(int(code))
        if len(start) == USUAL:
            self[start] = decoder
        return decoder


@cache
def _decoder_of(code: int) -> Callable[[bytes], Command]:
    operation = _operation(code)
    if operation is None:
        raise ValueError("no typed decoder for this code")
    return _make_decoder(code, operation.request)


#: `{"code":310,` or `{"code":11,"`: enough to know the code of all but the pop family.
USUAL = 12
#: For whoever cuts frames: see `remoting.reader`.
request_decoders = _Decoders()


def decode_request(data: bytes) -> Command:
    """A command from JSON bytes; a request of a known code comes with its typed header."""
    try:
        return request_decoders[data[:USUAL]](data)
    except BROKEN:
        pass
    try:
        return request_decoders[data[:16]](data)
    except BROKEN:
        return _decode_carefully(data)


def decode_response(data: bytes) -> Command:
    """A command that is expected to be a response; its keys are read on demand by `read_header`."""
    try:
        command = envelope_decoder.decode(data)
    except BROKEN:
        return _decode_carefully(data)
    if not command.flag & 1:
        return decode_request(data)
    command.header = None
    return command


def read_keys(header_type: type[H], keys: msgspec.Raw, data: bytes, code: int) -> H:
    """`read_header` for a response to a request of this code, whose keys `envelope_decoder` has found already."""
    try:
        header: H = _typed_decoders[header_type](keys)
        return header
    except BROKEN:
        return from_ext(header_type, read_ext(data), request_name(code))


def _decode_carefully(data: bytes) -> Command:
    values = _object(data)
    command = Command(
        code=_number(values, "code"),
        flag=_number(values, "flag"),
        opaque=_number(values, "opaque"),
        version=_number(values, "version"),
        language=_text(values.get("language", "JAVA")),
        remark=_text(values.get("remark")),
    )
    if command.flag & 1:
        return command
    operation = _operation(command.code)
    if operation is not None:
        try:
            command.header = from_ext(operation.request, _ext(values), request_name(command.code))
        except HeaderError as error:
            raise BadHeader(command, SerializeType.JSON, error) from None
    return command


def _operation(code: int) -> Operation | None:
    """What the protocol says about a code. The table is for those who are asked: who only asks does not load it."""
    from cometmq.protocol.requests.operations import OPERATIONS

    return OPERATIONS.get(code)


def _object(data: bytes) -> dict[str, Any]:
    try:
        values = _any_decoder.decode(data)
    except BROKEN as error:
        raise FrameError(f"header is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise FrameError(f"header is a JSON {type(values).__name__}, not an object")
    return values


def _number(values: dict[str, Any], key: str) -> int:
    value = values.get(key)
    if value is None:
        return 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise FrameError(f"header key {key!r} is not a number") from None
    if not I32_MIN <= number <= I32_MAX:
        raise FrameError(f"header key {key!r} is outside the range of i32")
    return number


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()


def _ext(values: dict[str, Any]) -> dict[str, str]:
    ext = values.get("extFields")
    if ext is None:
        return {}
    if not isinstance(ext, dict):
        raise FrameError("extFields is not an object")
    return {key: text for key, value in ext.items() if (text := _text(value)) is not None}


def read_ext(data: bytes) -> dict[str, str]:
    """All keys of the header, as text; the ones that a typed header does not declare too."""
    try:
        return _ext_decoder.decode(envelope_decoder.decode(data).header)
    except BROKEN:
        return _ext(_object(data))


def read_header(header_type: type[H], data: bytes, request: str) -> H:
    """The typed header of a command whose type only the caller knows: a response's."""
    try:
        header: H = _typed_decoders[header_type](envelope_decoder.decode(data).header)
        return header
    except BROKEN:
        return from_ext(header_type, read_ext(data), request)


def _key_text(spec: FieldSpec, value: str) -> str:
    """The inside of an f-string that writes one key, `value` being the expression for its value."""
    if spec.kind == "str":
        return f",{quote(spec.key)}:{{quote({value})}}"
    if spec.kind == "bool":
        return f""",{quote(spec.key)}:{{'"true"' if {value} else '"false"'}}"""
    return f',{quote(spec.key)}:"{{{value}}}"'


def _ext_code(header_type: type[Header]) -> tuple[list[str], str]:
    """Code that puts the keys of `h` into text: lines that prepare the optional ones, and the inside of an f-string.

    The text starts with a comma when the first key is required; the caller cuts it off.
    """
    lines, pieces = [], []
    for i, spec in enumerate(fields_of(header_type)):
        if spec.required:
            pieces.append(_key_text(spec, f"h.{spec.name}"))
        else:
            lines.append(f" v{i} = h.{spec.name}")
            lines.append(f" s{i} = '' if v{i} is None else f'''{_key_text(spec, f'v{i}')}'''")
            pieces.append(f"{{s{i}}}")
    return lines, "".join(pieces)


def _make_ext_encoder(header_type: type[Header]) -> Callable[[Header], str]:
    """Generates `encode(header) -> '"key":"value",...'`."""
    lines, text = _ext_code(header_type)
    source = "\n".join(["def encode(h):", *lines, f" return f'''{text}'''[1:]"])
    namespace: dict[str, Any] = {"quote": quote}
    exec(source, namespace)
    encoder: Callable[[Header], str] = namespace["encode"]
    return encoder


def _make_responder(header_type: type[Header]) -> Callable[[Header, int, int, str, int], bytes]:
    """Generates `respond(header, code, opaque, note, body_length) -> head of the frame`; `note` is the remark's part.

    The whole answer is one f-string when the first key is a required one: this is the hot path of send and pull.
    """
    lines, text = _ext_code(header_type)
    if text.startswith(","):
        keys = text[1:]
    else:
        lines.append(f" keys = f'''{text}'''[1:]")
        keys = "{keys}"
    middle, tail = f"}}}},{_MIDDLE}{{opaque}}{{note}}", _TAIL.replace("}", "}}")
    lines += [
        """ start = '{"code":0,"extFields":{' if code == 0 else f'{{"code":{code},"extFields":{{'""",
        f" data = f'''{{start}}{keys}{middle}{tail}'''.encode()",
        " size = len(data)",
        " if size + body_length > LIMIT: return frame_head(0, data, body_length)",
        " return pack(4 + size + body_length, size) + data",
    ]
    namespace: dict[str, Any] = {
        "quote": quote,
        "LIMIT": MAX_FRAME - PREFIX_SIZE,
        "pack": _PREFIX.pack,
        "frame_head": frame_head,
    }
    exec("\n".join(["def respond(h, code, opaque, note, body_length):", *lines]), namespace)
    responder: Callable[[Header, int, int, str, int], bytes] = namespace["respond"]
    return responder


def response_template(
    header_type: type[Header], *, plain: tuple[str, ...] = (), **constants: str | bool | int | None
) -> Callable[..., bytes]:
    """Generates `respond(opaque, *values) -> frame`: successful answers without a body, for the hottest handlers.

    The values are those fields that are not among the constants, in their declared order; an optional one may be None,
    and one that is the constant None is never there. `plain` are fields whose text needs no escaping. Saves the header
    object, and the work of writing what never changes.
    """
    specs = fields_of(header_type)
    known = {spec.name for spec in specs}
    if not set(constants) <= known:
        raise TypeError(f"{header_type.__name__} has no field {', '.join(sorted(set(constants) - known))}")
    required = "".join(
        f',{quote(spec.key)}:"{{{spec.name}}}"' if spec.name in plain else _key_text(spec, spec.name)
        for spec in specs
        if spec.required and spec.name not in constants
    )
    optional = [spec for spec in specs if not spec.required and spec.name not in constants]
    constant = ",".join(
        f"{quote(spec.key)}:{quote(value if isinstance(value, str) else text_of(value))}"
        for spec in specs
        if (value := constants.get(spec.name)) is not None
    )
    # What comes first goes without its comma; only when all keys are optional it has to be cut off while answering.
    start = f'{{"code":0,"extFields":{{{constant}'
    if required and not constant:
        required = required[1:]
    more = "".join(f"{{{spec.name}}}" for spec in optional)
    keys = f"{required}{more}" if required or constant else f'{{f"{more}"[1:]}}'
    parameters = ", ".join(["opaque", *(spec.name for spec in specs if spec.name not in constants)])
    tail = _TAIL.replace("}", "}}")
    source = [
        f"def respond({parameters}):",
        *(f" {o.name} = '' if {o.name} is None else f'''{_key_text(o, o.name)}'''" for o in optional),
        f" data = f'''{{START}}{keys}}}}},{_MIDDLE}{{opaque}}{tail}'''.encode()",
        " size = len(data)",
        " return pack(4 + size, size) + data",
    ]
    namespace: dict[str, Any] = {"quote": quote, "pack": _PREFIX.pack, "START": start}
    exec("\n".join(source), namespace)
    template: Callable[..., bytes] = namespace["respond"]
    return template


_PREFIX = Struct(">II")
_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'
_MIDDLE = f'"flag":{FLAG_RESPONSE},"language":"{LANGUAGE}","opaque":'
_ext_encoders = PerType(_make_ext_encoder)
responders = PerType(_make_responder)
_typed_decoders: PerType[Callable[[bytes], Any]] = PerType(
    lambda header_type: msgspec.json.Decoder(header_type, strict=False).decode
)


def _ext_text(header: Header | None, ext: Mapping[str, str] | None) -> str:
    """The `"extFields":{...},` part; nothing when there is neither a header nor a map."""
    if header is None and ext is None:
        return ""
    text = "" if header is None else _ext_encoders[type(header)](header)
    if ext:
        more = ",".join([f"{quote(key)}:{quote(value)}" for key, value in ext.items()])
        text = f"{text},{more}" if text else more
    return f'"extFields":{{{text}}},'


def encode_response(
    opaque: int, code: int, header: Header | None, remark: str | None, body_length: int, ext: Mapping[str, str] | None
) -> bytes:
    """The head of a response's frame. Keys in alphabetical order, as Java writes them."""
    note = "" if remark is None else f',"remark":{quote(_sound(remark))}'
    if ext is None and header is not None:
        return responders[type(header)](header, code, opaque, note, body_length)
    text = f'{{"code":{code},{_ext_text(header, ext)}{_MIDDLE}{opaque}{note}{_TAIL}'
    return frame_head(SerializeType.JSON, text.encode(), body_length)


def _sound(remark: str) -> str:
    """A remark may quote a file name or an exception; what has no UTF-8 form in it must not cost the answer."""
    return remark.encode("utf-8", "replace").decode()


def encode_command(command: Command, ext: Mapping[str, str] | None) -> bytes:
    """The header of any command."""
    note = "" if command.remark is None else f'"remark":{quote(command.remark)},'
    return (
        f'{{"code":{command.code},{_ext_text(command.header, ext)}"flag":{command.flag},'
        f'"language":"{command.language}","opaque":{command.opaque},{note}'
        f'"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    ).encode()
