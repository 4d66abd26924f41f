"""The server: listens, makes connections of what the listener lets in, and ends in good order.

It puts the parts together (listener, TLS, roster, dispatcher) and holds no protocol knowledge. It mirrors RocketMQ's
NettyRemotingServer.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import HandlerTable
from cometmq.remoting.limits import Limits
from cometmq.remoting.listener import Listener, bind, listen, peer_of
from cometmq.remoting.preamble import Proxied
from cometmq.remoting.roster import Roster
from cometmq.remoting.serving import OPEN_REPLY_LIMIT, Dispatcher
from cometmq.remoting.tls import TlsContext, TlsMode, TlsOptions, server_context

logger = logging.getLogger(__name__)

#: How long the peers that were talking at shutdown are given to read their last answers and close (seconds).
LINGER = 0.5
#: Who had a byte in either direction within this time was talking (seconds).
TALKING = 1.0
#: A connection that was cut is gone in the next turns of the loop; this is the limit for waiting for it (seconds).
CUT_WAIT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server listens. RocketMQ's keys stand beside the fields that have one."""

    host: str = "0.0.0.0"  # bindAddress; `::` serves IPv4 too
    port: int = 0  # listenPort; 0 takes any
    backlog: int = 1024  # serverSocketBacklog
    #: Connections at once; more are accepted and closed. The limit of file descriptors of the process counts too.
    connection_limit: int = 100_000
    #: Requests that may wait for their answers at once; more are answered SYSTEM_BUSY.
    open_reply_limit: int = OPEN_REPLY_LIMIT
    #: How long a PROXY preamble or a TLS handshake may take (seconds).
    handshake_timeout: float = 10.0
    #: Whether PROXY preambles are understood. Who may reach the port can then claim any address.
    proxy_protocol: bool = True
    tls: TlsOptions = field(default_factory=TlsOptions)
    limits: Limits = field(default_factory=Limits)


class Server:
    """Serves a handler table on one address. `async with` or `start` and `close`."""

    def __init__(
        self, table: HandlerTable, options: ServerOptions | None = None, *, clock: Callable[[], float] | None = None
    ) -> None:
        self.table = table
        self.options = options or ServerOptions()
        self.dispatcher = Dispatcher(table, open_reply_limit=self.options.open_reply_limit)
        self._clock = clock
        self._roster: Roster | None = None
        self._listener: Listener | None = None
        self._tls: TlsContext | None = None
        self._tls_missing_logged = False
        #: Tasks that turn accepted sockets into connections: short, but as long as a TLS handshake.
        self._joining: dict[asyncio.Task[None], tuple[socket.socket, Connection, bool]] = {}
        #: How many of them are no connections yet: a connection begins a moment before its task ends.
        self._expected = 0
        self._address: tuple[str, int] = ("", 0)
        #: Bound, but not listening yet.
        self._sockets: list[socket.socket] = []

    async def bind(self) -> None:
        """Takes the address, so that it is known, and nobody else's, before the server can serve."""
        self._sockets = await bind(self.options.host, self.options.port)
        name = self._sockets[0].getsockname()
        self._address = (name[0], name[1])

    async def start(self) -> None:
        """Listens. ListenFailed and TlsSetupFailed say what to do."""
        if self._roster is not None:
            raise RuntimeError("the server has been started already")
        loop = asyncio.get_running_loop()
        clock = self._clock or loop.time
        options = self.options
        self._tls = server_context(options.tls, clock)
        if not self._sockets:
            await self.bind()
        sockets, self._sockets = self._sockets, []
        listen(sockets, options.host, options.backlog)
        self._roster = Roster(loop, clock, options.limits, entered=self._entered)
        self._listener = Listener(
            loop,
            clock,
            ready=self._admit,
            has_room=lambda: self.connection_count < options.connection_limit,
            first_byte_timeout=options.limits.idle_timeout,
            handshake_timeout=options.handshake_timeout,
            proxy_protocol=options.proxy_protocol,
        )
        self._listener.start(sockets)
        self._roster.start(also=self._listener.sweep)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._address

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._roster.connections) if self._roster else frozenset()

    @property
    def connection_count(self) -> int:
        """All connections, those too that have not said anything yet."""
        if self._roster is None or self._listener is None:
            return 0
        return len(self._roster) + self._expected + len(self._listener.greetings)

    @property
    def open_replies(self) -> int:
        """Requests that wait for their answers."""
        return self.dispatcher.open_replies

    def sweep(self) -> None:
        """Looks for what has waited too long; a timer does it each second."""
        if self._roster is not None and self._listener is not None:
            self._listener.sweep(self._roster.clock())
            self._roster.sweep()

    async def close(self, *, grace: float = 3.0) -> None:
        """Stops accepting, answers what is in flight for at most `grace` seconds, then closes all connections."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        roster, listener = self._roster, self._listener
        if roster is None or listener is None:
            return
        deadline = asyncio.get_running_loop().time() + grace
        listener.stop()
        self.dispatcher.is_closing = True
        try:
            async with asyncio.timeout(grace):
                await self.dispatcher.quiet()
        except TimeoutError:
            logger.warning("%d requests were not answered within %g s of shutdown", self.open_replies, grace)
        await self.dispatcher.close()
        await self._end_joining()
        await self._end_connections(roster, deadline, linger=LINGER if grace > 0 else 0.0)
        roster.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _admit(self, sock: socket.socket, is_tls: bool, proxied: Proxied | None) -> None:
        """The first byte of a connection is there: it becomes a transport, unless the TLS mode forbids it."""
        context: ssl.SSLContext | None = None
        if is_tls:
            if self._tls is None:
                self._refuse_tls(sock)
                return
            context = self._tls.get()
        elif self.options.tls.mode is TlsMode.ENFORCING:
            logger.info("connection of %s closed: it is not TLS, and this server enforces it", peer_of(sock))
            sock.close()
            return
        assert self._roster is not None
        connection = Connection(
            self._roster,
            self.dispatcher,
            is_accepted=True,
            remote_address=proxied.source if proxied else None,
            attributes=proxied.attributes if proxied else None,
        )
        task = asyncio.get_running_loop().create_task(self._join(sock, context, connection))
        self._expected += 1
        self._joining[task] = sock, connection, is_tls
        task.add_done_callback(self._joined)

    def _entered(self, connection: Connection) -> None:
        self._expected -= 1

    def _joined(self, task: "asyncio.Task[None]") -> None:
        sock, connection, _ = self._joining.pop(task)
        if not connection.has_begun:
            self._expected -= 1
            sock.close()

    def _refuse_tls(self, sock: socket.socket) -> None:
        level = logging.DEBUG if self._tls_missing_logged else logging.WARNING
        self._tls_missing_logged = True
        why = "TLS is disabled" if self.options.tls.mode is TlsMode.DISABLED else "no certificate is configured"
        logger.log(level, "connection of %s closed: it speaks TLS, and %s here", peer_of(sock), why)
        sock.close()

    async def _join(self, sock: socket.socket, context: ssl.SSLContext | None, connection: Connection) -> None:
        peer = peer_of(sock)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=context,
                ssl_handshake_timeout=self.options.handshake_timeout if context else None,
                ssl_shutdown_timeout=self.options.limits.close_timeout if context else None,
            )
        except OSError as error:  # ssl.SSLError and timeouts are among them
            logger.info("connection of %s closed: %s", peer, error)
            connection.abandon()

    async def _end_joining(self) -> None:
        joining = dict(self._joining)
        for task, (_, connection, is_handshake) in joining.items():
            # What is no handshake, or is through with it, ends in the next turns and is then closed with the others.
            if is_handshake and not connection.has_begun:
                task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)

    async def _end_connections(self, roster: Roster, deadline: float, linger: float) -> None:
        """Closes all; who still reads a long answer has until the deadline, the others `linger` seconds."""
        now = roster.clock()
        for connection in list(roster.connections):
            if linger and now - connection.last_active < TALKING:
                connection.end_output()
            else:
                connection.close("the server shuts down")
        if await self._emptied(roster, linger):
            return
        for connection in list(roster.connections):
            if not connection.output.unsent:
                connection.cut("the server shuts down")
        if await self._emptied(roster, deadline - asyncio.get_running_loop().time()):
            return
        for connection in list(roster.connections):
            connection.cut("the server shuts down")
        await self._emptied(roster, CUT_WAIT)

    async def _emptied(self, roster: Roster, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await roster.empty()
        except TimeoutError:
            return not len(roster)
        return True
