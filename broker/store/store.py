"""The store as its users see it: put messages, get messages, and everything is still there tomorrow.

A directory of Apache RocketMQ's, byte for byte: a Java broker can take it over and give it back. Open it (that is when
recovery happens), start it (from then on it takes messages, flushes and cleans by the clock), close it. One thread owns
a store; threads, time and disk are parameters. RocketMQ's DefaultMessageStore.
"""

import logging
import os
from collections.abc import Callable, Iterable

from cometmq.broker.store.checkpoint import Checkpoint
from cometmq.broker.store.cleaning import Cleaning
from cometmq.broker.store.clock import Clock, SystemClock
from cometmq.broker.store.commit_log import CommitLog, Range
from cometmq.broker.store.consume_queue import Boundary
from cometmq.broker.store.consume_queues import ConsumeQueues
from cometmq.broker.store.disk import Buffer, Disk, RealDisk
from cometmq.broker.store.dispatch import Dispatch, Dispatcher
from cometmq.broker.store.dispatchers import FillIndex, FillQueues
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.errors import StoreClosed, StoreDamaged
from cometmq.broker.store.flush import Flush, QueueFlush
from cometmq.broker.store.gather import Gather
from cometmq.broker.store.index import Index
from cometmq.broker.store.index_file import IndexFile
from cometmq.broker.store.marks import Marks
from cometmq.broker.store.message import Message
from cometmq.broker.store.options import BrokerRole, StoreOptions
from cometmq.broker.store.puts import Puts
from cometmq.broker.store.reading import GetResult, MessageFilter, QueryResult, Reading
from cometmq.broker.store.recovery import Progress, Recovered, Recovery
from cometmq.broker.store.runner import Runner
from cometmq.broker.store.running_flags import Flag, RunningFlags
from cometmq.broker.store.scan import LogScan, Scanner
from cometmq.broker.store.tail import TailReader
from cometmq.broker.store.tickets import Ticket, Watermarks
from cometmq.broker.store.transforms import SimpleTopics, TopicKinds, Transform, TransformList, default_transforms
from cometmq.protocol import names
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.message_id import pack_host

log = logging.getLogger(__name__)

_SHUT_NEW = "the store is not started"
_SHUT_CLOSED = "the store is closed"
_SHUT_SLAVE = "the store is a slave's: it takes messages from its master only"


class Store:
    """One store directory. See `open`, `start` and `close` for its life."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: StoreOptions | None = None,
        *,
        runner: Runner,
        disk: Disk | None = None,
        clock: Clock | None = None,
        topics: TopicKinds | None = None,
        store_host: bytes | None = None,
        memory: int | None = None,
        transforms: Iterable[Transform] | None = None,
    ) -> None:
        """`store_host` is the packed address that clients know the broker by; `memory` that of the machine in bytes.

        `topics` answers for the broker's topic table; `transforms` replace the list that a store has by itself.
        """
        self.folder = os.fspath(folder)
        self.options = options = options or StoreOptions()
        self._disk = disk = disk or RealDisk()
        self._clock = clock = clock or SystemClock()
        self._runner = runner
        self._topics = topics = topics or SimpleTopics()
        levels = DelayLevels.parse(options.message_delay_level)
        log_folder = options.commit_log_folder(self.folder)

        self.watermarks = Watermarks()
        self.flags = RunningFlags()
        self.commit_log = CommitLog(
            disk,
            log_folder,
            options.mapped_file_size_commit_log,
            self.watermarks,
            runner=runner,
            reserve_step=options.commit_log_reserve_step,
            tight=self._tight,
            unsafe=lambda error: self.flags.sync_failed("the commit log", error),
        )
        self.queues = ConsumeQueues(disk, self.folder, options, is_batch_topic=topics.is_batch)
        self.index: Index | None = None
        if options.message_index_enable:
            self.index = Index(disk, self.folder, options, clock, on_full=self._index_full)
        self.checkpoint = Checkpoint(disk, f"{self.folder}/checkpoint")
        self._marks_on_disk = Marks(disk, self.folder)

        self._scanner = Scanner(levels)
        is_slave = options.broker_role is BrokerRole.SLAVE
        self.fill_queues = FillQueues(self.queues, multi_dispatch=options.enable_multi_dispatch)
        dispatchers: list[Dispatcher] = [self.fill_queues]
        if self.index is not None:
            dispatchers.append(FillIndex(self.index))
        reader = LogScan(self.commit_log, self._scanner, replica=is_slave)
        self.dispatch = Dispatch(self.watermarks, reader, self.flags, runner, dispatchers)
        self.transforms = TransformList(default_transforms(topics, levels) if transforms is None else list(transforms))
        self._gather = Gather(
            self.commit_log,
            self.watermarks,
            levels,
            self._queue_end,
            store_host=store_host or pack_host("127.0.0.1", 10911),
            property_crc=options.enabled_append_prop_crc,
            lmq=options.enable_lmq,
        )
        self.flush = Flush(
            self.commit_log,
            self.watermarks,
            self.flags,
            self.dispatch,
            self.checkpoint,
            self._last_time,
            options=options,
            clock=clock,
            runner=runner,
        )
        self.queue_flush = QueueFlush(
            self.queues.begin_flush,
            self.flags,
            self.dispatch,
            self.checkpoint,
            options=options,
            clock=clock,
            runner=runner,
        )
        self.cleaning = Cleaning(
            disk,
            self.folder,
            self.commit_log,
            self.queues,
            self.index,
            self.flags,
            options=options,
            clock=clock,
            runner=runner,
        )
        self.puts = Puts(
            self.commit_log,
            self.watermarks,
            self.flags,
            self._gather,
            self.transforms,
            self.dispatch,
            self.flush,
            options=options,
            clock=clock,
            runner=runner,
            space=self.cleaning.space,
        )
        self.puts.shut = _SHUT_NEW
        self.reading = Reading(
            self.commit_log,
            self.queues,
            self.index,
            options=options,
            memory=memory if memory is not None else _physical_memory(),
        )
        self._index_errands: list[Errand[None]] = []
        self._is_open = False

    # Its life

    def open(self, progress: Progress | None = None, *, repair: bool = False) -> Recovered:
        """Take the directory and recover it. Blocks until that is done; `progress` hears how far it is.

        Raises `StoreLocked` when another process has it, and `StoreDamaged` when going on could lose messages. With
        `repair` the part of the log that cannot be followed is moved to `quarantine/` instead.
        """
        self._marks_on_disk.take_lock()
        try:
            recovered = self._recover(progress, repair)
        except BaseException:
            self._close_files()
            self._marks_on_disk.release_lock()
            raise
        self._is_open = True
        return recovered

    def _recover(self, progress: Progress | None, repair: bool) -> Recovered:
        marks_on_disk = self._marks_on_disk
        clean, intact = not marks_on_disk.unclean, marks_on_disk.same_life
        if not clean:
            log.warning("%s was not closed cleanly (process %s)", self.folder, marks_on_disk.unclean_pid() or "unknown")
        self.commit_log.load()
        self.queues.load()
        self.checkpoint.load()
        if self.index is not None:
            self.index.load(clean=clean, safe_timestamp=self.checkpoint.index_msg_timestamp, intact=intact)
        recovery = Recovery(
            self.commit_log,
            self.watermarks,
            self.queues,
            self.index,
            self.checkpoint,
            self._scanner,
            self.dispatch,
            TailReader(self._disk, self.folder, self.commit_log, self._scanner),
            self._topics,
            options=self.options,
            progress=progress,
            repair=repair,
            intact=intact,
            before_change=marks_on_disk.set_abort if clean else None,
        )
        try:
            recovered = recovery.run(clean=clean)
        except StoreDamaged:
            if clean:
                # Refused, and what was dispatched is right: the next start shall find the same as this one.
                self._save_all()
                marks_on_disk.clear_abort()
            raise
        if not self.dispatch.timestamp:
            self.dispatch.timestamp = self.checkpoint.logics_msg_timestamp
        self._gather.resume(recovered.last_timestamp)
        log.info(
            "%s: log from %d to %d, read from %d on, %d records dispatched again",
            self.folder,
            self.commit_log.min_offset,
            recovered.end,
            recovered.start,
            recovered.dispatched,
        )
        return recovered

    def start(self) -> None:
        """From now on messages are taken, and files are flushed and cleaned by the clock."""
        self._check_open()
        self._marks_on_disk.set_abort()
        self.flush.start()
        self.queue_flush.start()
        self.cleaning.start()
        self.set_slave(self.options.broker_role is BrokerRole.SLAVE)

    def set_slave(self, slave: bool) -> None:
        """The role switch: a slave takes no messages of its own. A new master goes on where the queues end."""
        self._number_all()
        self._gather.forget()
        self.puts.shut = _SHUT_SLAVE if slave and not self.options.duplication_enable else None

    def configure(self, options: StoreOptions) -> None:
        """Take over options that may change on the run; the others keep their old values until the next start."""
        self.options = options
        for part in (self.puts, self.flush, self.queue_flush, self.cleaning, self.reading):
            part.configure(options)

    def close(self) -> None:
        """Write, flush and dispatch everything, and leave the directory in order. Nothing happens the second time.

        The abort mark stays, so that the next start looks at everything, when the store had stopped taking messages or
        something could not be dispatched.
        """
        if not self._is_open:
            return
        self._is_open = False
        self.puts.shut = _SHUT_CLOSED
        self.puts.finish()
        self.cleaning.stop()
        self.flush.stop()
        self.queue_flush.stop()
        self.flush.finish()
        self.dispatch.catch_up()
        self.dispatch.stop()
        in_order = self._save_all()
        self._close_files()
        if in_order and self.flags.writable and self.dispatch.behind == 0:
            self._marks_on_disk.clear_abort()
        else:
            log.warning("%s was not left in order (%s): the next start checks it", self.folder, self.flags.reason)
        self._marks_on_disk.release_lock()

    def _save_all(self) -> bool:
        """Sync queues, index and checkpoint; whether that could be done."""
        try:
            self.queue_flush.finish()
            for errand in list(self._index_errands):
                errand.finish()
            if self.index is not None:
                self.index.flush()
            self.checkpoint.flush()
        except OSError as error:
            log.error("cannot save queues, index or checkpoint: %s", error)
            return False
        return not self.flush.failed and not self.queue_flush.failed

    def _close_files(self) -> None:
        self.commit_log.close(drop_prepared=True)
        try:
            self.queues.close()
        except OSError as error:
            log.error("cannot write consume queues: %s", error)
        if self.index is not None:
            self.index.close()

    # Putting

    def put(self, message: Message, done: Callable[[Ticket], None] | None = None) -> Ticket:
        """Put one message. The ticket is settled, and `done` called with it, in a later turn; refused ones too."""
        return self.puts.put(message, done)

    def put_batch(self, message: Message, done: Callable[[Ticket], None] | None = None) -> Ticket:
        """Put a client batch: `message.body` holds its items, the rest of the message counts for all of them."""
        return self.puts.put_batch(message, done)

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of a master's log at exactly the end of this one: what a replica does."""
        self._check_open()
        self.commit_log.append_raw(offset, data)
        self.flush.appended([])

    def sync(self) -> None:
        """Write and flush all that was put, before this returns."""
        self.puts.finish()
        self.flush.finish()

    # Getting

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        wanted: MessageFilter | None = None,
    ) -> GetResult | None:
        """Messages of a queue from an offset on; None when the store is closed or cannot be read.

        The ranges of the result keep their files until `release`. (`group` is for whoever keeps statistics.)
        """
        if not self._is_open or not self.flags.readable:
            return None
        return self.reading.get_message(topic, queue_id, offset, max_count, max_bytes, wanted)

    def message_at(self, physical_offset: int) -> Range | None:
        """The record at a physical offset; None when none begins there."""
        return self.reading.message_at(physical_offset) if self._is_open else None

    def query(self, topic: str, key: str, max_count: int, begin: int = 0, end: int = (1 << 63) - 1) -> QueryResult:
        """Records with a key or unique key and a store time from `begin` to `end`; others with its hash among them."""
        return self.reading.query(topic, key, max_count, begin, end) if self._is_open else QueryResult([], 0, 0)

    def message_by_unique_key(self, topic: str, unique_key: str) -> Range | None:
        """The newest record with exactly this unique key."""
        return self.reading.message_by_unique_key(topic, unique_key) if self._is_open else None

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset that can be read; 0 without a queue."""
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """One more than the last queue offset that can be read; not `committed`: that was given out."""
        if not committed and (slot := self._gather.slots.get((topic, queue_id))) is not None:
            return slot.next
        return self._queue_end(topic, queue_id)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER) -> int:
        """The queue offset of a moment."""
        self._check_open()
        return self.reading.offset_by_time(topic, queue_id, timestamp, boundary)

    def message_time(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of a message; -1 when it is not there."""
        return self.reading.message_time(topic, queue_id, offset) if self._is_open else -1

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message of a queue; -1 without one."""
        return self.reading.earliest_time(topic, queue_id) if self._is_open else -1

    def is_hot(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is there and taken to be in memory."""
        queue = self.queues.get(topic, queue_id) if self._is_open else None
        unit = queue.unit(offset) if queue is not None and offset < queue.max_offset else None
        return unit is not None and self.commit_log.is_hot(unit[0], self.reading.hot_memory)

    # Keeping house

    def clean(self) -> None:
        """Remove expired files now, whatever the hour: what an operator asks for."""
        self.cleaning.request()

    def clean_expired_queues(self) -> list[tuple[str, int]]:
        """Remove queues whose records are all gone; their numbering begins anew."""
        self._check_open()
        self._number_all()
        removed = self.cleaning.destroy_expired_queues(names.is_system_topic)
        for topic in {topic for topic, _ in removed}:
            self._gather.forget(topic)
        return removed

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic; its records stay in the log until they expire."""
        self._check_open()
        self._number_all()
        self.queues.delete_topic(topic)
        self._gather.forget(topic)

    def clean_unused_topics(self, topics: Iterable[str]) -> list[str]:
        """Remove the queues of all topics but these, system topics and light queues."""
        kept = set(topics)
        gone = [
            topic
            for topic in self.queues.topics
            if topic not in kept and not names.is_system_topic(topic) and not topic.startswith(names.LMQ_PREFIX)
        ]
        for topic in gone:
            self.delete_topic(topic)
        return gone

    # Inside

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed("the store is not open", path=self.folder)

    def _number_all(self) -> None:
        """Bring all that was put into its queues: what comes after numbers were forgotten must not meet older ones."""
        self.puts.finish()
        if self.watermarks.confirmed < self.watermarks.appended:
            self.flush.finish()
        self.dispatch.catch_up()

    def _queue_end(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def _last_time(self) -> int:
        return self._gather.last_time or self.dispatch.timestamp

    def _tight(self) -> None:
        if self._is_open:
            self.cleaning.run()

    def _index_full(self, file: IndexFile) -> None:
        def done(_: None, error: Exception | None) -> None:
            self._index_errands.remove(errand)
            if error is None:
                self.checkpoint.index_msg_timestamp = file.end_time
            else:
                self.flags.sync_failed("the index", error, Flag.INDEX_ERROR)
            file.release()

        errand: Errand[None] = Errand(self._runner, file.sync, done, lane="index")
        self._index_errands.append(errand)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 4 << 30
