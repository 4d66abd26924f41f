"""The order of writes: what was sent first goes out first, also when it had to wait for a route or a connection.

Without this, a message that waits for a connection would be overtaken by one that comes just when it is open. Who waits
stands in a line, by topic while the route is asked for and then by broker; all of a line wait for the same thing at
once, and go on one after the other.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
from types import TracebackType
from typing import Self


class Place:
    """A place in a line. Whatever it waits for, `turn` comes before what must be done in order."""

    __slots__ = ("_key", "_order", "_waiter")

    def __init__(self, order: "WriteOrder", key: Hashable) -> None:
        self._order = order
        self._key = key
        self._waiter: asyncio.Future[None] | None = None

    async def turn(self) -> None:
        """Returns when all who came before have gone."""
        line = self._order.lines[self._key]
        while line[0] is not self:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        lines = self._order.lines
        line = lines.get(self._key)
        if line is None:
            line = lines[self._key] = deque()
        line.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lines = self._order.lines
        line = lines[self._key]
        if line[0] is self:
            line.popleft()
            if line:
                line[0].wake()
        else:
            line.remove(self)  # it gave up while it waited
        if not line:
            del lines[self._key]


class WriteOrder:
    """The lines of one producer. Empty means that nobody waits, and whoever comes may write at once."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: dict[Hashable, deque[Place]] = {}

    def place(self, key: Hashable) -> Place:
        return Place(self, key)
