"""From ranges to Spark's partitions: big ranges are split, small ones share a task.

A task costs some 20 ms however little it reads, so sixteen nearly empty queues are read by one; and a queue has no
order over several tasks, so one is split only when it is asked for. Pure arithmetic: a batch that Spark plans again
gets the same partitions. Kafka's KafkaOffsetRangeCalculator, and the grouping that it lacks.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from cometmq.spark.queue_range import QueueRange

#: Ranges below it share a task: it is what a task reads in the time that it costs anyway.
MIN_RECORDS: Final = 5_000


class Splitting(msgspec.Struct, frozen=True):
    """What the options say about partitions."""

    #: As many partitions at least, if there are as many messages.
    min_partitions: int | None = None
    #: Longer ranges are split.
    max_records: int | None = None
    #: Shorter ones are joined.
    min_records: int = MIN_RECORDS


class RangesPartition(InputPartition):
    """The ranges that one task reads, in this order."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def partitions(ranges: Sequence[QueueRange], how: Splitting) -> list[RangesPartition]:
    """The partitions of a batch; none without messages."""
    wanted = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in wanted)
    if not total:
        return []
    # So many messages a partition at most; both wishes of the user come down to this number.
    most = how.max_records or total
    if how.min_partitions is not None:
        most = min(most, max(1, -(-total // how.min_partitions)))
    pieces = [piece for each in wanted for piece in _split(each, most)]
    if how.min_partitions is not None and len(pieces) <= how.min_partitions:
        return [RangesPartition([piece]) for piece in pieces]
    groups = _grouped(pieces, min(how.min_records, most))
    return [RangesPartition(group) for group in groups]


def _split(whole: QueueRange, most: int) -> list[QueueRange]:
    """A range in pieces of about the same size, none longer than `most`."""
    count = -(-whole.size // most)
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [whole._replace(start=start, stop=stop) for start, stop in pairwise(bounds)]


def _grouped(pieces: list[QueueRange], enough: int) -> list[list[QueueRange]]:
    """Pieces of `enough` messages stay alone; smaller ones are put together until they are so many."""
    groups = [[piece] for piece in pieces if piece.size >= enough]
    open_group: list[QueueRange] = []
    size = 0
    for piece in pieces:
        if piece.size >= enough:
            continue
        if open_group and size + piece.size > enough:
            groups.append(open_group)
            open_group, size = [], 0
        open_group.append(piece)
        size += piece.size
    if open_group:
        groups.append(open_group)
    return groups
