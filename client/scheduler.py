"""Work that comes back: each piece is a task that its owner ends and awaits.

What a round raises is logged, and the next round comes all the same: a client goes on while a server is away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


class Scheduler:
    """The tasks of a client or consumer. `close` leaves none behind."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run something once. What it raises is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    def every(self, period: float, work: Work, name: str, *, first: float | None = None) -> None:
        """Run something again and again: `first` seconds from now, then `period` seconds after each end."""
        self.spawn(self._repeat(period if first is None else first, period, work, name), name)

    async def _repeat(self, first: float, period: float, work: Work, name: str) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await work()
            except Exception:
                log.exception("%s failed; it is tried again in %g s", name, period)
            await asyncio.sleep(period)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """End all tasks and wait until they have ended. The task that closes is spared."""
        self._is_closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
