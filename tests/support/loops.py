"""Runs a coroutine test on each kind of event loop, and looks afterwards whether it left anything behind.

`each_loop` runs the test on asyncio's loop, on the same in debug mode and on uvloop; `one_loop` on uvloop alone, for
what cannot depend on the loop. A test fails when a task, a file descriptor or an unhandled error of the loop is left.
"""

import asyncio
import functools
import gc
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import psutil
import pytest
import uvloop


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "asyncio-debug": _debug_loop,
    "uvloop": uvloop.new_event_loop,
}

_process = psutil.Process()


class FakeClock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


async def until(condition: Callable[[], Any], what: str = "", seconds: float = 5.0) -> None:
    """Waits for a condition; fails with its name when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {seconds:g} s: {what or inspect.getsource(condition)}")
        await asyncio.sleep(0.002)


def run(loop_name: str, test: Awaitable[None]) -> None:
    """Runs one test to its end and checks that nothing of it is left."""
    errors: list[dict[str, Any]] = []

    async def guarded() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        await test
        me = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() == {me}, f"tasks are left: {asyncio.all_tasks() - {me}}")

    _freeze()
    before = _process.num_fds()
    with asyncio.Runner(loop_factory=FACTORIES[loop_name]) as runner:
        runner.run(guarded())
    gc.collect()
    assert not errors, f"unhandled in the loop: {errors}"
    assert _process.num_fds() <= before, f"{_process.num_fds() - before} file descriptors are left"


@functools.cache
def _freeze() -> None:
    """Leaves what all tests have in common out of the collections after each of them: they are then quick."""
    gc.collect()
    gc.freeze()


Test = Callable[..., Coroutine[Any, Any, None]]


def each_loop(test: Test) -> Callable[..., None]:
    """Makes a coroutine test run on every kind of loop."""
    return _on(test, list(FACTORIES))


def one_loop(test: Test) -> Callable[..., None]:
    """Makes a coroutine test run on uvloop."""
    return _on(test, ["uvloop"])


def _on(test: Test, names: list[str]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: Any, loop_name: str, **kwargs: Any) -> None:
        run(loop_name, test(*args, **kwargs))

    signature = inspect.signature(test)
    parameter = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    wrapper.__signature__ = signature.replace(parameters=[*signature.parameters.values(), parameter])  # type: ignore[attr-defined]
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_name", names)(wrapper)


# A first loop may open descriptors that stay for the life of the process.
for _factory in FACTORIES.values():
    _factory().close()
