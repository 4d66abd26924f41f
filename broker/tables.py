"""Tables that are saved by time: consumer offsets, delay offsets and the like.

They change thousands of times a second, and a crash may cost the last seconds of them; so they are written in a thread,
when their interval is over and something has changed, one write at a time. What a table means is not known here. Topics
and groups are not saved this way: they are on disk before a request that changed them is answered.

The scheduled `persist()` calls of RocketMQ's BrokerController.
"""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from cometmq.broker.store.config_files import ConfigFile
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.runner import Handle, Runner
from cometmq.protocol.bodies.base import Body

_T = TypeVar("_T", bound=Body)

#: The thread of all tables: a slow disk delays the next table, never a flush of the log.
LANE = "tables"

log = logging.getLogger(__name__)


class SavedTable(Generic[_T]):
    """A table and its file.

    `snapshot` is called on the owner's thread and gives a value that no longer changes; encoding and writing are done
    in the thread. `interval` gives seconds and is asked again each time: it may change while the broker runs.
    """

    def __init__(
        self,
        file: ConfigFile[_T],
        snapshot: Callable[[], _T],
        runner: Runner,
        interval: Callable[[], float],
        changes: Callable[[], int] = int,
    ) -> None:
        """`changes` is for tables that count their changes: it gives another number when there was one."""
        self._changes = changes
        self._seen = changes()
        self._file = file
        self._snapshot = snapshot
        self._runner = runner
        self._interval = interval
        self._timer: Handle | None = None
        self._errand: Errand[None] | None = None
        #: Something has changed since the last snapshot. Hot paths set it.
        self.is_dirty = False
        #: Writes that have failed since the start, and what the last one died of; None once one has worked again.
        self.failures = 0
        self.last_error: Exception | None = None

    def start(self) -> None:
        """From now on it is saved by time."""
        if self._timer is None:
            self._timer = self._runner.call_later(self._interval(), self._tick)

    def save_soon(self) -> None:
        """Begins a write now unless one is running or nothing has changed."""
        self._look()
        if self._errand is not None or not self.is_dirty:
            return
        table = self._snapshot()
        self.is_dirty = False
        self._errand = Errand(self._runner, lambda: self._file.save(table), self._saved, lane=LANE)

    def save_now(self) -> None:
        """Returns when everything is on the disk. Raises what the write raised: at a close nobody tries again."""
        self._finish_errand()
        self._look()
        if not self.is_dirty:
            return
        try:
            self._file.save(self._snapshot())
        except Exception as error:
            self._failed(error)
            raise
        self.is_dirty = False
        self.last_error = None

    def close(self) -> None:
        """Stops the timer and saves what has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.save_now()

    def _look(self) -> None:
        if (changes := self._changes()) != self._seen:
            self._seen = changes
            self.is_dirty = True

    def _finish_errand(self) -> None:
        if self._errand is not None:
            self._errand.finish()

    def _tick(self) -> None:
        self._timer = self._runner.call_later(self._interval(), self._tick)
        self.save_soon()

    def _saved(self, _: None, error: Exception | None) -> None:
        self._errand = None
        if error is None:
            self.last_error = None
        else:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        # The next interval tries again.
        self.is_dirty = True
        self.failures += 1
        self.last_error = error
        log.error("%s could not be saved (failure %d): %s", self._file.path, self.failures, error)
