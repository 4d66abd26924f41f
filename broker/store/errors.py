"""What can go wrong with a store, one class for each thing that a user would do something different about.

Every error says what happened, in which file, at which offset where there is one, and what to do. Errors of the
operating system (`OSError`: no space, a failed sync) pass through the disk unchanged; the store decides what they mean.
"""

from cometmq.protocol.errors import CometMQError


class StoreError(CometMQError):
    """Root of the errors of the store."""

    def __init__(self, what: str, *, path: str | None = None, offset: int | None = None) -> None:
        self.what = what
        self.path = path
        #: Where in the file (or, without a path, in the log) it is wrong.
        self.offset = offset
        at = f" at offset {offset}" if offset is not None else ""
        super().__init__(f"{path}{at}: {what}" if path else f"{what}{at}")


class StoreLocked(StoreError):
    """Is raised when another process, or another store of this one, works on the directory."""

    remedy = "stop the process that owns the directory, or give each broker a storePathRootDir of its own"

    def __init__(self, path: str, pid: int | None) -> None:
        #: The owner; None where the operating system does not tell (another container, a network file system).
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        super().__init__(f"the store is in use by {owner}", path=path)


class StoreDamaged(StoreError):
    """Is raised when files contradict each other and going on could lose messages."""

    remedy = "run `python -m cometmq.broker.store check DIR`; with --repair it keeps what can be kept"


class FileLengthWrong(StoreDamaged):
    """Is raised when a file does not have the length that the options say."""

    remedy = (
        "start with the file sizes that the directory was written with (mappedFileSizeCommitLog, "
        "mappedFileSizeConsumeQueue, ...), or restore the file from a backup"
    )

    def __init__(self, path: str, length: int, expected: int) -> None:
        self.length = length
        self.expected = expected
        super().__init__(f"the file has {length} bytes, {expected} were expected", path=path)


class FileNameWrong(StoreDamaged):
    """Is raised when a directory of log files holds something whose name is no offset."""

    remedy = "move the file out of the directory: only files of the store may be there"


class FileMissing(StoreDamaged):
    """Is raised when a file between two others is not there."""

    remedy = "restore the file from a backup, or run the check with --repair to keep what comes before it"


class StoreReadOnly(StoreError):
    """Is raised when the store has stopped taking messages, for instance after a failed sync."""

    remedy = "check the disk, then restart the broker: what was acknowledged is recovered from the files"


class SyncFailed(OSError):
    """Is raised when the disk could not save what was written. Another try may say "done" and mean nothing: the kernel
    may have dropped the pages. Whoever catches it raises the flag of a store that is read-only until it is restarted.
    """


class StoreClosed(StoreError):
    """Is raised when something is asked of a store that was closed or not opened yet."""

    remedy = "open the store first"


class ConfigDamaged(StoreError):
    """Is raised when neither a configuration file nor its `.bak` can be read."""

    remedy = "restore the file from a backup, or move it away to start with an empty table"


class OptionError(StoreError):
    """Is raised when a configuration value cannot be what its key asks for."""

    remedy = "correct the value in the broker's configuration file"

    def __init__(self, key: str, value: str, expected: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        super().__init__(f"{key}={value}: expected {expected}")
