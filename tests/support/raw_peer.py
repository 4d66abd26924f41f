"""The other end of a connection, by hand: frames made and read with `json` and `struct` alone.

Nothing of cometmq is used here on purpose: what judges our connections must not share their mistakes.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Any

SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame with a JSON header (type 0), or one whose header stays bytes."""

    kind: int
    header: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    raw_header: bytes = b""

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def remark(self) -> str | None:
        return self.header.get("remark")

    @property
    def opaque(self) -> int:
        return int(self.header["opaque"])

    @property
    def ext(self) -> dict[str, str]:
        return self.header.get("extFields") or {}


def pack(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame of ready header bytes."""
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def request(code: int, ext: dict[str, str] | None = None, body: bytes = b"", **header: Any) -> bytes:
    """A request with a JSON header."""
    fields = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 407, "extFields": ext or {}}
    return pack(json.dumps(fields | header).encode(), body)


def response(opaque: int, code: int = 0, body: bytes = b"", **header: Any) -> bytes:
    """A response with a JSON header."""
    fields = {"code": code, "flag": 1, "language": "JAVA", "opaque": opaque, "version": 407}
    return pack(json.dumps(fields | header).encode(), body)


def binary_request(code: int, ext: dict[str, str] | None = None, body: bytes = b"", opaque: int = 1) -> bytes:
    """A request with RocketMQ's binary header."""
    entries = b"".join(
        struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
        for key, value in (ext or {}).items()
    )
    header = struct.pack(">hbhiiii", code, 0, 407, opaque, 0, 0, len(entries)) + entries
    return pack(header, body, kind=1)


class RawPeer:
    """A plain socket connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, address: tuple[str, int], context: ssl.SSLContext | None = None, limit: int = 2**16
    ) -> "RawPeer":
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            sock.setblocking(False)
            # Small kernel buffers, so that a peer that does not read is noticed early.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        name = {"server_hostname": address[0]} if context else {}
        return cls(*await asyncio.open_connection(sock=sock, ssl=context, limit=limit, **name))

    async def __aenter__(self) -> "RawPeer":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def reset(self) -> None:
        """Ends the connection with a reset, so that the server cannot take it for a half-closed one."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        await self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where the server sees this peer."""
        name = self.writer.get_extra_info("sockname")
        return name[0], name[1]

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> Frame:
        """The next frame."""
        async with asyncio.timeout(SECONDS):
            length, word = struct.unpack(">II", await self.reader.readexactly(8))
            rest = await self.reader.readexactly(length - 4)
        size, kind = word & 0xFFFFFF, word >> 24
        header = json.loads(rest[:size]) if kind == 0 else {}
        return Frame(kind, header, rest[size:], rest[:size])

    async def ask(self, data: bytes) -> Frame:
        """Sends a request and reads one frame."""
        await self.send(data)
        return await self.frame()

    async def closed(self) -> bytes:
        """Waits until the server closes; what came before that."""
        data = b""
        try:
            async with asyncio.timeout(SECONDS):
                while piece := await self.reader.read(65536):
                    data += piece
        except (ConnectionError, ssl.SSLError):
            pass  # a reset is an end too
        return data

    def write_eof(self) -> None:
        self.writer.write_eof()
