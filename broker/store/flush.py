"""When what was written is made safe: the flush of the commit log, and of the queues and the checkpoint behind it.

`ASYNC_FLUSH` syncs now and then; `SYNC_FLUSH` has one sync in flight at any time, and everything that waited on it is
confirmed and acknowledged together. A sync that fails is final: the kernel may have dropped what it could not write, so
nothing that waited is acknowledged and the store takes no more messages. RocketMQ's FlushRealTimeService,
GroupCommitService and FlushConsumeQueueService.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.broker.store.checkpoint import Checkpoint
from cometmq.broker.store.clock import Clock
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch import Dispatch
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import Handle, Runner
from cometmq.broker.store.running_flags import RunningFlags
from cometmq.broker.store.tickets import Ticket, WaitLine, Watermarks

log = logging.getLogger(__name__)

#: RocketMQ counts dirty bytes in pages of this size, whatever the machine has.
PAGE: Final = 4096
#: Seconds between two looks at the checkpoint.
CHECKPOINT_INTERVAL: Final = 1.0


class QueueRound(Protocol):
    """One round of syncing consume queues: see `append_log.Flush`."""

    def __bool__(self) -> bool: ...

    def sync(self) -> None: ...

    def finish(self) -> bool: ...


class Flush:
    """The flush of the commit log. Its mutable state: the sync in flight and the tickets that wait for it."""

    def __init__(
        self,
        commit_log: CommitLog,
        marks: Watermarks,
        flags: RunningFlags,
        dispatch: Dispatch,
        checkpoint: Checkpoint,
        last_time: Callable[[], int],
        *,
        options: StoreOptions,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._log = commit_log
        self._marks = marks
        self._flags = flags
        self._dispatch = dispatch
        self._checkpoint = checkpoint
        #: Store time of the last record of the log.
        self._last_time = last_time
        self._clock = clock
        self._runner = runner
        self.line = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT)
        self.configure(options)
        self._errand: Errand[None] | None = None
        self._timer: Handle | None = None
        self._watch: Handle | None = None
        self._thorough_at = 0.0
        #: Set when a sync has failed: from then on nothing is flushed or acknowledged.
        self.failed = False

    def configure(self, options: StoreOptions) -> None:
        self._sync = options.is_sync_flush
        self._confirms_appended = not options.is_sync_flush or options.read_uncommitted
        self._timeout = options.sync_flush_timeout / 1000
        self._interval = options.flush_interval_commit_log / 1000
        self._least_pages = options.flush_commit_log_least_pages
        self._thorough = options.flush_commit_log_thorough_interval / 1000

    def start(self) -> None:
        """Begin to flush by the clock. A log with SYNC_FLUSH needs that too, for what nobody waits for."""
        self._thorough_at = self._clock.monotonic()
        self._timer = self._runner.call_later(self._interval, self._tick)

    # What the put calls

    def appended(self, waiting: list[Ticket]) -> None:
        """The log has grown; these tickets wait until that is on the disk."""
        if waiting:
            if self.failed:
                for ticket in waiting:
                    ticket.settle(PutStatus.UNKNOWN_ERROR, self._flags.reason)
            else:
                deadline = self._clock.monotonic() + self._timeout
                self.line.add_all(waiting, deadline)
                if self._watch is None:
                    self._watch = self._runner.call_later(self._timeout, self._look_at_deadlines)
        if self._confirms_appended:
            self._marks.confirm(self._marks.appended)
            self._dispatch.soon()
        if self._sync:
            self.begin()

    # One sync

    def begin(self) -> bool:
        """Start a sync, unless one is in flight or nothing is dirty. True when one is in flight after it."""
        if self._errand is not None:
            return True
        marks = self._marks
        target = marks.appended
        if target <= marks.flushed or self.failed:
            return False
        files = [file for file in self._log.files_between(marks.flushed, target) if file.hold()]
        last_time = self._last_time()

        def done(_: None, error: Exception | None) -> None:
            self._errand = None
            for file in files:
                file.release()
            if error is not None:
                self._fail(error)
            else:
                self._flushed(target, last_time)

        self._errand = Errand(self._runner, lambda: _sync_all(files), done, lane="flush")
        return True

    def _flushed(self, target: int, last_time: int) -> None:
        marks = self._marks
        marks.flushed = target
        self._checkpoint.physic_msg_timestamp = last_time
        if not self._confirms_appended:
            marks.confirm(target)
            self._dispatch.soon()
        self.line.advance(target)
        if self._sync:
            self.begin()

    def _fail(self, error: Exception) -> None:
        self.failed = True
        self.line.fail(PutStatus.UNKNOWN_ERROR, self._flags.sync_failed("the commit log", error))

    def _look_at_deadlines(self) -> None:
        self._watch = None
        now = self._clock.monotonic()
        self.line.expire(now)
        deadline = self.line.deadline
        if deadline is not None:
            self._watch = self._runner.call_later(max(deadline - now, 0.001), self._look_at_deadlines)

    # By the clock

    def _tick(self) -> None:
        self._timer = self._runner.call_later(self._interval, self._tick)
        marks = self._marks
        now = self._clock.monotonic()
        pages = marks.appended // PAGE - marks.flushed // PAGE
        size = self._log.file_size
        full = marks.appended // size > marks.flushed // size
        thorough = now - self._thorough_at >= self._thorough
        if self._sync or thorough or full or pages >= self._least_pages:
            if thorough:
                self._thorough_at = now
            self.begin()

    # Ending

    def finish(self) -> None:
        """Sync everything before this returns."""
        while self._errand is not None or self.begin():
            if self._errand is not None:
                self._errand.finish()

    def stop(self) -> None:
        for handle in (self._timer, self._watch):
            if handle is not None:
                handle.cancel()
        self._timer = self._watch = None


def _sync_all(files: list[LogFile]) -> None:
    # In the order of the log: what is confirmed must never have a hole before it.
    for file in files:
        file.sync()


class QueueFlush:
    """The flush of consume queues, and of the checkpoint that tells how far they are safe."""

    def __init__(
        self,
        begin_round: Callable[[int], QueueRound],
        flags: RunningFlags,
        dispatch: Dispatch,
        checkpoint: Checkpoint,
        *,
        options: StoreOptions,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._begin_round = begin_round
        self._flags = flags
        self._dispatch = dispatch
        self._checkpoint = checkpoint
        self._clock = clock
        self._runner = runner
        self.configure(options)
        self._errand: Errand[OSError | None] | None = None
        self._timer: Handle | None = None
        self._thorough_at = 0.0

    @property
    def failed(self) -> bool:
        """Whether a sync has failed, here or elsewhere: the checkpoint must not call the queues safe any more."""
        return self._flags.unsafe

    def configure(self, options: StoreOptions) -> None:
        self._interval = min(options.flush_interval_consume_queue / 1000, CHECKPOINT_INTERVAL)
        self._least_pages = options.flush_consume_queue_least_pages
        self._thorough = options.flush_consume_queue_thorough_interval / 1000

    def start(self) -> None:
        self._thorough_at = self._clock.monotonic()
        self._timer = self._runner.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        self._timer = self._runner.call_later(self._interval, self._tick)
        now = self._clock.monotonic()
        thorough = now - self._thorough_at >= self._thorough
        if self._errand is None and not self.failed:
            if thorough:
                self._thorough_at = now
            self.begin(thorough=thorough)

    def begin(self, *, thorough: bool) -> None:
        """Start a round. A thorough one syncs every queue; only then may the checkpoint say that they are safe."""
        upto = self._dispatch.timestamp
        queues = self._begin_round(0 if thorough else self._least_pages)

        def work() -> OSError | None:
            queues.sync()
            try:
                self._checkpoint.flush()
            except OSError as error:
                # An old checkpoint costs time at the next start, nothing else.
                return error
            return None

        def done(checkpoint_error: OSError | None, error: Exception | None) -> None:
            self._errand = None
            queues.finish()
            if error is not None:
                self._fail(error)
                return
            if thorough:
                self._checkpoint.logics_msg_timestamp = upto
            if checkpoint_error is not None:
                log.error("cannot write the checkpoint: %s", checkpoint_error)

        self._errand = Errand(self._runner, work, done, lane="queues")

    def _fail(self, error: Exception) -> None:
        self._flags.sync_failed("the consume queues", error)

    def finish(self) -> None:
        """Sync every queue and the checkpoint before this returns."""
        if self._errand is not None:
            self._errand.finish()
        if not self.failed:
            self.begin(thorough=True)
            if self._errand is not None:
                self._errand.finish()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
