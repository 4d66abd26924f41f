"""What the driver decides for each micro-batch: where it begins in queues that are new, and where it ends.

State of one run of a query; whatever has to survive it goes into the offsets. `stream` is the shell around it that
Spark talks to.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadLimit

from cometmq.spark.cluster import Cluster, Offsets
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.frontier import Frontier
from cometmq.spark.limits import Limits, ends_within
from cometmq.spark.offsets import Offsets as Position
from cometmq.spark.offsets import is_initial, parse, topics_of
from cometmq.spark.progress import Progress
from cometmq.spark.queue_range import QueueId
from cometmq.spark.resolving import resolve
from cometmq.spark.source_options import Options

log = logging.getLogger(__name__)

#: Seconds after which a queue that seems to have lost its end is looked at again, before it is called a loss.
_SECOND_LOOK: Final = 1.0


class Planner:
    """Plans the batches of one run. Mutable state: the frontier, AvailableNow's target, the last batch's time."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._cluster = Cluster(options.access, options.topics)
        self._frontier = Frontier(
            self._cluster,
            discovery_interval=options.discovery_interval,
            unreachable_timeout=options.unreachable_timeout,
            fail_on_data_loss=options.read.fail_on_data_loss,
        )
        self._progress = Progress(options.access) if options.reports_progress else None
        #: Where an AvailableNow query ends.
        self._target: Offsets | None = None
        self._last_batch: float | None = None
        #: Whether the checkpoint has been held against the options.
        self._is_continued = False

    def check(self) -> None:
        """Raise what is wrong with topics, filter and nameservers before anything is planned."""
        self._cluster.check(self._options.read)

    def stop_at_the_end_of_now(self) -> None:
        """Read up to what there is now and no further. Every broker has to answer: none may be left out silently."""
        queues = self._cluster.queues()
        self._target = self._cluster.surely(self._cluster.latest, queues, self._options.unreachable_timeout)

    def latest(self) -> dict[str, Any] | None:
        """How far the queues go, as far as it is known without asking."""
        return Position(self._frontier.ends).to_json() if self._frontier.ends else None

    def tell_progress(self, offset: Mapping[str, Any]) -> None:
        """Everything before this offset is done."""
        if self._progress is not None and not is_initial(offset):
            self._progress.tell(parse(offset).ends)

    def end_of_batch(self, start: dict[str, Any], limit: ReadLimit, clock: Callable[[], float]) -> dict[str, Any]:
        """Where the next batch ends; `start` itself when there is none.

        Waits a moment for messages before it says so: Spark asks again at once.
        """
        limits = self._options.limits.under(limit)
        if is_initial(start):
            return self._first_batch(limits, clock())
        position = self._continued(parse(start).ends)
        self.tell_progress(start)
        deadline = clock() + self._options.idle_wait
        self._last_batch = clock() if self._last_batch is None else self._last_batch
        while True:
            begins, latest = self._begins(position)
            if any(begins[queue] < at for queue, at in position.items()):
                # What was decided after a loss is recorded at once, before it is forgotten or the queue has grown.
                return self._ended(position, begins, latest, limits)
            available = sum(latest[queue] - begins[queue] for queue in latest)
            if available and (self._target is not None or not limits.must_wait(available, clock() - self._last_batch)):
                self._last_batch = clock()
                return self._ended(position, begins, latest, limits)
            if self._target is not None:
                if self._progress is not None:
                    self._progress.settle()  # the query ends, and Spark kills this process
                return start
            left = deadline - clock()
            if left <= 0:
                return start
            time.sleep(min(left, self._frontier.interval))

    def _continued(self, ends: Mapping[QueueId, int]) -> Offsets:
        """Where the batch before ended, in the queues that the options choose.

        A checkpoint that knows others is not this query's, or its topics were changed: what those still have would be
        left out without a word.
        """
        options = self._options
        left = sorted(queue for queue in ends if not options.topics.takes(queue))
        if left and not self._is_continued:
            topics = ", ".join(topics_of(left))
            if options.read.fail_on_data_loss:
                raise OptionError(
                    options.topics.option,
                    options.topics.text,
                    f"the checkpoint is about {topics} too, which is not read any more; start with another checkpoint, "
                    f"or set failOnDataLoss=false to go on without {left[0]}",
                )
            log.warning("the checkpoint is about %s, which is not read any more: going on without", topics)
        chosen = {queue: end for queue, end in ends.items() if queue not in left}
        if not self._is_continued:
            self._frontier.look()
            self._look_for([queue for queue in chosen if queue not in self._frontier.queues])
            self._cluster.check_filter(self._frontier.queues, options.read, options.unreachable_timeout)
        self._is_continued = True
        return chosen

    def _look_for(self, absent: list[QueueId]) -> None:
        """Queues that the checkpoint knows and no route has: of a broker that is away, or not read any more."""
        if not absent:
            return
        if self._options.read.fail_on_data_loss:
            self._frontier.adopt(absent)  # which waits for them
            if self._target is not None:
                self._target |= self._cluster.surely(self._cluster.latest, absent, self._options.unreachable_timeout)
            return
        answers = self._cluster.latest(absent)
        self._frontier.adopt(answers.offsets)
        if self._target is not None:
            self._target |= answers.offsets
        for queue, error in answers.failures.items():
            log.warning("going on without %s, which the checkpoint knows, until its broker is back: %s", queue, error)

    def _first_batch(self, limits: Limits, now: float) -> dict[str, Any]:
        """The batch of a query that has no checkpoint: it records where the query starts, even if it reads nothing."""
        options = self._options
        self._frontier.look()
        self._cluster.check_filter(self._frontier.queues, options.read, options.unreachable_timeout)
        begins = resolve(
            options.stream_start,
            self._frontier.queues,
            self._cluster,
            patience=options.unreachable_timeout,
            fail_on_data_loss=options.read.fail_on_data_loss,
        )
        latest = self._ends_at_most(begins)
        available = sum(latest[queue] - begins[queue] for queue in latest)
        if self._target is None and limits.must_wait(available, 0.0):
            latest = begins
        self._last_batch = now
        return self._ended({}, begins, latest, limits)

    def _ended(self, position: Offsets, begins: Offsets, latest: Offsets, limits: Limits) -> dict[str, Any]:
        """The end of a batch under the limits, with the beginnings that the end of the last one does not tell."""
        if not self._options.read.fail_on_data_loss and (limits.max_offsets or limits.max_bytes):
            begins = self._without_what_is_gone(begins, latest)
        sizes: Mapping[QueueId, float] = {}
        if limits.max_bytes is not None:
            sizes = self._cluster.message_sizes(
                {queue: begins[queue] for queue in latest if latest[queue] > begins[queue]},
                self._options.read.pull_timeout,
            )
        ends = {**begins, **ends_within(begins, latest, limits, sizes)}
        return Position(ends, {queue: at for queue, at in begins.items() if position.get(queue) != at}).to_json()

    def _begins(self, position: Offsets) -> tuple[Offsets, Offsets]:
        """Where the next batch begins in every queue that is known, and how far it could go."""
        ends = self._frontier.look()
        begins = dict(position)
        new = [queue for queue in ends if queue not in position]
        if new:
            begins |= self._first_of(new)
        if shrunk := [queue for queue, end in ends.items() if end < begins.get(queue, end)]:
            begins |= self._after_loss(shrunk, begins)
        return begins, self._ends_at_most(begins)

    def _first_of(self, new: list[QueueId]) -> Offsets:
        """Where new queues begin: those that answer, for the others join when they do, if there is a later batch."""
        if self._target is None:
            return self._cluster.earliest(new).offsets
        wanted = [queue for queue in new if queue in self._target]
        return self._cluster.surely(self._cluster.earliest, wanted, self._options.unreachable_timeout)

    def _without_what_is_gone(self, begins: Offsets, latest: Offsets) -> Offsets:
        """What the brokers have deleted does not count for a limit: many batches of nothing would come of it."""
        first = self._cluster.earliest([queue for queue in latest if latest[queue] > begins[queue]]).offsets
        gone = {queue: min(at, latest[queue]) for queue, at in first.items() if at > begins[queue]}
        for queue, at in gone.items():
            log.warning("%s: offset %d is gone, going on at %d", queue, begins[queue], at)
        return begins | gone

    def _ends_at_most(self, begins: Offsets) -> Offsets:
        """The ends of the queues, up to the target if there is one; never before the beginnings."""
        ends = self._frontier.ends if self._target is None else self._target
        return {queue: max(begins[queue], end) for queue, end in ends.items() if queue in begins}

    def _after_loss(self, shrunk: list[QueueId], begins: Offsets) -> Offsets:
        """Queues that end before what was read: the topic was made anew, or a store came back without its end."""
        time.sleep(_SECOND_LOOK)
        ends = self._cluster.latest(shrunk).offsets  # who does not answer now is looked at later
        self._frontier.ends |= ends
        lost = [queue for queue in shrunk if ends.get(queue, begins[queue]) < begins[queue]]
        for queue in lost:
            if self._options.read.fail_on_data_loss:
                raise DataLoss(
                    queue,
                    begins[queue],
                    ends[queue],
                    "the topic was deleted and made again, or the broker lost the end of its log; set "
                    "failOnDataLoss=false to go on with what the queue has now, from its first message",
                )
            log.warning("%s ends at %d, before %d: it is read anew", queue, ends[queue], begins[queue])
        return self._cluster.surely(self._cluster.earliest, lost, self._options.unreachable_timeout)
