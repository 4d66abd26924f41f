"""Tasks that wait until there is something to do, in the order in which they came.

A wake-up is an invitation to look again, not a promise: who is woken looks, and waits once more when there is nothing.
It does not get lost with a task that was cancelled meanwhile: the next one gets it. Plain state but for the futures.
"""

import asyncio
from collections import deque


class Waiters:
    """The tasks that wait for one thing."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self, *, first: bool = False) -> None:
        """Return when it may be worth looking again; `first`: before all others, for who was woken in vain."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._futures.appendleft(future)
        else:
            self._futures.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._futures.remove(future)  # who waits with a timeout, again and again, leaves nothing behind
            else:
                self.wake()
            raise

    def wake(self) -> None:
        """One of them looks again."""
        futures = self._futures
        while futures:
            future = futures.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Everybody looks again."""
        while self._futures:
            self.wake()
