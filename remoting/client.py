"""The client: one connection for each address, shared by everybody who asks something there.

Requests are answered, time out, or fail as soon as their connection ends; nothing is retried here except after a
GO_AWAY, which the protocol asks for. Requests of the server are served through a handler table. It mirrors RocketMQ's
NettyRemotingClient.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

import msgspec

from cometmq.protocol.codes import ResponseCode, request_name
from cometmq.protocol.command import SerializeType
from cometmq.protocol.header import Header
from cometmq.remoting.address import parse_address
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Body, HandlerTable
from cometmq.remoting.errors import ClientClosed, ConnectFailed, GoneAway, Timeout, TooManyRequests, seconds
from cometmq.remoting.limits import Limits
from cometmq.remoting.pending import Answer
from cometmq.remoting.roster import Roster
from cometmq.remoting.serving import OPEN_REPLY_LIMIT, Dispatcher

if TYPE_CHECKING:
    from cometmq.remoting.tls import ClientTlsOptions, TlsContext

logger = logging.getLogger(__name__)

_GO_AWAY = int(ResponseCode.GO_AWAY)

#: How long the connections of a client that closes may take to send their last bytes (seconds).
CLOSE_WAIT = 1.0

#: Gives the keys that go out besides the header's, just before a request is encoded: for signatures, namespaces,
#: zones. Called with code, header, body and the keys so far.
ExtHook = Callable[[int, Header | None, Body, Mapping[str, str] | None], Mapping[str, str] | None]


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client connects and asks. Times are seconds."""

    connect_timeout: float = 3.0  # com.rocketmq.remoting.client.connect.timeout
    request_timeout: float = 3.0
    #: Requests in flight at once on a connection (clientAsyncSemaphoreValue), and oneway requests that wait to be
    #: written (clientOnewaySemaphoreValue).
    request_limit: int = 65535
    oneway_limit: int = 65535
    #: Requests of servers that may wait for our answers.
    open_reply_limit: int = OPEN_REPLY_LIMIT
    #: Header form of requests. Every RocketMQ peer reads JSON and ROCKETMQ.
    kind: SerializeType = SerializeType.JSON
    tls: "ClientTlsOptions | None" = None
    limits: Limits = Limits()


class RemotingClient:
    """Asks servers. It opens connections when they are first needed; `close` leaves nothing behind."""

    def __init__(
        self,
        options: ClientOptions | None = None,
        *,
        table: HandlerTable | None = None,
        ext_hook: ExtHook | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        # An empty table counts: rows may come later.
        table = HandlerTable() if table is None else table
        self.dispatcher = Dispatcher(table, open_reply_limit=self.options.open_reply_limit)
        self.ext_hook = ext_hook
        self._clock = clock
        self._roster: Roster | None = None
        self._tls: TlsContext | None = None
        self._oneways = asyncio.Semaphore(self.options.oneway_limit)
        #: Address -> connection, and address -> the connect that everybody waits for.
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def request(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Body = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one budget for connect, permit and answer
        ext: Mapping[str, str] | None = None,
    ) -> Answer:
        """Asks and waits for the answer; the timeout covers everything, the connect too."""
        clock = self._start().clock
        budget = self.options.request_timeout if timeout is None else timeout
        deadline = clock() + budget
        connection = self.ready_now(address)
        if connection is None:
            connection = await self.ready(address, code, budget)
            budget = deadline - clock()
        answer = await self.write(connection, code, header, body, budget, ext)
        if answer.code != _GO_AWAY:
            return answer
        self.leave(address, connection)
        connection = await self.ready(address, code, deadline - clock())
        answer = await self.write(connection, code, header, body, deadline - clock(), ext)
        if answer.code == _GO_AWAY:
            self.leave(address, connection)
            raise GoneAway(f"{address} shuts down: it refused {request_name(code)} again after a reconnect")
        return answer

    # The steps of a request, for those who have to do something between them.

    def ready_now(self, address: str) -> Connection | None:
        """The connection to an address if it takes a request without any waiting; otherwise ask for it by `ready`."""
        connection = self._connections.get(address)
        if (
            connection is None
            or not connection.is_open
            or connection.output.is_paused
            or len(connection.pending) >= self.options.request_limit
        ):
            return None
        return connection

    async def ready(self, address: str, code: int, budget: float) -> Connection:
        """A connection that takes a request now, within the budget of seconds; `code` is for the errors."""
        clock = self._start().clock
        deadline = clock() + budget
        connection = await self._ready(address, code, budget)
        if len(connection.pending) >= self.options.request_limit:
            await self._room(connection, code, deadline - clock())
        return connection

    def write(
        self,
        connection: Connection,
        code: int,
        header: Header | None = None,
        body: Body = b"",
        timeout: float = 3.0,
        ext: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Answer]:
        """Puts a request on its way; await the future for its answer."""
        if self.ext_hook is not None:
            ext = self.ext_hook(code, header, body, ext)
        return connection.request(code, header, body, timeout=timeout, ext=ext)

    def leave(self, address: str, connection: Connection) -> None:
        """A server said GO_AWAY: the others on the connection get their answers, the next request opens a new one."""
        if self._connections.get(address) is connection:
            del self._connections[address]
        connection.finish()

    async def send_oneway(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Body = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one budget for connect, permit and write
        ext: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a request that gets no answer; returns when it is on its way."""
        clock = self._start().clock
        budget = self.options.request_timeout if timeout is None else timeout
        deadline = clock() + budget
        if self._oneways.locked():
            await self._permit(code, budget)
        else:
            await self._oneways.acquire()
        try:
            connection = await self._ready(address, code, deadline - clock())
            connection.send_oneway(code, header, body, ext=self._ext(code, header, body, ext))
        finally:
            self._oneways.release()

    async def connect(self, address: str, *, timeout: float | None = None) -> Connection:  # noqa: ASYNC109
        """The connection to an address; opened if there is none."""
        self._start()
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        budget = self.options.connect_timeout if timeout is None else timeout
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        # Waiting does not own the task: who gives up or is cancelled leaves it to the others.
        await asyncio.wait((task,), timeout=max(budget, 0.0))
        if not task.done():
            raise Timeout(f"{address} could not be connected within {seconds(budget)}")
        if task.cancelled():
            raise ClientClosed(f"the client was closed while it connected to {address}")
        error = task.exception()
        if isinstance(error, ConnectFailed):
            # Everybody gets an exception of his own: a shared one would collect all their tracebacks.
            raise ConnectFailed(str(error)) from error.__cause__
        return task.result()

    @property
    def connections(self) -> Mapping[str, Connection]:
        """The open connections by address."""
        return {address: connection for address, connection in self._connections.items() if connection.is_open}

    def sweep(self) -> None:
        """Looks for what has waited too long; a timer does it each second."""
        if self._roster is not None:
            self._roster.sweep()

    async def close(self) -> None:
        """Closes all connections. What waits for an answer fails at once."""
        self._is_closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await self.dispatcher.close()
        roster = self._roster
        if roster is None:
            return
        for connection in list(roster.connections):
            connection.close("the client was closed")
        try:
            async with asyncio.timeout(CLOSE_WAIT):
                await roster.empty()
        except TimeoutError:
            for connection in list(roster.connections):
                connection.cut("the client was closed")
            await roster.empty()
        roster.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _start(self) -> Roster:
        """The roster, made by the first use because it belongs to the running loop."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        if self._roster is None:
            loop = asyncio.get_running_loop()
            if self.options.tls is not None:
                from cometmq.remoting.tls import client_context  # for the few who need it

                self._tls = client_context(self.options.tls)
            self._roster = Roster(loop, self._clock or loop.time, self.options.limits, left=self._left)
            self._roster.start()
        return self._roster

    def _ext(
        self, code: int, header: Header | None, body: Body, ext: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        return ext if self.ext_hook is None else self.ext_hook(code, header, body, ext)

    async def _ready(self, address: str, code: int, budget: float) -> Connection:
        """A connection that takes more output."""
        clock = self._start().clock
        deadline = clock() + budget
        connection = await self.connect(address, timeout=budget)
        if connection.output.is_paused:
            await connection.writable(max(deadline - clock(), 0.0))
        if not connection.is_open:
            raise connection.lost_error()
        if clock() >= deadline:
            raise Timeout(f"no time was left to send {request_name(code)} to {address}")
        return connection

    async def _permit(self, code: int, budget: float) -> None:
        try:
            async with asyncio.timeout(max(budget, 0.0)):
                await self._oneways.acquire()
        except TimeoutError:
            raise self._too_many(code, self.options.oneway_limit, budget) from None

    async def _room(self, connection: Connection, code: int, budget: float) -> None:
        limit = self.options.request_limit
        try:
            async with asyncio.timeout(max(budget, 0.0)):
                await connection.pending.fewer_than(limit)
        except TimeoutError:
            raise self._too_many(code, limit, budget) from None
        if not connection.is_open:
            raise connection.lost_error()

    def _too_many(self, code: int, limit: int, budget: float) -> TooManyRequests:
        return TooManyRequests(
            f"{request_name(code)} was not sent: {limit} requests are in flight,"
            f" and none ended within {seconds(budget)}"
        )

    async def _open(self, address: str) -> Connection:
        host, port = parse_address(address)
        roster = self._start()
        options = self.options
        hostname = (options.tls.hostname or host) if options.tls else None
        connection = Connection(roster, self.dispatcher, is_accepted=False)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await roster.loop.create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=self._tls.get() if self._tls else None,
                    server_hostname=hostname,
                )
        except TimeoutError as error:
            connection.abandon()
            raise ConnectFailed(f"{address} could not be connected within {options.connect_timeout:g} s") from error
        except (OSError, UnicodeError) as error:  # the latter: a name that no resolver would take
            connection.abandon()
            reason = getattr(error, "strerror", None) or error
            raise ConnectFailed(f"{address} could not be connected: {reason}") from error
        except asyncio.CancelledError:
            connection.abandon()
            raise
        connection.kind = options.kind
        return connection

    def _opened(self, address: str, task: "asyncio.Task[Connection]") -> None:
        self._connecting.pop(address, None)
        if task.cancelled():
            return
        if task.exception() is None:  # asking marks an error as seen, also when nobody waits any more
            self._connections[address] = task.result()

    def _left(self, connection: Connection) -> None:
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
