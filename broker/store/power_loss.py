"""What a power loss may leave of a sequence of disk operations. The fake disk records; here the outcome is thrown.

The rules are those that file systems promise and no more: content that was synced is there; of everything else any part
may be. Pages of 4 KiB are whole, old or new (or any state between), but for one that is torn; a new file may still be
empty; entries of a directory that was not synced may be old. A rename happens wholly or not at all.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

PAGE = 4096
ROOT = 1

_ZEROS = bytes(PAGE)
#: Cuts of a sequence of operations: none of them happened, all of them did.
_NONE, _ALL = -1, 2**62


class Change(NamedTuple):
    """An entry of a directory that becomes another file, or none."""

    directory: int
    name: str
    inode: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that was done to the disk.

    Kinds: create, write, view (stores through a writable view, seen later), sync, reserve, entry (a new file or
    directory appears), rename, unlink, sync_dir.
    """

    kind: str
    path: str
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    #: Of a new file its length, -1 for a directory. Of a sync: how many operations had been done when it began.
    size: int = 0
    changes: tuple[Change, ...] = ()
    #: A sync that reported an error: what it should have written will never be safe.
    failed: bool = False


@dataclass(slots=True)
class FileImage:
    """A file: its length and the pages that are not all zero."""

    size: int
    pages: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Image:
    """A whole file system: files and directories by inode."""

    files: dict[int, FileImage] = field(default_factory=dict)
    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})


class _Write(NamedTuple):
    number: int
    offset: int
    data: bytes
    #: Its sync failed.
    doomed: bool
    #: It is on the disk, but waits in line behind a doomed one.
    safe: bool


class _Content:
    """A file on the medium: what is safe, and the writes since."""

    __slots__ = ("image", "length_safe", "writes")

    def __init__(self, image: FileImage, *, length_safe: bool) -> None:
        self.image = image
        self.length_safe = length_safe
        self.writes: list[_Write] = []

    def sync(self, covered: int) -> None:
        """Everything before the operation of this number is safe now, but for what an earlier sync failed on.

        The kernel reports a failed page once and then takes it for clean: a later sync does not save it.
        """
        self.length_safe = True
        self.writes = [
            write if write.doomed or write.number >= covered else write._replace(safe=True) for write in self.writes
        ]
        # Writes stay in order: a safe one behind a doubtful one still comes after it.
        count = 0
        for write in self.writes:
            if not write.safe:
                break
            for page, start, chunk in _chunks(write.offset, write.data):
                _put(self.image.pages, page, start, chunk)
            count += 1
        del self.writes[:count]

    def fail_sync(self, covered: int) -> None:
        self.writes = [
            write if write.safe or write.number >= covered else write._replace(doomed=True) for write in self.writes
        ]


class Medium:
    """Follows the operations, and knows at each moment what is safe."""

    def __init__(self, base: Image) -> None:
        self.position = 0
        self._files = {
            inode: _Content(FileImage(file.size, dict(file.pages)), length_safe=True)
            for inode, file in base.files.items()
        }
        self._directories = {inode: dict(entries) for inode, entries in base.directories.items()}
        #: Changes of entries that are not safe yet, with their numbers.
        self._pending: list[tuple[int, tuple[Change, ...]]] = []

    def advance(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            self._apply(operation)
            self.position += 1

    def _apply(self, operation: Operation) -> None:
        match operation.kind:
            case "create" if operation.size < 0:
                self._directories.setdefault(operation.inode, {})
            case "create":
                known = self._files.get(operation.inode)
                if known is None or known.image.size != operation.size:
                    self._files[operation.inode] = _Content(FileImage(operation.size), length_safe=False)
            case "write" | "view":
                write = _Write(self.position, operation.offset, operation.data, False, False)
                self._files[operation.inode].writes.append(write)
            case "sync" if operation.failed:
                self._files[operation.inode].fail_sync(operation.size)
            case "sync":
                self._files[operation.inode].sync(operation.size)
            case "entry" | "rename" | "unlink":
                self._pending.append((self.position, operation.changes))
            case "sync_dir":
                self._sync_directory(operation.inode)

    def _sync_directory(self, inode: int) -> None:
        # A rename ties two directories: what happened before it in the other one is settled with it.
        tied, settled, left = {inode}, [], []
        for number, changes in reversed(self._pending):
            touched = {change.directory for change in changes}
            if touched & tied:
                tied |= touched
                settled.append(changes)
            else:
                left.append((number, changes))
        for changes in reversed(settled):
            _change(self._directories, changes)
        self._pending = left[::-1]

    def image(self, dice: random.Random) -> Image:
        """The disk as it may look after a power loss now."""
        cut = self._cut(dice)
        directories = {inode: dict(entries) for inode, entries in self._directories.items()}
        for number, changes in self._pending:
            if number <= (dice.choice((_NONE, _ALL)) if cut is None else cut):
                _change(directories, changes)
        cut = self._cut(dice)
        files: dict[int, FileImage] = {}
        found: dict[int, dict[str, int]] = {}
        waiting = [ROOT]
        while waiting:
            inode = waiting.pop()
            if inode in found or inode in files:
                continue
            if inode in directories:
                found[inode] = directories[inode]
                waiting.extend(inode for _, inode in sorted(directories[inode].items(), reverse=True))
            else:
                files[inode] = self._file(self._files[inode], cut, dice)
        return Image(files, found)

    def _cut(self, dice: random.Random) -> int | None:
        """How much of what is not safe has happened: none, all, all up to a moment; None: each part on its own."""
        match dice.randrange(6):
            case 0:
                return _NONE
            case 1:
                return _ALL
            case 2:
                return dice.randrange(self.position + 1)
        return None

    def _file(self, content: _Content, cut: int | None, dice: random.Random) -> FileImage:
        safe = content.image
        if not content.length_safe and (dice.random() < 0.5 if cut is None else cut == _NONE):
            return FileImage(0)
        if not content.writes:
            return FileImage(safe.size, dict(safe.pages))
        dirty: dict[int, list[tuple[_Write, int, bytes]]] = {}
        for write in content.writes:
            for page, start, chunk in _chunks(write.offset, write.data):
                dirty.setdefault(page, []).append((write, start, chunk))
        torn = max(dirty) if cut != _NONE and dice.random() < 0.5 else None
        pages = dict(safe.pages)
        for page, chunks in sorted(dirty.items()):
            until = cut
            if until is None:
                until = dice.choice((_NONE, _ALL, _ALL, dice.choice(chunks)[0].number))
            done = [(start, chunk) for write, start, chunk in chunks if write.safe or write.number <= until]
            if page == torn and done and not content.writes[-1].safe:
                start, chunk = done[-1]
                done[-1] = start, chunk[: dice.randrange(len(chunk) + 1)]
            for start, chunk in done:
                _put(pages, page, start, chunk)
        return FileImage(safe.size, pages)


def _chunks(offset: int, data: bytes) -> Iterable[tuple[int, int, bytes]]:
    """A write cut at the borders of pages: page, position in it, bytes."""
    page, start = divmod(offset, PAGE)
    if start + len(data) <= PAGE:
        if data:
            yield page, start, data
        return
    position = 0
    while position < len(data):
        chunk = data[position : position + PAGE - start]
        yield page, start, chunk
        position += len(chunk)
        page, start = page + 1, 0


def _put(pages: dict[int, bytes], page: int, start: int, chunk: bytes) -> None:
    old = pages.get(page, _ZEROS)
    pages[page] = old[:start] + chunk + old[start + len(chunk) :]


def _change(directories: dict[int, dict[str, int]], changes: tuple[Change, ...]) -> None:
    for directory, name, inode in changes:
        entries = directories.setdefault(directory, {})
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def pages_of(data: bytes | memoryview) -> dict[int, bytes]:
    """The pages of some content that are not all zero."""
    pages = {}
    for page in range(-(-len(data) // PAGE)):
        chunk = bytes(data[page * PAGE : (page + 1) * PAGE])
        if chunk.strip(b"\0"):
            pages[page] = chunk.ljust(PAGE, b"\0")
    return pages


def content_of(size: int, pages: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
    """The pages as (offset, bytes) inside the length."""
    for page, chunk in pages.items():
        if page * PAGE < size:
            yield page * PAGE, chunk[: size - page * PAGE]
