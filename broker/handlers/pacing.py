"""Long answers without a stall: a handler that walks over thousands of queues pauses every few milliseconds.

Sends and pulls wait no longer than one slice for an operator's question. Reads that have to come from the disk go
through a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeVar

from cometmq.broker.store.commit_log import Range
from cometmq.broker.store.runner import Runner
from cometmq.broker.store.steps import Steps
from cometmq.protocol.bodies.base import Body as JsonBody
from cometmq.remoting.dispatch import Body

_T = TypeVar("_T")

#: Seconds that a handler may keep the loop.
SLICE: Final = 0.004
#: Entries of a table that are encoded on the loop, at 13 us each.
FEW: Final = 300


async def paced(items: Iterable[_T]) -> AsyncIterator[_T]:
    """The items, with a pause whenever the loop was kept for a slice. What is walked over must not change meanwhile."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SLICE
    for item in items:
        if loop.time() >= end:
            await asyncio.sleep(0)
            end = loop.time() + SLICE
        yield item


async def run_paced(steps: Steps[_T]) -> _T:
    """All steps of a long read, with pauses."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SLICE
    try:
        while True:
            next(steps)
            if loop.time() >= end:
                await asyncio.sleep(0)
                end = loop.time() + SLICE
    except StopIteration as over:
        value: _T = over.value
        return value
    finally:
        steps.close()


async def in_thread(runner: Runner, work: Callable[[], _T], *, lane: str = "read") -> _T:
    """What `work` gives, done in a thread of the store's runner."""
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def done(value: _T | None, error: Exception | None) -> None:
        if future.done():  # whoever waited was cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    runner.in_thread(work, done, lane=lane)
    return await future


async def body_of(runner: Runner, ranges: list[Range]) -> Body:
    """The bytes of ranges, which are released: slices of the log where it is in memory, else read in a thread."""
    try:
        if all(found.hot for found in ranges):
            return [buffer for found in ranges for buffer in found.buffers()]
        return await in_thread(runner, lambda: b"".join(found.read() for found in ranges))
    finally:
        for found in ranges:
            found.release()


async def encoded(runner: Runner, body: JsonBody, entries: int) -> bytes:
    """The JSON of a body; of one with many entries it is made in a thread."""
    if entries <= FEW:
        return body.encode()
    return await in_thread(runner, body.encode, lane="encode")
