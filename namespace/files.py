"""Small metadata files that must survive a crash: write whole, read whole.

Both daemons keep their JSON tables and configuration through these two functions; message data never passes here.
Mirrors RocketMQ's `MixAll.string2File` / `file2String` with their `.bak` of the previous content, but a reader sees
either the old content or the new one, never a mixture. The calls block: a daemon runs them in a thread.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cometmq.protocol.errors import CometMQError, ProtocolError

T = TypeVar("T")

log = logging.getLogger(__name__)


class FileDamaged(CometMQError):
    """Raised when neither a metadata file nor the `.bak` beside it can be read."""

    remedy = "restore the file from a backup, or move it away to start with an empty one"

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"cannot read {path}: {reason}")


class FileOutOfReach(FileDamaged):
    """Raised when the system does not let a metadata file be read."""

    remedy = "let the user of the daemon read the file and its directory, or choose another place"


def backup_of(path: Path) -> Path:
    """Where the previous content of a file is kept."""
    return path.with_name(path.name + ".bak")


def write_atomically(path: Path | str, data: bytes, *, backup: bool = True) -> None:
    """Replace the content of a file so that a crash leaves the old or the new one, and the new one once this returns.

    With `backup` the previous content is kept beside it as `<name>.bak`. Missing directories are made.
    """
    # A link keeps pointing where it pointed: the file behind it is replaced.
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    mode: int | None = None
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode & 0o7777
        if backup:
            _replace(backup_of(target), target.read_bytes(), mode)
    _replace(target, data, mode)
    _sync_directory(target.parent)


def read_or_backup(path: Path | str, parse: Callable[[bytes], T]) -> T | None:
    """The parsed content of a file; of its `.bak` when the file is missing, empty or damaged; None without either.

    A damaged file is set aside as `<name>.broken`, so that the next write does not make it the backup.
    """
    target = Path(path)
    reason = _try(target, parse)
    if not isinstance(reason, _Unreadable):
        return reason
    spare = _try(backup_of(target), parse)
    if not isinstance(spare, _Unreadable):
        log.error("%s is %s; using %s", target, reason.why, backup_of(target))
        if reason.exists:
            os.replace(target, target.with_name(target.name + ".broken"))
        return spare
    if reason.exists:
        raise FileDamaged(target, f"{reason.why}; {backup_of(target).name} is {spare.why}")
    if spare.exists:
        raise FileDamaged(backup_of(target), spare.why)
    return None


class _Unreadable:
    """Why a file gave no value."""

    def __init__(self, why: str, *, exists: bool) -> None:
        self.why = why
        self.exists = exists


def _try(path: Path, parse: Callable[[bytes], T]) -> T | _Unreadable:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _Unreadable("missing", exists=False)
    except OSError as error:
        # Not damaged but out of reach: an empty table in its place would be written over it later.
        raise FileOutOfReach(path, error.strerror or str(error)) from error
    if not data.strip(b"\0 \t\r\n"):
        return _Unreadable("empty", exists=True)
    try:
        return parse(data)
    except (ProtocolError, ValueError) as error:
        return _Unreadable(f"damaged ({error})", exists=True)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with open(scratch, "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            _sync(file.fileno())
        os.replace(scratch, target)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync of macOS stops at the drive's cache.
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    """Make the renames themselves durable. Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
