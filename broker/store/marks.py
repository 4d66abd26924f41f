"""The two files that say who has the store and whether it was left in order: `lock` and `abort`.

`abort` is there while a store runs, with the process id as text; found at the start, it means that the last end was
unclean and everything must be checked. Beside it RocketMQ keeps `abort.bak` with the former content, empty after a
first start; it marks nothing. `lock` keeps a second process out for as long as the first one lives.

`abort.life`, which RocketMQ does not know, says in which life of the machine the store ran: in the same one no page was
lost, however the process ended.
"""

import logging
import os

from cometmq.broker.store.disk import Disk, DiskLock

log = logging.getLogger(__name__)


class Marks:
    """Lock and abort file of one directory."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.lock_path = f"{root}/lock"
        self.abort_path = f"{root}/abort"
        self.life_path = f"{root}/abort.life"
        self._root = root
        self._disk = disk
        self._lock: DiskLock | None = None

    @property
    def is_locked(self) -> bool:
        """Whether the directory is ours."""
        return self._lock is not None

    def take_lock(self) -> None:
        """Makes the directory ours. Raises `StoreLocked` with the owner's process id when it is somebody else's."""
        if self._lock is None:
            self._disk.make_dirs(self._root, sync=True)
            self._lock = self._disk.lock(self.lock_path)

    def release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    @property
    def unclean(self) -> bool:
        """Whether the last end was unclean. What the file holds does not matter: 4.9 leaves it empty."""
        return self._disk.exists(self.abort_path)

    def unclean_pid(self) -> int | None:
        """The process that was not ended cleanly, where the file tells."""
        if not self.unclean:
            return None
        text = self._disk.read_file(self.abort_path)[:20].strip()
        return int(text) if text.isdigit() else None

    @property
    def same_life(self) -> bool:
        """Whether the machine has run through since the store was started: only the process died."""
        if not self._disk.exists(self.life_path):
            return False
        identity = self._disk.identity(self.lock_path)
        return identity is not None and self._disk.read_file(self.life_path) == identity.encode()

    def set_abort(self, pid: int | None = None) -> None:
        """From now on an end without `clear_abort` is unclean, also by power loss."""
        identity = self._disk.identity(self.lock_path)
        if identity is not None:
            self._disk.write_file(self.life_path, identity.encode(), backup=False)
        first = not self.unclean
        if first:
            self._disk.write_file(f"{self.abort_path}.bak", b"", backup=False)
        self._disk.write_file(self.abort_path, b"%d" % (pid or os.getpid()), backup=not first)

    def clear_abort(self) -> None:
        """The store is in order: all is written, synced and dispatched."""
        self._disk.unlink(self.abort_path)
        self._disk.unlink(self.life_path)
        self._disk.sync_dir(self._root)
