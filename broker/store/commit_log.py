"""The commit log: one stream of records in files of one size, and where its end is.

Here live the files, the place of the next append, blank records at a file's end, blocks and files made ahead of the
writer, and ranges for readers. What is appended is made in `puts`; what records mean, and who may read how far, is
known elsewhere (`scan`, `tickets.Watermarks`). RocketMQ's CommitLog, its lower half.

One thread owns the log. Written bytes are visible to every reader at once: maps and writes share one page cache.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.broker.store.disk import Buffer, Disk
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.errors import FileMissing, StoreError, SyncFailed
from cometmq.broker.store.log_files import LogFile, LogFiles, file_name
from cometmq.broker.store.runner import Runner
from cometmq.broker.store.tickets import Watermarks

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

_PAGE: Final = 4096
_ZEROS: Final = bytes(_PAGE)
#: The first step of blocks that are reserved: an idle broker takes no more than this.
_FIRST_STEP: Final = 1 << 20


class Range:
    """Stretches of the log inside one file. It keeps the file until `release`, or the end of a `with`."""

    __slots__ = ("_ends", "_file", "_starts", "hot", "start")

    def __init__(self, file: LogFile, starts: Sequence[int], ends: Sequence[int], hot: bool) -> None:
        """Where its stretches begin and end are physical offsets, in order. The file must be held already."""
        self._file: LogFile | None = file
        self._starts = starts
        self._ends = ends
        #: Physical offset of its first byte.
        self.start = starts[0]
        #: Whether it is taken to be in memory. A cold range should be read in a thread.
        self.hot = hot

    def __enter__(self) -> "Range":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Range {self.start}+{self.length}{' hot' if self.hot else ''}>"

    @property
    def length(self) -> int:
        """How many bytes it holds."""
        return sum(self._ends) - sum(self._starts)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Physical offsets, from and to."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def file(self) -> LogFile:
        if self._file is None:
            raise RuntimeError(f"{self!r} was released")
        return self._file

    def buffers(self) -> list[memoryview]:
        """Slices of the file's map: nothing is copied. They stay good after `release`, the place on disk may not."""
        file = self.file
        view, base = file.view(), file.start
        return [view[start - base : end - base] for start, end in zip(self._starts, self._ends, strict=True)]

    def read(self) -> bytes:
        """A copy, read from the file. May block and may run in any thread: for cold ranges."""
        file = self.file
        places = zip(self._starts, self._ends, strict=True)
        parts = [file.read(start - file.start, end - start) for start, end in places]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Let the file go. Nothing happens the second time."""
        file, self._file = self._file, None
        if file is not None:
            file.release()


class CommitLog:
    """The files of the log and its end. Its mutable state: the files, and what was made ahead."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        file_size: int,
        marks: Watermarks,
        *,
        runner: Runner,
        reserve_step: int = 16 << 20,
        tight: Callable[[], None] | None = None,
        unsafe: Callable[[SyncFailed], object] | None = None,
    ) -> None:
        self.files = LogFiles(disk, folder, file_size, durable=True)
        self.file_size = file_size
        self.folder = folder
        self._disk = disk
        self._marks = marks
        self._runner = runner
        self._max_step = reserve_step
        #: Told when blocks could not be reserved: the disk is nearly full.
        self._tight = tight
        #: Told when a new file could not be saved.
        self._unsafe = unsafe
        self._reserved = 0
        self._step = min(_FIRST_STEP, reserve_step)
        self._reserving = False
        self._preparing = -1
        self._reserve_errand: Errand[bool] | None = None
        self._prepare_errand: Errand[None] | None = None
        self._closed = False

    # Looking

    def load(self) -> None:
        """Find the files. A hole between two of them is an error: what comes after it could never be reached."""
        self.files.load()
        hole = self.files.gap()
        if hole is not None:
            name = f"{self.folder}/{file_name(hole[0])}"
            raise FileMissing(f"the commit log has no file from offset {hole[0]} to {hole[1]}", path=name)

    @property
    def min_offset(self) -> int:
        """Where the log begins: the start of the first file that is not on its way out."""
        first = self.files.first
        return self._marks.appended if first is None else first.start

    @property
    def max_offset(self) -> int:
        """Where the next record will stand."""
        return self._marks.appended

    @property
    def confirmed_offset(self) -> int:
        """Up to here the log may be shown to anybody."""
        return self._marks.confirmed

    def is_hot(self, offset: int, memory: int) -> bool:
        """Whether a record there is taken to be in memory: no further from the end than `memory` bytes."""
        return self._marks.appended - offset <= memory

    def read(self, start: int, length: int, *, hot: bool = True) -> Range | None:
        """Up to `length` bytes from `start`, not beyond the file's end nor the log's. None when nothing is there."""
        end = self._marks.appended
        if start >= end:
            return None
        file = self.files.find(start)
        if file is None or not file.hold():
            return None
        return Range(file, [start], [min(start + length, file.end, end)], hot)

    def record(self, start: int, length: int, *, hot: bool = True) -> Range | None:
        """Exactly `length` bytes from `start`, or None: what a queue unit or an index entry points to."""
        found = self.read(start, length, hot=hot)
        if found is not None and found.length != length:
            found.release()
            return None
        return found

    def grown(self, offset: int) -> "asyncio.Future[None]":
        """Done as soon as the log can be read beyond `offset`."""
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._marks.when_grown(offset, lambda: None if future.done() else future.set_result(None))
        return future

    # Growing

    def place(self) -> LogFile | None:
        """The file in which the next record stands, when there is one."""
        return self.files.find(self._marks.appended)

    def file_at(self, start: int) -> LogFile:
        """The file that begins at `start`, made now if it was not made ahead. OSError when it cannot be made."""
        try:
            return self.files.find(start) or self.files.create(start)
        except SyncFailed as error:
            self._tell_unsafe(error)
            raise

    def _tell_unsafe(self, error: SyncFailed) -> None:
        if self._unsafe is not None:
            self._unsafe(error)

    def erase(self, file: LogFile, position: int, end: int) -> None:
        """Zeros over what a failed or torn write left: recovery must never take it for a record.

        Only pages that hold something are written, so that it works on a full disk too and costs no blocks.
        """
        while position < end:
            step = min(end - position, _PAGE - position % _PAGE)
            if file.read(position, step) != _ZEROS[:step]:
                file.write(position, [_ZEROS[:step]])
            position += step

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of another log, at exactly its end: what a replica gets. They need not end with a record.

        An empty log begins at the start of the file that `offset` lies in.
        """
        if not self.files.files and offset:
            self.files.create(offset - offset % self.file_size)
            self._marks.reset(offset)
        if offset != self._marks.appended:
            raise StoreError(f"bytes for offset {offset} do not fit a log that ends at {self._marks.appended}")
        view = memoryview(data)
        while view:
            file = self.place() or self.file_at(offset)
            part = view[: file.end - offset]
            file.write(offset - file.start, [part])
            offset += len(part)
            self._marks.appended = offset
            view = view[len(part) :]
        self.look_ahead()

    def look_ahead(self) -> None:
        """After an append: blocks for the next writes, and the next file when this one is half full. In a thread."""
        end = self._marks.appended
        file = self.files.find(end)
        if file is None:
            return
        if self._reserved - end < self._step // 2 and not self._reserving and self._step:
            self._reserve(file, max(self._reserved, end))
        if end - file.start > self.file_size // 2 and self._preparing != file.end and self._prepare_errand is None:
            self._prepare(file.end)

    def _reserve(self, file: LogFile, start: int) -> None:
        if start >= file.end or self._closed or not file.hold():
            return
        if start < file.start:
            start = self._marks.appended
        length = min(self._step, file.end - start)
        self._reserving = True

        def done(given: bool | None, error: Exception | None) -> None:
            self._reserve_errand = None
            file.release()
            self._reserving = False
            self._reserved = start + length
            # The busier the log, the larger the steps.
            self._step = min(self._step * 2, self._max_step)
            if error is not None:
                log.warning("cannot reserve blocks for %s: %s", file.path, error)
            if given is False and self._tight is not None:
                self._tight()

        self._reserve_errand = Errand(
            self._runner, lambda: file.reserve(start - file.start, length), done, lane="prepare"
        )

    def _prepare(self, start: int) -> None:
        self._preparing = start
        if self._closed or self.files.find(start) is not None:
            return
        first_step = self._step

        def done(_: None, error: Exception | None) -> None:
            self._prepare_errand = None
            if isinstance(error, SyncFailed):
                self._tell_unsafe(error)
            elif error is not None:
                # The append that needs the file will try again, and tell.
                log.warning("cannot make %s/%s ahead: %s", self.folder, file_name(start), error)

        self._prepare_errand = Errand(
            self._runner, lambda: self.files.prepare(start, reserve=first_step), done, lane="prepare"
        )

    # Ending

    def files_between(self, start: int, end: int) -> Sequence[LogFile]:
        """The files with bytes in [start, end)."""
        return [file for file in self.files.files if file.end > start and file.start < end]

    def close(self, *, drop_prepared: bool) -> None:
        """Close the files. A file that was made ahead and not used goes, as at every clean stop."""
        self._closed = True
        for errand in (self._reserve_errand, self._prepare_errand):
            if errand is not None:
                errand.finish()
        if drop_prepared:
            self.files.drop_prepared()
        self.files.close()
