"""Making room: the oldest files of the log, then the queue and index files that only pointed into them.

Files go when they are older than `fileReservedTime`, at the hours of `deleteWhen` or when the disk gets full; when it
is very full they go although they are young, and above the warning level no message is taken. A file that somebody
reads is marked, and goes with its last reader or after two minutes. RocketMQ's CleanCommitLogService,
CleanConsumeQueueService and their thresholds.

All of it is done in small steps on the owner's thread; removing a file of 1 GiB is left to another thread.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.consume_queues import AnyQueue, ConsumeQueues
from cometmq.broker.store.disk import Disk, DiskUsage
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.errors import StoreError, SyncFailed
from cometmq.broker.store.index import Index
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import Handle, Runner
from cometmq.broker.store.running_flags import Flag, RunningFlags

log = logging.getLogger(__name__)

#: Seconds after the start before files are removed by the clock: consumers shall have come back first.
FIRST_ROUND: Final = 60.0
#: Rounds that an admin's request lasts.
MANUAL_ROUNDS: Final = 20
#: Queues that are looked at in one turn.
QUEUES_PER_TURN: Final = 100

_HOUR: Final = 3_600_000


class Cleaning:
    """The cleaner of one store. Its mutable state: the round under way."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        flags: RunningFlags,
        *,
        options: StoreOptions,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._disk = disk
        self._root = root
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._flags = flags
        self._clock = clock
        self._runner = runner
        self.configure(options)
        self._timer: Handle | None = None
        self._step: Handle | None = None
        self._errand: Errand[None] | None = None
        self._manual = 0
        self._running = False
        self._stopped = False
        #: The log began here when queues and index were last cleaned.
        self._cleaned_to = -1
        #: Since when the first file hangs on its readers.
        self._hanging: tuple[LogFile, float] | None = None

    def configure(self, options: StoreOptions) -> None:
        self._options = options

    # By the clock

    def start(self) -> None:
        """Look at the disk now, and from now on."""
        _, immediately = self.check_space()
        self._cleaned_to = self._log.min_offset
        # On a full disk nobody can send until the next look: that shall not be a minute.
        first = self._options.clean_resource_interval / 1000
        self._timer = self._runner.call_later(min(first, FIRST_ROUND) if immediately else FIRST_ROUND, self._tick)

    def _tick(self) -> None:
        self._timer = self._runner.call_later(self._options.clean_resource_interval / 1000, self._tick)
        self.run()

    def stop(self) -> None:
        self._stopped = True
        for handle in (self._timer, self._step):
            if handle is not None:
                handle.cancel()
        if self._errand is not None:
            self._errand.finish()
        self._timer = self._step = None

    def request(self) -> None:
        """An operator wants expired files removed now, whatever the hour: this and the next rounds."""
        self._manual = MANUAL_ROUNDS
        self.run()

    # Space

    def log_usage(self) -> DiskUsage:
        """The space of the partition of the commit log."""
        return self._disk.usage(self._log.folder)

    def ratios(self) -> tuple[float, float, float]:
        """Used part of the partitions of commit log, consume queues and index; -1 where it is unknown."""
        usage = self._disk.usage
        return self.log_usage().ratio, usage(f"{self._root}/consumequeue").ratio, usage(f"{self._root}/index").ratio

    def space(self) -> str:
        """The ratios in words, as RocketMQ puts them into the remark of a refused send."""
        return "CL: {:5.2f} CQ: {:5.2f} INDEX: {:5.2f}".format(*self.ratios())

    def check_space(self) -> tuple[bool, bool]:
        """Raise or lower the disk-full flags. Whether files should go now, and whether young ones too."""
        log_ratio, queue_ratio, _ = self.ratios()
        needed = immediately = False
        for ratio, flag, what in (
            (log_ratio, Flag.DISK_FULL, "commit log"),
            (queue_ratio, Flag.LOGIC_DISK_FULL, "consume queues"),
        ):
            if ratio > self._options.disk_warning_ratio:
                limit = self._options.disk_warning_ratio
                if self._flags.set(flag, f"the disk of the {what} is full: {ratio:.2f} used, limit {limit:.2f}"):
                    log.error("the disk of the %s is full (%.2f used): no messages are taken", what, ratio)
                immediately = True
            elif ratio > self._options.disk_clean_forcibly_ratio:
                immediately = True
            elif self._flags.clear(flag):
                log.info("the disk of the %s has room again (%.2f used)", what, ratio)
            if ratio < 0 or ratio > self._options.disk_max_used_ratio:
                needed = True
        return needed or immediately, immediately

    # A round

    def run(self) -> None:
        """One round, in steps. Nothing happens while one is under way."""
        if not self._running and not self._stopped:
            self._attempt(self._round)

    def _attempt(self, step: Callable[[], None]) -> None:
        """A step that fails ends its round; the next one tries again, unless the disk has lost something."""
        try:
            step()
        except (OSError, StoreError) as error:
            self._failed("cannot remove files", error)

    def _failed(self, what: str, error: Exception) -> None:
        self._running = False
        if isinstance(error, SyncFailed):
            self._flags.sync_failed("the consume queues or of a folder", error)
        else:
            log.error("%s: %s", what, error)

    def _round(self) -> None:
        needed, immediately = self.check_space()
        by_hour = self._clock.local(self._clock.wall()).hour in self._options.delete_hours
        manual = self._manual > 0
        if manual:
            self._manual -= 1
        if self._flags.unsafe:
            # The log may be all that is left of the queues.
            return
        self._let_go_of_hanging()
        if by_hour or needed or manual:
            forced = immediately and self._options.clean_file_forcibly_enable
            self._running = True
            self._remove_next(forced, self._options.delete_file_batch_max)
        else:
            self._clean_queues()

    def _remove_next(self, forced: bool, left: int) -> None:
        self._step = None
        file = self._next_expired(forced) if left > 0 else None
        if file is None:
            self._running = False
            self._clean_queues()
            return
        log.info("removing %s: %s", file.path, "the disk is full" if forced else "it has expired")
        if file.holds:
            # It goes with its last reader. The files after it wait: the log must not get a hole.
            self._queues.flush()
            file.retired = True
            self._hanging = file, self._clock.monotonic()
            self._remove_next(forced, 0)
            return

        # Without its records the queues cannot be rebuilt: their numbering must be on the disk before the file goes.
        flush = self._queues.begin_flush()
        file.retired = True

        def remove() -> None:
            flush.sync()
            self._disk.unlink(file.path)

        def done(_: None, error: Exception | None) -> None:
            self._errand = None
            flush.finish()
            if error is not None:
                file.retired = False
                self._failed(f"cannot remove {file.path}", error)
                return
            self._attempt(lambda: self._removed(file, forced, left))

        self._errand = Errand(self._runner, remove, done, lane="clean")

    def _removed(self, file: LogFile, forced: bool, left: int) -> None:
        file.retire(force=True)
        pause = self._options.delete_commit_log_files_interval / 1000
        if not self._stopped:
            following = left - 1
            self._step = self._runner.call_later(
                pause, lambda: self._attempt(lambda: self._remove_next(forced, following))
            )

    def _next_expired(self, forced: bool) -> LogFile | None:
        files = self._log.files.files
        if len(files) < 2 or files[0].retired:
            return None
        oldest = files[0]
        # Never the file that is written.
        if oldest.end > self._log.max_offset:
            return None
        try:
            expires = oldest.modified() * 1000 + self._options.file_reserved_time * _HOUR
        except FileNotFoundError:
            log.error("%s is gone: somebody has removed it", oldest.path)
            return oldest
        return oldest if forced or self._clock.wall() >= expires else None

    def _let_go_of_hanging(self) -> None:
        if self._hanging is None:
            return
        file, since = self._hanging
        if file not in self._log.files.files:
            self._hanging = None
        elif self._clock.monotonic() - since >= self._options.destroy_maped_file_interval_forcibly / 1000:
            log.warning("%s is removed although somebody still reads it", file.path)
            file.retire(force=True)
            self._hanging = None

    # Queues and index follow the log

    def _clean_queues(self) -> None:
        minimum = self._log.min_offset
        if minimum <= self._cleaned_to or self._running:
            return
        self._running = True
        self._walk(iter(list(self._queues)), minimum)

    def _walk(self, queues: Iterator[AnyQueue], minimum: int) -> None:
        self._step = None
        for _, queue in zip(range(QUEUES_PER_TURN), queues, strict=False):
            if queue.delete_expired(minimum):
                pause = self._options.delete_consume_queue_files_interval / 1000
                self._again(pause, queues, minimum)
                return
        following = next(queues, None)
        if following is not None:
            following.delete_expired(minimum)
            self._again(0.0, queues, minimum)
            return
        if self._index is not None:
            self._index.delete_expired(minimum)
        self._cleaned_to = minimum
        self._running = False

    def _again(self, pause: float, queues: Iterator[AnyQueue], minimum: int) -> None:
        if not self._stopped:
            self._step = self._runner.call_later(pause, lambda: self._attempt(lambda: self._walk(queues, minimum)))

    # What an operator asks for

    def destroy_expired_queues(self, is_kept: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Remove queues whose records are all gone, with their numbering."""
        return self._queues.destroy_expired(self._log.min_offset, is_kept)
