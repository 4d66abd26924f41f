"""Requests that wait for their answers on one connection, and the answers (RocketMQ's ResponseFuture table).

One timer serves all deadlines of a connection: it is set for the nearest one and looks at the whole table when it
fires, so that a request costs no timer of its own. Deadlines are late by at most `TICK`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Raw

from cometmq.protocol.codec import Decoded, Parts, read_ext, read_header
from cometmq.protocol.codes import request_name
from cometmq.protocol.command import Command, SerializeType
from cometmq.protocol.header import H
from cometmq.protocol.json_header import read_keys
from cometmq.remoting.errors import ConnectionLost, Timeout, seconds

#: Deadlines closer together than this are looked at together (seconds).
TICK = 0.01

_OPAQUE_MASK = 0x7FFFFFFF


class Answer:
    """What a peer answered. The code may say that it failed: that is for the caller to judge."""

    __slots__ = ("body", "command", "kind", "raw_header", "request_code")

    def __init__(self, request_code: int, decoded: Decoded | Parts) -> None:
        self.request_code = request_code
        self.command: Command
        self.kind: SerializeType
        self.command, self.kind, self.raw_header, self.body = decoded

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def remark(self) -> str | None:
        return self.command.remark

    @property
    def version(self) -> int:
        """The protocol version of the peer."""
        return self.command.version

    @property
    def ext(self) -> dict[str, str]:
        """All keys of the header as text."""
        return read_ext(self.kind, self.raw_header)

    def header(self, header_type: type[H]) -> H:
        """The typed header; HeaderError when the peer sent another one."""
        keys = self.command.header
        if keys.__class__ is Raw:
            return read_keys(header_type, keys, self.raw_header, self.request_code)
        return read_header(self.kind, self.raw_header, header_type, request_name(self.request_code))

    def __repr__(self) -> str:
        return f"<Answer to {request_name(self.request_code)}: code {self.code}, {len(self.body)} bytes>"


#: One request on its way: the future of its answer, its code, when it was sent, and until when an answer counts. A bare
#: tuple, because one is made for each request.
Pending: TypeAlias = tuple[asyncio.Future[Answer], int, float, float]


class PendingRequests:
    """Opaque -> request. The mutable state: the table, the last opaque, the timer, and who waits for room."""

    __slots__ = (
        "_clock",
        "_loop",
        "_on_timeout",
        "_opaque",
        "_peer",
        "_table",
        "_timer",
        "_timer_due",
        "_waiters",
        "on_empty",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        peer: str,
        on_timeout: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._peer = peer
        self._on_timeout = on_timeout
        self._table: dict[int, Pending] = {}
        self._opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._waiters: deque[asyncio.Future[None]] = deque()
        #: Is called when the last request that waited has its answer.
        self.on_empty: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._table)

    def next_opaque(self) -> int:
        """A fresh id: a positive i32, never one that still waits."""
        opaque = self._opaque
        while True:
            opaque = (opaque + 1) & _OPAQUE_MASK
            if opaque not in self._table:
                break
        self._opaque = opaque
        return opaque

    def add(self, code: int, timeout: float) -> tuple[int, asyncio.Future[Answer]]:
        """Notes a request that is about to be sent. Hot."""
        opaque = self._opaque + 1 & _OPAQUE_MASK
        if opaque in self._table:
            opaque = self.next_opaque()
        self._opaque = opaque
        now = self._clock()
        deadline = now + timeout
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._table[opaque] = (future, code, now, deadline)
        if self._timer is None or deadline < self._timer_due:
            self._set_timer(now, deadline)
        return opaque, future

    def forget(self, opaque: int) -> None:
        self._table.pop(opaque, None)

    def settle(self, decoded: Decoded | Parts) -> None:
        """Hands an answer to who waits for it. One that nobody waits for (any more) is dropped. Hot."""
        pending = self._table.pop(decoded[0].opaque, None)
        if pending is not None and not pending[0].done():
            pending[0].set_result(Answer(pending[1], decoded))
        if self._waiters:
            self._let_in()
        if self.on_empty is not None and not self._table:
            self.on_empty()

    async def fewer_than(self, limit: int) -> None:
        """Returns when fewer requests than that wait for their answers."""
        while len(self._table) >= limit:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._let_in()  # the room that this one does not take any more
                raise

    def _let_in(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def fail_all(self, reason: str) -> None:
        """Ends all waiting at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        table, self._table = self._table, {}
        while self._waiters:
            self._let_in()
        for future, code, _, _ in table.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"{self._peer} did not answer {request_name(code)}: {reason}"))

    def _set_timer(self, now: float, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(due - now, TICK), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        late = [(opaque, pending) for opaque, pending in self._table.items() if pending[3] <= now]
        for opaque, (future, code, sent, deadline) in late:
            self._table.pop(opaque, None)
            if future.done():
                continue
            future.set_exception(
                Timeout(f"{self._peer} did not answer {request_name(code)} within {seconds(deadline - sent)}")
            )
            self._on_timeout(sent)
            self._let_in()
        if self._table and self._timer is None:
            self._set_timer(now, min(pending[3] for pending in self._table.values()))
        if self.on_empty is not None and not self._table:
            self.on_empty()
