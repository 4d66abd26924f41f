"""The PROXY protocol: what a balancer (HAProxy, most cloud balancers) writes before the first frame.

Version 1 is a line of text, version 2 a binary block. Both tell the address of the real client; version 2 may carry
attributes. Bytes to values, no sockets: `need` says how many bytes may be taken, so that nothing of the frame that
follows is ever consumed. It mirrors Netty's HAProxyMessageDecoder and the attributes that RocketMQ derives from it.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct

from cometmq.protocol.errors import ProtocolError

#: A line of version 1 has at most 107 bytes, its line end included (PROXY protocol, section 2.1).
V1_MAX = 107
#: The attributes of version 2 may be 64 KiB by their length word; what balancers send is some hundred bytes.
V2_MAX = 16 * 1024

V1_START = b"PROXY "
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_V2_FIXED = Struct(">12sBBH")
_V2_INET = Struct(">4s4sHH")
_V2_INET6 = Struct(">16s16sHH")
_TLV = Struct(">BH")

_TLV_SSL = 0x20
_SSL_FIXED = 5  # client flags and verify result stand before the attributes inside it

ATTRIBUTE_PREFIX = "proxy_protocol_"
_TLV_PREFIX = ATTRIBUTE_PREFIX + "tlv_0x"


class PreambleError(ProtocolError):
    """Raised when the first bytes of a connection begin like the PROXY protocol and do not go on like it."""

    remedy = "let the balancer send PROXY protocol version 1 or 2, or nothing before the first frame"


@dataclass(frozen=True, slots=True)
class Proxied:
    """What a preamble says."""

    #: The real client; None when the balancer speaks for itself (health checks) or does not know.
    source: tuple[str, int] | None = None
    #: RocketMQ's attributes of the connection.
    attributes: dict[str, str] = field(default_factory=dict)


def need(start: bytes, peeked: bytes) -> int:
    """How many of the `peeked` bytes belong to the preamble whose first bytes, `start`, were consumed already.

    Version 2 tells its length. A line of version 1 goes on to its line end; as long as none was seen, all that came
    belongs to it.
    """
    seen = start + peeked
    if seen[0] == V2_SIGNATURE[0]:
        if not V2_SIGNATURE.startswith(seen[:12]):
            raise PreambleError("the first bytes are not a PROXY protocol signature")
        whole = _V2_FIXED.size
        if len(seen) >= whole:
            length = _V2_FIXED.unpack_from(seen)[3]
            if length > V2_MAX:
                raise PreambleError(f"PROXY preamble of {length} bytes is over the limit of {V2_MAX}")
            whole += length
    else:
        if not V1_START.startswith(seen[:6]):
            raise PreambleError("the first bytes are not a PROXY protocol line")
        line_end = seen.find(b"\r\n")
        whole = line_end + 2 if line_end >= 0 else V1_MAX
        if whole > V1_MAX or (line_end < 0 and len(seen) >= V1_MAX):
            raise PreambleError(f"PROXY line is longer than {V1_MAX} bytes")
    return min(whole - len(start), len(peeked))


def is_complete(preamble: bytes) -> bool:
    """Whether all bytes of a preamble are there."""
    if preamble[:1] == V2_SIGNATURE[:1]:
        fixed = _V2_FIXED.size
        return len(preamble) >= fixed and len(preamble) == fixed + _V2_FIXED.unpack_from(preamble)[3]
    return preamble.endswith(b"\r\n")


def parse(preamble: bytes) -> Proxied:
    """The meaning of a complete preamble."""
    return _parse_v2(preamble) if preamble[:1] == V2_SIGNATURE[:1] else _parse_v1(preamble)


def _parse_v1(line: bytes) -> Proxied:
    try:
        words = line[:-2].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise PreambleError("PROXY line is not ASCII") from None
    if words[1] == "UNKNOWN":
        return Proxied()
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise PreambleError(f"PROXY line {line!r} is malformed")
    family = IPv4Address if words[1] == "TCP4" else IPv6Address
    try:
        source, target = (str(family(text)) for text in words[2:4])
    except ValueError as error:
        raise PreambleError(f"PROXY line {line!r}: {error}") from None
    source_port, target_port = (_port(text, line) for text in words[4:6])
    return _proxied((source, source_port), (target, target_port), {})


def _port(text: str, line: bytes) -> int:
    if not text.isdigit() or len(text) > 5 or int(text) > 65535:
        raise PreambleError(f"PROXY line {line!r} has the bad port {text!r}")
    return int(text)


def _parse_v2(block: bytes) -> Proxied:
    _, version_command, family, length = _V2_FIXED.unpack_from(block)
    if version_command >> 4 != 2:
        raise PreambleError(f"PROXY version {version_command >> 4} is unknown")
    command = version_command & 0xF
    if command > 1:
        raise PreambleError(f"PROXY command {command} is unknown")
    rest = block[_V2_FIXED.size :]
    if command == 0:  # LOCAL: the balancer itself, e.g. a health check
        return Proxied()
    shape = {socket_family << 4 | 1: form for socket_family, form in ((1, _V2_INET), (2, _V2_INET6))}.get(family)
    if shape is None:  # a Unix socket, a datagram, or unspecified: no address that could be shown
        return Proxied()
    if length < shape.size:
        raise PreambleError(f"PROXY block of {length} bytes is too short for its addresses")
    source, target, source_port, target_port = shape.unpack_from(rest)
    return _proxied(
        (str(ip_address(source)), source_port), (str(ip_address(target)), target_port), _tlvs(rest[shape.size :])
    )


def _proxied(source: tuple[str, int], target: tuple[str, int], attributes: dict[str, str]) -> Proxied:
    attributes[ATTRIBUTE_PREFIX + "addr"] = source[0]
    attributes[ATTRIBUTE_PREFIX + "port"] = str(source[1])
    attributes[ATTRIBUTE_PREFIX + "server_addr"] = target[0]
    attributes[ATTRIBUTE_PREFIX + "server_port"] = str(target[1])
    return Proxied(source, attributes)


def _tlvs(data: bytes, *, inside_tls: bool = False) -> dict[str, str]:
    """The attributes with a value of printable ASCII; those inside the TLS attribute too, but none further inside."""
    attributes = {}
    position = 0
    while position < len(data):
        if len(data) - position < _TLV.size:
            raise PreambleError("PROXY attributes end in the middle of one")
        kind, length = _TLV.unpack_from(data, position)
        position += _TLV.size
        value = data[position : position + length]
        position += length
        if position > len(data):
            raise PreambleError(f"PROXY attribute {kind:#04x} claims {length} bytes, {len(value)} are there")
        if kind == _TLV_SSL:
            if not inside_tls:
                attributes.update(_tlvs(value[_SSL_FIXED:], inside_tls=True))
        elif value and all(32 <= byte < 127 for byte in value):
            attributes[f"{_TLV_PREFIX}{kind:02x}"] = value.decode("ascii").strip()
    return attributes
