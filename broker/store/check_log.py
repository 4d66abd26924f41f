"""The part of a check that reads the commit log: every record, from the first file to the end of the log.

Unlike recovery it goes on after a bad record, at the next good one, so that one look finds all of them. What it reads
it gives away in batches: queues and index are compared with them.
"""

import itertools
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from cometmq.broker.store.check_report import MAX_KEPT, Kind, Report
from cometmq.broker.store.checkpoint import Checkpoint
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.log_files import LogFile, file_name
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.scan import Scanned, Scanner, Stop, Verify
from cometmq.broker.store.tail import TailReader
from cometmq.broker.store.tickets import Watermarks
from cometmq.protocol.checksum import PROPERTY_CRC_LENGTH, verify_property_crc

#: Called with the bytes of the log that were read, and how many there are.
Progress = Callable[[int, int], None]

#: Records of a batch.
_PASS: Final = 4096
_WINDOW: Final = 32 << 20
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
_MAGIC: Final = b"\xda\xa3\x20"
_CRC_NAME: Final = b"__CRC32#\x01"
_BLANK_HEAD: Final = Struct(">ii")


def find_files(disk: Disk, folder: str, size: int, kind: Kind, report: Report) -> tuple[list[LogFile], bool]:
    """The files of a log in order, and whether something was wrong with them.

    Those of a wrong length are among them, with the length that they have; those of a wrong name are not.
    """
    files: list[LogFile] = []
    bad = False
    names = [name for name in disk.list_dir(folder) if not disk.is_dir(f"{folder}/{name}")]
    for index, name in enumerate(names):
        path = f"{folder}/{name}"
        length = disk.size(path)
        if length == 0 and (index == len(names) - 1 or kind is Kind.QUEUE_FILE):
            report.note(kind, path, None, "the file is empty, as a crash leaves a new one; the next start removes it")
            continue
        if not (name.isascii() and name.isdigit() and len(name) <= 20) or int(name) % size:
            report.defect(kind, path, None, f"the name is not the offset of a file of {size} bytes")
            bad = True
            continue
        if length != size:
            report.defect(kind, path, min(length, size), f"the file has {length} bytes in place of {size}")
            bad = True
            if length == 0:
                continue
        files.append(LogFile(disk, path, int(name), length, lambda file: None))
    files.sort(key=lambda file: file.start)
    for before, after in itertools.pairwise(files):
        if before.start + size != after.start:
            missing = f"{folder}/{file_name(before.start + size)}"
            report.defect(kind, missing, None, f"the file is missing; the next one is {file_name(after.start)}")
            bad = True
    return files, bad


class LogCheck:
    """Reads the log of one store. After `requests` has ended, its fields say where the log ends and how."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        folder: str,
        file_size: int,
        scanner: Scanner,
        checkpoint: Checkpoint,
        report: Report,
        *,
        whole: bool,
        progress: Progress | None = None,
    ) -> None:
        self._disk = disk
        self._root = root
        self._folder = folder
        self._scanner = scanner
        self._checkpoint = checkpoint
        self._report = report
        self._whole = whole
        self._progress = progress
        self.file_size = file_size
        self.files, _ = find_files(disk, folder, file_size, Kind.LOG_FILE, report)
        self.begin = self.files[0].start if self.files else 0
        #: The end of the last record.
        self.end = self.begin
        #: Where something stands behind the end that is no record: path, position, reason.
        self.tail: tuple[str, int, str] | None = None
        #: Start and store time of the first record of each file.
        self._first_times: list[tuple[int, int]] = []
        self._last_time = 0
        self._back = 0
        #: Stretches of the log that cannot be read, from and to.
        self.bad: list[tuple[int, int]] = []
        for before, after in itertools.pairwise(self.files):
            if before.start + file_size != after.start:
                report.break_log(before.start + file_size)
                self.bad.append((before.start + file_size, after.start))
        report.log_files = len(self.files)
        report.begin = self.begin

    def is_bad(self, physical: int) -> bool:
        """Whether something that was said to be bad is there: who points to it is not wrong."""
        return any(begin <= physical < end for begin, end in self.bad)

    @property
    def recovery_start(self) -> int:
        """From here on the next start after a crash writes queues anew."""
        for start, time in reversed(self._first_times):
            if time <= self._checkpoint.min_timestamp:
                return start
        return self.begin

    def requests(self) -> Iterator[list[DispatchRequest]]:
        """All records in order, in batches."""
        try:
            yield from self._all_requests()
        finally:
            # A second look at a bad place opens a file again.
            for file in self.files:
                file.close()

    def _all_requests(self) -> Iterator[list[DispatchRequest]]:
        stopped: tuple[LogFile, Scanned] | None = None
        for number, file in enumerate(self.files):
            following = self.files[number + 1] if number + 1 < len(self.files) else None
            position = 0
            while True:
                # A bad place without a good record behind it may be the end of the log: the next file tells.
                out, result = self._scan(file, position)
                if out and stopped is not None:
                    if self._is_torn(*stopped):
                        out = []
                        break
                    self._bad(*stopped, out[0].physical_offset)
                    stopped = None
                if out:
                    self._take(file, out)
                    yield out
                if result is None:
                    position = self.end - file.start
                    continue
                position = result.position
                if result.stop is Stop.ENOUGH:
                    break
                if result.stop is Stop.BLANK and self._is_blank_right(file, position, following):
                    break
                good = self._next_good(file, position + 1)
                if good is None:
                    if stopped is None and result.stop is not Stop.BLANK:
                        stopped = file, result
                    break
                if stopped is None:
                    if self._is_torn(file, result):
                        stopped = file, result
                        break
                    self._bad(file, result, file.start + good)
                position = good
            file.close()
            if self._progress is not None:
                self._progress(file.end - self.begin, self.files[-1].end - self.begin)
        if stopped is not None:
            self._end_at(*stopped)
        elif self.files and self.end < self.files[-1].end:
            self._blank_at_end()
        if self._back:
            self._report.note(Kind.RECORD, self._folder, None, f"store times go back {self._back} times")
        self._report.end = self.end

    def _scan(self, file: LogFile, position: int) -> tuple[list[DispatchRequest], Scanned | None]:
        """Records from a position on; and where and why it ended when that was not a full batch."""
        out: list[DispatchRequest] = []
        window = _WINDOW
        while True:
            limit = min(position + window, file.size)
            result = self._scanner.scan(
                file.view(), file.start, position, limit, out, count=_PASS, verify=Verify.BODY_CRC
            )
            if self._progress is not None:
                self._progress(file.start + result.position - self.begin, self.files[-1].end - self.begin)
            if limit < file.size and result.stop in (Stop.CUT, Stop.ENOUGH):
                if out:
                    return out, None
                # A record that is longer than the window, or claims to be.
                window = file.size
                continue
            if result.stop is Stop.ENOUGH and result.position < file.size:
                return out, None
            return out, result

    def _take(self, file: LogFile, out: list[DispatchRequest]) -> None:
        report = self._report
        report.records += len(out)
        last = out[-1]
        self.end = last.physical_offset + last.size
        if out[0].physical_offset == file.start:
            self._first_times.append((file.start, out[0].store_timestamp))
        view = file.view()
        time = self._last_time
        for request in out:
            if request.store_timestamp < time:
                self._back += 1
            time = request.store_timestamp
            text = request.properties
            if text[-PROPERTY_CRC_LENGTH:].startswith(_CRC_NAME):
                position = request.physical_offset - file.start
                if not verify_property_crc(view, position, request.size):
                    report.defect(Kind.RECORD, file.path, position, "the checksum of the whole record is wrong")
                    report.break_log(request.physical_offset)
        self._last_time = time

    def _bad(self, file: LogFile, result: Scanned, until: int) -> None:
        if len(self.bad) < MAX_KEPT:
            self.bad.append((file.start + result.position, until))
        self._report.defect(Kind.RECORD, file.path, result.position, result.reason or "nothing can be read there")
        self._report.break_log(file.start + result.position)

    def _is_torn(self, file: LogFile, result: Scanned) -> bool:
        """Whether recovery would end the log here although good records follow: as a power loss leaves it."""
        if self._whole:
            return False
        commit_log = CommitLog(self._disk, self._folder, self.file_size, Watermarks(), runner=ManualRunner())
        commit_log.files.files = self.files
        tail = TailReader(self._disk, self._root, commit_log, self._scanner).look(file.start + result.position)
        torn = tail.good is not None and tail.torn and tail.good[1] >= self._checkpoint.physic_msg_timestamp
        # Recovery gets no further than the first bad place; and each look reads the rest of the log.
        self._whole = not torn
        return torn

    # Blank records

    def _is_blank_right(self, file: LogFile, position: int, following: LogFile | None) -> bool:
        """Whether a blank record ends its file. One that is followed by records does not."""
        size = _BLANK_HEAD.unpack_from(file.view(), position)[0]
        if size == file.size - position:
            return True
        if self._next_good(file, position + 8) is not None:
            return False
        what = f"it says that {size} bytes are left, {file.size - position} are"
        self._report.defect(Kind.BLANK, file.path, position, what)
        return True

    def _blank_at_end(self) -> None:
        file = next((file for file in self.files if file.start <= self.end < file.end), None)
        if file is None or file is not self.files[-1]:
            return
        self._report.note(Kind.BLANK, file.path, self.end - file.start, "the next file was not made any more")

    # The end

    def _end_at(self, file: LogFile, result: Scanned) -> None:
        at = result.position
        if self._holds_something(file, at):
            self.tail = file.path, at, result.reason
        for later in self.files:
            if later.start > file.start:
                if self._holds_something(later, 0):
                    if self.tail is None:
                        self.tail = later.path, 0, "it holds something, but no record"
                else:
                    what = "the file holds nothing yet: it was made ahead"
                    self._report.note(Kind.LOG_FILE, later.path, None, what)
                later.close()

    def _holds_something(self, file: LogFile, position: int) -> bool:
        return next(_chunks(file, position), None) is not None

    def _next_good(self, file: LogFile, first: int) -> int | None:
        """Where the next record begins, its body right or not; None when there is none in the file."""
        for position, chunk in _chunks(file, first):
            at = chunk.find(_MAGIC)
            while at >= 0:
                start = position + at - 4
                if start >= first:
                    out: list[DispatchRequest] = []
                    self._scanner.scan(file.view(), file.start, start, file.size, out, count=1)
                    if out:
                        return start
                at = chunk.find(_MAGIC, at + 1)
        return None


def _chunks(file: LogFile, position: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a file from a position on that hold anything but zeros."""
    while position < file.size:
        chunk = file.read(position, _CHUNK)
        if not chunk:
            return
        following = position + len(chunk)
        if chunk != _ZEROS[: len(chunk)]:
            yield position, chunk
            if following < file.size:
                # A magic that lies across the border is found in the next chunk.
                following -= 8
        position = following
