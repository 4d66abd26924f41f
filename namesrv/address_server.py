"""A tiny HTTP server that tells clients where the nameservers are (RocketMQ's TopAddressing asks it).

`GET /rocketmq/nsaddr`, with or without `-<unit>` and a query, is answered with the list `ip:port;ip:port`. Nothing else
is served: no keep-alive, no bodies. It is built on asyncio's streams and not on `cometmq.remoting`, because HTTP is not
RocketMQ's protocol: nothing of frames, commands or handlers fits.
"""

import asyncio
import logging
from collections.abc import Callable

from cometmq.remoting.address import format_address
from cometmq.remoting.errors import ListenFailed
from cometmq.remoting.listener import bind, listen

PATH = "/rocketmq/nsaddr"

#: A request's head: real ones have 200 bytes.
MAX_HEAD = 8 * 1024
#: Seconds until a request's head must have come and its answer must have gone.
REQUEST_TIMEOUT = 5.0
#: Connections that wait to be accepted.
BACKLOG = 128
#: Requests that are read at once; each takes a buffer. More are closed unanswered, and the client tries again.
MAX_REQUESTS = 512

log = logging.getLogger(__name__)


class AddressServer:
    """Serves one list of addresses.

    `addresses` gives the list, and gets the address by which the client reached us: a nameserver that listens
    everywhere does not know its own address otherwise.
    """

    def __init__(self, addresses: Callable[[str], str], *, host: str = "0.0.0.0", port: int = 0) -> None:
        self._addresses = addresses
        self._host = host
        self._port = port
        self._servers: list[asyncio.Server] = []  # one for each address of the host
        self._requests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        try:
            sockets = await bind(self._host, self._port)
            listen(sockets, self._host, BACKLOG)
        except ListenFailed as error:
            raise ListenFailed(f"the address server {error}") from error
        for sock in sockets:
            self._servers.append(await asyncio.start_server(self._accept, sock=sock, limit=MAX_HEAD))
        log.info("serving the addresses of nameservers at http://%s%s", format_address(self._host, self.port), PATH)

    @property
    def port(self) -> int:
        """The port that is listened on, also when 0 was asked for."""
        assert self._servers, "the address server has not been started"
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._requests) >= MAX_REQUESTS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = self._answer(head, writer.get_extra_info("sockname")[0])
                except asyncio.LimitOverrunError:
                    answer = _response(431, "Request Header Fields Too Large", "the request is too long\n")
                writer.write(answer)
                writer.write_eof()
                # The client closes when it has read the answer; if we closed first, what it still sends might reset
                # the connection under the answer.
                while await reader.read(MAX_HEAD):
                    pass
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            log.debug("a request ended early: %r", error)
        finally:
            writer.transport.abort()

    def _answer(self, head: bytes, local: str) -> bytes:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return _response(400, "Bad Request", "this is not an HTTP/1.1 request\n")
        method, target, _ = line
        path = target.partition("?")[0]
        head_only = method == "HEAD"
        if path != PATH and not path.startswith(PATH + "-"):
            return _response(404, "Not Found", f"only {PATH} is served here\n", head_only=head_only)
        if method not in ("GET", "HEAD"):
            return _response(405, "Method Not Allowed", "only GET is served here\n", extra="Allow: GET, HEAD\r\n")
        return _response(200, "OK", self._addresses(local), head_only=head_only)


def _response(status: int, reason: str, text: str, *, extra: str = "", head_only: bool = False) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else body)
