"""Why the store may not be read or written right now: RocketMQ's RunningFlags, bit for bit.

One integer, so that a put tests it in one step. Who sets a bit also gives the reason in words; it becomes the remark of
the answers that are refused because of it.
"""

import logging
from enum import IntFlag

log = logging.getLogger(__name__)


class Flag(IntFlag):
    """The bits, as RocketMQ numbers them."""

    NOT_READABLE = 1
    NOT_WRITABLE = 2
    LOGICS_QUEUE_ERROR = 4
    INDEX_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64


# Plain integers: the operators of an enumeration take a microsecond, and these are asked with every put and read.
_UNREADABLE = int(Flag.NOT_READABLE)
_UNWRITABLE = int(
    Flag.NOT_WRITABLE | Flag.LOGICS_QUEUE_ERROR | Flag.INDEX_ERROR | Flag.DISK_FULL | Flag.FENCED | Flag.LOGIC_DISK_FULL
)
_QUEUES_UNWRITABLE = _UNWRITABLE & ~int(Flag.DISK_FULL | Flag.FENCED)


class RunningFlags:
    """The flags of a store. Its mutable state: `bits` and the reason of each bit."""

    __slots__ = ("_reasons", "bits", "unsafe")

    def __init__(self) -> None:
        self.bits = 0
        #: Whether a sync has failed: no later one may be believed before a restart.
        self.unsafe = False
        self._reasons: dict[Flag, str] = {}

    def set(self, flag: Flag, reason: str) -> bool:
        """Raise a flag. True when it was not up before; the first reason stays."""
        if self.bits & flag:
            return False
        self.bits |= int(flag)
        self._reasons[flag] = reason
        return True

    def sync_failed(self, what: str, error: Exception, flag: Flag = Flag.NOT_WRITABLE) -> str:
        """A sync of the log, the queues or the index has failed: that is final. Gives the reason in words."""
        reason = f"a sync of {what} failed ({error}): the store is read-only until it is restarted"
        log.critical("%s", reason)
        self.unsafe = True
        self.set(flag, reason)
        return reason

    def clear(self, flag: Flag) -> bool:
        """Take a flag down. True when it was up."""
        if not self.bits & flag:
            return False
        self.bits &= ~int(flag)
        self._reasons.pop(flag, None)
        return True

    @property
    def readable(self) -> bool:
        return not self.bits & _UNREADABLE

    @property
    def writable(self) -> bool:
        return not self.bits & _UNWRITABLE

    @property
    def queues_writable(self) -> bool:
        """Whether dispatch may go on: a full disk stops messages, not the queues of those that are stored."""
        return not self.bits & _QUEUES_UNWRITABLE

    @property
    def reason(self) -> str:
        """Everything that keeps the store from taking messages, in words."""
        return "; ".join(reason for flag, reason in self._reasons.items() if flag != Flag.NOT_READABLE)
