"""What a fake disk is made of: directories, files, open files and locks in memory.

Only `fake_disk` makes them: it records what is done to them, and decides what fails and what a power loss leaves.
"""

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.broker.store.disk import Buffer
from cometmq.broker.store.power_loss import PAGE

if TYPE_CHECKING:
    from cometmq.broker.store.fake_disk import FakeDisk


@dataclass(slots=True)
class Directory:
    """A directory in memory."""

    inode: int
    entries: dict[str, "Directory | Node"] = field(default_factory=dict)


class Node:
    """A file in memory. Pages that were never written take none."""

    __slots__ = ("inode", "memory", "seen", "size")

    def __init__(self, inode: int, size: int) -> None:
        self.inode = inode
        #: The content as it was last seen, while a writable view is out.
        self.seen: bytearray | None = None
        self.resize(size)

    def resize(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class FakeFile:
    """An open file of a fake disk."""

    def __init__(self, disk: "FakeDisk", path: str, node: Node) -> None:
        self.path = path
        self.size = node.size
        self._disk = disk
        self._node = node
        self._life = disk.life
        self._closed = False

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check()
        data = b"".join(buffers)
        if offset < 0 or offset + len(data) > self.size:
            raise OSError(errno.EFBIG, f"{len(data)} bytes at {offset} do not fit a file of {self.size}", self.path)
        self._disk._write(self.path, self._node, offset, data)

    def read(self, offset: int, length: int) -> bytes:
        self._check()
        self._disk._meet("read", self.path)
        return bytes(self._node.memory[offset : min(offset + length, self.size)])

    def view(self) -> memoryview:
        self._check()
        return memoryview(self._node.memory)[: self.size].toreadonly()

    def writable_view(self) -> memoryview:
        self._check()
        self._disk._watch(self._node)
        return memoryview(self._node.memory)[: self.size]

    def reserve(self, offset: int, length: int) -> bool:
        self._check()
        return self._disk._reserve(self.path, self._node, offset, length)

    def next_data(self, offset: int) -> int:
        self._check()
        memory = self._node.memory
        while offset < self.size:
            page = memory[offset : min((offset // PAGE + 1) * PAGE, self.size)]
            if page.count(0) != len(page):
                return offset
            offset += len(page)
        return self.size

    def sync(self) -> None:
        self._check()
        self._disk._sync(self.path, self._node)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.open_files -= 1

    def _check(self) -> None:
        if self._closed or self._life != self._disk.life:
            raise OSError(errno.EBADF, "the file was closed, or its process was killed", self.path)


class FakeLock:
    """A lock of a fake disk."""

    def __init__(self, disk: "FakeDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        if self._disk.locks.get(self._path) is self:
            del self._disk.locks[self._path]
