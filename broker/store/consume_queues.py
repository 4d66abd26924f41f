"""All consume queues of a store: RocketMQ's ConsumeQueueStore.

    consumequeue/{topic}/{queue id}/...        queues of units, with consumequeue_ext/... beside them
    batchconsumequeue/{topic}/{queue id}/...   queues of topics that keep client batches together

Here live which queues there are, and what is done to all of them: opening, writing out after a turn, flushing,
truncating, expiring. A queue that nobody touches costs a few hundred bytes and no open file. Which topics keep batches
is a matter of their configuration: who opens the store brings a function that knows.

A dispatcher calls `append` for each message and `write_out` once at the end of its turn; then readers see the turn. An
`OSError` of `write_out` leaves in memory what is not written: the next `write_out` tries again.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from cometmq.broker.store.append_log import Flush, Upkeep
from cometmq.broker.store.batch_consume_queue import BATCH_UNIT_SIZE, BatchConsumeQueue
from cometmq.broker.store.consume_queue import ConsumeQueue
from cometmq.broker.store.consume_queue_ext import ConsumeQueueExt
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.errors import StoreDamaged
from cometmq.broker.store.log_files import LogFiles
from cometmq.broker.store.options import StoreOptions

AnyQueue: TypeAlias = ConsumeQueue | BatchConsumeQueue

FOLDER, EXT_FOLDER, BATCH_FOLDER = "consumequeue", "consumequeue_ext", "batchconsumequeue"


class QueueKindWrong(StoreDamaged):
    """Is raised when a topic has queues of the kind that its configuration denies."""

    remedy = "set the attribute queue.type of the topic to what its folder says, or delete the topic's queues"


class QueueGap(msgspec.Struct, frozen=True):
    """Offsets of a queue that no file covers, from and to: somebody removed a file."""

    topic: str
    queue_id: int
    begin: int
    end: int


def _no_batches(topic: str) -> bool:
    return False


class ConsumeQueues:
    """The queues of one store, by topic and queue id."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        options: StoreOptions,
        *,
        is_batch_topic: Callable[[str], bool] = _no_batches,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._disk = disk
        self._root = root
        self._file_size = options.consume_queue_file_size
        self._ext_file_size = options.mapped_file_size_consume_queue_ext
        self._with_ext = options.enable_consume_queue_ext
        self._batch_file_size = -(-options.mapper_file_size_batch_consume_queue // BATCH_UNIT_SIZE) * BATCH_UNIT_SIZE
        self._is_batch_topic = is_batch_topic
        #: Called with how many queues of how many are open.
        self._progress = progress
        self._queues: dict[tuple[str, int], AnyQueue] = {}
        self._topics: dict[str, dict[int, AnyQueue]] = {}
        self.upkeep = Upkeep(disk, options.max_open_consume_queue_files)

    # Which there are

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[AnyQueue]:
        return iter(list(self._queues.values()))

    def get(self, topic: str, queue_id: int) -> AnyQueue | None:
        """A queue, if it is there."""
        return self._queues.get((topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> AnyQueue:
        """A queue; a new one has no file until something is appended to it."""
        return self._queues.get((topic, queue_id)) or self._add(topic, queue_id, self._is_batch_topic(topic))

    def of_topic(self, topic: str) -> dict[int, AnyQueue]:
        """The queues of a topic by queue id."""
        return dict(self._topics.get(topic, ()))

    @property
    def topics(self) -> list[str]:
        return list(self._topics)

    def _add(self, topic: str, queue_id: int, is_batch: bool) -> AnyQueue:
        place = f"{topic}/{queue_id}"
        queue: AnyQueue
        if is_batch:
            files = LogFiles(self._disk, f"{self._root}/{BATCH_FOLDER}/{place}", self._batch_file_size)
            queue = BatchConsumeQueue(topic, queue_id, self.upkeep, files)
        else:
            files = LogFiles(self._disk, f"{self._root}/{FOLDER}/{place}", self._file_size)
            queue = ConsumeQueue(topic, queue_id, self.upkeep, files, self._ext(place))
        self._queues[topic, queue_id] = queue
        self._topics.setdefault(topic, {})[queue_id] = queue
        return queue

    def _ext(self, place: str) -> ConsumeQueueExt | None:
        if not self._with_ext:
            return None
        files = LogFiles(self._disk, f"{self._root}/{EXT_FOLDER}/{place}", self._ext_file_size)
        return ConsumeQueueExt(self.upkeep, files)

    # Opening

    def load(self) -> None:
        """Finds the queues on the disk; opens no file. Raises where RocketMQ would refuse to start."""
        for folder, is_batch in ((FOLDER, False), (BATCH_FOLDER, True)):
            for topic in self._disk.list_dir(f"{self._root}/{folder}"):
                path = f"{self._root}/{folder}/{topic}"
                ids = [int(name) for name in self._disk.list_dir(path) if _is_queue_id(name)]
                if ids and self._is_batch_topic(topic) != is_batch:
                    kind = "single messages" if is_batch else "batches"
                    raise QueueKindWrong(f"the topic {topic} is configured to keep {kind}", path=path)
                for queue_id in sorted(ids):
                    queue = self._add(topic, queue_id, is_batch)
                    queue.files.load()
                    if queue.ext is not None:
                        queue.ext.files.load()

    def recover(self, *, thorough: bool) -> int:
        """Finds the end of every queue; `thorough` after an unclean exit. Returns the highest `max_physical`, -1 if
        there is none. No file stays open.
        """
        highest = -1
        total = len(self._queues)
        for count, queue in enumerate(self._walk(), 1):
            queue.recover(thorough=thorough)
            highest = max(highest, queue.max_physical)
            if self._progress is not None:
                self._progress(count, total)
        return highest

    def _walk(self) -> Iterator[AnyQueue]:
        """All queues one after the other, closing what only the walk has opened."""
        open_files = self.upkeep.open_files
        kept = open_files.snapshot()
        for queue in self:
            yield queue
            open_files.close_but(kept)

    @property
    def max_physical(self) -> int:
        """The end of the last record that any queue knows; -1 when there is none."""
        return max((queue.max_physical for queue in self._queues.values()), default=-1)

    def gaps(self) -> list[QueueGap]:
        """Where files between others are missing."""
        found = []
        for queue in self:
            gap = queue.files.gap()
            if gap is not None:
                size = queue.SHAPE.size
                found.append(QueueGap(queue.topic, queue.queue_id, gap[0] // size, gap[1] // size))
        return found

    # The turn of a dispatcher

    def append(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_time: int = 0,
        *,
        batch_count: int = 1,
        bit_map: bytes | None = None,
        extended: bool = True,
    ) -> bool:
        """Adds a record to its queue. False when the queue has it already.

        `batch_count` is for topics of batches; `extended` is False for the extra queues of a message, which RocketMQ
        gives no extension.
        """
        queue = self._queues.get((topic, queue_id)) or self.queue(topic, queue_id)
        if isinstance(queue, ConsumeQueue):
            if queue.ext is None:
                return queue.append(queue_offset, physical_offset, size, tags_code)
            return queue.append(
                queue_offset, physical_offset, size, tags_code, store_time, bit_map=bit_map, extended=extended
            )
        return queue.append(queue_offset, physical_offset, size, tags_code, store_time, batch_count=batch_count)

    def write_out(self) -> None:
        """Writes what was appended since the last call: one write for each queue that got something."""
        self.upkeep.write_out()

    # Flushing

    def begin_flush(self, least_pages: int = 0) -> Flush:
        """A flush to be run in a thread: `sync()` there, `finish()` here. Everything written before is then synced."""
        return self.upkeep.begin_flush(least_pages)

    def flush(self, least_pages: int = 0) -> None:
        """The same at once."""
        flush = self.begin_flush(least_pages)
        try:
            flush.sync()
        finally:
            flush.finish()

    # Cutting, expiring, removing

    def truncate(self, physical: int) -> None:
        """Removes everything about records that begin at `physical` or after it."""
        for queue in self._walk():
            queue.truncate(physical)

    def correct_min(self, min_physical: int) -> None:
        """Moves the lowest offsets after the commit log has lost files at its beginning, and once when it is opened."""
        for queue in self._walk():
            queue.correct_min(min_physical)

    def delete_expired(self, min_physical: int) -> int:
        """Removes the files whose records are all gone; returns how many. See `queue.delete_expired` for one queue."""
        return sum(queue.delete_expired(min_physical) for queue in self._walk())

    def destroy_expired(self, min_physical: int, is_kept: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Removes the queues whose records are all gone, numbering and all, but for topics that are kept.

        What the admin request "clean expired consume queue" asks for.
        """
        expired = [
            (queue.topic, queue.queue_id)
            for queue in self
            if 0 <= queue.max_physical < min_physical and not is_kept(queue.topic) and queue.files.files
        ]
        for topic, queue_id in expired:
            self._remove(topic, queue_id)
        return expired

    def delete_topic(self, topic: str) -> None:
        """Removes the queues of a topic; its records stay in the commit log until they expire."""
        for queue_id in self.of_topic(topic):
            self._remove(topic, queue_id)

    def destroy(self) -> None:
        """Removes all queues: there is no commit log that they could belong to."""
        for topic in self.topics:
            self.delete_topic(topic)

    def _remove(self, topic: str, queue_id: int) -> None:
        queue = self._queues.pop((topic, queue_id))
        queue.destroy()
        rest = self._topics[topic]
        del rest[queue_id]
        if not rest:
            del self._topics[topic]
            for folder in (BATCH_FOLDER,) if queue.is_batch else (FOLDER, EXT_FOLDER):
                self._disk.remove_tree(f"{self._root}/{folder}/{topic}")
                self.upkeep.folders.add(f"{self._root}/{folder}")

    def close(self) -> None:
        """Writes what is left and gives the files back; does not sync."""
        self.write_out()
        self.upkeep.open_files.close()


def _is_queue_id(name: str) -> bool:
    return name.isascii() and name.isdigit()
