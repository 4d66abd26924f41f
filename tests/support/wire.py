"""Raw frames on asyncio connections: for tests that send bytes as they were captured and look at what comes back."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cometmq.protocol import fastjson
from cometmq.protocol.codec import decode, read_ext

#: Seconds to wait for what must come. Never waited in full by a test that passes.
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as a plain value."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    opaque: int
    version: int
    #: The type byte of the header: 0 JSON, 1 binary.
    kind: int

    def json(self) -> Any:
        """The body as a value, whatever the dialect: integer keys as text, lists in order of their text."""
        return plain(fastjson.loads(self.body))


def plain(value: Any) -> Any:
    """A JSON value in which the order of maps and lists, and quotes around integer keys, make no difference."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return sorted((plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def frame(
    code: int,
    ext: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 77,
    flag: int = 0,
    version: int = 479,
) -> bytes:
    """A request with a JSON header, as a Java client writes it."""
    header = {"code": code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": version}
    if ext is not None:
        header["extFields"] = {key: str(value) for key, value in ext.items()}
    raw = json.dumps({**header, "serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def flush(self) -> None:
        """Let what was sent go out before anything else is."""
        await self._writer.drain()
        await asyncio.sleep(0)

    async def receive(self) -> Reply:
        """The next frame. EOFError when the peer closed instead."""
        async with asyncio.timeout(PATIENCE):
            try:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                decoded = decode(await self._reader.readexactly(length), expect_response=True)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                raise EOFError("the peer closed the connection") from None
        command = decoded.command
        ext = read_ext(decoded.kind, decoded.raw_header)
        return Reply(
            command.code, command.remark, ext, decoded.body, command.opaque, command.version, int(decoded.kind)
        )

    async def call(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", *, version: int = 479
    ) -> Reply:
        self.send(frame(code, ext, body, version=version))
        return await self.receive()

    async def closed(self) -> None:
        """Wait until the peer has closed, whatever it sends before."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                while await self._reader.read(65536):
                    pass

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connect(port: int) -> AsyncIterator[Wire]:
    """A connection to a port of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = Wire(reader, writer)
    try:
        yield wire
    finally:
        await wire.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition of this process holds; looks again and again, because nobody would tell."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
