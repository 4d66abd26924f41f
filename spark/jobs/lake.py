"""The file system that Spark writes to: list, move, delete, small files. Any of Hadoop's: local, HDFS, object stores.

Only names and bytes; what the files mean is known by `publication`. It goes through the JVM of the driver, so that a
path means here what it means to `df.write`. Checksum files of local disks (`.x.crc`) follow their files by themselves.
"""

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cometmq.spark.jobs.errors import JobError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
#: What a kernel or a file system answers that cannot exchange.
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV}


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What Java says about a file, as an error of the job: it comes as a stack of Java's own otherwise."""
    try:
        yield
    except Py4JJavaError as error:
        reason = str(error.java_exception.toString())
        raise JobError(f"cannot {what} ({reason})", "check its permissions, and the space on its disk") from error


def literal(path: str) -> str:
    """A path for Spark to read, which takes one with `[`, `*` and the like for a pattern. It writes to any as it is."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


class LakeFile(NamedTuple):
    """A file below a directory."""

    #: Relative to the directory that was listed.
    name: str
    size: int


class Lake:
    """The file system of one path. Names are absolute, as `qualified` gives them."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm = getattr(spark, "_jvm", None)
        if jvm is None:
            raise JobError(
                "this job moves files by the driver's own file system, which Spark Connect does not offer",
                "run it by python -m cometmq.spark or spark-submit",
            )
        self._jvm: Any = jvm
        root = self._path(path)
        try:
            self._fs: Any = root.getFileSystem(spark._jsc.hadoopConfiguration())
        except Exception as error:
            raise JobError(f"no file system for {path}", "check the scheme of the path and Spark's jars") from error
        self.root: str = self._fs.makeQualified(root).toString().rstrip("/")

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    def local(self, name: str) -> str | None:
        """A name as a path of this machine, when it is one."""
        uri = self._path(name).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def exists(self, name: str) -> bool:
        with _told(f"look for {name}"):
            return bool(self._fs.exists(self._path(name)))

    def size(self, name: str) -> int | None:
        """The bytes of a file; None when it is not there."""
        if not self.exists(name):
            return None
        with _told(f"look at {name}"):
            return int(self._fs.getFileStatus(self._path(name)).getLen())

    def is_file(self, name: str) -> bool:
        with _told(f"look for {name}"):
            return bool(self._fs.exists(self._path(name)) and self._fs.getFileStatus(self._path(name)).isFile())

    def above(self) -> list[str]:
        """The root and the directories that it is in, without a slash at their ends."""
        found, path = [], self._path(self.root)
        while path is not None:
            found.append(str(path.toString()).rstrip("/"))
            path = path.getParent()
        return found

    def make_directory(self, name: str) -> None:
        with _told(f"make the directory {name}"):
            if not self._fs.mkdirs(self._path(name)):
                raise JobError(f"cannot make the directory {name}", "check its permissions")

    def files(self, directory: str) -> list[LakeFile]:
        """All files below a directory, sorted; none when it is not there."""
        if not self.exists(directory):
            return []
        base = len(self._fs.makeQualified(self._path(directory)).toString().rstrip("/")) + 1
        with _told(f"list {directory}"):
            found, each = [], self._fs.listFiles(self._path(directory), True)
            while each.hasNext():
                status = each.next()
                found.append(LakeFile(status.getPath().toString()[base:], int(status.getLen())))
        return sorted(found)

    def children(self, directory: str) -> list[str]:
        """The names in a directory, sorted; none when it is not there."""
        if not self.exists(directory):
            return []
        with _told(f"list {directory}"):
            return sorted(str(status.getPath().getName()) for status in self._fs.listStatus(self._path(directory)))

    def move(self, source: str, target: str) -> None:
        """Rename a file or a directory: whoever lists the target sees all of it or nothing."""
        with _told(f"move {source} to {target}"):
            if not self._fs.rename(self._path(source), self._path(target)):
                raise JobError(f"cannot move {source} to {target}", "both have to be writable and on one file system")

    def delete(self, name: str) -> None:
        """Delete a file or a directory with all that is in it. Nothing happens when it is not there."""
        with _told(f"delete {name}"):
            self._fs.delete(self._path(name), True)

    def read(self, name: str) -> str:
        with _told(f"read {name}"):
            stream = self._fs.open(self._path(name))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small file that is not there yet: it appears whole or not at all."""
        draft = self._path(f"{name}.draft")
        with _told(f"write {name}"):
            stream = self._fs.create(draft, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
        self.move(f"{name}.draft", name)

    def exchange(self, one: str, other: str) -> bool:
        """Swap two directories in one step, so that no reader sees neither or both. False where that cannot be done."""
        first, second = self.local(one), self.local(other)
        if first is None or second is None or sys.platform != "linux":
            return False
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "renameat2"):
            return False
        paths = os.fsencode(first), os.fsencode(second)
        if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code in _CANNOT:
            return False
        raise OSError(code, os.strerror(code), first, None, second)
