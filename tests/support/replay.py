"""Plays the clients of a capture against a running cluster: their requests in recorded order, one socket each.

Answers are matched by connection and opaque and compared by `comparable`; requests of the server (40, 326) by code.
Places in the commit log that a request names are those of the running broker: every answer teaches which recorded place
is which. Moments that a request names are moved to the time of the replay. A pull that was recorded to end unfilled
gets a short suspend time, for nobody shall wait 15 s for it.
"""

import asyncio
import bisect
import contextlib
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cometmq.protocol.codec import decode, read_ext
from support import comparable, golden
from support.golden import Frame

#: For what must come. A retry is 5 s away at most, and the real broker looks at held pulls every 5 s.
PATIENCE = 25.0
#: Requests on different connections must arrive in the order of the capture.
PACE = 0.012
#: A recorded answer after this many ms was held.
HELD_MS = 4000
SHORT_HOLD = "600"
PULL_NOT_FOUND = 19
#: Fields that name a place in the commit log, by request code; and those that name a moment.
PLACED = {36: "offset", 33: "offset"}
TIMED = {29: ("timestamp",), 12: ("beginTimestamp", "endTimestamp")}


@dataclass(frozen=True, slots=True)
class Got:
    """A frame from the server."""

    code: int
    opaque: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    kind: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded frame from the server, the request that it answers, and what came instead (None: nothing)."""

    request: Frame | None
    recorded: Frame | None
    got: Got | None
    expected_view: dict[str, Any] | None
    got_view: dict[str, Any] | None

    def __str__(self) -> str:
        lines = [f"request:  {describe(self.request)}", f"recorded: {describe(self.recorded)}"]
        if self.got is None or self.expected_view is None or self.got_view is None:
            lines.append(f"got:      {self.got}")
        else:
            for key, expected in self.expected_view.items():
                if self.got_view[key] != expected:
                    lines += [f"  {key} expected {_short(expected)}", f"  {key} got      {_short(self.got_view[key])}"]
        return "\n".join(lines)


def describe(frame: Frame | None) -> str:
    return f"{frame} {_short(frame.ext)}" if frame else "none"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) < 1500 else shown[:1500] + "..."


class Socket:
    """One recorded connection: what came in, by opaque for answers and in order for requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.answers: dict[int, Got] = {}
        self.requests: list[Got] = []
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                frame = await self._reader.readexactly(length)
                self._note(frame)
        self._news.set()

    def _note(self, frame: bytes) -> None:
        decoded = decode(frame, expect_response=False)
        command = decoded.command
        got = Got(
            command.code,
            command.opaque,
            command.remark,
            read_ext(decoded.kind, decoded.raw_header),
            decoded.body,
            int(decoded.kind),
        )
        if command.flag & 1:
            self.answers[got.opaque] = got
        else:
            self.requests.append(got)
        self._news.set()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def wait(self, look: Callable[[], Got | None]) -> Got | None:
        """What `look` finds, or None when it did not come."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while (found := look()) is None:
            self._news.clear()
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0 or self._reading.done():
                return look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), remaining)
        return found

    async def answer(self, opaque: int) -> Got | None:
        return await self.wait(lambda: self.answers.pop(opaque, None))

    async def request(self, code: int) -> Got | None:
        def look() -> Got | None:
            for got in self.requests:
                if got.code == code:
                    self.requests.remove(got)
                    return got
            return None

        return await self.wait(look)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading


@dataclass
class Player:
    """Plays one capture. `links` maps a recorded link to the address that stands for it."""

    capture: str
    links: dict[str, str]
    #: Recorded queue ends before the capture began: records below are not of it, and not compared.
    bases: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Recorded frames to play; by default the whole capture.
    frames: list[Frame] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    _sockets: dict[int, Socket] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    _asked: dict[tuple[int, int], Frame] = field(default_factory=dict)
    _server_opaques: dict[tuple[int, int], int] = field(default_factory=dict)
    #: When each line was recorded, and when it was played; both in ms.
    _recorded_times: list[int] = field(default_factory=list)
    _played_times: list[int] = field(default_factory=list)
    #: Answers whose header was not of the request's type.
    other_headers: list[Frame] = field(default_factory=list)

    async def play(self) -> list[Difference]:
        frames = self.frames or golden.frames(self.capture)
        held = unfilled_pulls(frames)
        try:
            for frame in frames:
                await self._step(frame, held)
            for conn, socket in self._sockets.items():
                for extra in socket.requests:
                    self.differences.append(Difference(None, None, extra, None, None))
                    assert conn >= 0
        finally:
            for socket in self._sockets.values():
                await socket.close()
        return self.differences

    async def _step(self, frame: Frame, held: set[tuple[int, int]]) -> None:
        if frame.link not in self.links or frame.cut:
            return
        if frame.event == "fin" and frame.dir == "c2s" and (socket := self._sockets.pop(frame.conn, None)):
            self.differences += [Difference(None, None, extra, None, None) for extra in socket.requests]
            await socket.close()
        if not frame.whole:
            return
        self._recorded_times.append(frame.t)
        self._played_times.append(time.time_ns() // 1_000_000)
        if frame.dir == "c2s":
            await self._send(frame, held)
        elif frame.is_response:
            await self._compare(frame)
        else:
            await self._serve(frame)

    async def _socket(self, frame: Frame) -> Socket:
        if frame.conn not in self._sockets:
            host, port = self.links[frame.link].rsplit(":", 1)
            self._sockets[frame.conn] = Socket(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        return self._sockets[frame.conn]

    async def _send(self, frame: Frame, held: set[tuple[int, int]]) -> None:
        assert frame.raw is not None
        socket = await self._socket(frame)
        if frame.is_response:
            opaque = self._server_opaques.get((frame.conn, frame.opaque))
            if opaque is not None:
                await socket.send(with_opaque(frame, opaque))
            return
        self._asked[frame.conn, frame.opaque] = frame
        changes: dict[str, str] = {}
        if (place := PLACED.get(frame.code)) and (known := self._places.get(int(frame.ext[place]))) is not None:
            changes[place] = str(known)
        for name in TIMED.get(frame.code, ()):
            changes[name] = str(self._moved(int(frame.ext[name])))
        if (frame.conn, frame.n) in held:
            changes["suspendTimeoutMillis"] = SHORT_HOLD
        await socket.send(with_fields(frame, changes) if changes else frame.raw)
        await asyncio.sleep(PACE)

    def _moved(self, moment: int) -> int:
        """A recorded moment in the time of the replay: between the same two lines, or as far from now."""
        if moment < self._recorded_times[0]:
            return moment
        at = bisect.bisect_right(self._recorded_times, moment)
        if at == len(self._recorded_times):
            return self._played_times[-1] + moment - self._recorded_times[-1]
        return (self._played_times[at - 1] + self._played_times[at] + 1) // 2

    async def _compare(self, frame: Frame) -> None:
        request = self._asked.get((frame.conn, frame.opaque))
        if request is None:
            return  # its request is from before the capture
        got = await self._sockets[frame.conn].answer(frame.opaque)
        self.compared += 1
        if got is None:
            self.differences.append(Difference(request, frame, None, None, None))
            return
        self._learn(request, frame, got)
        if got.kind != int(request.is_binary):
            self.other_headers.append(request)
        expected = comparable.answer(
            request.code, frame.code, (frame.header or {}).get("remark"), frame.ext, frame.body
        )
        seen = comparable.answer(request.code, got.code, got.remark, got.ext, got.body)
        for view in (expected, seen):
            view["body"] = self._of_the_capture(view["body"])
        if expected != seen:
            self.differences.append(Difference(request, frame, got, expected, seen))

    def _of_the_capture(self, body: Any) -> Any:
        """Without the contents of records from before the capture."""
        if not (isinstance(body, list) and body and isinstance(body[0], dict) and "queue_offset" in body[0]):
            return body
        return [
            {"before": (one["topic"], one["queue_id"], one["queue_offset"])}
            if one["queue_offset"] < self.bases.get((one["topic"], one["queue_id"]), 0)
            else one
            for one in body
        ]

    def _learn(self, request: Frame, recorded: Frame, got: Got) -> None:
        """Which place in the running broker's log is which recorded one."""
        if recorded.code == 0 and got.code == 0 and request.code in comparable.WITH_RECORDS:
            pairs = zip(comparable.records(recorded.body), comparable.records(got.body), strict=False)
            self._places.update((one.physical_offset, other.physical_offset) for one, other in pairs)
        ids = (recorded.ext.get("msgId", ""), got.ext.get("msgId", ""))
        if all(len(each) >= 32 for each in ids):
            for one, other in zip(ids[0].split(","), ids[1].split(","), strict=False):
                with contextlib.suppress(ValueError):  # a unique key may stand there
                    self._places[int(one[16:32], 16)] = int(other[16:32], 16)

    async def _serve(self, frame: Frame) -> None:
        """A request of the server to the client, recorded in this place."""
        if frame.conn not in self._sockets:
            return
        got = await self._sockets[frame.conn].request(frame.code)
        self.compared += 1
        if got is None:
            self.differences.append(Difference(None, frame, None, None, None))
            return
        self._server_opaques[frame.conn, frame.opaque] = got.opaque
        expected = comparable.answer(frame.code, frame.code, None, frame.ext, frame.body)
        seen = comparable.answer(frame.code, got.code, None, got.ext, got.body)
        for view in (expected, seen):
            view["remark"] = None
        if expected != seen:
            self.differences.append(Difference(None, frame, got, expected, seen))


def unfilled_pulls(frames: list[Frame]) -> set[tuple[int, int]]:
    """(connection, line) of the pulls that were held and ended with nothing."""
    asked: dict[tuple[int, int], Frame] = {}
    found = set()
    for frame in frames:
        if not frame.is_frame:
            continue
        if frame.dir == "c2s" and not frame.is_response:
            asked[frame.conn, frame.opaque] = frame
        elif frame.is_response and frame.code == PULL_NOT_FOUND and frame.dir == "s2c":
            request = asked.get((frame.conn, frame.opaque))
            if request is not None and frame.t - request.t > HELD_MS:
                found.add((frame.conn, request.n))
    return found


def with_opaque(frame: Frame, opaque: int) -> bytes:
    """The frame under another number."""
    assert frame.raw is not None
    if frame.is_binary:
        at = 8 + 2 + 1 + 2
        return frame.raw[:at] + struct.pack(">i", opaque) + frame.raw[at + 4 :]
    header = json.loads(frame.header_bytes)
    return _json_frame({**header, "opaque": opaque}, frame.body)


def with_fields(frame: Frame, changes: dict[str, str]) -> bytes:
    """The frame with other values of some header fields."""
    if frame.is_binary:
        return _binary_frame(frame, changes)
    header = json.loads(frame.header_bytes)
    return _json_frame({**header, "extFields": {**header["extFields"], **changes}}, frame.body)


def _json_frame(header: dict[str, Any], body: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def _binary_frame(frame: Frame, changes: dict[str, str]) -> bytes:
    raw = frame.header_bytes
    at = 2 + 1 + 2 + 4 + 4
    (remark,) = struct.unpack_from(">i", raw, at)
    at += 4 + max(remark, 0)
    head = raw[:at]
    entries = b"".join(
        struct.pack(">h", len(key.encode())) + key.encode() + struct.pack(">i", len(text.encode())) + text.encode()
        for key, text in {**frame.ext, **changes}.items()
    )
    header = head + struct.pack(">i", len(entries)) + entries
    return struct.pack(">II", 4 + len(header) + len(frame.body), 1 << 24 | len(header)) + header + frame.body
