"""The part of a check that compares the consume queues with the log.

The log says which units there must be, in which order and with which content. A queue is therefore read along with the
log: a batch of records gives the bytes of a stretch of units, which is compared as a whole, and unit by unit only where
it differs. What no record has asked for must be older than the log, or it is wrong.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from cometmq.broker.store.batch_consume_queue import BATCH_UNIT, BATCH_UNIT_SIZE
from cometmq.broker.store.check_log import LogCheck, find_files
from cometmq.broker.store.check_report import Kind, Report
from cometmq.broker.store.consume_queue import UNIT, UNIT_SIZE
from cometmq.broker.store.consume_queue_ext import HEAD, is_address
from cometmq.broker.store.consume_queues import BATCH_FOLDER, EXT_FOLDER, FOLDER
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.light_queues import light_targets
from cometmq.broker.store.log_files import LogFile, file_name
from cometmq.broker.store.unit_log import BLANK_SIZE

_MAX_OPEN: Final = 256
_CHUNK: Final = 65536
_LOWEST: Final = -(1 << 63)

#: Queue offset, physical offset, size, tags code, store time, number of messages; whether it may have an extension.
_Wanted = tuple[int, int, int, int, int, int, bool]


class OpenedFiles:
    """Reads of many files with few of them open."""

    def __init__(self) -> None:
        self._open: OrderedDict[LogFile, None] = OrderedDict()

    def read(self, file: LogFile, position: int, length: int) -> bytes:
        self._open[file] = None
        self._open.move_to_end(file)
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)[0].close()
        return file.read(position, length)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[0].close()


class FileRun:
    """The files of one log as one stretch of bytes; where no file is, zeros are read."""

    def __init__(self, folder: str, files: list[LogFile], file_size: int, opened: OpenedFiles) -> None:
        self.folder = folder
        self.files = {file.start: file for file in files}
        self.file_size = file_size
        self._opened = opened
        self.begin = files[0].start if files else 0
        self.end = files[-1].start + file_size if files else 0

    def read(self, position: int, length: int) -> bytes:
        parts = []
        while length > 0:
            start = position - position % self.file_size
            step = min(length, start + self.file_size - position)
            file = self.files.get(start)
            data = b"" if file is None else self._opened.read(file, position - start, step)
            parts.append(data.ljust(step, b"\0"))
            position += step
            length -= step
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def place(self, position: int) -> tuple[str, int]:
        """File and position in it."""
        start = position - position % self.file_size
        return f"{self.folder}/{file_name(start)}", position - start


class QueueCheck:
    """One queue: how far the log has confirmed it."""

    def __init__(self, topic: str, queue_id: int, is_batch: bool, run: FileRun, ext: FileRun | None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_batch = is_batch
        self.run = run
        self.ext = ext
        self.unit_size = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
        #: Unit numbers that the log has asked for: from, and to.
        self.low = -1
        self.next = -1
        #: Records without a unit: how many, the first one's unit number and physical offset, the last one's.
        self.missing = 0
        self.first_missing = (0, 0)
        self.last_missing = 0
        #: Units that are not what the log says: number and what is wrong. They are told at the end.
        self.wrong: list[tuple[Kind, str, int, str]] = []
        self.min_offset = 0
        self.max_offset = 0
        self.made_anew = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.queue_id}"


class QueuesCheck:
    """All queues of one store. `feed` takes the log, `finish` tells what was found."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        log: LogCheck,
        report: Report,
        *,
        file_size: int,
        ext_file_size: int,
        batch_file_size: int,
        multi_dispatch: bool,
        topics: frozenset[str] | None,
        clean: bool,
    ) -> None:
        self.disk = disk
        self._root = root
        self._log = log
        self._report = report
        self._multi_dispatch = multi_dispatch
        #: The topics that the broker knows; None when that is unknown.
        self._topics = topics
        self._clean = clean
        self._opened = OpenedFiles()
        self.queues: dict[tuple[str, int], QueueCheck] = {}
        #: Records of queues that are not there: how many, the first physical offset.
        self._absent: dict[tuple[str, int], tuple[int, int]] = {}
        for folder, is_batch in ((FOLDER, False), (BATCH_FOLDER, True)):
            for topic in disk.list_dir(f"{root}/{folder}"):
                path = f"{root}/{folder}/{topic}"
                for name in disk.list_dir(path):
                    if name.isascii() and name.isdigit():
                        size = batch_file_size if is_batch else file_size
                        files, bad = find_files(disk, f"{path}/{name}", size, Kind.QUEUE_FILE, report)
                        run = FileRun(f"{path}/{name}", files, size, self._opened)
                        ext = None
                        ext_folder = f"{root}/{EXT_FOLDER}/{topic}/{name}"
                        if not is_batch and disk.is_dir(ext_folder):
                            ext_files, ext_bad = find_files(disk, ext_folder, ext_file_size, Kind.QUEUE_FILE, report)
                            bad = bad or ext_bad
                            ext = FileRun(ext_folder, ext_files, ext_file_size, self._opened)
                        queue = QueueCheck(topic, int(name), is_batch, run, ext)
                        if (topic, int(name)) in self.queues:
                            what = "the topic has queues of single messages and of batches"
                            report.defect(Kind.QUEUE_FILE, path, None, what)
                            continue
                        self.queues[topic, int(name)] = queue
                        if bad:
                            self._mark(queue)
        report.queues = len(self.queues)

    def knows(self, topic: str) -> bool:
        """Whether the topic is there, as far as anybody knows."""
        return self._topics is None or topic in self._topics

    def _mark(self, queue: QueueCheck) -> None:
        self._report.bad_queues.add((queue.topic, queue.queue_id, queue.is_batch))

    # Along with the log

    def feed(self, requests: Iterable[DispatchRequest]) -> None:
        """Compare with the next records of the log."""
        groups: dict[tuple[str, int], list[_Wanted]] = {}
        for request in requests:
            # Half and rollback records of the old kind are in no queue.
            if request.sys_flag & 0x4:
                continue
            wanted = (
                request.queue_offset,
                request.physical_offset,
                request.size,
                request.tags_code,
                request.store_timestamp,
                request.batch_size,
                True,
            )
            groups.setdefault((request.topic, request.queue_id), []).append(wanted)
            if request.properties.rfind(b"INNER_MULTI_DISPATCH\x01") >= 0:
                for name, offset in light_targets(request.properties):
                    if self._multi_dispatch or (name, 0) in self.queues:
                        groups.setdefault((name, 0), []).append((offset, *wanted[1:5], 1, False))
        for key, group in groups.items():
            queue = self.queues.get(key)
            if queue is None:
                count, first = self._absent.get(key, (0, group[0][1]))
                self._absent[key] = (count + len(group), first)
            elif queue.is_batch:
                self._compare_batches(queue, group)
            else:
                self._compare(queue, group)

    def _compare(self, queue: QueueCheck, group: list[_Wanted]) -> None:
        """Units of a queue against what the log says; all at once when they follow each other."""
        first, count = group[0][0], len(group)
        follows = queue.next < 0 or queue.next == first
        if follows and first >= 0 and group[-1][0] - first == count - 1:
            wanted = b"".join([UNIT.pack(place, size, tags) for _, place, size, tags, _, _, _ in group])
            if queue.run.read(first * UNIT_SIZE, count * UNIT_SIZE) == wanted:
                if queue.next < 0:
                    queue.low = first
                queue.next = first + count
                self._report.units += count
                return
        for each in group:
            self._compare_one(queue, each)

    def _compare_one(self, queue: QueueCheck, wanted: _Wanted) -> None:
        offset, place, size, tags, store_time, _, may_extend = wanted
        path, at = queue.run.place(max(offset, 0) * UNIT_SIZE)
        if not 0 <= offset < 1 << 58:
            self._wrong(queue, Kind.UNIT, path, at, f"the record at {place} has the queue offset {offset}")
            return
        unit = UNIT.unpack(queue.run.read(offset * UNIT_SIZE, UNIT_SIZE))
        points_right = unit[:2] == (place, size)
        if queue.next >= 0 and offset < queue.next:
            if not points_right:
                what = f"the record at {place} has the offset of another one, {offset}"
                self._wrong(queue, Kind.UNIT, path, at, what)
                return
            # The numbering begins anew: the topic was deleted and made again. What came before is history.
            queue.made_anew += queue.next - queue.low
            queue.wrong.clear()
            queue.missing = 0
            queue.low = offset
        elif queue.next >= 0 and offset > queue.next:
            self._check_gap(queue, offset)
        if queue.low < 0:
            queue.low = offset
        queue.next = offset + 1
        self._report.units += 1
        if unit == (0, 0, 0):
            if not queue.missing:
                queue.first_missing = offset, place
            queue.missing += 1
            queue.last_missing = offset
        elif not points_right:
            what = f"it points to {unit[1]} bytes at {unit[0]}; message {offset} has {size} bytes at {place}"
            self._wrong(queue, Kind.UNIT, path, at, what)
        elif unit[2] != tags:
            if may_extend and is_address(unit[2]) and queue.ext is not None:
                self._compare_ext(queue, unit[2], tags, store_time, offset)
            else:
                self._wrong(queue, Kind.UNIT, path, at + 12, f"its tags code is {unit[2]}, the message's is {tags}")

    def _check_gap(self, queue: QueueCheck, offset: int) -> None:
        """The log has no record for some units: their records must be among those that cannot be read."""
        for number in range(queue.next, min(offset, queue.next + 1000)):
            place, length, _ = UNIT.unpack(queue.run.read(number * UNIT_SIZE, UNIT_SIZE))
            if not self._log.is_bad(place):
                path, at = queue.run.place(number * UNIT_SIZE)
                what = f"it points to {length} bytes at {place}, where no record of the queue is"
                self._wrong(queue, Kind.UNIT, path, at, what)

    def _compare_ext(self, queue: QueueCheck, address: int, tags: int, store_time: int, offset: int) -> None:
        assert queue.ext is not None
        position = address - _LOWEST
        path, at = queue.ext.place(position)
        if not queue.ext.begin <= position < queue.ext.end:
            unit_path, unit_at = queue.run.place(offset * UNIT_SIZE)
            what = f"it points to {position} in the extension, which goes from {queue.ext.begin} to {queue.ext.end}"
            self._wrong(queue, Kind.UNIT, unit_path, unit_at + 12, what)
            return
        size, code, time, length = HEAD.unpack(queue.ext.read(position, HEAD.size))
        if size != HEAD.size + length or length < 0 or at + size > queue.ext.file_size:
            self._wrong(queue, Kind.EXT_UNIT, path, at, f"its size is {size}, of that {length} for the filters")
        elif (code, time) != (tags, store_time):
            what = f"it has tags code {code} and store time {time}, message {offset} has {tags} and {store_time}"
            self._wrong(queue, Kind.EXT_UNIT, path, at, what)

    def _wrong(self, queue: QueueCheck, kind: Kind, path: str, at: int, what: str) -> None:
        if len(queue.wrong) < 1000:
            queue.wrong.append((kind, path, at, what))

    def _compare_batches(self, queue: QueueCheck, group: list[_Wanted]) -> None:
        """Units of batches are found by their order."""
        size = BATCH_UNIT_SIZE
        number = queue.next
        if number < 0:
            number = queue.run.begin // size
            unit = BATCH_UNIT.unpack(queue.run.read(number * size, size))
            while unit[1] > 0 and unit[0] < self._log.begin:
                number += 1
                unit = BATCH_UNIT.unpack(queue.run.read(number * size, size))
            queue.low = number
            queue.min_offset = group[0][0]
        for offset, place, length, tags, store_time, count, _ in group:
            self._report.units += 1
            queue.max_offset = offset + count
            while True:
                unit = BATCH_UNIT.unpack(queue.run.read(number * size, size))
                path, at = queue.run.place(number * size)
                if not any(unit):
                    if not queue.missing:
                        queue.first_missing = number, place
                    queue.missing += 1
                    # Whether it was left out or lost, its place is taken: zeros are in no right queue but at its end.
                    number += 1
                    queue.last_missing = number - 1
                elif unit[:6] == (place, length, tags, store_time, offset, count):
                    number += 1
                elif 0 <= unit[0] < place and self._log.is_bad(unit[0]):
                    number += 1
                    continue
                elif 0 <= unit[0] < place:
                    self._wrong(queue, Kind.UNIT, path, at, f"it points to {unit[0]}, where no record of the queue is")
                    number += 1
                    continue
                else:
                    what = f"it holds {unit[:6]}; the log says {(place, length, tags, store_time, offset, count)}"
                    self._wrong(queue, Kind.UNIT, path, at, what)
                    number += 1
                break
        queue.next = number

    # At the end

    def finish(self) -> bool:
        """Tell what was found. Returns whether a queue knows records after the end of the log."""
        ahead = False
        for queue in self.queues.values():
            if queue.next < 0:
                queue.low = queue.next = self._end_of_expired(queue)
            else:
                self._check_expired(queue)
            ahead = self._check_rest(queue) or ahead
            self._tell(queue)
        self._tell_absent()
        self._opened.close()
        return ahead

    def _end_of_expired(self, queue: QueueCheck) -> int:
        """The first unit of a queue without records that is none, or points into the log."""
        size = queue.unit_size
        number = queue.run.begin // size
        while number * size < queue.run.end:
            data = queue.run.read(number * size, min(_CHUNK // size * size, queue.run.end - number * size))
            for start in range(0, len(data) - size + 1, size):
                place, length, _ = UNIT.unpack_from(data, start)
                if length <= 0 or place < 0 or (place >= self._log.begin and length != BLANK_SIZE):
                    return number
                number += 1
        return number

    def _check_expired(self, queue: QueueCheck) -> None:
        """Units before the first record of the log: expired ones, or blank ones before them."""
        size = queue.unit_size
        number = queue.run.begin // size
        last = -1
        while number < queue.low:
            data = queue.run.read(number * size, min(_CHUNK // size, queue.low - number) * size)
            for start in range(0, len(data), size):
                place, length, _ = UNIT.unpack_from(data, start)
                if length == BLANK_SIZE and place == 0:
                    right = last < 0
                else:
                    right = last <= place and length > 0 and (place < self._log.begin or self._log.is_bad(place))
                    last = max(last, place)
                if not right and not queue.made_anew:
                    path, at = queue.run.place(number * size)
                    what = f"it points to {length} bytes at {place}, where no record of the queue is"
                    self._wrong(queue, Kind.UNIT, path, at, what)
                number += 1

    def _check_rest(self, queue: QueueCheck) -> bool:
        """What stands behind the last unit that the log has asked for. Returns whether it is ahead of the log."""
        size = queue.unit_size
        number = queue.next
        ahead = foreign = 0
        where = None
        while number * size < queue.run.end:
            length = min(_CHUNK // size * size, queue.run.end - number * size)
            data = queue.run.read(number * size, length)
            if not any(data):
                break
            for start in range(0, len(data) - size + 1, size):
                place, length, _ = UNIT.unpack_from(data, start)
                if any(data[start : start + size]) and not self._log.is_bad(place):
                    if where is None:
                        where = queue.run.place((number + start // size) * size)
                    if place >= self._log.end and length > 0:
                        ahead += 1
                    else:
                        foreign += 1
            number += len(data) // size
        self._offsets(queue, ahead)
        if where is None:
            return False
        what = f"{ahead} units point behind the end of the log, {self._log.end}"
        if foreign:
            what = f"{foreign} units point to no record of the queue" + (f", {ahead} behind the end" if ahead else "")
        if self._clean or foreign:
            self._report.defect(Kind.UNIT, *where, what)
            self._mark(queue)
        else:
            self._report.note(Kind.UNIT, *where, f"{what}; the next start cuts them")
        return ahead > 0

    def _offsets(self, queue: QueueCheck, ahead: int) -> None:
        if not queue.is_batch:
            queue.min_offset, queue.max_offset = queue.low, queue.next
        elif queue.max_offset == 0 and queue.next * BATCH_UNIT_SIZE > queue.run.begin:
            unit = BATCH_UNIT.unpack(queue.run.read((queue.next - 1) * BATCH_UNIT_SIZE, BATCH_UNIT_SIZE))
            queue.min_offset = queue.max_offset = unit[4] + unit[5]

    def _tell(self, queue: QueueCheck) -> None:
        report = self._report
        for kind, path, at, what in queue.wrong:
            report.defect(kind, path, at, what)
            self._mark(queue)
        if queue.made_anew:
            what = f"{queue.made_anew} records are of a time before the topic was made anew"
            report.note(Kind.QUEUE_FILE, queue.run.folder, None, what)
        if not queue.missing:
            return
        number, place = queue.first_missing
        path, at = queue.run.place(number * queue.unit_size)
        what = f"{queue.missing} records from {place} on have no unit"
        if not self._clean and place >= self._log.recovery_start:
            report.note(Kind.UNIT, path, at, f"{what} yet; the next start writes them")
        else:
            report.defect(Kind.UNIT, path, at, what)
            self._mark(queue)

    def _tell_absent(self) -> None:
        report = self._report
        for (topic, queue_id), (count, place) in self._absent.items():
            path = f"{self._root}/{FOLDER}/{topic}/{queue_id}"
            what = f"{count} records from {place} on have no queue"
            if self._topics is not None and topic not in self._topics:
                report.note(Kind.QUEUE_FILE, path, None, f"{what}: the topic was deleted")
            elif not self._clean and place >= self._log.recovery_start:
                report.note(Kind.QUEUE_FILE, path, None, f"{what} yet; the next start makes it")
            else:
                report.defect(Kind.QUEUE_FILE, path, None, what)
                report.bad_queues.add((topic, queue_id, False))
