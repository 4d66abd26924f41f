"""A disk in memory that records what is done to it, fails when it is told to, and can lose its power.

Shipped, because users of the store test with it too. `operations` is everything that was done; `crash(seed)` is the
disk as a power loss might leave it, now or after any earlier operation; `kill()` is the death of the process, which
takes nothing that was written. `fail_next`, `slow_next` and `gate` provoke what a real disk does once a year.
"""

import errno
import itertools
import os
import posixpath
import random
import threading
from collections.abc import Mapping

from cometmq.broker.store.clock import Clock, FakeClock
from cometmq.broker.store.disk import LOCK_TEXT, DiskUsage
from cometmq.broker.store.errors import StoreLocked
from cometmq.broker.store.fake_file import Directory, FakeFile, FakeLock, Node
from cometmq.broker.store.faults import Faults, Gate
from cometmq.broker.store.power_loss import (
    PAGE,
    ROOT,
    Change,
    FileImage,
    Image,
    Medium,
    Operation,
    content_of,
    pages_of,
)

GIB = 1024**3


class FakeDisk(Faults):
    """A file system in memory. Paths are absolute; `/` is there."""

    def __init__(
        self, clock: Clock | None = None, image: Image | None = None, modified: Mapping[int, float] | None = None
    ) -> None:
        super().__init__(clock or FakeClock())
        #: Everything that was done to the disk, in order. Its length names a moment: see `crash`.
        self.operations: list[Operation] = []
        #: What `usage` answers.
        self.space = DiskUsage(total=100 * GIB, used=10 * GIB, available=90 * GIB)
        #: How many files are open, and the locks that are held.
        self.open_files = 0
        self.locks: dict[str, FakeLock] = {}
        #: Counts the deaths of the process.
        self.life = 0
        #: Which life of the machine this is.
        self.power = next(_powers)
        self._base = image or Image()
        self._medium = Medium(self._base)
        self._modified = dict(modified or {})
        self._watched: dict[int, Node] = {}
        self._lock = threading.RLock()
        highest = max(itertools.chain([ROOT], self._base.files, self._base.directories))
        self._inodes = itertools.count(highest + 1)
        self._root = self._grow(ROOT)

    # Catastrophes

    def crash(self, seed: int, at: int | None = None) -> "FakeDisk":
        """The disk as a power loss might leave it, now or after the first `at` operations. This one stays as it is.

        Another seed gives another outcome. Moments in rising order are cheapest.
        """
        with self._lock:
            self._look_at_views()
            moment = len(self.operations) if at is None else at
            if moment < self._medium.position:
                self._medium = Medium(self._base)
            self._medium.advance(self.operations[self._medium.position : moment])
            image = self._medium.image(random.Random(f"{seed}/{moment}"))
        return FakeDisk(self.clock, image, self._modified)

    def kill(self) -> None:
        """The process dies: files are closed, locks are free, content stays as it is (and unsynced as it was)."""
        with self._lock:
            self._look_at_views()
            self._watched.clear()
            self.locks.clear()
            self.open_files = 0
            self.life += 1

    # Directories

    def make_dirs(self, path: str, *, sync: bool = False) -> None:
        with self._lock:
            directory, walked = self._root, "/"
            for name in _names(path):
                parent, parent_path = directory, walked
                walked = posixpath.join(walked, name)
                known = directory.entries.get(name)
                if isinstance(known, Node):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), walked)
                if known is None:
                    known = Directory(next(self._inodes))
                    self._record(Operation("create", walked, known.inode, size=-1))
                    self._link("entry", walked, parent, name, known)
                    if sync:
                        self.sync_dir(parent_path)
                directory = known

    def list_dir(self, path: str) -> list[str]:
        found = self._find(path)
        if isinstance(found, Node):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return sorted(found.entries) if found else []

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return self._node(path).size

    def modified(self, path: str) -> float:
        return self._modified[self._node(path).inode]

    def set_modified(self, path: str, seconds: float) -> None:
        """Makes a file look older or younger."""
        self._modified[self._node(path).inode] = seconds

    def sync_dir(self, path: str) -> None:
        self._meet("sync_dir", path)
        with self._lock:
            found = self._find(path)
            if not isinstance(found, Directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._record(Operation("sync_dir", path, found.inode))

    def usage(self, path: str) -> DiskUsage:
        return self.space

    # Files

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> FakeFile:
        self._meet("open", path)
        with self._lock:
            found = self._find(path)
            if isinstance(found, Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if found is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self.make_dirs(posixpath.dirname(_normal(path)))
                found = self._new_file(path, 0)
            if create and size and found.size == 0:
                found.resize(size)
                self._record(Operation("create", path, found.inode, size=size))
            self.open_files += 1
            return FakeFile(self, path, found)

    def read_file(self, path: str) -> bytes:
        self._meet("read", path)
        node = self._node(path)
        return bytes(node.memory[: node.size])

    def write_file(self, path: str, data: bytes, *, backup: bool) -> None:
        """Step by step as the real one, so that the power can go between any two."""
        self._meet("write_file", path)
        self.make_dirs(posixpath.dirname(_normal(path)), sync=True)
        if backup and self.exists(path):
            self._replace(f"{path}.bak", self.read_file(path))
        self._replace(path, data)
        self.sync_dir(posixpath.dirname(_normal(path)))

    def rename(self, old: str, new: str) -> None:
        self._meet("rename", old)
        with self._lock:
            found = self._find(old)
            source, target = self._parent(old), self._parent(new)
            if found is None or source is None or target is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
            old_name, new_name = posixpath.basename(_normal(old)), posixpath.basename(_normal(new))
            del source.entries[old_name]
            target.entries[new_name] = found
            changes = (Change(source.inode, old_name, None), Change(target.inode, new_name, found.inode))
            self._record(Operation("rename", f"{old} -> {new}", found.inode, changes=changes))

    def unlink(self, path: str) -> None:
        self._meet("unlink", path)
        with self._lock:
            found, parent = self._find(path), self._parent(path)
            if isinstance(found, Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if found is not None and parent is not None:
                self._remove(path, parent)

    def remove_tree(self, path: str) -> None:
        with self._lock:
            found, parent = self._find(path), self._parent(path)
            if isinstance(found, Directory):
                for name in sorted(found.entries):
                    inner = posixpath.join(path, name)
                    if isinstance(found.entries[name], Directory):
                        self.remove_tree(inner)
                    else:
                        self.unlink(inner)
            if found is not None and parent is not None:
                self._remove(path, parent)

    def identity(self, path: str) -> str | None:
        found = self._find(path)
        # Another machine's life is another disk here: see `crash`.
        return f"{self.power} {found.inode}" if found is not None else None

    def lock(self, path: str) -> FakeLock:
        with self._lock:
            key = _normal(path)
            if key in self.locks:
                raise StoreLocked(path, os.getpid())
            file = self.open(path, size=len(LOCK_TEXT), create=True)
            file.write(0, [LOCK_TEXT])
            file.close()
            self.locks[key] = lock = FakeLock(self, key)
            return lock

    # To and from the real one

    def load(self, folder: str, at: str) -> None:
        """Copies a real directory into the disk, as something that is safe there."""
        for parent, _, names in os.walk(folder):
            inner = posixpath.normpath(posixpath.join(at, os.path.relpath(parent, folder)))
            self.make_dirs(inner, sync=True)
            for name in names:
                source = os.path.join(parent, name)
                length = os.path.getsize(source)
                file = self.open(f"{inner}/{name}", size=length, create=True)
                with open(source, "rb") as content:
                    for offset, page in content_of(length, pages_of(content.read())):
                        file.write(offset, [page])
                file.sync()
                file.close()
                self.set_modified(f"{inner}/{name}", os.path.getmtime(source))
            self.sync_dir(inner)

    def dump(self, path: str, folder: str) -> None:
        """Writes a directory of the disk to a real one."""
        os.makedirs(folder, exist_ok=True)
        for name in self.list_dir(path):
            inner, target = posixpath.join(path, name), os.path.join(folder, name)
            if self.is_dir(inner):
                self.dump(inner, target)
                continue
            node = self._node(inner)
            with open(target, "wb") as file:
                file.truncate(node.size)
                for offset, page in content_of(node.size, pages_of(memoryview(node.memory)[: node.size])):
                    file.seek(offset)
                    file.write(page)
            os.utime(target, (self.modified(inner), self.modified(inner)))

    # Inside

    def _grow(self, inode: int) -> Directory:
        directory = Directory(inode)
        for name, child in self._base.directories[inode].items():
            if child in self._base.directories:
                directory.entries[name] = self._grow(child)
            else:
                image = self._base.files[child]
                node = Node(child, image.size)
                self._modified.setdefault(child, self.clock.wall() / 1000)
                for offset, page in content_of(image.size, image.pages):
                    node.memory[offset : offset + len(page)] = page
                directory.entries[name] = node
        return directory

    def _find(self, path: str) -> "Directory | Node | None":
        found: Directory | Node | None = self._root
        for name in _names(path):
            if not isinstance(found, Directory):
                return None
            found = found.entries.get(name)
        return found

    def _parent(self, path: str) -> Directory | None:
        found = self._find(posixpath.dirname(_normal(path)))
        return found if isinstance(found, Directory) else None

    def _node(self, path: str) -> Node:
        found = self._find(path)
        if isinstance(found, Node):
            return found
        code = errno.EISDIR if found else errno.ENOENT
        raise OSError(code, os.strerror(code), path)

    def _new_file(self, path: str, size: int) -> Node:
        parent = self._parent(path)
        if parent is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = Node(next(self._inodes), size)
        self._touch(node)
        self._record(Operation("create", path, node.inode, size=size))
        self._link("entry", path, parent, posixpath.basename(_normal(path)), node)
        return node

    def _link(self, kind: str, path: str, parent: Directory, name: str, child: "Directory | Node") -> None:
        parent.entries[name] = child
        self._record(Operation(kind, path, child.inode, changes=(Change(parent.inode, name, child.inode),)))

    def _remove(self, path: str, parent: Directory) -> None:
        name = posixpath.basename(_normal(path))
        child = parent.entries.pop(name)
        self._watched.pop(child.inode, None)
        self._record(Operation("unlink", path, child.inode, changes=(Change(parent.inode, name, None),)))

    def _replace(self, path: str, data: bytes) -> None:
        scratch = f"{path}.tmp"
        self.unlink(scratch)
        with self._lock:
            node = self._new_file(scratch, len(data))
        try:
            self._write(path, node, 0, data)
            self._sync(path, node)
            self.rename(scratch, path)
        except OSError:
            self.unlink(scratch)
            raise

    def _write(self, path: str, node: Node, offset: int, data: bytes) -> None:
        fault = self._due("write", path)
        with self._lock:
            if fault is not None:
                data = data[: fault.partial]
            if data:
                self._record(Operation("write", path, node.inode, offset, data))
            node.memory[offset : offset + len(data)] = data
            if node.seen is not None:
                node.seen[offset : offset + len(data)] = data
            self._touch(node)
        if fault is not None:
            fault.raise_for(path)

    def _touch(self, node: Node) -> None:
        self._modified[node.inode] = self.clock.wall() / 1000

    def _sync(self, path: str, node: Node) -> None:
        with self._lock:
            self._look_at_views()
            # What is written while the sync runs is not in it.
            covered = len(self.operations)
        fault = self._due("sync", path)
        with self._lock:
            self._record(Operation("sync", path, node.inode, size=covered, failed=fault is not None))
        if fault is not None:
            fault.raise_for(path)

    def _reserve(self, path: str, node: Node, offset: int, length: int) -> bool:
        if self._due("reserve", path) is not None:
            return False
        with self._lock:
            self._record(Operation("reserve", path, node.inode, offset, size=min(length, node.size - offset)))
        return offset < node.size

    def _watch(self, node: Node) -> None:
        with self._lock:
            if node.seen is None or node.inode not in self._watched:
                node.seen = bytearray(node.memory[: node.size])
                self._watched[node.inode] = node

    def _look_at_views(self) -> None:
        """Stores through writable views are no calls: they are found by comparing, before each operation."""
        for node in self._watched.values():
            now = node.memory[: node.size]
            if node.seen is None or node.seen == now:
                continue
            for offset in range(0, node.size, PAGE):
                page = now[offset : offset + PAGE]
                if page != node.seen[offset : offset + PAGE]:
                    self.operations.append(Operation("view", "", node.inode, offset, page))
            node.seen[:] = now
            self._touch(node)

    def _record(self, operation: Operation) -> None:
        self._look_at_views()
        self.operations.append(operation)


_powers = itertools.count()


def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def _names(path: str) -> list[str]:
    return [name for name in _normal(path).split("/") if name]


__all__ = ["FakeDisk", "FakeFile", "FakeLock", "FileImage", "Gate", "Operation"]
