"""The binary form of a header (serialize type 1, RocketMQ's own `ROCKETMQ` serialisation).

    i16 code | i8 language | i16 version | i32 opaque | i32 flag | i32 + remark | i32 length of the keys | keys

with each key as i16 + name, i32 + value. A decoder is generated for every declared header: straight-line code that
expects the keys in the declared order, which is the order of the Java client where that is fixed. Keys in another
order, keys that are not declared and anything odd go through the generic loop.

A code is 16 bits wide here, so the pop family arrives truncated and is mapped back.

Budget, on the send header: typed decode <= 5 us (bench/headers.py).
"""

from collections.abc import Callable, Mapping
from struct import Struct, error
from typing import Any

from cometmq.protocol.codes import CURRENT_VERSION, TRUNCATED_CODES, LanguageCode, request_name
from cometmq.protocol.command import FLAG_RESPONSE, BadHeader, Command, SerializeType
from cometmq.protocol.errors import FrameError, HeaderError
from cometmq.protocol.frame import frame_head
from cometmq.protocol.header import I32_MAX, I32_MIN, I64_MAX, I64_MIN, H, Header, PerType, fields_of, from_ext, text_of
from cometmq.protocol.requests.operations import OPERATIONS

_FIXED = Struct(">hBhiiI")  # up to and including the remark's length
#: Length word, header word, the fixed part without a remark, length of the keys.
_RESPONSE = Struct(">IIhBhiiII")
_U32 = Struct(">I")
_KEY_LENGTH = Struct(">H")
_LANGUAGES = {int(code): code.name for code in LanguageCode}
_LANGUAGE_CODES = {code.name: int(code) for code in LanguageCode}
#: What sends a generated decoder's caller to the generic loop: another order, other keys, odd values, short data.
_UNUSUAL = (ValueError, KeyError, IndexError, error)
_SMALL = {str(n).encode(): n for n in range(-1, 1024)}  # queue ids, flags, counts: nearly every number of a header


class _Operations(dict[int, tuple[int, type[Header], Callable[[bytes, int, int], Any]] | None]):
    """The code as it stands in 16 bits -> real code, header type and its decoder; None for codes that are unknown."""

    def __missing__(self, short: int) -> tuple[int, type[Header], Callable[[bytes, int, int], Any]] | None:
        operation = OPERATIONS.get(TRUNCATED_CODES.get(short, short))
        if operation is None:
            return None
        entry = self[short] = (int(operation.code), operation.request, _decoders[operation.request])
        return entry


_operations = _Operations()


def decode_request(data: bytes) -> Command:
    """A command from a binary header; a request of a known code comes with its typed header."""
    command, start, end = _envelope(data)
    if command.flag & FLAG_RESPONSE:
        return command
    operation = _operations[command.code]
    if operation is not None:
        command.code, header_type, decode = operation
        try:
            command.header = decode(data, start, end)
        except _UNUSUAL:
            try:
                command.header = from_ext(header_type, _ext(data, start, end), request_name(command.code))
            except HeaderError as cause:
                raise BadHeader(command, SerializeType.ROCKETMQ, cause) from None
    return command


def _envelope(data: bytes) -> tuple[Command, int, int]:
    """The command without its keys, and where the keys start and end."""
    try:
        code, language, version, opaque, flag, size = _FIXED.unpack_from(data)
        start = _FIXED.size + size
        remark = data[_FIXED.size : start].decode() if size else None
        ext_size = _U32.unpack_from(data, start)[0]
    except error:
        raise FrameError(f"binary header of {len(data)} bytes is too short for its fixed part and remark") from None
    except UnicodeDecodeError:
        raise FrameError("remark of a binary header is not UTF-8") from None
    start += 4
    end = start + ext_size
    if end > len(data):
        raise FrameError(f"keys of a binary header claim {ext_size} bytes, {len(data) - start} are there")
    return Command(code, flag, opaque, version, _LANGUAGES.get(language), remark), start, end


def _ext(data: bytes, pos: int, end: int) -> dict[str, str]:
    """The keys as a map. Empty keys and values are what Java calls null: left out. The last one of a name wins."""
    ext: dict[str, str] = {}
    try:
        while pos < end:
            key_end = pos + 2 + _KEY_LENGTH.unpack_from(data, pos)[0]
            value_start = key_end + 4
            value_end = value_start + _U32.unpack_from(data, key_end)[0]
            if value_end > end:
                raise FrameError("a value of a binary header is longer than the header")
            if key_end > pos + 2 and value_end > value_start:
                ext[data[pos + 2 : key_end].decode()] = data[value_start:value_end].decode()
            pos = value_end
    except error:
        raise FrameError("a key of a binary header is longer than the header") from None
    except UnicodeDecodeError:
        raise FrameError("a key of a binary header is not UTF-8") from None
    return ext


def read_ext(data: bytes) -> dict[str, str]:
    """All keys of the header, as text."""
    _, start, end = _envelope(data)
    return _ext(data, start, end)


def read_header(header_type: type[H], data: bytes, request: str) -> H:
    """The typed header of a command whose type only the caller knows: a response's."""
    _, start, end = _envelope(data)
    try:
        header: H = _decoders[header_type](data, start, end)
    except _UNUSUAL:
        header = from_ext(header_type, _ext(data, start, end), request)
    return header


def _i32(text: bytes) -> int:
    return _integer(text, I32_MIN, I32_MAX)


def _i64(text: bytes) -> int:
    return _integer(text, I64_MIN, I64_MAX)


def _integer(text: bytes, low: int, high: int) -> int:
    if not text.isdigit() and not (text[:1] == b"-" and text[1:].isdigit()):
        raise ValueError("not a plain integer")
    value = int(text)
    if not low <= value <= high:
        raise ValueError("out of range")
    return value


_BOOLEANS = {b"true": True, b"false": False}


def _make_decoder(header_type: type[Header]) -> Callable[[bytes, int, int], Any]:
    """Generates `decode(data, pos, end) -> header`, which raises one of `_UNUSUAL` for all but the plain case."""
    namespace: dict[str, Any] = {
        "make": header_type,
        "u32": _U32.unpack_from,
        "small": _SMALL.get,
        "boolean": _BOOLEANS.__getitem__,
        "i32": _i32,
        "i64": _i64,
    }
    lines = ["def decode(data, pos, end):"]
    names = []
    for i, spec in enumerate(fields_of(header_type)):
        key = _KEY_LENGTH.pack(len(spec.key)) + spec.key.encode()
        namespace[f"key{i}"], namespace[f"short{i}"], namespace[f"default{i}"] = key, key + b"\0\0\0", spec.default
        names.append(f"v{i}")
        # Nearly every value is shorter than 256 bytes: the upper bytes of its length are matched with the key.
        lines += [
            f" if data.startswith(short{i}, pos):",
            f"  pos += {len(key) + 4}",
            "  stop = pos + data[pos - 1]",
        ]
        if spec.kind == "str":
            lines += [
                f"  v{i} = data[pos:stop].decode()",
                "  if stop == pos: raise ValueError('an empty value is null')",
                "  pos = stop",
                f" elif data.startswith(key{i}, pos):",
                f"  pos += {len(key) + 4}",
                "  stop = pos + u32(data, pos - 4)[0]",
                f"  v{i} = data[pos:stop].decode()",
                "  pos = stop",
            ]
        elif spec.kind == "bool":
            lines += [f"  v{i} = boolean(data[pos:stop])", "  pos = stop"]
        else:
            lines += [
                "  b = data[pos:stop]",
                f"  v{i} = small(b)",
                f"  if v{i} is None: v{i} = {spec.kind}(b)",
                "  pos = stop",
            ]
        lines.append(" else: raise ValueError('missing')" if spec.required else f" else: v{i} = default{i}")
    lines += [" if pos != end: raise ValueError('more keys')", f" return make({', '.join(names)})"]
    exec("\n".join(lines), namespace)
    decoder: Callable[[bytes, int, int], Any] = namespace["decode"]
    return decoder


_decoders = PerType(_make_decoder)


def _make_ext_encoder(header_type: type[Header]) -> Callable[[Header], bytes]:
    """Generates `encode(header) -> bytes` of the keys, in the declared order."""
    namespace: dict[str, Any] = {"u32": _U32.pack}
    lines = ["def encode(h):", " out = b''"]
    for i, spec in enumerate(fields_of(header_type)):
        namespace[f"key{i}"] = key = _KEY_LENGTH.pack(len(spec.key)) + spec.key.encode()
        namespace[f"true{i}"] = key + b"\0\0\0\4true"
        namespace[f"false{i}"] = key + b"\0\0\0\5false"
        lines += [f" v = h.{spec.name}", " if v is not None:"]
        if spec.kind == "bool":
            lines.append(f"  out += true{i} if v else false{i}")
        else:
            text = "v.encode()" if spec.kind == "str" else "b'%d' % v"
            lines += [f"  b = {text}", f"  out += key{i} + u32(len(b)) + b"]
    lines.append(" return out")
    exec("\n".join(lines), namespace)
    encoder: Callable[[Header], bytes] = namespace["encode"]
    return encoder


_ext_encoders = PerType(_make_ext_encoder)


def _ext_bytes(header: Header | None, ext: Mapping[str, str] | None) -> bytes:
    encoded = b"" if header is None else _ext_encoders[type(header)](header)
    if ext:
        encoded += b"".join(
            _KEY_LENGTH.pack(len(k)) + k + _U32.pack(len(v)) + v
            for k, v in ((key.encode(), value.encode()) for key, value in ext.items())
        )
    return encoded


def encode_response(
    opaque: int, code: int, header: Header | None, remark: str | None, body_length: int, ext: Mapping[str, str] | None
) -> bytes:
    """The head of a response's frame."""
    note = b"" if remark is None else remark.encode("utf-8", "replace")
    keys = _ext_bytes(header, ext)
    fixed = _FIXED.pack(_i16(code), LanguageCode.PYTHON, CURRENT_VERSION, opaque, FLAG_RESPONSE, len(note))
    return frame_head(SerializeType.ROCKETMQ, fixed + note + _U32.pack(len(keys)) + keys, body_length)


def response_template(header_type: type[Header], **constants: str | bool | int | None) -> Callable[..., bytes]:
    """Generates `respond(opaque, *values) -> frame`: successful answers without a body, for the hottest handlers.

    The values are those fields that are not among the constants, in their declared order; an optional one may be None,
    and one that is the constant None is never there. See the template of the JSON form.
    """
    specs = fields_of(header_type)
    known = {spec.name for spec in specs}
    if not set(constants) <= known:
        raise TypeError(f"{header_type.__name__} has no field {', '.join(sorted(set(constants) - known))}")
    constant = b"".join(
        _ext_bytes(None, {spec.key: value if isinstance(value, str) else text_of(value)})
        for spec in specs
        if (value := constants.get(spec.name)) is not None
    )
    namespace: dict[str, Any] = {"u32": _U32.pack, "CONSTANT": constant, "pack": _RESPONSE.pack}
    variable = [spec for spec in specs if spec.name not in constants]
    lines = [f"def respond({', '.join(['opaque', *(spec.name for spec in variable)])}):", " keys = CONSTANT"]
    for i, spec in enumerate(variable):
        namespace[f"key{i}"] = _KEY_LENGTH.pack(len(spec.key)) + spec.key.encode()
        forms = {"str": f"{spec.name}.encode()", "bool": f"b'true' if {spec.name} else b'false'"}
        form = forms.get(spec.kind, f"b'%d' % {spec.name}")
        lines += [
            f" if {spec.name} is not None:" if not spec.required else " if True:",
            f"  b = {form}",
            f"  keys += key{i} + u32(len(b)) + b",
        ]
    fixed = f"0, {int(LanguageCode.PYTHON)}, {CURRENT_VERSION}, opaque, {FLAG_RESPONSE}, 0, size"
    lines += [
        " size = len(keys)",
        f" return pack(size + {_RESPONSE.size - 4}, size + {_RESPONSE.size - 8 | 1 << 24}, {fixed}) + keys",
    ]
    exec("\n".join(lines), namespace)
    template: Callable[..., bytes] = namespace["respond"]
    return template


def encode_command(command: Command, ext: Mapping[str, str] | None) -> bytes:
    """The header of any command."""
    note = b"" if command.remark is None else command.remark.encode()
    keys = _ext_bytes(command.header, ext)
    language = _LANGUAGE_CODES.get(command.language or "", LanguageCode.OTHER)
    fixed = _FIXED.pack(_i16(command.code), language, command.version, command.opaque, command.flag, len(note))
    return fixed + note + _U32.pack(len(keys)) + keys


def _i16(code: int) -> int:
    """What is left of a code in 16 bits."""
    return (code + 0x8000 & 0xFFFF) - 0x8000
