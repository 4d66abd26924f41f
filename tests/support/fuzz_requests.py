"""Requests that are nearly right: captured ones and declared ones, with fields missing, wrong, huge or odd.

Everything follows from the seed. What a server makes of them is judged elsewhere.
"""

import copy
import functools
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from cometmq.protocol.header import FieldSpec, fields_of
from cometmq.protocol.requests import OPERATIONS
from support import golden

TOPIC, GROUP, CLIENT = "FuzzTopic", "FuzzGroup", "fuzz-client"

#: Text that no field expects.
ODD_TEXTS = (
    "",
    " ",
    "null",
    "NaN",
    "-1",
    "1e308",
    "0x10",
    "true",
    "2147483648",
    "9223372036854775808",
    "-9223372036854775809",
    "9" * 400,
    "\x00",
    "a\x01b\x02c\x01",
    "\u202e",
    "\ud800",
    "\U0001f600" * 50,
    "%s%n{}",
    "../../x",
    "x" * 100_000,
    "[" * 5_000,
    '{"a":' * 2_000,
)
ODD_JSON: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "\ud800",
    "x" * 10_000,
    [],
    {},
    [[[[]]]],
    {"a": {"b": {}}},
    [None],
    functools.reduce(lambda inner, _: [inner], range(200), 0),
)
NUMBERS = (0, 0, 0, 1, 1, 2, 3, 16, 100, -1, -2, 1023, 65536, 2**31 - 1, -(2**31))
LONG_NUMBERS = (*NUMBERS, 2**32, 2**53, 2**63 - 1, -(2**63), 1_700_000_000_000)

#: What a text field of this name may hold so that the request gets somewhere.
PLAUSIBLE = {
    "topic": (TOPIC, TOPIC, "TBW102", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "SCHEDULE_TOPIC_XXXX", "Unknown", "broker-a"),
    "group": (GROUP, GROUP, "Unknown", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"),
    "client": (CLIENT, "nobody"),
    "id": ("7F00000100002A9F0000000000000000", "C0000202604E4E0E2F2A50E6554A0000", "0" * 32, "FF" * 16),
    "properties": ("", "KEYS\x01k\x02TAGS\x01t\x02", "DELAY\x013\x02", "TRAN_MSG\x01true\x02", "WAIT\x01false\x02"),
    "subscription": ("*", "TagA || TagB", "||", "a > 1"),
    "type": ("TAG", "SQL92", "SINGLE_TAG", "NONE"),
    "stats": ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"),
}

#: Longest wait that a request may ask for, in milliseconds: a held pull is answered late, not never.
SHORT_WAITS = ("0", "1", "20", "-1", "-9223372036854775808")


class Fuzzed(NamedTuple):
    """A request as bytes, and as text for the message of a failure."""

    data: bytes
    opaque: int
    text: str


class Sample(NamedTuple):
    """A request that somebody really sent."""

    ext: dict[str, str]
    body: bytes


@functools.cache
def samples() -> dict[int, list[Sample]]:
    """The captured requests by code, a few of each."""
    found: dict[int, list[Sample]] = {}
    for frame in golden.all_frames():
        if frame.whole and not frame.is_response:
            known = found.setdefault(frame.code, [])
            if len(known) < 12:
                known.append(Sample(frame.ext, frame.body))
    return found


class Fuzzer:
    """Makes requests of one code after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._opaque = 0

    def requests(self, code: int, count: int) -> Iterator[Fuzzed]:
        for _ in range(count):
            yield self.request(code)

    def request(self, code: int) -> Fuzzed:
        """One request that is answered, unless the connection ends over it."""
        pick = self.random
        known = samples().get(code, [])
        if known and pick.random() < 0.5:
            sample = pick.choice(known)
            ext, body = self._twisted(dict(sample.ext)), self._body(sample.body)
        else:
            ext = self._declared(code)
            body = self._body(pick.choice(known).body if known else b"")
        self._opaque += 1
        version = pick.choice((479, 479, 407, 0, -1, 2**31 - 1))
        for key in ("suspendTimeoutMillis", "pollTime", "invisibleTime"):
            if key in ext and ext[key].lstrip("-").isdigit():
                ext[key] = pick.choice(SHORT_WAITS)
        text = f"code {code}, version {version}, keys {_short(ext)}, body {body[:200]!r} ({len(body)} bytes)"
        if pick.random() < 0.25 and not any("\ud800" in value for value in ext.values()):
            return Fuzzed(_binary(code, ext, body, self._opaque, version), self._opaque, f"binary {text}")
        return Fuzzed(_json(code, ext, body, self._opaque, version), self._opaque, text)

    # Headers

    def _declared(self, code: int) -> dict[str, str]:
        fields = fields_of(OPERATIONS[code].request)
        return self._twisted({spec.key: self._value(spec) for spec in fields})

    def _value(self, spec: FieldSpec) -> str:
        pick = self.random
        if spec.kind == "bool":
            return pick.choice(("true", "false"))
        if spec.kind == "i32":
            return str(pick.choice(NUMBERS))
        if spec.kind == "i64":
            return str(pick.choice(LONG_NUMBERS))
        name = spec.name.lower()
        for word, values in PLAUSIBLE.items():
            if word in name:
                return pick.choice(values)
        return pick.choice((TOPIC, GROUP, CLIENT, "1", ""))

    def _twisted(self, ext: dict[str, str]) -> dict[str, str]:
        pick = self.random
        for key in list(ext):
            chance = pick.random()
            if chance < 0.06:
                del ext[key]
            elif chance < 0.14:
                ext[key] = pick.choice(ODD_TEXTS)
            elif chance < 0.20:
                ext[key] = str(pick.choice(LONG_NUMBERS))
            elif chance < 0.30 and not ext[key].lstrip("-").isdigit():
                words = [values for word, values in PLAUSIBLE.items() if word in key.lower()]
                ext[key] = pick.choice(words[0]) if words else ext[key]
        if pick.random() < 0.05:
            ext[pick.choice(("", "x", "\U0001f600", "topic", "k" * 1000))] = pick.choice(ODD_TEXTS)
        return ext

    # Bodies

    def _body(self, sample: bytes) -> bytes:
        pick = self.random
        chance = pick.random()
        if chance < 0.35:
            return sample
        if chance < 0.42:
            return b""
        if chance < 0.50:
            return pick.randbytes(pick.choice((1, 3, 8, 100, 5000)))
        if chance < 0.55:
            return pick.choice((b"[" * 50_000, b'{"a":' * 20_000, b"9" * 100_000, b'"' + b"x" * 200_000 + b'"'))
        if chance < 0.62:
            return json.dumps(self._odd_json()).encode()
        if chance < 0.72 and sample:
            return self._damaged(sample)
        return self._odd_tree(sample)

    def _damaged(self, sample: bytes) -> bytes:
        pick = self.random
        data = bytearray(sample)
        if pick.random() < 0.4:
            return bytes(data[: pick.randrange(len(data))])
        for _ in range(pick.randint(1, 4)):
            data[pick.randrange(len(data))] = pick.randrange(256)
        return bytes(data)

    def _odd_tree(self, sample: bytes) -> bytes:
        """JSON in which some value is another; of what is no JSON, the thing itself."""
        try:
            tree = json.loads(sample)
        except ValueError:
            return sample
        for _ in range(self.random.randint(1, 3)):
            tree = self._replaced(tree)
        return json.dumps(tree).encode()

    def _odd_json(self) -> Any:
        return copy.deepcopy(self.random.choice(ODD_JSON))

    def _replaced(self, tree: Any) -> Any:
        pick = self.random
        if not isinstance(tree, dict | list) or not tree or pick.random() < 0.1:
            return self._odd_json()
        key = pick.choice(list(tree)) if isinstance(tree, dict) else pick.randrange(len(tree))
        if isinstance(tree, dict) and pick.random() < 0.15:
            del tree[key]
        else:
            tree[key] = self._replaced(tree[key]) if pick.random() < 0.7 else self._odd_json()
        return tree


def _short(ext: dict[str, str]) -> dict[str, str]:
    return {key[:50]: value if len(value) <= 60 else f"{value[:50]}... ({len(value)})" for key, value in ext.items()}


def _json(code: int, ext: dict[str, str], body: bytes, opaque: int, version: int) -> bytes:
    fields = {"code": code, "flag": 0, "language": "JAVA", "opaque": opaque, "version": version, "extFields": ext}
    header = json.dumps(fields).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def _binary(code: int, ext: dict[str, str], body: bytes, opaque: int, version: int) -> bytes:
    entries = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(text)) + text
        for name, text in ((key.encode(), value.encode()) for key, value in ext.items())
    )
    numbers = struct.pack(">HbHiiii", code & 0xFFFF, 0, version & 0xFFFF, opaque, 0, 0, len(entries))
    header = numbers + entries
    return struct.pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body
