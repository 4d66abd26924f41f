"""The check of a store that nobody runs: does everything in the directory agree with everything else?

Reads our directories and Apache RocketMQ's, and changes nothing. The log is read once, from the first record to the
last; consume queues, extensions, batch queues and index are compared with it on the way, then the offsets of consumers
with the queues. What the next start mends by itself is a note, everything else that does not fit is a defect. Putting
things right is the business of `repair`.
"""

import collections
import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from typing import Final

from cometmq.broker.store.batch_consume_queue import BATCH_UNIT_SIZE
from cometmq.broker.store.check_index import IndexCheck
from cometmq.broker.store.check_log import LogCheck, Progress
from cometmq.broker.store.check_queues import QueueCheck, QueuesCheck
from cometmq.broker.store.check_report import Kind, Report
from cometmq.broker.store.check_timers import TimerCheck
from cometmq.broker.store.checkpoint import FILE_SIZE, Checkpoint
from cometmq.broker.store.config_files import ConfigFile, ConfigFiles
from cometmq.broker.store.consume_queues import BATCH_FOLDER, EXT_FOLDER, FOLDER
from cometmq.broker.store.disk import Disk, RealDisk, lock_owner
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.errors import ConfigDamaged, FileLengthWrong, StoreError, StoreLocked
from cometmq.broker.store.marks import Marks
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.scan import Scanner
from cometmq.protocol import names
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.delay import DelayLevels

#: What tells a store: one of these is there.
_SIGNS: Final = ("commitlog", FOLDER, "config", "checkpoint", "lock")


class NoStore(StoreError):
    """Is raised when a directory does not look like a store."""

    remedy = "name the directory that holds commitlog/ and consumequeue/"


def guess_options(disk: Disk, root: str, properties: Mapping[str, str]) -> StoreOptions:
    """The options that a directory was written with: as given, and the lengths of its files where nothing is given."""
    found = dict(properties)
    folders = {
        "mappedFileSizeCommitLog": [properties.get("storePathCommitLog") or f"{root}/commitlog"],
        "mappedFileSizeConsumeQueue": _queue_folders(disk, f"{root}/{FOLDER}"),
        "mappedFileSizeConsumeQueueExt": _queue_folders(disk, f"{root}/{EXT_FOLDER}"),
        "mapperFileSizeBatchConsumeQueue": _queue_folders(disk, f"{root}/{BATCH_FOLDER}"),
    }
    _refuse_other_length(disk, folders["mappedFileSizeCommitLog"][0], found.get("mappedFileSizeCommitLog"))
    for key, paths in folders.items():
        if key not in found and (length := _usual_length(disk, paths)):
            found[key] = str(length)
    if "enableConsumeQueueExt" not in found and disk.list_dir(f"{root}/{EXT_FOLDER}"):
        found["enableConsumeQueueExt"] = "true"
    lights = any(name.startswith(names.LMQ_PREFIX) for name in disk.list_dir(f"{root}/{FOLDER}"))
    if "enableMultiDispatch" not in found and lights:
        found["enableMultiDispatch"] = found["enableLmq"] = "true"
    return StoreOptions.from_properties(found)


def _queue_folders(disk: Disk, folder: str) -> list[str]:
    paths = [f"{folder}/{topic}" for topic in disk.list_dir(folder)]
    return [f"{path}/{name}" for path in paths for name in disk.list_dir(path) if name.isdigit()]


def _refuse_other_length(disk: Disk, folder: str, given: str | None) -> None:
    """Files of the log that all have one length have not got it by damage. To repair them would cut every one."""
    lengths = _lengths(disk, [folder])
    if given is None or len(lengths) != 1:
        return
    ((length, count),) = lengths.items()
    size = StoreOptions.from_properties({"mappedFileSizeCommitLog": given}).mapped_file_size_commit_log
    if count > 1 and length != size:
        raise FileLengthWrong(folder, length, size)


def _usual_length(disk: Disk, folders: list[str]) -> int:
    """The length that most files have; of two that are equally frequent the greater one: files get cut, not grown."""
    lengths = _lengths(disk, folders)
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


def _lengths(disk: Disk, folders: list[str]) -> "collections.Counter[int]":
    """How often each length is there; empty files do not count."""
    lengths: collections.Counter[int] = collections.Counter()
    for folder in folders:
        for name in disk.list_dir(folder):
            if name.isdigit() and not disk.is_dir(f"{folder}/{name}") and (length := disk.size(f"{folder}/{name}")):
                lengths[length] += 1
    return lengths


@contextlib.contextmanager
def kept_still(root: str) -> Iterator[None]:
    """Keep brokers from starting on the directory, without a change to it. Raises `StoreLocked` when one runs."""
    path = f"{root}/lock"
    try:
        # Of a store of this process nobody may touch the file: closing it would give the lock back.
        RealDisk(read_only=True).read_file(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StoreLocked(path, os.getpid()) from None
        raise
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLocked(path, lock_owner(descriptor)[1]) from None
        yield
    finally:
        os.close(descriptor)


class Check:
    """One check of one directory. The disk may be read-only."""

    def __init__(
        self,
        root: str,
        properties: Mapping[str, str] | None = None,
        *,
        disk: Disk | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.root = root
        self.disk = disk = disk or RealDisk(read_only=True)
        self._progress = progress
        given = dict(properties or {})
        if not any(disk.exists(f"{root}/{name}") for name in _SIGNS) and not given.get("storePathCommitLog"):
            raise NoStore("this is no store", path=root)
        self.options = guess_options(disk, root, given)
        self.options.commit_log_folder(root)
        #: Slots and entries of the index files; None when neither options nor files tell.
        self.index_shape: tuple[int, int] | None = None
        #: What a repair asks after `run`: the queues, and the offsets that they cannot have.
        self.queues: dict[tuple[str, int], QueueCheck] = {}
        self.wrong_offsets: list[tuple[ConfigFile[Body], str, int, int]] = []
        self._batch_topics: frozenset[str] = frozenset()
        if "maxHashSlotNum" in given or "maxIndexNum" in given:
            self.index_shape = self.options.max_hash_slot_num, self.options.max_index_num

    def run(self) -> Report:
        """Look at everything."""
        disk, root, options = self.disk, self.root, self.options
        report = Report()
        clean = not Marks(disk, root).unclean
        if not clean:
            report.note(Kind.STORE, f"{root}/abort", None, "the store was not closed cleanly; the next start recovers")
        checkpoint = self._checkpoint(report)
        config = ConfigFiles(disk, root)
        tables = {id(file): self._load(file, report) for file in config.all()}
        topics = tables[id(config.topics)]
        log = self._log_check(report, checkpoint, clean=clean)
        queues = QueuesCheck(
            disk,
            root,
            log,
            report,
            file_size=options.consume_queue_file_size,
            ext_file_size=options.mapped_file_size_consume_queue_ext,
            batch_file_size=-(-options.mapper_file_size_batch_consume_queue // BATCH_UNIT_SIZE) * BATCH_UNIT_SIZE,
            multi_dispatch=options.enable_multi_dispatch,
            topics=None if topics is None else frozenset(getattr(topics, "topic_config_table", None) or ()),
            clean=clean,
        )
        index = None
        if options.message_index_enable:
            index = IndexCheck(
                disk,
                root,
                report,
                configured=self.index_shape,
                clean=clean,
                safe_timestamp=checkpoint.index_msg_timestamp,
                log=log,
            )
        for requests in log.requests():
            queues.feed(requests)
            if index is not None:
                index.feed(requests)
        ahead = queues.finish()
        if index is not None:
            index.finish()
            self.index_shape = index.shape or self.index_shape
        self._tail(log, report, lost=clean and ahead)
        self.queues = queues.queues
        self._batch_topics = frozenset(
            name
            for name, topic in (getattr(topics, "topic_config_table", None) or {}).items()
            if (topic.attributes or {}).get("queue.type") == "BatchCQ"
        ) | {topic for (topic, _), queue in queues.queues.items() if queue.is_batch}
        check_offsets(config, tables, queues, report, self.wrong_offsets)
        timer_log_size = _usual_length(disk, [f"{root}/timerlog"])
        TimerCheck(disk, root, report, log.begin, log.end, clean=clean).run(timer_log_size)
        if disk.list_dir(f"{root}/compaction/compactionLog"):
            what = "copies of the messages of compacted topics; they are not looked at"
            report.note(Kind.STORE, f"{root}/compaction/compactionLog", None, what)
        return report

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are batch queues, as its configuration or its folder says."""
        return topic in self._batch_topics

    def records(self) -> Iterator[list[DispatchRequest]]:
        """All records of the log once more, for whoever builds something anew from them."""
        return self._log_check(
            Report(), self._checkpoint(Report()), clean=not Marks(self.disk, self.root).unclean
        ).requests()

    def _log_check(self, report: Report, checkpoint: Checkpoint, *, clean: bool) -> LogCheck:
        options = self.options
        return LogCheck(
            self.disk,
            self.root,
            options.commit_log_folder(self.root),
            options.mapped_file_size_commit_log,
            Scanner(DelayLevels.parse(options.message_delay_level)),
            checkpoint,
            report,
            # Where only the process died nothing is torn that has a record behind it.
            whole=clean or Marks(self.disk, self.root).same_life,
            progress=self._progress,
        )

    def _tail(self, log: LogCheck, report: Report, *, lost: bool) -> None:
        """What stands behind the last record: torn by a crash, left by an older one, or a message that was there."""
        if log.tail is None:
            return
        path, position, reason = log.tail
        if lost:
            report.defect(Kind.RECORD, path, position, f"{reason}; queues know records from here on")
            report.break_log(log.end)
        else:
            report.note(Kind.RECORD, path, position, f"{reason}; the next start ends the log here")

    def _checkpoint(self, report: Report) -> Checkpoint:
        path = f"{self.root}/checkpoint"
        checkpoint = Checkpoint(self.disk, path)
        checkpoint.load()
        if self.disk.exists(path):
            data = self.disk.read_file(path)
            if len(data) != FILE_SIZE:
                report.defect(Kind.CHECKPOINT, path, len(data), f"it has {len(data)} bytes in place of {FILE_SIZE}")
            for number in range(0, min(len(data), 40) - 7, 8):
                if data[number] & 0x80:
                    report.defect(Kind.CHECKPOINT, path, number, "a time or offset below zero")
        return checkpoint

    def _load(self, file: ConfigFile[Body], report: Report) -> Body | None:
        try:
            return file.load()
        except ConfigDamaged as error:
            report.defect(Kind.CONFIG, file.path, None, error.what)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            report.defect(Kind.CONFIG, file.path, None, "it is damaged; its .bak can be read")
        return None


def check_offsets(
    config: ConfigFiles,
    tables: Mapping[int, Body | None],
    queues: QueuesCheck,
    report: Report,
    wrong: list[tuple[ConfigFile[Body], str, int, int]],
) -> None:
    """Offsets of consumers and of delay levels against the queues that they are of.

    `wrong` gets those that a queue cannot have: file, key, queue id, and the offset that it should be.
    """

    def check(file: object, key: str, topic: str, queue_id: int, offset: int, needle: bytes) -> None:
        assert isinstance(file, ConfigFile)
        report.offsets += 1
        queue = queues.queues.get((topic, queue_id))
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        who = f"{key}, queue {queue_id}: " if key else f"level {queue_id + 1}: "
        if offset < 0 or offset > high:
            if queue is None and offset >= 0 and not queues.knows(topic):
                report.note(Kind.OFFSET, file.path, None, f"{who}the topic is gone")
                return
            at = _position(queues.disk, file.path, needle)
            report.defect(Kind.OFFSET, file.path, at, f"{who}{offset} is not between {low} and {high}")
            wrong.append((file, key, queue_id, min(max(offset, low), high)))
        elif offset < low:
            report.note(Kind.OFFSET, file.path, None, f"{who}{offset} has expired, the queue begins at {low}")

    for file in (config.consumer_offsets, config.lmq_consumer_offsets):
        table = tables[id(file)]
        for key, offsets in (getattr(table, "offset_table", None) or {}).items():
            for queue_id, offset in offsets.items():
                check(file, key, key.partition("@")[0], queue_id, offset, f'"{key}"'.encode())
        for key, offset in (getattr(table, "lmq_offset_table", None) or {}).items():
            check(file, key, key.partition("@")[0], 0, offset, f'"{key}"'.encode())
    delays = tables[id(config.delay_offsets)]
    for level, offset in (getattr(delays, "offset_table", None) or {}).items():
        check(config.delay_offsets, "", names.SCHEDULE_TOPIC, level - 1, offset, f"{level}:{offset}".encode())


def _position(disk: Disk, path: str, needle: bytes) -> int | None:
    at = disk.read_file(path).rfind(needle)
    return at if at >= 0 else None
