"""The end of a log that was not left in order: is it torn, or is the log damaged?

A crash tears the last records: the rest of the file is worth nothing and is cut. But a bad record with good ones after
it can be something else, a flipped bit for instance, and cutting there would throw good messages away. Here that is
told apart, and what is cut although records are in it goes to `quarantine/`, where it can be looked at.
"""

import logging
from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.disk import Disk, DiskFile
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.scan import Scanner, Verify

log = logging.getLogger(__name__)

_PAGE: Final = 4096
_SECTOR: Final = 512
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
#: The first bytes of every record's magic.
_MAGIC: Final = b"\xda\xa3\x20"


class Tail(msgspec.Struct, frozen=True):
    """What stands behind the last good record."""

    #: Where the log would end.
    end: int
    #: The first good record behind it, and its store time; None when there is none.
    good: tuple[int, int] | None
    #: Whether pages in between look as a power loss leaves them: never written, or only their first part.
    torn: bool
    #: Whether anything but zeros stands there.
    written: bool


class TailReader:
    """Looks at what stands behind an offset, and puts it away."""

    def __init__(self, disk: Disk, root: str, commit_log: CommitLog, scanner: Scanner) -> None:
        self._disk = disk
        self._folder = f"{root}/quarantine"
        self._log = commit_log
        self._scanner = scanner
        #: Where anything but zeros stands: file, position, length. The rest of a file is a hole of up to 1 GiB.
        self._written: list[tuple[LogFile, int, int]] = []

    def look(self, end: int) -> Tail:
        """What stands behind `end`."""
        self._written = []
        good = None
        for file in self._files(end):
            # Not at `end` itself: there the scan has just failed.
            first = max(end + 1 - file.start, 0)
            for position, chunk in _chunks(file, max(end - file.start, 0)):
                self._written.append((file, position, len(chunk)))
                if good is None:
                    good = self._good_in(file, position, chunk, first)
        return Tail(end, good, good is not None and self._is_torn(end, good[0]), bool(self._written))

    def _files(self, end: int) -> list[LogFile]:
        return [file for file in self._log.files.files if file.end > end]

    def _good_in(self, file: LogFile, position: int, chunk: bytes, first: int) -> tuple[int, int] | None:
        at = chunk.find(_MAGIC)
        while at >= 0:
            start = position + at - 4
            if start >= first:
                out: list[DispatchRequest] = []
                self._scanner.scan(file.view(), file.start, start, file.size, out, count=1, verify=Verify.BODY_CRC)
                if out:
                    return out[0].physical_offset, out[0].store_timestamp
            at = chunk.find(_MAGIC, at + 1)
        return None

    def _is_torn(self, end: int, good: int) -> bool:
        """Whether a page between the two is as a power loss leaves it: not written, or not to its end.

        A disk writes whole sectors, and a turn of the log is one write: what is lost of a page is its last sector at
        least, or all that the turn has put there.
        """
        for file in self._files(end):
            if file.start >= good:
                break
            first = max(end - file.start, 0)
            last = min(good - file.start, file.size)
            if good >= file.end and self._ends_early(file, first):
                return True
            border = (first // _PAGE + 1) * _PAGE
            # The first bytes of the good record's size are zeros anyway: its page may begin behind them.
            while border <= last + 3:
                begin = max(first, border - _SECTOR)
                # Of the bad record that begins with the last bytes of a page the same is true.
                if border - begin > 2 and not any(file.read(begin, border - begin)):
                    return True
                border += _PAGE
        return False

    def _ends_early(self, file: LogFile, first: int) -> bool:
        """Whether a file was lost from its last page on, or from `first` on, its blank record too.

        That page may be torn anywhere: nothing came after it in its file.
        """
        if file.read(first, 8) == bytes(8):
            return True
        borders = range((first // _PAGE + 1) * _PAGE, file.size + 1, _PAGE)
        return any(file.read(border - 1, 1) == b"\0" for border in borders)

    # Putting away, after `look`

    def quarantine(self, end: int) -> list[str]:
        """Copy what stands behind `end` to files of its own; gives their paths."""
        targets: dict[LogFile, DiskFile] = {}
        for file, position, length in self._written:
            first = max(end - file.start, 0)
            if file not in targets:
                path = self._free_name(file.start + first)
                targets[file] = self._disk.open(path, size=file.size - first, create=True)
            targets[file].write(position - first, [file.read(position, length)])
        for target in targets.values():
            target.sync()
            target.close()
        if targets:
            self._disk.sync_dir(self._folder)
        return [target.path for target in targets.values()]

    def _free_name(self, offset: int) -> str:
        path = free = f"{self._folder}/commitlog-{offset:020d}"
        number = 0
        while self._disk.exists(free):
            number += 1
            free = f"{path}-{number}"
        return free

    def cut(self, end: int) -> None:
        """Let the log end there: later files go, and what follows in its file is erased.

        Recovery reads the raw file: whatever stays behind the end could come back as a message one day.
        """
        last = self._log.files.find(end)
        for file, position, length in self._written:
            if file is last:
                self._log.erase(file, position, position + length)
        if last is not None and self._written:
            last.sync()
        for path in self._log.files.drop_after(end):
            log.info("removed %s: it begins after the end of the log", path)


def _chunks(file: LogFile, position: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a file from a position on that hold anything but zeros."""
    while (position := file.next_data(position)) < file.size:
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
