"""Calling the user's function for messages: a coroutine on the loop, a plain function in a thread.

Nothing is settled here: what the function raised is told to the consumer, which knows what to do about it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cometmq.client.message import ReceivedMessage

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]
BatchHandler = Callable[[Sequence[ReceivedMessage]], Awaitable[None] | None]


class HandlerCancelled(Exception):
    """Raised when a handler ended by a cancellation that was not meant for it: of something that it waited for."""


class Handling:
    """The handler of a consumer. Mutable state: the threads, once a plain function was called."""

    def __init__(
        self, handler: Handler | None, batch_handler: BatchHandler | None, *, batch_size: int, threads: int, name: str
    ) -> None:
        if handler is not None and batch_handler is not None:
            raise ValueError("give a handler or a batch_handler, not both")
        function: Callable[[Any], Any] | None = batch_handler or handler
        self._function = function
        self._takes_many = batch_handler is not None
        #: The most messages of one call.
        self.batch_size = batch_size if self._takes_many else 1
        self._is_coroutine = is_coroutine(function)
        self._threads, self._name = threads, name
        self._pool: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        """Whether there is a handler; else messages are handed out by iteration."""
        return self._function is not None

    async def __call__(self, messages: list[ReceivedMessage]) -> None:
        """Call it. What it raises is raised."""
        assert self._function is not None
        argument = messages if self._takes_many else messages[0]
        try:
            if self._is_coroutine:
                await self._function(argument)
                return
            result = await asyncio.get_running_loop().run_in_executor(self._opened_pool(), self._function, argument)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Else a worker would end here, and one by one all of them.
            raise HandlerCancelled("the handler waited for something that was cancelled") from None

    def _opened_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"{self._name}-handler")
        return self._pool

    def close(self) -> None:
        """Let the threads go: those that are still busy end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def is_coroutine(function: object) -> bool:
    """Whether a handler is awaited; else it runs in a thread."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
