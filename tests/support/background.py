"""Work of the tests that keeps processes of its own busy: it goes on while other tests use the rest of the cores."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

_T = TypeVar("_T")


#: Pieces at once: more would only wait for each other.
AT_ONCE = 2


class Background:
    """Pieces of work, begun in the order of `start`.

    Work looks at `is_over` while it waits: when the run of the tests ends early, its processes are to end, too.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self.is_over = threading.Event()

    def start(self, work: Callable[[], _T]) -> "Future[_T]":
        return self._pool.submit(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_over.set()
        self._pool.shutdown(cancel_futures=True)
