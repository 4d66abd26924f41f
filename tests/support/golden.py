"""Frames captured from unmodified Apache RocketMQ (tests/data/wire), as values.

Only the reading lives here; what the frames must be equal to is said by the tests. See tests/data/README.md for the
form of a line.
"""

import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIRE = Path(__file__).parent.parent / "data" / "wire"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a capture: a frame, or an event of a connection, or bytes that form no frame."""

    file: str
    n: int
    conn: int
    link: str
    dir: str
    t: int = 0
    #: The decoded header; None where the line is not a frame.
    header: dict[str, Any] | None = None
    #: The whole frame with its length word. Of a cut frame only the first bytes. None for an event.
    raw: bytes | None = None
    #: "open", "fin" or "rst".
    event: str | None = None
    #: The whole length of a frame of which only the first 1024 bytes were kept.
    cut: int | None = None
    #: The command of mqadmin that caused the frame (capture `admin` only).
    cmd: str | None = None

    @property
    def is_frame(self) -> bool:
        return self.header is not None

    @property
    def whole(self) -> bool:
        """Whether `raw` holds a whole frame."""
        return self.header is not None and self.raw is not None and self.cut is None

    @property
    def code(self) -> int:
        return int(self.header["code"]) if self.header else -1

    @property
    def opaque(self) -> int:
        return int(self.header["opaque"]) if self.header else 0

    @property
    def version(self) -> int:
        return int(self.header.get("version", 0)) if self.header else 0

    @property
    def ext(self) -> dict[str, str]:
        return (self.header or {}).get("extFields") or {}

    @property
    def is_response(self) -> bool:
        return self.header is not None and bool(self.header.get("flag", 0) & 1)

    @property
    def is_oneway(self) -> bool:
        return self.header is not None and bool(self.header.get("flag", 0) & 2)

    @property
    def is_binary(self) -> bool:
        """Whether the header has RocketMQ's binary form."""
        return self.header is not None and bool(self.header.get("binary"))

    @property
    def header_bytes(self) -> bytes:
        assert self.raw is not None, f"{self} has no bytes"
        return self.raw[8 : 8 + (int.from_bytes(self.raw[4:8], "big") & 0xFFFFFF)]

    @property
    def body(self) -> bytes:
        """Everything after the header (of a cut frame: what was kept of it)."""
        assert self.raw is not None, f"{self} has no bytes"
        return self.raw[8 + (int.from_bytes(self.raw[4:8], "big") & 0xFFFFFF) :]

    def __str__(self) -> str:
        what = self.event or (f"code {self.code} #{self.opaque}" if self.header else "raw")
        return f"{self.file}:{self.n} {self.link} {self.dir} {what}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response; None for a oneway request or one that was never answered."""

    request: Frame
    response: Frame | None


@dataclass(frozen=True, slots=True)
class RawCase:
    """One odd request that was sent to a real server, and what came back (captures `raw-cases*`)."""

    file: str
    case: str
    target: str
    #: The bytes that were sent, as they went out. Of a cut case only the first bytes.
    sent: bytes
    #: The whole length of `sent` where only its first 600 bytes were kept.
    cut: int | None
    #: Header, body and whole frame of every answer.
    answers: tuple[tuple[dict[str, Any], bytes, bytes], ...]
    #: Whether the server closed the connection, and after how many milliseconds the first answer or the close came.
    closed: bool
    after_ms: int | None
    #: Bytes after the answers that form no frame.
    rest: bytes


def names() -> list[str]:
    """The captures of frames, without the ones that `raw_cases` and `chunks` read."""
    return [name for name in _all() if not name.startswith(("raw-cases", "ha_stream"))]


@functools.cache
def _frames(name: str) -> tuple[Frame, ...]:
    return tuple(_frame(name, row) for row in _lines(name))


def frames(name: str) -> list[Frame]:
    """Every line of a capture in the order of the capture, events too."""
    return list(_frames(name))


def all_frames() -> Iterator[Frame]:
    """Every whole frame of every capture."""
    for name in names():
        for frame in _frames(name):
            if frame.whole:
                yield frame


def exchanges(name: str) -> list[Exchange]:
    """The requests of a capture in order, each with its response.

    Both directions of a connection have their own space of opaques, so the direction is part of the key.
    """
    found: list[list[Frame | None]] = []
    waiting: dict[tuple[int, str, int], list[Frame | None]] = {}
    for frame in _frames(name):
        if frame.event == "open":
            # A connection's number is used once, but a capture may begin in the middle of one.
            waiting = {key: pair for key, pair in waiting.items() if key[0] != frame.conn}
        if not frame.is_frame:
            continue
        if frame.is_response:
            asker = "c2s" if frame.dir == "s2c" else "s2c"
            if pair := waiting.pop((frame.conn, asker, frame.opaque), None):
                pair[1] = frame
            continue
        pair = [frame, None]
        found.append(pair)
        if not frame.is_oneway:
            waiting[frame.conn, frame.dir, frame.opaque] = pair
    return [Exchange(request, response) for request, response in found if request is not None]


def chunks(name: str) -> list[Frame]:
    """The raw pieces of the replication stream (captures `ha_stream*`): `raw` holds what one segment brought."""
    return frames(name)


def raw_cases(name: str) -> list[RawCase]:
    """The cases of `raw-cases` or `raw-cases-49`."""
    return [_raw_case(name, row) for row in _lines(name)]


def _raw_case(name: str, row: dict[str, Any]) -> RawCase:
    text, _, length = row["sent"].partition("...")
    return RawCase(
        file=name,
        case=row["case"],
        target=row["target"],
        sent=bytes.fromhex(text),
        cut=int(length.removesuffix(" bytes")) if length else None,
        answers=tuple((a["header"], _body(a), bytes.fromhex(a["hex"])) for a in row["answers"]),
        closed=row["closed"],
        after_ms=row["after_ms"],
        rest=bytes.fromhex(row.get("rest", "")),
    )


def _body(answer: dict[str, Any]) -> bytes:
    raw = bytes.fromhex(answer["hex"])
    return raw[8 + (int.from_bytes(raw[4:8], "big") & 0xFFFFFF) :]


def _all() -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.gz") for path in WIRE.glob("*.jsonl.gz"))


def _lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(WIRE / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _frame(name: str, row: dict[str, Any]) -> Frame:
    text = row.get("hex", row.get("raw"))
    return Frame(
        file=name,
        n=row["n"],
        conn=row["conn"],
        link=row["link"],
        dir=row["dir"],
        t=row.get("t", 0),
        header=row.get("header"),
        raw=None if text is None else bytes.fromhex(text),
        event=row.get("event"),
        cut=row.get("cut"),
        cmd=row.get("cmd"),
    )
