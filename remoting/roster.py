"""The roster: all connections of one server or client, and the one timer that looks after them.

It closes what is idle, what sends a frame too slowly, what does not read its answers and what does not finish closing,
and it bounds the memory that incomplete frames take together. The tables here are the whole shared state of the
connections; a connection enters itself and takes itself out. It mirrors RocketMQ's IdleStateHandler and
channelTables.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.remoting.limits import Limits

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

logger = logging.getLogger(__name__)

#: Seconds between two looks.
SWEEP_INTERVAL = 1.0
#: Idle connections are looked for so many times within the idle timeout: a full pass over all of them each time.
IDLE_LOOKS = 12


class Roster:
    """Connections, and which of them need watching."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        limits: Limits,
        *,
        entered: Callable[["Connection"], None] | None = None,
        left: Callable[["Connection"], None] | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.limits = limits
        self.connections: set[Connection] = set()
        #: Connections that hold back bytes -> since when an incomplete frame has been waiting for the rest.
        self.partials: dict[Connection, float] = {}
        #: Bytes that they hold back together.
        self.partial_bytes = 0
        #: Connections whose peers do not read -> (since when, bytes taken until then).
        self.stalled: dict[Connection, tuple[float, int]] = {}
        #: Connections that are being closed -> since when.
        self.closing: dict[Connection, float] = {}
        self._entered = entered
        self._left = left
        self._timer: asyncio.TimerHandle | None = None
        self._also: Callable[[float], None] | None = None
        self._next_idle_look = 0.0
        self._empty: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.connections)

    def start(self, also: Callable[[float], None] | None = None) -> None:
        """Starts the timer; `also` is called at each look."""
        self._also = also
        self._next_idle_look = self.clock() + self.limits.idle_timeout / IDLE_LOOKS
        self._timer = self.loop.call_later(SWEEP_INTERVAL, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def enter(self, connection: "Connection") -> None:
        self.connections.add(connection)
        if self._entered is not None:
            self._entered(connection)

    def leave(self, connection: "Connection") -> None:
        """The connection has gone, whatever it was watched for."""
        self.connections.discard(connection)
        self.partials.pop(connection, None)
        self.stalled.pop(connection, None)
        self.closing.pop(connection, None)
        if self._left is not None:
            self._left(connection)
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    async def empty(self) -> None:
        """Returns when the last connection has gone."""
        if self.connections:
            self._empty = self.loop.create_future()
            try:
                await self._empty
            finally:
                self._empty = None

    def partial_grew(self, size: int) -> None:
        """Some connection holds back so many bytes more."""
        self.partial_bytes += size
        if self.partial_bytes > self.limits.partial:
            greediest = max(self.partials, key=lambda connection: connection.reader.kept)
            greediest.abort(
                f"it holds {greediest.reader.kept} bytes of an incomplete frame, all connections together"
                f" {self.partial_bytes}, and the limit is {self.limits.partial}"
            )

    def sweep(self) -> None:
        """One look at everything that may have waited too long."""
        now = self.clock()
        limits = self.limits
        for connection, since in list(self.partials.items()):
            if now - since >= limits.frame_timeout and connection not in self.stalled:
                connection.abort(f"a frame did not come to its end within {limits.frame_timeout:g} s")
        for connection, (since, taken) in list(self.stalled.items()):
            if connection.output.taken > taken:
                self.stalled[connection] = (now, connection.output.taken)
                connection.output.last_write = now  # bytes move, so it is not idle either
            elif now - since >= limits.stall_timeout:
                connection.abort(f"it has not read its answers for {limits.stall_timeout:g} s")
        for connection, since in list(self.closing.items()):
            if now - since >= limits.close_timeout:
                connection.abort(f"closing took longer than {limits.close_timeout:g} s")
        if now >= self._next_idle_look:
            self._next_idle_look = now + limits.idle_timeout / IDLE_LOOKS
            for connection in list(self.connections):
                if now - connection.last_active >= limits.idle_timeout and connection not in self.closing:
                    connection.close(f"idle for {limits.idle_timeout:g} s")

    def _tick(self) -> None:
        self._timer = self.loop.call_later(SWEEP_INTERVAL, self._tick)
        self.sweep()
        if self._also is not None:
            self._also(self.clock())
