"""How far the store was at its last flush: the file `checkpoint`, RocketMQ's StoreCheckpoint.

After an unclean end recovery starts where the checkpoint says, so that it must never be ahead of what is on the disk:
whoever moves a time here has synced first. The file is replaced whole, for a torn time could be later than both the old
and the new one. A missing or short file reads as zeros: then everything is looked at.
"""

import logging
import struct
import threading

from cometmq.broker.store.disk import Disk

log = logging.getLogger(__name__)

#: The length of the file; what follows the fields is zero.
FILE_SIZE = 4096
#: Recovery goes back this much further than the times say, as the clock may have been set back a little.
SLACK_MS = 3000

_FIELDS = struct.Struct(">5q")


class Checkpoint:
    """The fields of the file, to be set; `flush` writes them. Times are store times of messages in milliseconds."""

    __slots__ = (
        "_disk",
        "_lock",
        "_written",
        "confirm_phy_offset",
        "index_msg_timestamp",
        "logics_msg_timestamp",
        "master_flushed_offset",
        "path",
        "physic_msg_timestamp",
    )

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        #: Of the last message in the commit log that is on the disk.
        self.physic_msg_timestamp = 0
        #: Of the last message whose queue unit is on the disk.
        self.logics_msg_timestamp = 0
        #: The end of the last index file that is full and on the disk.
        self.index_msg_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0
        self._written = b""
        # A flush in a thread and one at the end must not write into each other's file.
        self._lock = threading.Lock()

    def load(self) -> None:
        """Reads the file; without one, everything is zero."""
        data = b""
        if self._disk.exists(self.path):
            data = self._disk.read_file(self.path)
            if len(data) != FILE_SIZE:
                log.warning("%s has %d bytes in place of %d", self.path, len(data), FILE_SIZE)
        fields = _FIELDS.unpack(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0"))
        # No clock and no log is below zero: such a value is damage, and zero is the safe one.
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        ) = (max(0, value) for value in fields)
        self._written = data

    @property
    def min_timestamp(self) -> int:
        """Messages up to this time are in the log and in the queues."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - SLACK_MS)

    @property
    def min_timestamp_index(self) -> int:
        """Messages up to this time are in the index too."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def encode(self) -> bytes:
        """The content of the file."""
        fields = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )
        return fields.ljust(FILE_SIZE, b"\0")

    def flush(self) -> None:
        """Returns when the fields are on the disk. Nothing is written when nothing has changed. May run in a thread."""
        with self._lock:
            data = self.encode()
            if data != self._written:
                self._disk.write_file(self.path, data, backup=False)
                self._written = data
