"""Logs that are only appended to, many at a time: what consume queues, extensions and batch queues have in common.

What a turn appends is kept in memory and written once, at the end of the turn; what was written is synced later, in a
thread if the caller likes. `Upkeep` knows for all logs of a store which of them wait for what, and keeps the number of
open files small: ten thousand queues cost no descriptor until somebody touches them. What the bytes mean is not known
here. RocketMQ's MappedFileQueue has the same positions: appended, wrote, flushed.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

from cometmq.broker.store.disk import Disk
from cometmq.broker.store.log_files import LogFile, LogFiles, sync_folder

#: Of RocketMQ, whatever the machine has: the unit of "least pages".
PAGE_SIZE: Final = 4096
#: How far one looks for what a crash has left behind the end. Reading a hole is not for free: it takes memory.
_WIPE_STEP: Final = 16 * 1024
_ZEROS: Final = bytes(_WIPE_STEP)


class OpenFiles:
    """The files that are open now; the one that was not used for longest is closed when there are too many."""

    __slots__ = ("_files", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # In the order of their last use.
        self._files: dict[LogFile, None] = {}

    def __len__(self) -> int:
        return len(self._files)

    def use(self, file: LogFile) -> LogFile:
        """To be called before each use of a file."""
        files = self._files
        if file in files:
            del files[file]
        elif len(files) >= self.limit:
            oldest = next(iter(files))
            del files[oldest]
            oldest.close()
        files[file] = None
        return file

    def drop(self, file: LogFile) -> None:
        """The file is closed, or on its way out."""
        self._files.pop(file, None)

    def snapshot(self) -> frozenset[LogFile]:
        return frozenset(self._files)

    def close_but(self, kept: frozenset[LogFile]) -> None:
        """Closes the files that came in since the snapshot: after a walk over all queues none stays open for it."""
        for file in [file for file in self._files if file not in kept]:
            del self._files[file]
            file.close()

    def close(self) -> None:
        self.close_but(frozenset())


class Upkeep:
    """What the logs of one store still wait for. One thread owns it, as it owns the logs."""

    __slots__ = ("appended", "disk", "folders", "open_files", "written")

    def __init__(self, disk: Disk, max_open_files: int) -> None:
        self.disk = disk
        self.open_files = OpenFiles(max_open_files)
        #: Logs with bytes that are only in memory.
        self.appended: list[AppendLog] = []
        #: Logs with bytes that were not synced yet.
        self.written: dict[AppendLog, None] = {}
        #: Directories with entries that were not synced yet.
        self.folders: set[str] = set()

    def write_out(self) -> None:
        """Writes what the turn appended, one write a log. What an `OSError` left unwritten waits for the next call."""
        appended = self.appended
        done = 0
        try:
            for log in appended:
                log.write_out()
                done += 1
        finally:
            del appended[:done]

    def begin_flush(self, least_pages: int = 0) -> "Flush":
        """What a flush has to sync: every log with so many dirty pages, or with any for 0."""
        logs = [log for log in self.written if log.is_due(least_pages)]
        flush = Flush(self, logs, self.folders)
        # New names are rare: they go with any flush.
        self.folders = set()
        return flush

    def forget(self, log: "AppendLog") -> None:
        """The log is gone."""
        self.written.pop(log, None)
        if log in self.appended:
            self.appended.remove(log)


class Flush:
    """One round of syncing. `sync` may run in a thread; the owner calls `finish` when it has returned or raised."""

    __slots__ = ("_files", "_folders", "_logs", "_synced", "_upkeep")

    def __init__(self, upkeep: Upkeep, logs: "Iterable[AppendLog]", folders: set[str]) -> None:
        self._upkeep = upkeep
        self._folders = folders
        self._logs = [(log, log.written, log.cuts, log.fresh) for log in logs]
        self._files = [file for log, *_ in self._logs for file in log.unsynced_files() if file.hold()]
        self._synced = False

    def __bool__(self) -> bool:
        """Whether there is anything to sync."""
        return bool(self._files or self._folders)

    def sync(self) -> None:
        """Returns when everything that was written before the flush began is on the disk."""
        for file in self._files:
            try:
                file.sync()
            except FileNotFoundError:
                # A log that was destroyed meanwhile has nothing to lose.
                if not file.retired:
                    raise
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(self._upkeep.disk, folder)
        self._synced = True

    def finish(self) -> bool:
        """Moves the flushed positions, if all went well, and gives the files back. Says whether it did."""
        for file in self._files:
            file.release()
            if file.retired:
                self._upkeep.open_files.drop(file)
            elif file.is_open:
                # The thread may have opened it again.
                self._upkeep.open_files.use(file)
        self._files.clear()
        if not self._synced:
            self._upkeep.folders |= self._folders
            return False
        for log, written, cuts, fresh in self._logs:
            if log.fresh is fresh:
                log.fresh = None
            if cuts != log.cuts:
                # Cut while the sync ran: what stands there now may be younger than the sync.
                continue
            log.flushed = written
            if written == log.written:
                self._upkeep.written.pop(log, None)
        return True


class AppendLog:
    """A log of files that grows at its end. Positions are bytes from the beginning of the log.

    Behind the end there are zeros: what a truncation or a crash leaves there is wiped, so that it can never be taken
    for a part of the log.
    """

    __slots__ = ("_pending", "_upkeep", "cuts", "files", "flushed", "fresh", "written")

    def __init__(self, upkeep: Upkeep, files: LogFiles) -> None:
        self.files = files
        #: Readers see what is before this.
        self.written = 0
        #: And a power loss leaves what is before this.
        self.flushed = 0
        #: How often the log was cut.
        self.cuts = 0
        #: The last file, if a power loss might take it: no flush has seen it yet.
        self.fresh: LogFile | None = None
        self._upkeep = upkeep
        self._pending = bytearray()

    @property
    def start(self) -> int:
        """The first byte that is there; the end when there is none."""
        first = self.files.first
        return self.written if first is None else first.start

    @property
    def end(self) -> int:
        """Where the next byte goes: after what was appended in this turn."""
        return self.written + len(self._pending)

    # Writing

    def _append_bytes(self, data: bytes | bytearray) -> None:
        """Adds to what the turn will write."""
        pending = self._pending
        if not pending:
            self._upkeep.appended.append(self)
        pending += data

    def write_out(self) -> None:
        """Writes what was appended. Only what an `OSError` kept from being written is still pending after it."""
        pending = self._pending
        while pending:
            written = self.written
            file = self._file_for_write(written)
            position = written - file.start
            room = file.size - position
            size = len(pending)
            if size <= room:
                file.write(position, (pending,))
            else:
                size = room
                file.write(position, (bytes(pending[:size]),))
            self._upkeep.written[self] = None
            self.written = written + size
            del pending[:size]

    def _file_for_write(self, position: int) -> LogFile:
        """The file of this byte, made if it is the next one."""
        file = self.files.last
        if file is None or position >= file.end:
            file = self._create(position - position % self.files.file_size)
        return self._upkeep.open_files.use(file)

    def _create(self, start: int) -> LogFile:
        folder = self.files.folder
        folders = self._folders() if self.files.last is None else {folder}
        if self.fresh is not None and not self.fresh.retired:
            # A power loss must not take this file and leave the next one: that would be a hole in the log.
            self.fresh.sync()
            sync_folder(self._upkeep.disk, folder)
        file = self.fresh = self.files.create(start)
        self._upkeep.folders |= folders
        return file

    def _folders(self) -> set[str]:
        """The folder of the queue, and those above it that may be as new as it: topic, kind of queue, store."""
        queue = self.files.folder
        topic = queue.rpartition("/")[0]
        root = topic.rpartition("/")[0]
        return {queue, topic, root, root.rpartition("/")[0] or "/"}

    # Reading

    def read(self, position: int, length: int) -> bytes:
        """What was written there, up to `length` bytes: one read, which ends with the file. Empty where nothing is."""
        length = min(length, self.written - position)
        if length <= 0:
            return b""
        file = self.files.find(position)
        if file is None:
            return b""
        inside = position - file.start
        return self._upkeep.open_files.use(file).read(inside, min(length, file.size - inside))

    # Cutting

    def settle(self, position: int, *, flushed: int | None = None) -> None:
        """After recovery: the log ends here. What the flush of a process that died may have missed is to be synced."""
        self._drop_after(position)
        self.written = position
        self.flushed = position if flushed is None else min(flushed, position)
        if flushed is not None and self.files.files:
            self._upkeep.written[self] = None
            self._upkeep.folders.update(self._folders())

    def cut(self, position: int) -> None:
        """Ends the log here. What was behind it can not come back after the next flush."""
        self._pending.clear()
        if self in self._upkeep.appended:
            self._upkeep.appended.remove(self)
        if position >= self.written:
            return
        self._drop_after(position)
        last = self.files.last
        if last is not None and last.start == position and len(self.files.files) > 1:
            self._drop(last)
            last = self.files.last
        self.cuts += 1
        before, self.written = self.written, position
        self.flushed = min(self.flushed, position)
        if last is not None:
            self._wipe(last, position - last.start, min(before, last.end) - last.start)

    def wipe_rest(self) -> None:
        """Wipes what a crash has left behind the end: pages that were saved after one that was not."""
        file = self.files.last
        if file is None or self.written >= file.end:
            return
        self._upkeep.open_files.use(file)
        begin = end = position = self.written - file.start
        # A file is mostly a hole: look on only as long as there is something.
        while not _ZEROS.startswith(data := file.read(position, _WIPE_STEP)):
            end = position + len(data.rstrip(b"\0"))
            position += _WIPE_STEP
        self._wipe(file, begin, end)

    def _wipe(self, file: LogFile, begin: int, end: int) -> None:
        self._upkeep.open_files.use(file)
        for position in range(begin, end, _WIPE_STEP):
            file.write(position, (_ZEROS[: end - position],))
            self._upkeep.written[self] = None

    def _drop_after(self, position: int) -> None:
        dropped = False
        while (last := self.files.last) is not None and last.start > position:
            if dropped:
                # One by one: if a power loss brought back only the last of them, the log would have a hole.
                self._upkeep.disk.sync_dir(self.files.folder)
            self._drop(last)
            dropped = True

    def _drop(self, file: LogFile) -> None:
        self._upkeep.open_files.drop(file)
        file.retire(force=True)
        self._upkeep.folders.add(self.files.folder)

    def drop_first(self) -> bool:
        """Removes the oldest file. False while a flush still has it."""
        file = self.files.files[0]
        if not self.files.drop_first():
            return False
        self._upkeep.open_files.drop(file)
        self._upkeep.folders.add(self.files.folder)
        return True

    def destroy(self) -> None:
        """Removes the log with its folder."""
        self._pending.clear()
        self._upkeep.forget(self)
        for file in self.files.files:
            self._upkeep.open_files.drop(file)
        self.files.destroy()
        self._upkeep.folders.add(self.files.folder.rpartition("/")[0])
        self.cuts += 1
        self.fresh = None
        self.written = self.flushed = 0

    # Syncing

    def is_due(self, least_pages: int) -> bool:
        """Whether so many pages are dirty. A file that is full is always due."""
        if least_pages <= 0:
            return self.flushed < self.written or self in self._upkeep.written
        size = self.files.file_size
        return (
            self.written // PAGE_SIZE - self.flushed // PAGE_SIZE >= least_pages
            or self.written // size > self.flushed // size
        )

    def unsynced_files(self) -> list[LogFile]:
        """The files with bytes between the flushed and the written position."""
        return [file for file in self.files.files if file.end > self.flushed and file.start <= self.written]
