"""How much one batch takes: at most so many messages or bytes, at least so many or after a delay.

Spark knows one limit at a time, so the options are combined here. Pure arithmetic over offsets; the clock is an
argument. What is left over is shared out in proportion to what each queue has, so that all queues of a backlog come to
their end together and none holds the watermark back. Kafka's KafkaMicroBatchStream (its rateLimit and delayBatch).
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from cometmq.spark.queue_range import QueueId

#: Seconds after which a batch is made of less than `minOffsetsPerTrigger` (Kafka's default, too).
MAX_TRIGGER_DELAY: Final = 15 * 60.0


class Limits(msgspec.Struct, frozen=True):
    """What the options say about the size of a batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    #: Seconds.
    max_delay: float = MAX_TRIGGER_DELAY

    def as_read_limit(self) -> ReadLimit:
        """The one limit that Spark hands back to us: it stands for all of them."""
        if self.max_offsets is not None:
            return ReadMaxRows(self.max_offsets)
        if self.max_bytes is not None:
            return ReadMaxBytes(self.max_bytes)
        if self.min_offsets is not None:
            return ReadMinRows(self.min_offsets)
        return ReadAllAvailable()

    def under(self, limit: ReadLimit) -> "Limits":
        """The limits of one batch: Spark may ask for everything whatever the options say (Trigger.Once)."""
        return Limits() if isinstance(limit, ReadAllAvailable) else self

    def must_wait(self, available: int, waited: float) -> bool:
        """Whether so few messages are left for a later batch."""
        return self.min_offsets is not None and available < self.min_offsets and waited < self.max_delay


def ends_within(
    begins: Mapping[QueueId, int], latest: Mapping[QueueId, int], limits: Limits, sizes: Mapping[QueueId, float]
) -> dict[QueueId, int]:
    """Where a batch ends. `sizes` holds the bytes of a message of each queue; it may be empty without `max_bytes`."""
    backlog = {queue: max(0, end - begins[queue]) for queue, end in latest.items()}
    allowed = shares(backlog, limits.max_offsets) if limits.max_offsets is not None else backlog
    if limits.max_bytes is not None:
        weight = sum(count * sizes.get(queue, 0.0) for queue, count in allowed.items())
        if weight > limits.max_bytes:
            total = sum(allowed.values())
            # At least one: a message that is larger than the limit has to be read some time.
            allowed = shares(allowed, max(1, int(total * limits.max_bytes / weight)))
    return {queue: begins[queue] + count for queue, count in allowed.items()}


def shares(backlog: Mapping[QueueId, int], limit: int) -> dict[QueueId, int]:
    """So many messages shared out in proportion to the backlogs; each queue that has some gets one if there are enough.

    The sum is the limit, or the whole backlog when that is less.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    waiting = sorted((queue for queue, count in backlog.items() if count), key=lambda queue: (-backlog[queue], queue))
    given = dict.fromkeys(backlog, 0) | dict.fromkeys(waiting[:limit], 1)
    left, rest = limit - len(waiting), total - len(waiting)
    if left <= 0:
        return given
    for queue in waiting:
        given[queue] += (backlog[queue] - 1) * left // rest
    # What rounding left: less than one for each queue that did not get everything.
    short = [queue for queue in waiting if given[queue] < backlog[queue]]
    for queue in short[: limit - sum(given.values())]:
        given[queue] += 1
    return given
