"""The disk seam: everything that the store does to the file system goes through a `Disk`.

`RealDisk` is the one of the machine; `fake_disk.FakeDisk` keeps files in memory and shows what a power loss leaves.
Nothing here knows what the bytes mean. Failures of the operating system come out as `OSError`.

Rules that hold for both: an entry of a directory (a new file, a rename, an unlink) survives a power loss after
`sync_dir` of its directory; content after `sync` of the file; `write_file` takes care of both. A file may be used from
several threads, but opened and closed by one; the caller sees to it that nobody uses it while it is closed.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cometmq.broker.store.errors import StoreLocked
from cometmq.files import write_atomically

Buffer: TypeAlias = bytes | bytearray | memoryview

#: Buffers of one system call: IOV_MAX of Linux and macOS.
IOV_MAX = 1024
#: What RocketMQ writes into its lock file.
LOCK_TEXT = b"lock"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The space of a partition in bytes."""

    total: int
    used: int
    #: What this process may still use; less than total - used where a reserve is kept for root.
    available: int

    @property
    def ratio(self) -> float:
        """The used part, rounded up to whole percents as RocketMQ does; -1 when it is unknown."""
        entire = self.used + self.available
        if entire <= 0:
            return -1.0
        return -(-self.used * 100 // entire) / 100


class DiskLock(Protocol):
    """A lock that this process holds."""

    def release(self) -> None:
        """Gives the lock back. Nothing happens when that was done."""


class DiskFile(Protocol):
    """An open file."""

    path: str
    #: Its length, which never changes.
    size: int

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes the buffers one after the other, in as few system calls as can be. Never grows the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""

    def view(self) -> memoryview:
        """The whole file, read-only. It shows what `write` wrote at once. Slices outlive `close`."""

    def writable_view(self) -> memoryview:
        """The whole file; what is stored in it is written like by `write`. For index files and the checkpoint."""

    def reserve(self, offset: int, length: int) -> bool:
        """Asks for blocks for a part of the file that holds nothing yet. False when there are none to be had.

        Content and length stay as they are. A refusal is no failure: the write will tell.
        """

    def next_data(self, offset: int) -> int:
        """The first position from `offset` on that may hold anything but zeros; the length of the file if none does.

        Holes are passed over without reading them: reading one fills memory with its zeros.
        """

    def sync(self) -> None:
        """Returns when everything that was written is on the disk."""

    def close(self) -> None:
        """Gives the file back; does not sync."""


class Disk(Protocol):
    """A file system. Paths are text with `/`."""

    def make_dirs(self, path: str, *, sync: bool = False) -> None:
        """Makes a directory and those above it. With `sync` the new entries survive a power loss."""

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted; none when it is missing."""

    def is_dir(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """The length of a file."""

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since 1970."""

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> DiskFile:
        """Opens a file. With `create` a file that is missing or empty gets `size` bytes of zeros, without blocks.

        Directories above a new file are made.
        """

    def read_file(self, path: str) -> bytes:
        """A whole file."""

    def write_file(self, path: str, data: bytes, *, backup: bool) -> None:
        """Replaces a whole file so that a power loss leaves the old content or the new, and the new after the return.

        With `backup` the old content stays beside it as `<name>.bak`.
        """

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Removes a file. Nothing happens when it is gone already."""

    def remove_tree(self, path: str) -> None:
        """Removes a directory with all that is in it. Nothing happens when it is gone already."""

    def sync_dir(self, path: str) -> None:
        """Returns when the entries of the directory are on the disk."""

    def usage(self, path: str) -> DiskUsage:
        """The space of the partition that holds the path, or would hold it."""

    def identity(self, path: str) -> str | None:
        """A text that is the same as long as this is the same file and the machine has not been restarted.

        While it is, everything that was written is there: a process may have died since, but no page was lost. None
        where the operating system does not tell.
        """

    def lock(self, path: str) -> DiskLock:
        """Takes a lock file for this process. Raises `StoreLocked` when another one has it."""


class RealFile:
    """An open file of the machine."""

    __slots__ = ("_descriptor", "_map", "_read_only", "_view", "_writable_map", "_writable_view", "path", "size")

    def __init__(self, path: str, descriptor: int, size: int, *, read_only: bool = False) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._read_only = read_only
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._writable_map: mmap.mmap | None = None
        self._writable_view: memoryview | None = None

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:
            # The usual case: the writer gathers into one buffer.
            data = buffers[0]
            length = len(data)
            self._check_room(offset, length)
            written = os.pwrite(self._descriptor, data, offset)
            if written != length:
                self._write_rest(offset, [data], written)
            return
        self._check_room(offset, sum(map(len, buffers)))
        self._write_rest(offset, buffers, 0)

    def _check_room(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.size:
            raise OSError(errno.EFBIG, f"{length} bytes at {offset} do not fit a file of {self.size}", self.path)

    def _write_rest(self, offset: int, buffers: Sequence[Buffer], written: int) -> None:
        """Writes all but the first `written` bytes. A short write goes on where it ended."""
        queue = [memoryview(buffer).cast("B") for buffer in buffers]
        first, offset = 0, offset + written
        while True:
            while first < len(queue) and written >= len(queue[first]):
                written -= len(queue[first])
                first += 1
            if first == len(queue):
                return
            if written:
                queue[first] = queue[first][written:]
            written = _pwritev(self._descriptor, queue[first : first + IOV_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written", self.path)
            offset += written

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        # A system call gives at most 2 GiB, and less when a signal comes in between.
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._descriptor, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def view(self) -> memoryview:
        if self._view is None:
            self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
            self._view = memoryview(self._map)
        return self._view

    def writable_view(self) -> memoryview:
        if self._writable_view is None:
            if self._read_only:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)
            self._writable_map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_WRITE)
            self._writable_view = memoryview(self._writable_map)
        return self._writable_view

    def reserve(self, offset: int, length: int) -> bool:
        length = min(length, self.size - offset)
        if length <= 0:
            return False
        return _reserve(self._descriptor, offset, length)

    def next_data(self, offset: int) -> int:
        if offset >= self.size:
            return self.size
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                # A file system without holes.
                return offset
            raise

    def sync(self) -> None:
        if self._writable_map is not None and sys.platform != "linux":
            # Linux finds the dirty pages of a map by itself.
            self._writable_map.flush()
        _sync_data(self._descriptor)

    def close(self) -> None:
        # The maps go when the last slice of them does: a reader may still be sending one.
        self._map = self._view = self._writable_map = self._writable_view = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The file system of the machine. With `read_only` nothing on it changes: for checks of a stopped store."""

    def __init__(self, *, read_only: bool = False) -> None:
        self._read_only = read_only

    def make_dirs(self, path: str, *, sync: bool = False) -> None:
        if os.path.isdir(path):
            return
        self._refuse_change(path)
        parent = os.path.dirname(os.path.abspath(path))
        self.make_dirs(parent, sync=sync)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if sync:
            self.sync_dir(parent)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified(self, path: str) -> float:
        return os.stat(path).st_mtime

    def open(self, path: str, *, size: int | None = None, create: bool = False) -> RealFile:
        _refuse_lock_file(path)
        flags = os.O_CLOEXEC | (os.O_RDONLY if self._read_only else os.O_RDWR)
        if create and not self._read_only:
            flags |= os.O_CREAT
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileNotFoundError:
            if not create or self._read_only:
                raise
            self.make_dirs(os.path.dirname(os.path.abspath(path)))
            descriptor = os.open(path, flags, 0o644)
        try:
            length = os.fstat(descriptor).st_size
            if create and size and length == 0 and not self._read_only:
                os.ftruncate(descriptor, size)
                length = size
        except BaseException:
            os.close(descriptor)
            raise
        return RealFile(path, descriptor, length, read_only=self._read_only)

    def read_file(self, path: str) -> bytes:
        _refuse_lock_file(path)
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: str, data: bytes, *, backup: bool) -> None:
        self._refuse_change(path)
        self.make_dirs(os.path.dirname(os.path.abspath(path)), sync=True)
        write_atomically(path, data, backup=backup)

    def rename(self, old: str, new: str) -> None:
        self._refuse_change(old)
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        self._refuse_change(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        self._refuse_change(path)
        if os.path.lexists(path):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def usage(self, path: str) -> DiskUsage:
        path = os.path.abspath(path)
        while True:
            try:
                space = os.statvfs(path)
            except FileNotFoundError:
                path = os.path.dirname(path)
                continue
            except OSError:
                return DiskUsage(0, 0, 0)
            unit = space.f_frsize
            return DiskUsage(
                total=space.f_blocks * unit,
                used=(space.f_blocks - space.f_bfree) * unit,
                available=space.f_bavail * unit,
            )

    def identity(self, path: str) -> str | None:
        boot = _boot_id()
        if not boot:
            return None
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return f"{boot} {found.st_dev} {found.st_ino}"

    def lock(self, path: str) -> DiskLock:
        self._refuse_change(path)
        return RealLock(path)

    def _refuse_change(self, path: str) -> None:
        if self._read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


#: Lock files that this process holds. POSIX locks belong to the process: they do not keep a second store of the same
#: process out, and closing any other descriptor of the file would give them back.
_held: set[str] = set()


def _refuse_lock_file(path: str) -> None:
    if _held and os.path.realpath(path) in _held:
        raise OSError(errno.EBUSY, "reading the lock file would give the lock back", path)


class RealLock:
    """RocketMQ's lock: a POSIX record lock on the first byte of a file, as Java's `FileChannel.tryLock(0, 1)` takes."""

    def __init__(self, path: str) -> None:
        self._key = os.path.realpath(path)
        if self._key in _held:
            raise StoreLocked(path, os.getpid())
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(path)
            _held.add(self._key)
            os.pwrite(self._descriptor, LOCK_TEXT, 0)
        except BaseException:
            self.release()
            raise

    def _take(self, path: str) -> None:
        # The owner may end between the refusal and the question who it is: then it is free at the next try.
        for _ in range(3):
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                return
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
            locked, pid = lock_owner(self._descriptor)
            if locked:
                raise StoreLocked(path, pid)
        raise StoreLocked(path, None)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _held.discard(self._key)
            os.close(descriptor)


#: `struct flock` as fcntl takes it: format, and how to put (type, whence, start, length, pid) in order.
_FLOCK = struct.Struct("@qqihh") if sys.platform == "darwin" else struct.Struct("@hhqqi4x")


def lock_owner(descriptor: int) -> tuple[bool, int | None]:
    """Whether somebody else holds the first byte, and who; 0 and below stand for somebody whom we cannot see."""
    if sys.platform == "darwin":
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET))
        _, _, pid, kind, _ = _FLOCK.unpack(answer)
    else:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
    return kind != fcntl.F_UNLCK, pid if pid > 0 else None


def _pwritev(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    if hasattr(os, "pwritev"):
        return os.pwritev(descriptor, buffers, offset)
    return os.pwrite(descriptor, b"".join(buffers), offset)


def _sync_data(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync of macOS stops at the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


@functools.cache
def _boot_id() -> str:
    """Linux makes one at each start; others have none that is as easy to get at."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


#: fallocate: reserve the blocks, leave the length alone.
_KEEP_SIZE = 1
#: The file system cannot do it, or has no room for a whole step ahead.
_NOT_RESERVED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOSPC, errno.EDQUOT, errno.EINVAL, errno.EFBIG}


@functools.cache
def _fallocate() -> "ctypes._NamedFuncPointer | None":
    """Linux's own call. `posix_fallocate` of glibc writes to every block where the file system has no such thing."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        function.restype = ctypes.c_int
    return function


def _reserve(descriptor: int, offset: int, length: int) -> bool:
    function = _fallocate()
    if function is None:
        return False
    while function(descriptor, _KEEP_SIZE, offset, length) != 0:
        code = ctypes.get_errno()
        if code in _NOT_RESERVED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True
