"""Work in a thread that a close can wait for.

A runner brings the result back in a later turn. At a close there is no later turn: whoever closes calls `finish`, which
does the work itself when no thread has begun with it, waits for the thread when one has, and delivers the result now.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cometmq.broker.store.runner import Done, Runner

_T = TypeVar("_T")


class Errand(Generic[_T]):
    """One piece of work; `done(value, error)` is called exactly once, on the owner's thread."""

    __slots__ = ("_begun", "_done", "_error", "_lock", "_over", "_value", "_work")

    def __init__(self, runner: Runner, work: Callable[[], _T], done: Done[_T], *, lane: str) -> None:
        self._work = work
        self._done: Done[_T] | None = done
        self._value: _T | None = None
        self._error: Exception | None = None
        self._begun = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        runner.in_thread(self._run, self._back, lane=lane)

    def finish(self) -> None:
        """See to it that it is over, and its result delivered, before this returns."""
        self._run()
        self._over.wait()
        self._back(None, None)

    def _run(self) -> None:
        with self._lock:
            if self._begun:
                return
            self._begun = True
        try:
            self._value = self._work()
        except Exception as error:
            self._error = error
        finally:
            self._over.set()

    def _back(self, _: None, __: Exception | None) -> None:
        if not self._over.is_set():
            # A close has taken the work over and is still at it.
            return
        done, self._done = self._done, None
        if done is not None:
            done(self._value, self._error)
