"""A log on disk as files of one size, each named by the offset of its first byte: RocketMQ's MappedFileQueue.

Commit log, consume queues and their extensions are such logs. Here live names, opening, making files ahead, and when a
file that somebody still reads may go; what the bytes mean, write positions and flushed positions do not.

One thread owns a log. Others may use a file between its `hold` and `release`, and run `prepare`.
"""

import logging
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence

from cometmq.broker.store.disk import Buffer, Disk, DiskFile
from cometmq.broker.store.errors import FileLengthWrong, FileNameWrong, SyncFailed

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]{1,20}")

#: Guards the moment of opening: a reader's thread may come when the owner's just opens the file too.
_opening = threading.Lock()


def file_name(start: int) -> str:
    """The name of the file that begins at this offset: 20 digits."""
    return f"{start:020d}"


def sync_folder(disk: Disk, path: str) -> None:
    """`sync_dir` that tells its failure from others."""
    try:
        disk.sync_dir(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error


class LogFile:
    """One file of a log. It opens when it is used first, and again after `close`."""

    __slots__ = ("_closing", "_disk", "_file", "_gone", "_holds", "path", "retired", "size", "start")

    def __init__(self, disk: Disk, path: str, start: int, size: int, gone: Callable[["LogFile"], None]) -> None:
        self.path = path
        self.start = start
        self.size = size
        #: Marked for removal: it takes no new readers, and goes with the last one.
        self.retired = False
        self._disk = disk
        self._file: DiskFile | None = None
        self._holds = 0
        self._closing = False
        self._gone = gone

    def __repr__(self) -> str:
        state = " retired" if self.retired else ""
        return f"<LogFile {self.path}{state} holds={self._holds}>"

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.start + self.size

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def holds(self) -> int:
        return self._holds

    # Content. Positions are counted from the start of the file.

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        (self._file or self._open()).write(position, buffers)

    def read(self, position: int, length: int) -> bytes:
        return (self._file or self._open()).read(position, length)

    def view(self) -> memoryview:
        return (self._file or self._open()).view()

    def writable_view(self) -> memoryview:
        return (self._file or self._open()).writable_view()

    def reserve(self, position: int, length: int) -> bool:
        return (self._file or self._open()).reserve(position, length)

    def next_data(self, position: int) -> int:
        return (self._file or self._open()).next_data(position)

    def sync(self) -> None:
        file = self._file or self._open()
        try:
            file.sync()
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, self.path) from error

    def modified(self) -> float:
        """When it was last written, in seconds since 1970: what retention goes by."""
        return self._disk.modified(self.path)

    def _open(self) -> DiskFile:
        with _opening:
            if self._file is None:
                file = self._disk.open(self.path)
                if file.size != self.size:
                    file.close()
                    raise FileLengthWrong(self.path, file.size, self.size)
                self._file = file
            return self._file

    # Who uses it

    def hold(self) -> bool:
        """Keeps the file until `release`. False when it is on its way out: then nothing is held."""
        if self.retired:
            return False
        self._holds += 1
        return True

    def release(self) -> None:
        """Ends one `hold`. The last one takes a retired file away and closes one that `close` left open."""
        if self._holds <= 0:
            raise RuntimeError(f"{self!r} is not held")
        self._holds -= 1
        if self._holds == 0:
            if self.retired:
                try:
                    self._remove()
                except OSError as error:
                    # Nothing that a reader could do about: who retired it tries again.
                    log.error("cannot remove %s: %s", self.path, error)
            elif self._closing:
                self.close()

    def retire(self, *, force: bool = False) -> bool:
        """Marks the file for removal, and removes it when nobody holds it, or by force. True when it is gone.

        By force a reader keeps what it mapped before; a new read of the file finds it missing.
        """
        self.retired = True
        if self._holds > 0 and not force:
            return False
        self._remove()
        return True

    def close(self) -> None:
        """Gives the descriptor back; the next use opens the file again. While it is held, it stays open."""
        if self._holds > 0:
            self._closing = True
            return
        self._closing = False
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _remove(self) -> None:
        # Unlinked first: should that fail, the file is still one of the log's.
        self._disk.unlink(self.path)
        if self._holds == 0:
            self.close()
        self._gone(self)


class LogFiles:
    """The files of one log, in order. `durable` ones survive a power loss as soon as they are made."""

    __slots__ = ("_disk", "_lock", "_prepared", "_starts", "durable", "file_size", "files", "folder")

    def __init__(self, disk: Disk, folder: str, file_size: int, *, durable: bool = False) -> None:
        if file_size <= 0:
            raise ValueError(f"files of {file_size} bytes")
        self.folder = folder
        self.file_size = file_size
        self.durable = durable
        #: Sorted by start. A retired file stays first until its last reader is gone.
        self.files: list[LogFile] = []
        self._starts: list[int] = []
        self._disk = disk
        self._prepared: LogFile | None = None
        # Between the owner and the thread that prepares.
        self._lock = threading.Lock()

    def load(self) -> None:
        """Finds the files of the folder; opens none. Raises where RocketMQ would refuse to start.

        An empty last file is what a crash leaves between making a file and giving it its length: it is removed. Of a
        log that is not durable a power loss may leave any file that was never synced so: then there is a `gap`, and the
        owner has to make the rest anew.
        """
        names = [name for name in self._disk.list_dir(self.folder) if not self._disk.is_dir(f"{self.folder}/{name}")]
        files: list[LogFile] = []
        for index, name in enumerate(names):
            path = f"{self.folder}/{name}"
            length = self._disk.size(path)
            if length == 0 and (index == len(names) - 1 or not self.durable):
                log.warning("%s is empty, as a crash leaves a new file: removed", path)
                self._disk.unlink(path)
                continue
            if not _NAME.fullmatch(name):
                raise FileNameWrong("the name is not the offset of a file", path=path)
            if length != self.file_size:
                raise FileLengthWrong(path, length, self.file_size)
            start = int(name)
            if start % self.file_size:
                raise FileNameWrong(f"the offset is no multiple of the file size {self.file_size}", path=path)
            if files and start == files[-1].start:
                raise FileNameWrong("two files begin at this offset", path=path, offset=start)
            files.append(LogFile(self._disk, path, start, self.file_size, self._forget))
        self._set(files)

    # Looking

    @property
    def first(self) -> LogFile | None:
        """The oldest file that is not on its way out."""
        return next((file for file in self.files if not file.retired), None)

    @property
    def last(self) -> LogFile | None:
        return self.files[-1] if self.files else None

    def find(self, offset: int) -> LogFile | None:
        """The file that holds this byte; None when there is none."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        file = self.files[index]
        return file if offset < file.end else None

    def gap(self) -> tuple[int, int] | None:
        """The first stretch between two files that no file covers, from and to."""
        for before, after in zip(self.files, self.files[1:], strict=False):
            if before.end != after.start:
                return before.end, after.start
        return None

    # Making

    def create(self, start: int) -> LogFile:
        """The next file, which begins at `start`: the prepared one, or a new one."""
        self._check_start(start)
        file = self.take_prepared(start) or self._make(start)
        self._set([*self.files, file])
        # Made by the thread while we made ours? Both are the same file on disk.
        if (twin := self.take_prepared(start)) is not None:
            twin.close()
        return file

    def prepare(self, start: int, *, reserve: int = 0) -> None:
        """Makes a file ahead, with its first blocks. May run in a thread; `create` of the same start then takes it."""
        file = self._make(start)
        if reserve:
            file.reserve(0, reserve)
        with self._lock:
            if self._starts and self._starts[-1] >= start:
                # `create` did not wait for us: the file is one of the log's already.
                former: LogFile | None = file
            else:
                former, self._prepared = self._prepared, file
        if former is None:
            return
        if former.start == start:
            former.close()
        else:
            former.retire()

    def take_prepared(self, start: int) -> LogFile | None:
        """The prepared file, if it begins there."""
        with self._lock:
            file = self._prepared
            if file is None or file.start != start:
                return None
            self._prepared = None
            return file

    @property
    def prepared(self) -> LogFile | None:
        return self._prepared

    def drop_prepared(self) -> None:
        """Removes the file that was made ahead, as a clean shutdown does."""
        with self._lock:
            file, self._prepared = self._prepared, None
        if file is not None:
            file.retire()

    def _check_start(self, start: int) -> None:
        if start < 0 or start % self.file_size:
            raise ValueError(f"no file begins at {start}: the file size is {self.file_size}")
        if self._starts and start <= self._starts[-1]:
            raise ValueError(f"a file at {start} would not come after {self.files[-1].path}")

    def _make(self, start: int) -> LogFile:
        path = f"{self.folder}/{file_name(start)}"
        if self.durable:
            self._disk.make_dirs(self.folder, sync=True)
        opened = self._disk.open(path, size=self.file_size, create=True)
        if opened.size != self.file_size:
            opened.close()
            raise FileLengthWrong(path, opened.size, self.file_size)
        file = LogFile(self._disk, path, start, self.file_size, self._forget)
        file._file = opened
        if self.durable:
            try:
                # The length too: a file that is short after a power loss would keep RocketMQ from starting.
                file.sync()
                sync_folder(self._disk, self.folder)
            except BaseException:
                file.close()
                raise
        return file

    # Removing

    def drop_after(self, offset: int) -> list[str]:
        """Removes the files that begin after this offset, last first. Returns their paths.

        A file that begins exactly there stays: the log goes on in it.
        """
        self.drop_prepared()
        dropped = []
        while self.files and self.files[-1].start > offset:
            file = self.files[-1]
            file.retire(force=True)
            dropped.append(file.path)
        return dropped

    def drop_first(self, *, force: bool = False) -> bool:
        """Retires the oldest file. False when a reader still has it: it hangs on as the first one, and goes later."""
        if not self.files:
            return False
        return self.files[0].retire(force=force)

    def destroy(self) -> None:
        """Removes the log with its folder, readers or not."""
        self.drop_prepared()
        for file in reversed(list(self.files)):
            file.retire(force=True)
        self._disk.remove_tree(self.folder)

    def close(self) -> None:
        """Closes every file; the log can be used on.

        A file that hangs on its readers stays: when they let it go the directory may be somebody else's.
        """
        for file in self.files:
            file.retired = False
            file.close()
        prepared = self._prepared
        if prepared is not None:
            prepared.close()

    def _forget(self, file: LogFile) -> None:
        if file in self.files:
            self._set([other for other in self.files if other is not file])
        if self.durable:
            # One by one: if a power loss brought back some of several removed files, the log would have a hole.
            sync_folder(self._disk, self.folder)

    def _set(self, files: list[LogFile]) -> None:
        # Replaced, never changed: somebody may be walking over the old list.
        starts = [file.start for file in files]
        with self._lock:
            self.files = files
            self._starts = starts
