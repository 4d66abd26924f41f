"""Puts a store right that a check has found wrong. The log is the truth; nothing is thrown away.

A log that cannot be followed ends where that begins: the rest goes to `quarantine/`, where it can be looked at. Queues
with a defect, and the index when anything is wrong with it, move there too and are built anew from the log; what is
sound stays as it is. Offsets that no queue can have are put to the nearest that it has. All that is done is told.

Not here: what the next start mends by itself, and finding out what is wrong (`check`).
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

import msgspec

from cometmq.broker.store.check import Check
from cometmq.broker.store.check_log import Progress
from cometmq.broker.store.check_report import Kind, Report
from cometmq.broker.store.checkpoint import Checkpoint
from cometmq.broker.store.clock import SystemClock
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.config_files import ConfigFile, ConfigFiles
from cometmq.broker.store.consume_queue import BLANK_UNIT, UNIT_SIZE
from cometmq.broker.store.consume_queues import BATCH_FOLDER, EXT_FOLDER, FOLDER, ConsumeQueues
from cometmq.broker.store.disk import Disk, RealDisk
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.dispatchers import FillIndex, FillQueues
from cometmq.broker.store.errors import ConfigDamaged
from cometmq.broker.store.index import FOLDER as INDEX_FOLDER
from cometmq.broker.store.index import Index
from cometmq.broker.store.light_queues import light_targets
from cometmq.broker.store.log_files import file_name
from cometmq.broker.store.marks import Marks
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.scan import Scanner
from cometmq.broker.store.tail import TailReader
from cometmq.broker.store.tickets import Watermarks
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.record import MAGIC_BLANK

Say = Callable[[str], None]

_BLANK: Final = Struct(">ii")
_COPY: Final = 1 << 20
#: Rounds of check and repair: lengths, the log, everything else, and one to see that all is well.
_ROUNDS: Final = 6


class Repair:
    """One repair of one directory, which it keeps locked."""

    def __init__(
        self,
        root: str,
        properties: Mapping[str, str] | None = None,
        *,
        disk: Disk | None = None,
        say: Say = lambda line: None,
        progress: Progress | None = None,
    ) -> None:
        self._root = root
        self._disk = disk or RealDisk()
        self._say = say
        self._progress = progress
        self._quarantine = f"{root}/quarantine"
        # Asked once: what is moved away later must not change the answer.
        check = Check(root, properties, disk=self._disk)
        self._options = check.options
        self._properties = dict(properties or {}) | {
            key: value for key, value in check.options.to_properties().items() if key not in _INDEX_KEYS
        }
        self._log_folder = check.options.commit_log_folder(root)

    def run(self) -> tuple[Report, Report]:
        """What was found before, and what is left after."""
        marks = Marks(self._disk, self._root)
        marks.take_lock()
        try:
            first = report = self._check()
            for _ in range(_ROUNDS):
                if report.sound:
                    break
                self._mend(report)
                report = self._check()
        finally:
            marks.release_lock()
        return first, report

    def _check(self) -> Report:
        # On a disk that cannot be written: a check changes nothing.
        disk = RealDisk(read_only=True) if isinstance(self._disk, RealDisk) else self._disk
        self._last = Check(self._root, self._properties, disk=disk, progress=self._progress)
        return self._last.run()

    def _mend(self, report: Report) -> None:
        """The log first: what else is wrong is asked again when it can be followed."""
        if self._mend_files(report) or self._mend_log(report):
            return
        if report.bad_queues or report.bad_index:
            self._rebuild(report)
        self._mend_config(report)

    # The log

    def _mend_files(self, report: Report) -> bool:
        """Files of the log with a wrong name go away, those of a wrong length get the right one."""
        size = self._options.mapped_file_size_commit_log
        changed = False
        for finding in report.defects:
            if finding.kind is Kind.BLANK and finding.offset is not None:
                file = self._disk.open(finding.path)
                file.write(finding.offset, [_BLANK.pack(file.size - finding.offset, MAGIC_BLANK)])
                file.sync()
                file.close()
                self._say(f"{finding.path} at {finding.offset}: the blank record was written anew")
                changed = True
            if finding.kind is not Kind.LOG_FILE or not self._disk.exists(finding.path):
                continue
            name = finding.path.rpartition("/")[2]
            is_named = name.isdigit() and int(name) % size == 0
            if is_named and self._disk.size(finding.path) == size:
                continue
            kept = self._move(finding.path, f"commitlog-{name}")
            if is_named:
                self._copy(kept, finding.path, size)
                self._say(f"{finding.path}: it has {size} bytes again")
            changed = True
        return changed

    def _copy(self, source: str, target: str, size: int) -> None:
        old, new = self._disk.open(source), self._disk.open(target, size=size, create=True)
        position = 0
        while position < min(size, old.size):
            data = old.read(position, min(_COPY, size - position))
            if any(data):
                new.write(position, [data])
            position += len(data)
        new.sync()
        old.close()
        new.close()
        self._disk.sync_dir(target.rpartition("/")[0])

    def _mend_log(self, report: Report) -> bool:
        end = report.broken_from
        if end is None:
            return False
        size = self._options.mapped_file_size_commit_log
        keep = end - end % size
        for name in reversed(self._disk.list_dir(self._log_folder)):
            # The last one first: a power loss in between leaves no hole.
            if name.isdigit() and int(name) > keep:
                self._move(f"{self._log_folder}/{name}", f"commitlog-{name}")
        if end > keep and self._disk.exists(f"{self._log_folder}/{file_name(keep)}"):
            commit_log = CommitLog(self._disk, self._log_folder, size, Watermarks(), runner=ManualRunner())
            commit_log.load()
            scanner = Scanner(DelayLevels.parse(self._options.message_delay_level))
            tail = TailReader(self._disk, self._root, commit_log, scanner)
            tail.look(end)
            for path in tail.quarantine(end):
                self._say(f"what followed {end} in the log is in {path}")
            tail.cut(end)
            commit_log.close(drop_prepared=False)
        elif self._disk.exists(f"{self._log_folder}/{file_name(keep)}"):
            self._move(f"{self._log_folder}/{file_name(keep)}", f"commitlog-{file_name(keep)}")
        self._say(f"the log ends at {end} now")
        return True

    # Queues and index

    def _rebuild(self, report: Report) -> None:
        kept = {}
        for topic, queue_id, is_batch in sorted(report.bad_queues):
            known = self._last.queues.get((topic, queue_id))
            kept[topic, queue_id] = known.max_offset if known is not None else 0
            for folder in (BATCH_FOLDER,) if is_batch else (FOLDER, EXT_FOLDER):
                path = f"{self._root}/{folder}/{topic}/{queue_id}"
                if self._disk.exists(path):
                    self._move(path, f"{folder}-{topic}-{queue_id}")
        if report.bad_index and self._disk.exists(f"{self._root}/{INDEX_FOLDER}"):
            self._move(f"{self._root}/{INDEX_FOLDER}", INDEX_FOLDER)
        options = self._options
        if (shape := self._last.index_shape) is not None:
            options = options.updated({"maxHashSlotNum": str(shape[0]), "maxIndexNum": str(shape[1])})
        queues = ConsumeQueues(self._disk, self._root, options, is_batch_topic=self._last.is_batch)
        queues.load()
        queues.recover(thorough=Marks(self._disk, self._root).unclean)
        fill = FillQueues(queues, multi_dispatch=options.enable_multi_dispatch)
        index = Index(self._disk, self._root, options, SystemClock()) if report.bad_index else None
        fill_index = None if index is None else FillIndex(index)
        wanted = set(kept)
        count = 0
        for requests in self._last.records():
            some = [each for each in requests if _is_of(each, wanted, lights=options.enable_multi_dispatch)]
            self._fill(queues, fill, some, wanted)
            count += len(some)
            if fill_index is not None:
                fill_index.dispatch(requests)
        for (topic, queue_id), end in kept.items():
            queue = queues.get(topic, queue_id)
            if end and (queue is None or not queue.next_offset) and not self._last.is_batch(topic):
                self._keep_numbering(f"{self._root}/{FOLDER}/{topic}/{queue_id}", end)
        queues.flush()
        queues.close()
        if index is not None:
            index.flush()
            index.close()
            self._say("the index was built anew")
        if kept:
            self._say(f"{len(kept)} queues were built anew, with {count} messages")

    def _fill(
        self, queues: ConsumeQueues, fill: FillQueues, requests: list[DispatchRequest], wanted: set[tuple[str, int]]
    ) -> None:
        """Give records their units. A queue whose topic was deleted and made anew begins anew: the log is right."""
        following: dict[tuple[str, int], int] = {}
        first = 0
        for number, request in enumerate(requests):
            key = (request.topic, request.queue_id)
            if key not in wanted or request.sys_flag & 0x4:
                continue
            if key not in following:
                queue = queues.get(*key)
                following[key] = queue.next_offset if queue is not None else 0
            if following[key] not in (0, request.queue_offset):
                fill.dispatch(requests[first:number])
                first = number
                queues.queue(*key).destroy()
            following[key] = request.queue_offset + request.batch_size
        fill.dispatch(requests[first:])

    def _keep_numbering(self, folder: str, end: int) -> None:
        """A queue whose messages have all expired: only its end is left, and must not be lost."""
        size = self._options.consume_queue_file_size
        start = end * UNIT_SIZE - end * UNIT_SIZE % size
        file = self._disk.open(f"{folder}/{file_name(start)}", size=size, create=True)
        file.write(0, [BLANK_UNIT * (end - start // UNIT_SIZE)])
        file.sync()
        file.close()
        self._disk.sync_dir(folder)

    # Tables

    def _mend_config(self, report: Report) -> None:
        config = ConfigFiles(self._disk, self._root)
        by_path = {file.path: file for file in config.all()}
        for finding in report.defects:
            if finding.kind is Kind.CHECKPOINT:
                checkpoint = Checkpoint(self._disk, finding.path)
                checkpoint.load()
                checkpoint.flush()
                self._say(f"{finding.path} was written anew")
            elif finding.kind is Kind.CONFIG:
                self._mend_table(by_path[finding.path])
        changes: dict[int, dict[tuple[str, int], int]] = {}
        for file, key, queue_id, offset in self._last.wrong_offsets:
            changes.setdefault(id(by_path[file.path]), {})[key, queue_id] = offset
        for file in by_path.values():
            if id(file) in changes:
                self._set_offsets(file, changes[id(file)])

    def _mend_table(self, file: ConfigFile[Body]) -> None:
        try:
            table = file.load()
        except ConfigDamaged:
            for path in (file.path, f"{file.path}.bak"):
                if self._disk.exists(path):
                    self._move(path, path.rpartition("/")[2])
            return
        if table is not None:
            file.save(table)
            self._say(f"{file.path} was written anew from its .bak")

    def _set_offsets(self, file: ConfigFile[Body], changes: dict[tuple[str, int], int]) -> None:
        table = file.load()
        if table is None:
            return
        fields = {}
        for name in ("offset_table", "lmq_offset_table"):
            offsets = getattr(table, name, None)
            if offsets:
                fields[name] = _changed(offsets, changes)
        file.save(msgspec.structs.replace(table, **fields))
        self._say(f"{file.path}: {len(changes)} offsets were put to the ends of their queues")

    # Putting away

    def _move(self, path: str, name: str) -> str:
        """Moves a file or a directory to the quarantine; returns where it is now."""
        self._disk.make_dirs(self._quarantine, sync=True)
        target = free = f"{self._quarantine}/{name}"
        number = 0
        while self._disk.exists(free):
            number += 1
            free = f"{target}-{number}"
        self._disk.rename(path, free)
        self._disk.sync_dir(self._quarantine)
        self._disk.sync_dir(path.rpartition("/")[0])
        self._say(f"{path} was moved to {free}")
        return free


#: Keys that an index file tells better than the options.
_INDEX_KEYS: Final = ("maxHashSlotNum", "maxIndexNum")


def _is_of(request: DispatchRequest, wanted: set[tuple[str, int]], *, lights: bool) -> bool:
    """Whether a record belongs to one of the queues. Others have it already, and pass over it."""
    if (request.topic, request.queue_id) in wanted:
        return True
    return lights and any((name, 0) in wanted for name, _ in light_targets(request.properties))


def _changed(offsets: dict[object, object], changes: dict[tuple[str, int], int]) -> dict[object, object]:
    """A table of offsets with some of them changed: by key and queue, by key, or by delay level."""
    result: dict[object, object] = {}
    for key, value in offsets.items():
        if isinstance(value, dict):
            result[key] = {queue: changes.get((str(key), queue), offset) for queue, offset in value.items()}
        elif isinstance(key, int):
            result[key] = changes.get(("", key - 1), value)
        else:
            result[key] = changes.get((str(key), 0), value)
    return result
