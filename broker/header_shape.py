"""The shape of a send's JSON header: the requests of one producer differ from each other in five places only.

Queue, birth, unique key, keys and opaque; everything else (topic, tags, group, language, ...) is the same from message
to message, and so is the length of the five, mostly. So the whole header of a request that was decoded and checked is
remembered with its five holes, and one that fits it needs neither: what stands around the holes is compared, and what
stands in them is plain (digits; letters and digits), so that it means what it says.

Bytes only. A header that fits no shape is decoded, whatever is special about it.
"""

import re
from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.header import fields_of
from cometmq.protocol.json_header import decode_request
from cometmq.protocol.requests.send import SendMessage, SendMessageV2

#: What the hole for keys may hold: no escape, no separator, nothing that JSON or property text would read otherwise.
PLAIN_KEYS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz -_.:/@#"
#: Digits that surely fit an i32 and an i64.
_SMALL, _LARGE = 9, 18
#: The largest i32.
_LARGEST: Final = b"2147483647"
_ZERO: Final = ord("0")

_NUMBER: Final = re.compile(rb"0|[1-9][0-9]*")
_OPAQUE: Final = re.compile(rb'"opaque": ?([0-9]+)[,}]')
_UNIQUE: Final = re.compile(rb"UNIQ_KEY\\u0001([0-9A-Za-z]+)\\u0002")
_KEYS: Final = re.compile(rb'(?:"|\\u0002)KEYS\\u0001([^\\"]+)\\u0002')


class Hole(NamedTuple):
    """Where a value stands in the header."""

    start: int
    stop: int


class HeaderShape(NamedTuple):
    """A header with holes."""

    #: Cuts a header into what stands around the holes and what is in them, by turns.
    cut: Struct
    #: What stands around the holes.
    around: tuple[bytes, ...]
    #: Takes queue id, birth, unique key, opaque and, where there are any, keys out of the pieces.
    pick: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    has_keys: bool
    #: How many bytes queue id, unique key and opaque have together.
    width: int
    #: The smallest and the largest opaque with as many digits, as text.
    opaques: tuple[bytes, bytes]


def shape_of(
    raw: bytes, header: SendMessage | SendMessageV2, unique: str, keys: str, opaque: int
) -> HeaderShape | None:
    """The shape of a header that was decoded to these values; None when it has none that can be relied upon."""
    names = _KEYS_OF[type(header)]
    queue_id = _number_hole(raw, names["queue_id"], header.queue_id, _SMALL)
    born = _number_hole(raw, names["born_timestamp"], header.born_timestamp, _LARGE)
    number = _only(_OPAQUE, raw)
    key = _only(_UNIQUE, raw)
    if queue_id is None or born is None or number is None or key is None:
        return None
    holes = [queue_id, born, key, number]
    if keys:
        found = _only(_KEYS, raw)
        if found is None or _in(raw, found) != keys.encode() or _in(raw, found).translate(None, PLAIN_KEYS):
            return None
        holes.append(found)
    if not _is_number(_in(raw, number), opaque, len(_LARGEST)) or _in(raw, key) != unique.encode():
        return None
    if not _are_read(raw, header, holes):
        return None
    lengths, at = [], 0
    for hole in sorted(holes):
        lengths += [hole.start - at, hole.stop - hole.start]
        at = hole.stop
    cut = Struct("".join(f"{length}s" for length in [*lengths, len(raw) - at]))
    pick = itemgetter(*(2 * sorted(holes).index(hole) + 1 for hole in holes))
    width = sum(hole.stop - hole.start for hole in (queue_id, key, number))
    return HeaderShape(cut, cut.unpack(raw)[::2], pick, bool(keys), width, _opaques(number.stop - number.start))


def _are_read(raw: bytes, header: SendMessage | SendMessageV2, holes: list[Hole]) -> bool:
    """Whether a decoder reads the values in the holes: the same key may stand there again, written in another way.

    With other values in the holes, the header must say those and nothing else.
    """
    changed = bytearray(raw)
    for hole in holes:
        last = changed[hole.stop - 1]
        changed[hole.stop - 1] = last ^ 1 if _ZERO <= last <= _ZERO + 9 else _ZERO  # another digit that fits as well
    queue_id, born, _, opaque, *_ = (bytes(changed[hole.start : hole.stop]) for hole in holes)
    text = header.properties or ""
    for hole, name in zip(holes[2::2], ("UNIQ_KEY", "KEYS"), strict=False):
        old, new = (f"{name}\x01{_in(data, hole).decode()}" for data in (raw, bytes(changed)))
        text = text.replace(old, new)
    said = msgspec.structs.replace(header, queue_id=int(queue_id), born_timestamp=int(born), properties=text)
    try:
        command = decode_request(bytes(changed))
    except ProtocolError:
        return False
    return command.header == said and command.opaque == int(opaque)


def _opaques(digits: int) -> tuple[bytes, bytes]:
    """Of numbers that have as many digits, text is in the order of the numbers: two comparisons say what fits."""
    smallest = b"0" if digits == 1 else b"1" + b"0" * (digits - 1)
    return smallest, min(b"9" * digits, _LARGEST) if digits == len(_LARGEST) else b"9" * digits


def _number_hole(raw: bytes, name: str, value: int, digits: int) -> Hole | None:
    hole = _only(re.compile(b'"%b": ?"([0-9]+)"' % re.escape(name.encode())), raw)
    return hole if hole is not None and _is_number(_in(raw, hole), value, digits) else None


def _is_number(text: bytes, value: int, digits: int) -> bool:
    return len(text) <= digits and _NUMBER.fullmatch(text) is not None and int(text) == value


def _only(pattern: re.Pattern[bytes], raw: bytes) -> Hole | None:
    """Where the one match has its group; None when there are none or several."""
    found = list(pattern.finditer(raw))
    return Hole(*found[0].span(1)) if len(found) == 1 else None


def _in(raw: bytes, hole: Hole) -> bytes:
    return raw[hole.start : hole.stop]


_KEYS_OF: Final = {kind: {spec.name: spec.key for spec in fields_of(kind)} for kind in (SendMessage, SendMessageV2)}
