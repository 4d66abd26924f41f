"""What happens when a store is opened: where the log ends, and which queues and index entries are missing.

The log is the truth. Queues and index are brought into agreement with it: what they have too much is cut, what they
lack is dispatched again, from where they stand. After a clean exit that is a look at the last file; after an unclean
one everything younger than the checkpoint is written anew. RocketMQ's `recoverNormally` and `recoverAbnormally`.

Where RocketMQ and we differ: a bad record with good ones after it stops the start instead of ending the log silently;
stale bytes behind the end are erased; a queue that lacks messages is noticed, and filled from the first file on; the
index is rebuilt from where it stands, not only from where the queues do.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.store.checkpoint import SLACK_MS, Checkpoint
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.consume_queues import ConsumeQueues
from cometmq.broker.store.dispatch import Dispatch
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.errors import StoreDamaged
from cometmq.broker.store.index import Index
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.queue_agreement import QueueAgreement, QueueBehind
from cometmq.broker.store.scan import Scanner, Stop, Verify
from cometmq.broker.store.tail import TailReader
from cometmq.broker.store.tickets import Watermarks
from cometmq.broker.store.transforms import TopicKinds

log = logging.getLogger(__name__)

#: Called with the bytes of the log that were looked at, and how many there are.
Progress = Callable[[int, int], None]

#: Requests that are handed to the dispatchers at a time.
_PASS: Final = 4096
#: How far a scan goes before it tells about its progress.
_WINDOW: Final = 32 << 20
#: Bytes that are written again at a time.
_COPY: Final = 1 << 20


class Recovered(msgspec.Struct, frozen=True):
    """What a recovery found and did."""

    #: Whether the last exit was clean.
    clean: bool
    #: The offset from which on the log was read, and its end.
    start: int
    end: int
    #: Records that were dispatched again; those that queues and index had already are among them.
    dispatched: int
    #: Store time of the last record, 0 without one.
    last_timestamp: int
    #: Where the end of the log was put that could not be read but held something.
    quarantined: tuple[str, ...] = ()


class Recovery:
    """One recovery of one store."""

    def __init__(
        self,
        commit_log: CommitLog,
        marks: Watermarks,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
        scanner: Scanner,
        dispatch: Dispatch,
        tail: TailReader,
        topics: TopicKinds,
        *,
        options: StoreOptions,
        progress: Progress | None = None,
        repair: bool = False,
        intact: bool = False,
        before_change: Callable[[], None] | None = None,
    ) -> None:
        self._log = commit_log
        self._marks = marks
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._scanner = scanner
        self._dispatch = dispatch
        self._tail = tail
        self._agreement = QueueAgreement(commit_log, queues, topics)
        self._index_safe = options.message_index_safe
        self._progress = progress
        self._repair = repair
        #: Whether the machine has run on since the store was used: only the process died.
        self._intact = intact
        #: Called before the first request is dispatched.
        self._before_change = before_change
        self._verify = Verify.NOTHING
        if options.check_crc_on_recover:
            self._verify = Verify.PROPERTY_CRC if options.force_verify_prop_crc else Verify.BODY_CRC
        self._clean = True
        #: Whether the scan begins with the first file: nothing that comes before can be missing then.
        self._from_first = False
        self._dispatched = 0
        self._rebuilt = False
        self._stop, self._reason = Stop.ENOUGH, ""
        self._last: tuple[int, int] = (0, 0)
        #: The latest store time among the records that were looked at; clocks can be set back.
        self._newest = 0
        #: From this time on the checkpoint does not say that records are on the disk, and the first of them.
        self._saved = max(0, checkpoint.physic_msg_timestamp - SLACK_MS)
        self._doubt: int | None = None

    def run(self, *, clean: bool) -> Recovered:
        """Bring everything into agreement. The files of log, queues and index are found already."""
        self._clean = clean
        files = self._log.files.files
        if not files:
            if len(self._queues):
                log.warning("there is no commit log: all consume queues are removed")
            self._queues.destroy()
            if self._index is not None:
                self._index.destroy()
            self._marks.reset(0)
            return Recovered(clean, 0, 0, 0, 0)
        self._queues.recover(thorough=not clean)
        begin, skim_before = self._where_to_begin(files)
        try:
            end = self._scan(files, begin, skim_before)
        except QueueBehind as reason:
            log.warning("%s: all queues are compared with the whole log", reason)
            self._before_rebuild()
            begin = 0
            end = self._scan(files, 0, -1)
        start = files[begin].start
        quarantined = self._cut_tail(end)
        self._trim_to(end)
        self._marks.reset(end)
        self._queues.correct_min(self._log.min_offset)
        self._make_safe(start)
        # What was only looked at for the recovery costs no descriptor.
        self._queues.upkeep.open_files.close()
        return Recovered(clean, start, end, self._dispatched, self._last[1], tuple(quarantined))

    # Where to begin

    def _where_to_begin(self, files: list[LogFile]) -> tuple[int, int]:
        """The number of the first file to scan, and the offset before which its records are only looked at."""
        known = self._agreement.check_ends(self._before_rebuild) if self._clean else self._queues.max_physical
        by_queues = self._start_file(files, known)
        if self._clean:
            safe = known
        else:
            # Younger units may be torn, or point to what is not there: they are written again.
            safe = files[by_queues].start
            self._queues.truncate(safe)
        begin = by_queues
        if self._index is not None:
            # After a crash its last record may have lacked a key.
            indexed = self._index.end_physical + (1 if self._clean else 0)
            safe = min(safe, indexed)
            while begin > 0 and files[begin].start > indexed:
                begin -= 1
        self._from_first = begin == 0
        return begin, safe

    def _start_file(self, files: list[LogFile], known: int) -> int:
        found = 0
        for number in range(len(files) - 1, -1, -1):
            first = self._first_record(files[number])
            if first is None or first.store_timestamp == 0:
                continue
            if self._clean:
                matches = first.physical_offset <= known
            else:
                matches = first.store_timestamp <= self._checkpoint.min_timestamp
            if matches and self._index is not None and self._index_safe:
                matches = first.store_timestamp <= self._checkpoint.index_msg_timestamp
            if matches:
                found = number
                break
        return found if self._clean else self._before_set_back(files, found)

    def _before_set_back(self, files: list[LogFile], found: int) -> int:
        """The same file, or an earlier one where the clock was set back since: the times that the checkpoint means may
        be those before that.
        """
        later = 0
        start, seeking = found, False
        for number in range(found, -1, -1):
            first = self._first_record(files[number])
            if first is None or first.store_timestamp == 0:
                continue
            time = first.store_timestamp
            # Set back after this file had begun, if it is later than the next one.
            seeking = seeking or time > later > 0
            if seeking and time <= self._checkpoint.min_timestamp:
                start, seeking = number, False
            later = time
        return 0 if seeking else start

    def _first_record(self, file: LogFile) -> DispatchRequest | None:
        out: list[DispatchRequest] = []
        was_open = file.is_open
        self._scanner.scan(file.view(), file.start, 0, file.size, out, count=1, verify=self._verify)
        if not was_open:
            # A log of a terabyte shall not take a descriptor for each file that was looked at.
            file.close()
        return out[0] if out else None

    # The scan

    def _scan(self, files: list[LogFile], number: int, skim_before: int) -> int:
        """Read records from a file on, dispatch them, and give the end of the log."""
        self._from_first = number == 0
        self._doubt = None
        seen: dict[tuple[bytes, int], int] = {}
        out: list[DispatchRequest] = []
        position = 0
        window = _WINDOW
        last_end = files[-1].end
        while True:
            file = files[number]
            limit = min(position + window, file.size)
            result = self._scanner.scan(
                file.view(),
                file.start,
                position,
                limit,
                out,
                count=_PASS,
                verify=self._verify,
                torn=not self._clean,
                skim_before=skim_before,
                seen=seen,
            )
            if result.last is not None:
                # Passed over or not: the store times of new records go on from there.
                self._last = result.last
            if out:
                for request in out if seen else ():
                    # Its queue is looked at now.
                    seen.pop((request.topic.encode(), request.queue_id), None)
                self._look_at_times(out)
                self._hand_over(out)
                out = []
            moved = result.position > position
            position = result.position
            if self._progress is not None:
                self._progress(file.start + position - files[0].start, last_end - files[0].start)
            if result.stop is Stop.ENOUGH and position < file.size:
                window = _WINDOW
            elif result.stop is Stop.CUT and limit < file.size:
                # The window ends inside a record.
                window = _WINDOW if moved else file.size
            elif result.stop in (Stop.ENOUGH, Stop.BLANK) and number + 1 < len(files):
                number += 1
                position = 0
            else:
                break
        if self._clean and skim_before >= 0:
            self._agreement.compare(seen)
        self._stop, self._reason = result.stop, result.reason
        return files[number].start + position

    def _look_at_times(self, requests: list[DispatchRequest]) -> None:
        self._newest = max(self._newest, max([request.store_timestamp for request in requests]))
        if self._doubt is None and self._newest >= self._saved:
            # None of them, perhaps: a second scan begins further back and knows the newest time from the first.
            since = self._saved
            self._doubt = next((each.physical_offset for each in requests if each.store_timestamp >= since), None)

    def _hand_over(self, requests: list[DispatchRequest]) -> None:
        """Dispatch requests. Queues that are not in step with the log are put in step first."""
        for part in self._agreement.in_step(requests, from_first=self._from_first):
            self._give(part)

    def _before_rebuild(self) -> None:
        """Queues are about to be filled from the first record on: a start after a death on the way does it again."""
        if self._before_change is not None:
            self._before_change()
        self._rebuilt = True
        self._checkpoint.logics_msg_timestamp = 0
        self._checkpoint.flush()

    def _give(self, requests: list[DispatchRequest]) -> None:
        if requests:
            if self._before_change is not None and not self._dispatched:
                self._before_change()
            self._dispatch.hand_over(requests)
            self._dispatched += len(requests)

    # The end

    def _cut_tail(self, end: int) -> list[str]:
        """Let the log end at `end`, or refuse to."""
        file = self._log.files.find(end)
        tail = self._tail.look(end)
        if not tail.written or (self._stop is Stop.BLANK and tail.good is None):
            # Nothing follows; or a blank record without a next file, which goes: the next message may fit there.
            self._tail.cut(end)
            return []
        # Saved once, unless the clock was set back after that: then there are later times before it.
        saved = self._checkpoint.physic_msg_timestamp
        known = tail.good is not None and tail.good[1] < saved > self._newest
        # Only a power loss tears what comes before something that was written.
        whole = self._clean or self._intact or known
        damaged = tail.good is not None and (whole or not tail.torn)
        reason = self._reason or "its file goes on after the end"
        if damaged and tail.good is not None and not self._repair:
            raise StoreDamaged(
                f"a bad record (physical offset {end}; {reason}) with good ones after it, the next at {tail.good[0]}",
                path=None if file is None else file.path,
                offset=None if file is None else end - file.start,
            )
        quarantined = self._tail.quarantine(end) if tail.good is not None or self._clean else []
        self._tail.cut(end)
        kept = f"; it is kept in {', '.join(quarantined)}" if quarantined else ""
        log.warning("the log ends at %d: what follows was cut (%s)%s", end, reason, kept)
        return quarantined

    def _trim_to(self, end: int) -> None:
        """Take back what queues and index say about records that are not there."""
        highest = self._queues.max_physical
        if highest > end:
            say = log.error if self._clean else log.info
            say("consume queues know records up to %d, the log ends at %d: they are cut", highest, end)
            self._queues.truncate(end)
        if self._index is not None and self._index.end_physical >= end:
            self._index.truncate(end)

    def _write_again(self) -> None:
        """Write what may not be on the disk once more. Perhaps the store was stopped by a sync that failed: then the
        kernel takes pages for saved that are not, and the next sync would pass over them.
        """
        end = self._marks.appended
        begin = end if self._doubt is None else self._doubt
        for file in self._log.files_between(begin, end):
            last = min(end - file.start, file.size)
            for position in range(max(begin - file.start, 0), last, _COPY):
                file.write(position, [file.read(position, min(_COPY, last - position))])

    def _make_safe(self, start: int) -> None:
        """What was recovered must not be lost by the next crash: consumers will see it."""
        if self._clean and not self._dispatched and not self._rebuilt:
            return
        if self._intact and not self._clean:
            self._write_again()
        for file in self._log.files_between(start, self._marks.appended):
            file.sync()
        self._queues.flush()
        if self._last[1]:
            self._checkpoint.physic_msg_timestamp = self._checkpoint.logics_msg_timestamp = self._last[1]
            self._checkpoint.confirm_phy_offset = self._last[0]
        self._checkpoint.flush()
