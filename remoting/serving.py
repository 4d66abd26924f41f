"""The dispatcher: takes a decoded request through the handler table and sees to it that it is answered.

Its mutable state is `open_replies`, `tasks` and `is_closing`; one dispatcher belongs to one server or one client. It
answers what RocketMQ's NettyRemotingAbstract answers when there is no handler, when a handler fails and when too much
is waiting.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable

from cometmq.protocol.codec import Parts
from cometmq.protocol.codes import ResponseCode, Version, request_name
from cometmq.protocol.command import BadHeader, Command, SerializeType
from cometmq.protocol.errors import ProtocolError
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import LATER, NO_ANSWER, HandlerTable, Lane, Outcome, Request, Response, Result

logger = logging.getLogger(__name__)

#: Requests that may wait for their answers at once, held pulls included, before new ones are refused.
OPEN_REPLY_LIMIT = 100_000

_BUSY = Response(int(ResponseCode.SYSTEM_BUSY), remark="[OVERLOAD]system busy, start flow control for a while")
_GO_AWAY = Response(int(ResponseCode.GO_AWAY), remark="please go away")
_GO_AWAY_ABOVE = int(Version.V5_3_1)


class Dispatcher:
    """Serves the requests of all connections of one server or client."""

    def __init__(self, table: HandlerTable, *, open_reply_limit: int = OPEN_REPLY_LIMIT) -> None:
        self.table = table
        self.open_reply_limit = open_reply_limit
        #: Requests whose handlers have returned and whose answers are still owed.
        self.open_replies = 0
        #: The tasks of coroutine handlers.
        self.tasks: set[asyncio.Task[None]] = set()
        #: While closing, peers that know GO_AWAY get it; the others are served until their connections close.
        self.is_closing = False
        self._entries = table.entries
        self._before = table.before
        self._quiet: asyncio.Future[None] | None = None

    def dispatch(self, connection: Connection, decoded: Parts, received: float) -> None:
        """Serves one request. Hot: a plain handler that returns its response makes no task and no future."""
        command, kind, raw_header, body = decoded
        entry = self._entries.get(command.code)
        if entry is None:
            refuse_unknown(connection, command, kind)
            return
        request: Request[None] = Request(connection, command, command.header, kind, raw_header, body, received)
        if self.is_closing and command.version > _GO_AWAY_ABOVE:
            request.reply(_GO_AWAY)
            return
        if self.open_replies >= self.open_reply_limit:
            request.reply(_BUSY)
            return
        try:
            for before in self._before:
                refusal = before(request, entry)
                if refusal is not None:
                    request.reply(refusal)
                    return
            result = entry.handler(request)
            if result.__class__ is Response:
                request.reply(result)
            elif result is LATER:
                if request.state == 0:
                    request.state = 1
                    self.open_replies += 1
                    connection.open_replies += 1
            else:
                self._settle(request, result)
        except Exception as error:
            self._fail(request, error)

    @property
    def lane(self) -> Lane | None:
        """The lane, while requests may take it."""
        return None if self.is_closing or self._before else self.table.lane

    def refuse_header(self, connection: Connection, error: BadHeader) -> None:
        """Answers a request whose typed header could not be read."""
        command = error.command
        if command.code not in self._entries:
            refuse_unknown(connection, command, error.kind)
        elif not command.is_oneway:
            code = int(ResponseCode.SYSTEM_ERROR)
            connection.send_response(error.kind, command.opaque, Response(code, remark=str(error)))
        else:
            logger.info("oneway request of %s dropped: %s", connection, error)

    def opened(self, connection: Connection) -> None:
        """One more answer is owed to a connection."""
        self.open_replies += 1
        connection.open_replies += 1

    def settled(self, count: int) -> None:
        """So many answers are no longer owed: sent, or their connection has gone."""
        self.open_replies -= count
        if self._quiet is not None:
            self._look_around()

    def connection_ended(self, connection: Connection) -> None:
        """Tells the observers that nothing more comes from a connection."""
        for observer in self.table.on_connection_lost:
            try:
                observer(connection)
            except Exception:
                logger.exception("an observer of lost connections failed for %s", connection)

    async def quiet(self) -> None:
        """Returns when no answer is owed and no handler runs."""
        if self.open_replies or self.tasks:
            self._quiet = asyncio.get_running_loop().create_future()
            try:
                await self._quiet
            finally:
                self._quiet = None

    async def close(self) -> None:
        """Ends the handlers that still run."""
        self.is_closing = True
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settle(self, request: Request[None], result: Result | Awaitable[Result]) -> None:
        if result is LATER:
            if request.state == Request.NEW:
                request.state = Request.OPEN
                self.opened(request.connection)
        elif result is NO_ANSWER:
            request.reply(NO_ANSWER)
        elif isinstance(result, Response):
            request.reply(result)
        elif inspect.isawaitable(result):
            task = asyncio.get_running_loop().create_task(self._serve(request, result))
            self.tasks.add(task)
            task.add_done_callback(self._task_done)
            if request.state == Request.NEW:
                request.state = Request.OPEN
                self.opened(request.connection)
        else:
            raise TypeError(f"the handler of {request} returned {type(result).__name__}, not a response")

    async def _serve(self, request: Request[None], work: Awaitable[Result]) -> None:
        try:
            result = await work
            if not isinstance(result, Response | Outcome):
                raise TypeError(f"the handler of {request} gave {type(result).__name__}, not a response")
            if result is not LATER:
                request.reply(result)
        except asyncio.CancelledError:
            # Only close() cancels; the connection follows, so there is nobody left to tell.
            if request.state != Request.DONE:
                request.reply(NO_ANSWER)
            raise
        except Exception as error:
            self._fail(request, error)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._quiet is not None:
            self._look_around()

    def _look_around(self) -> None:
        if self._quiet is not None and not self._quiet.done() and not self.open_replies and not self.tasks:
            self._quiet.set_result(None)

    def _fail(self, request: Request[None], error: Exception) -> None:
        if isinstance(error, ProtocolError):
            logger.info("%s: %s", request, error)
            response = Response(error.code or int(ResponseCode.SYSTEM_ERROR), remark=str(error))
        else:
            logger.error("the handler of %s failed", request, exc_info=error)
            response = Response(int(ResponseCode.SYSTEM_ERROR), remark=f"{type(error).__name__}: {error}")
        if request.state != Request.DONE:
            request.reply(response)


def refuse_unknown(connection: Connection, command: Command, kind: SerializeType) -> None:
    """Answers a request that has no handler. RocketMQ's remark starts with a blank."""
    logger.debug("%s asks for %s, which has no handler", connection, request_name(command.code))
    if not command.is_oneway:
        remark = f" request type {command.code} not supported"
        code = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        connection.send_response(kind, command.opaque, Response(code, remark=remark))
