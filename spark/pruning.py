"""What the filters of a batch query spare: topics, queues and offsets that no matching row can be in.

Spark checks every row again, so pruning may leave too much and must never take too much. Only conditions that all rows
meet count; `or` never gets here. Mirrors what Spark's file sources do with partition filters.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from cometmq.spark.cluster import Cluster

#: Milliseconds. The messages of a queue are searched as if their store times were sorted; a broker whose clock was set
#: back by less than this does no harm.
TIME_MARGIN: Final = 60_000

#: Tags that can be asked of a broker as they are.
_PLAIN_TAG: Final = re.compile(r"[^\s|*]+")


class Pruning(msgspec.Struct, frozen=True):
    """What can be left out. None: no condition."""

    topics: frozenset[Any] | None = None
    brokers: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    tags: frozenset[Any] | None = None
    #: Offsets from, and below.
    first: int | None = None
    stop: int | None = None
    #: Milliseconds: stored at or after, stored at or before.
    since: int | None = None
    until: int | None = None

    def takes(self, queue: QueueId) -> bool:
        """Whether a queue can have matching rows."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def read_options(self, options: ReadOptions) -> ReadOptions:
        """The same with the tags left to the brokers, if the user did not choose others."""
        if not self.tags or options.is_filtered or not all(_is_plain(tag) for tag in self.tags):
            return options
        return msgspec.structs.replace(options, sub_expression=" || ".join(sorted(self.tags)))

    def narrowed(self, ranges: Sequence[QueueRange], cluster: "Cluster", patience: float) -> list[QueueRange]:
        """The part of the ranges that can have matching rows."""
        narrow = [
            each._replace(
                start=each.start if self.first is None else max(each.start, self.first),
                stop=each.stop if self.stop is None else min(each.stop, self.stop),
            )
            for each in ranges
        ]
        narrow = [each for each in narrow if each.size > 0]
        if self.since is not None:
            found = _at(self.since - TIME_MARGIN, narrow, cluster, patience)
            # A broker may name the last message for a time after it; that one stays, and Spark drops it.
            narrow = [each._replace(start=max(each.start, found[each.queue])) for each in narrow]
        if self.until is not None:
            found = _at(self.until + TIME_MARGIN, narrow, cluster, patience)
            # One more: it is the last message itself that an old broker names.
            narrow = [each._replace(stop=min(each.stop, found[each.queue] + 1)) for each in narrow]
        return [each for each in narrow if each.size > 0]


EVERYTHING: Final = Pruning()


def _at(moment: int, ranges: Iterable[QueueRange], cluster: "Cluster", patience: float) -> dict[QueueId, int]:
    queues = [each.queue for each in ranges]
    return cluster.surely(lambda missing: cluster.at_times(dict.fromkeys(missing, max(0, moment))), queues, patience)


def _is_plain(tag: Any) -> bool:
    return isinstance(tag, str) and _PLAIN_TAG.fullmatch(tag) is not None


def pruning_by(filters: Iterable[Filter]) -> Pruning:
    """What these conditions, all of which hold for every row that is wanted, allow to leave out."""
    pruning = EVERYTHING
    for each in filters:
        pruning = _narrower(pruning, each)
    return pruning


_SETS: Final = {"topic": "topics", "brokerName": "brokers", "queueId": "queue_ids", "tags": "tags"}


def _narrower(pruning: Pruning, condition: Filter) -> Pruning:
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    value = getattr(condition, "value", None)
    if len(path) != 1 or value is None:
        return pruning
    column = path[0]
    if name := _SETS.get(column):
        if isinstance(condition, EqualTo | EqualNullSafe):
            return _within(pruning, name, frozenset([value]))
        if isinstance(condition, In):
            return _within(pruning, name, frozenset(value))
    elif column == "queueOffset" and isinstance(value, int):
        return _between(pruning, condition, "first", "stop", value, value + 1)
    elif column == "storeTimestamp" and isinstance(value, datetime):
        millis = _millis(value)
        return _between(pruning, condition, "since", "until", millis, millis + 1)
    return pruning


def _within(pruning: Pruning, name: str, values: frozenset[Any]) -> Pruning:
    known = getattr(pruning, name)
    return _changed(pruning, name, values if known is None else known & values)


def _changed(pruning: Pruning, name: str, value: Any) -> Pruning:
    change: dict[str, Any] = {name: value}
    return msgspec.structs.replace(pruning, **change)


def _between(pruning: Pruning, condition: Filter, low: str, high: str, at: int, after: int) -> Pruning:
    """Bounds by a comparison. Strict and other ones are treated alike: one row too many does no harm."""
    equal = isinstance(condition, EqualTo | EqualNullSafe)
    if equal or isinstance(condition, GreaterThan | GreaterThanOrEqual):
        known = getattr(pruning, low)
        pruning = _changed(pruning, low, at if known is None else max(known, at))
    if equal or isinstance(condition, LessThan | LessThanOrEqual):
        known = getattr(pruning, high)
        pruning = _changed(pruning, high, after if known is None else min(known, after))
    return pruning


def _millis(moment: datetime) -> int:
    # Spark's timestamps without a zone are UTC here.
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
