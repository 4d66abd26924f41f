"""Where messages wait for somebody who processes them.

Queues with messages stand in line and take turns; an ordered queue stands in it only while nothing of it is being
processed. With priorities there is a line for each level: a higher one goes first, and every now and then a lower one
all the same. Plain state but for those who wait.
"""

from collections import deque
from typing import Final, Protocol

from cometmq.client.message import ReceivedMessage
from cometmq.client.waiters import Waiters

#: Of so many turns one belongs to a lower level that has messages.
LOWER_TURN: Final = 8


class Source(Protocol):
    """A queue with messages."""

    #: Which level it belongs to; 0 is the first.
    level: int
    ready: deque[ReceivedMessage]
    #: Nothing is taken until what was taken is settled.
    is_ordered: bool
    #: Whether it stands in the line.
    in_line: bool


class Line:
    """The sources with messages, by level."""

    def __init__(self, levels: int = 1) -> None:
        self._levels: list[deque[Source]] = [deque() for _ in range(max(levels, 1))]
        self._waiters = Waiters()
        self._turns = 0

    def __bool__(self) -> bool:
        return any(self._levels)

    def enter(self, source: Source) -> None:
        """A source has messages; nothing happens when it stands in the line already."""
        if source.in_line or not source.ready:
            return
        source.in_line = True
        self._levels[source.level].append(source)
        self._waiters.wake()

    def take(self, most: int) -> tuple[Source, list[ReceivedMessage]] | None:
        """The next messages, all of one source; None when there are none."""
        queue = self._next_level()
        while queue:
            source = queue.popleft()
            source.in_line = False
            ready = source.ready
            if ready:
                if most == 1:
                    taken = [ready.popleft()]
                else:
                    taken = [ready.popleft() for _ in range(min(most, len(ready)))]
                if ready and not source.is_ordered:
                    source.in_line = True
                    queue.append(source)
                    if self._waiters:
                        self._waiters.wake()
                return source, taken
            queue = self._next_level()
        return None

    async def wait(self) -> None:
        """Return when it may be worth looking again."""
        if any(self._levels):
            return
        await self._waiters.wait()

    def wake_all(self) -> None:
        """Everybody looks again: the consumer closes."""
        self._waiters.wake_all()

    def _next_level(self) -> deque[Source]:
        levels = self._levels
        if len(levels) == 1:
            return levels[0]
        waiting = [level for level in levels if level]
        if len(waiting) > 1:
            self._turns += 1
            if self._turns % LOWER_TURN == 0:
                # The lower ones among themselves take turns too.
                return waiting[1 + self._turns // LOWER_TURN % (len(waiting) - 1)]
        return waiting[0] if waiting else levels[0]
