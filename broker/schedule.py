"""Delay levels: messages wait in the schedule topic, a queue a level, and go on to their own topic when they are due.

The put diverts a message with a level (`store.transforms.DivertDelayed`) and gives its queue unit the time of delivery.
Here each level is read in order, what is due is put again as it stands, and how far that has come is kept in
`delayOffset.json`. Only a master runs this. RocketMQ's ScheduleMessageService.

At least once: an offset goes to the disk only when the delivered copies before it are on the disk too, so that neither
a crash nor a power loss takes a message that was acknowledged hours ago. Mutable state: the offset, the batch under
way and what is delivered but not yet safe, all by level.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.config_files import ConfigFile
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.reading import GetResult, GetStatus
from cometmq.broker.store.runner import Handle, Runner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import names
from cometmq.protocol import properties as props
from cometmq.protocol.bodies import DelayOffsetSerializeWrapper
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import Record, decode_record

log = logging.getLogger(__name__)

#: How often a level without a due message is looked at, in seconds. The shortest level is a second, so nothing that
#: comes in between is late; and a wall clock that was set is noticed.
LOOK = 0.1
#: After a put that failed, in seconds.
RETRY = 0.1
#: After a read that failed, in seconds.
PAUSE = 10.0
#: Messages of a level that are put at a time: 18 levels together keep the loop for less than 40 ms.
BATCH = 64
#: Bytes of such a batch.
BATCH_BYTES = 1 << 20

#: These will not become better by waiting.
_HOPELESS = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
_NAME = "delay delivery"

#: Told of each message that was delivered: topic, queue, bytes.
Delivered = Callable[[str, int, int], None]


class _Level:
    """One level and how far its delivery is."""

    __slots__ = ("end", "failed", "level", "looks_at", "millis", "offset", "open", "safe", "undone", "unsafe")

    def __init__(self, level: int, millis: int) -> None:
        self.level = level
        self.millis = millis
        #: The next message to deliver.
        self.offset = 0
        #: All before this are delivered, and their copies are on the disk.
        self.safe = 0
        #: Where the last delivered copy ends in the log.
        self.end = 0
        #: The same at the end of a batch, and the offset behind that batch.
        self.unsafe: deque[tuple[int, int]] = deque()
        #: Puts of the batch under way; -1 while it is being read.
        self.open = 0
        #: Those of them that have to be put again, by their offset.
        self.failed: dict[int, Message] = {}
        #: The offset behind the batch under way.
        self.undone = 0
        #: When to look again (monotonic).
        self.looks_at = 0.0

    @property
    def queue_id(self) -> int:
        return self.level - 1

    def settle_safe(self, flushed: int) -> None:
        """The log is on the disk up to `flushed`."""
        while self.unsafe and self.unsafe[0][0] <= flushed:
            self.safe = self.unsafe.popleft()[1]


class DelayDelivery:
    """Delivers what is due. `start` on a master, `stop` before the store closes."""

    def __init__(
        self,
        store: Store,
        file: ConfigFile[DelayOffsetSerializeWrapper],
        levels: DelayLevels,
        *,
        clock: Clock,
        runner: Runner,
        version_step: int = 200,
        delivered: Delivered | None = None,
    ) -> None:
        self._store = store
        self._file = file
        self._clock = clock
        self._runner = runner
        self._version_step = max(version_step, 1)
        self._delivered = delivered
        self._levels = [_Level(number, millis) for number, millis in enumerate(levels.millis, 1)]
        #: Offsets of levels that the table no longer has: kept, should they come back.
        self._others: dict[int, int] = {}
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._running = False
        self._updates = 0
        self.data_version = DataVersion()
        self._settled: list[asyncio.Future[None]] = []

    # Its life

    def load(self) -> None:
        """Read the offsets; those outside of their queue move to its nearest end."""
        saved = self._file.load() or DelayOffsetSerializeWrapper()
        self.data_version = saved.data_version
        table = dict(saved.offset_table)
        for level in self._levels:
            asked = table.pop(level.level, 0)
            low = self._store.min_offset(names.SCHEDULE_TOPIC, level.queue_id)
            high = self._store.max_offset(names.SCHEDULE_TOPIC, level.queue_id)
            level.offset = level.safe = min(max(asked, low), high)
            if level.offset != asked:
                log.warning("delay level %d: offset %d corrected to %d", level.level, asked, level.offset)
        self._others = table

    def start(self) -> None:
        """From now on messages are delivered."""
        if not self._running:
            self._running = True
            self.poke()

    def stop(self) -> None:
        """Nothing more is delivered; what is under way is put to its end, flushed and saved."""
        if self._running:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._store.sync()
            self.save()
            self._wake_settled()

    def poke(self) -> None:
        """Look at every level now: the service has started, or somebody moved the clock."""
        now = self._clock.monotonic()
        for level in self._levels:
            level.looks_at = now
        self._look()

    async def settle(self) -> None:
        """Return when everything that is due by the wall clock has been delivered."""
        self.poke()
        while self._running and any(level.open or self._due_count(level) for level in self._levels):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(future)
            await future

    # The table

    @property
    def offsets(self) -> Mapping[int, int]:
        """Level -> the next offset to deliver, for those who want to know."""
        return {level.level: level.offset for level in self._levels}

    def snapshot(self) -> DelayOffsetSerializeWrapper:
        """What a crash may begin with again."""
        flushed = self._store.watermarks.flushed
        table = dict(self._others)
        for level in self._levels:
            level.settle_safe(flushed)
            if level.safe:
                table[level.level] = level.safe
        return DelayOffsetSerializeWrapper(data_version=self.data_version, offset_table=dict(sorted(table.items())))

    def save(self) -> None:
        self._file.save(self.snapshot())

    # Looking

    def _look(self) -> None:
        self._timer = None
        if not self._running:
            return
        now = self._clock.monotonic()
        for level in self._levels:
            if not level.open and level.looks_at <= now:
                try:
                    self._look_at(level, now)
                except Exception:
                    log.exception("delay level %d: cannot read offset %d", level.level, level.offset)
                    level.looks_at = now + PAUSE
        self._wake_settled()
        self._look_again()

    def _look_again(self) -> None:
        waiting = [level.looks_at for level in self._levels if not level.open]
        if not self._running or not waiting:
            return
        at = min(waiting)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._runner.call_later(max(at - self._clock.monotonic(), 0.0), self._look)

    def _look_at(self, level: _Level, now: float) -> None:
        count = self._due_count(level)
        if not count:
            level.looks_at = now + min(LOOK, self._time_left(level))
            return
        result = self._store.get_message(_NAME, names.SCHEDULE_TOPIC, level.queue_id, level.offset, count, BATCH_BYTES)
        if result is None:
            level.looks_at = now + LOOK
        elif result.status is not GetStatus.FOUND:
            # What was there has expired, or the queue begins later now.
            log.warning("delay level %d: %s at offset %d", level.level, result.status.value, level.offset)
            self._move(level, result.next_begin_offset)
            level.looks_at = now if result.next_begin_offset > level.offset else now + LOOK
        elif result.hot:
            data = b"".join(result.buffers())
            result.release()
            self._put_batch(level, data, result.next_begin_offset)
        else:
            self._read_cold(level, result)

    def _read_cold(self, level: _Level, result: GetResult) -> None:
        level.open = -1

        def done(data: bytes | None, error: Exception | None) -> None:
            result.release()
            level.open = 0
            if not self._running:
                return
            if data is None:
                log.error("delay level %d: cannot read offset %d: %s", level.level, level.offset, error)
                level.looks_at = self._clock.monotonic() + PAUSE
            else:
                self._put_batch(level, data, result.next_begin_offset)
            self._look_again()

        self._runner.in_thread(result.read, done, lane="read")

    def _due_count(self, level: _Level) -> int:
        """How many messages from the offset on are due, at most a batch."""
        queue = self._store.queues.get(names.SCHEDULE_TOPIC, level.queue_id)
        if queue is None or level.offset >= queue.max_offset:
            return 0
        now = self._clock.wall()
        # A time that is further away than the level says was given by a longer one, which has gone.
        latest = now + level.millis
        count = 0
        for _, _, _, deliver_at, _ in queue.entries(max(level.offset, queue.min_offset), BATCH):
            if now < deliver_at <= latest:
                break
            count += 1
        return count

    def _time_left(self, level: _Level) -> float:
        """Seconds until the next message is due; more than any look when there is none."""
        queue = self._store.queues.get(names.SCHEDULE_TOPIC, level.queue_id)
        unit = queue.unit(level.offset) if queue is not None and level.offset < queue.max_offset else None
        return LOOK if unit is None else max(unit[2] - self._clock.wall(), 1) / 1000

    # Putting

    def _put_batch(self, level: _Level, data: bytes, following: int) -> None:
        messages: dict[int, Message] = {}
        at = 0
        next_offset = level.offset
        while at < len(data):
            try:
                record = decode_record(data, at, check_crc=False)
            except RecordError as error:
                number = level.level
                log.error("delay level %d: the message at offset %d is passed over: %s", number, next_offset, error)
                # Where the next one begins is not known here; the queue knows it, and the next batch begins there.
                following = next_offset + 1
                break
            at += record.size
            next_offset = record.queue_offset + 1
            message = restored(record)
            if message is not None:
                messages[record.queue_offset] = message
        level.undone = following
        self._put(level, messages)

    def _put(self, level: _Level, messages: Mapping[int, Message]) -> None:
        level.failed = {}
        level.open = len(messages)
        if not messages:
            self._batch_done(level)
            return
        for offset, message in messages.items():
            self._store.put(message, partial(self._settle, level, offset, message))

    def _settle(self, level: _Level, offset: int, message: Message, ticket: Ticket) -> None:
        status = ticket.status
        assert status is not None
        if status.stored:
            level.end = max(level.end, ticket.end_offset)
            if self._delivered is not None:
                self._delivered(message.topic, message.queue_id, ticket.end_offset - ticket.physical_offset)
        elif status in _HOPELESS:
            log.error(
                "delay level %d: the message at offset %d cannot be stored in %s and is passed over: %s",
                level.level,
                offset,
                message.topic,
                ticket.remark or status.value,
            )
        else:
            level.failed[offset] = message
        level.open -= 1
        if not level.open:
            self._batch_done(level)

    def _batch_done(self, level: _Level) -> None:
        if level.failed:
            first = next(iter(level.failed))
            log.warning("delay level %d: %d not put from offset %d on", level.level, len(level.failed), first)
            level.open = -1
            self._runner.call_later(RETRY, lambda: self._put_again(level))
            return
        self._move(level, level.undone)
        level.looks_at = self._clock.monotonic()
        self._look_again()

    def _put_again(self, level: _Level) -> None:
        level.open = 0
        if self._running:
            self._put(level, level.failed)

    def _move(self, level: _Level, offset: int) -> None:
        if offset <= level.offset:
            return
        level.offset = offset
        level.unsafe.append((level.end, offset))
        self._updates += 1
        if self._updates % self._version_step == 0:
            version = self.data_version
            self.data_version = msgspec.structs.replace(
                version, counter=version.counter + 1, timestamp=self._clock.wall()
            )

    def _wake_settled(self) -> None:
        waiting, self._settled = self._settled, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def restored(record: Record) -> Message | None:
    """The message that a record of the schedule topic stands for; None when there is nothing to deliver.

    Its properties stay as they are, the delay among them: they are history, and `verbatim` says so.
    """
    raw = record.properties
    topic = props.find(raw, b"REAL_TOPIC")
    queue_id = props.find(raw, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit():
        log.error("the delayed message %s does not say where it goes", record.message_id)
        return None
    if topic.decode("utf-8", "replace") == names.HALF_TOPIC:
        log.error("the delayed message %s is half a transaction and is not delivered", record.message_id)
        return None
    return Message(
        topic.decode("utf-8", "replace"),
        int(queue_id),
        record.body,
        raw,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        wait=False,
        verbatim=True,
    )
