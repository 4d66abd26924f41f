"""What a check of a store found: defects, and notes about what is unusual but no harm.

A defect is something that no stop, crash or expiry of a store leaves, and that the next start would not mend by itself.
Everything else that an operator may wonder about is a note. Nothing here reads files.
"""

import enum
from typing import Final

import msgspec

#: Findings of one kind that are kept; the rest is only counted, so that a report fits in memory.
MAX_KEPT: Final = 1000


class Kind(enum.Enum):
    """What a finding is about; its value is what users read."""

    RECORD = "record"
    LOG_FILE = "commit log file"
    BLANK = "blank record"
    QUEUE_FILE = "consume queue file"
    UNIT = "queue unit"
    EXT_UNIT = "extension unit"
    INDEX_FILE = "index file"
    INDEX_ENTRY = "index entry"
    TIMER = "timer"
    OFFSET = "offset"
    CONFIG = "config file"
    CHECKPOINT = "checkpoint"
    STORE = "store"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found, and where."""

    kind: Kind
    path: str
    #: Position in the file; None when it is about the whole file.
    offset: int | None
    what: str

    def __str__(self) -> str:
        at = "" if self.offset is None else f" at {self.offset}"
        return f"{self.path}{at}: {self.kind.value}: {self.what}"


class Report:
    """Everything that a check found and counted."""

    def __init__(self) -> None:
        self.defects: list[Finding] = []
        self.notes: list[Finding] = []
        #: All defects and notes, also those that were not kept.
        self.defect_count = 0
        self.note_count = 0
        self._kept: dict[tuple[bool, Kind], int] = {}
        # What was looked at.
        self.records = 0
        self.log_files = 0
        self.queues = 0
        self.units = 0
        self.index_files = 0
        self.index_entries = 0
        self.offsets = 0
        self.timers = 0
        #: Physical offsets between which the log is.
        self.begin = 0
        self.end = 0
        # What a repair needs to know.
        #: The offset from which on the log cannot be followed; None when all of it can.
        self.broken_from: int | None = None
        #: Topic, queue id and whether it is of batches, of each queue with a defect.
        self.bad_queues: set[tuple[str, int, bool]] = set()
        self.bad_index = False

    @property
    def sound(self) -> bool:
        return self.defect_count == 0

    def defect(self, kind: Kind, path: str, offset: int | None, what: str) -> None:
        self.defect_count += 1
        self._keep(self.defects, True, Finding(kind, path, offset, what))

    def note(self, kind: Kind, path: str, offset: int | None, what: str) -> None:
        self.note_count += 1
        self._keep(self.notes, False, Finding(kind, path, offset, what))

    def break_log(self, physical: int) -> None:
        """The log can be followed to here at most."""
        self.broken_from = physical if self.broken_from is None else min(physical, self.broken_from)

    def _keep(self, findings: list[Finding], is_defect: bool, finding: Finding) -> None:
        key = (is_defect, finding.kind)
        kept = self._kept.get(key, 0)
        if kept < MAX_KEPT:
            self._kept[key] = kept + 1
            findings.append(finding)
