"""Partitions: together they are the ranges, big ones split and small ones joined, the same each time."""

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.queue_range import QueueRange
from cometmq.spark.splits import Splitting, partitions

pytestmark = pytest.mark.spark


def ranges_of(*sizes: int) -> list[QueueRange]:
    return [QueueRange("t", "a", number, 100, 100 + size) for number, size in enumerate(sizes)]


def sizes_of(ranges: list[QueueRange], how: Splitting) -> list[list[int]]:
    return [[each.size for each in partition.ranges] for partition in partitions(ranges, how)]


settings = st.builds(
    Splitting, st.none() | st.integers(1, 50), st.none() | st.integers(1, 20_000), st.integers(1, 10_000)
)


@given(st.lists(st.integers(0, 30_000), max_size=12), settings)
def test_partitions_are_the_ranges(sizes: list[int], how: Splitting) -> None:
    ranges = ranges_of(*sizes)
    planned = partitions(ranges, how)
    assert [each.ranges for each in partitions(ranges, how)] == [each.ranges for each in planned]
    pieces = sorted(piece for partition in planned for piece in partition.ranges)
    whole = {each.queue: each for each in ranges if each.size}
    assert {piece.queue for piece in pieces} == set(whole)
    for queue, each in whole.items():
        own = [piece for piece in pieces if piece.queue == queue]
        assert (own[0].start, own[-1].stop) == (each.start, each.stop)
        assert all(before.stop == after.start for before, after in pairwise(own))
    if how.max_records is not None:
        assert all(sum(piece.size for piece in partition.ranges) <= how.max_records for partition in planned)
    if how.min_partitions is not None and sum(sizes) >= how.min_partitions:
        assert len(planned) >= how.min_partitions


def test_a_queue_is_a_task_unless_it_is_small() -> None:
    assert sizes_of(ranges_of(9000, 0, 8000), Splitting()) == [[9000], [8000]]
    assert sizes_of(ranges_of(*[10] * 16), Splitting()) == [[10] * 16]
    assert sizes_of(ranges_of(9000, 10, 20, 4990), Splitting()) == [[9000], [10, 20], [4990]]
    assert sizes_of([], Splitting()) == []
    assert sizes_of(ranges_of(0, 0), Splitting()) == []


def test_big_ranges_are_split() -> None:
    assert sizes_of(ranges_of(100), Splitting(max_records=30)) == [[25]] * 4
    assert sizes_of(ranges_of(100, 2), Splitting(min_partitions=4, min_records=1)) == [[25], [25], [25], [25], [2]]
    assert sizes_of(ranges_of(2), Splitting(min_partitions=4)) == [[1], [1]]


def test_partitions_travel() -> None:
    [partition] = partitions(ranges_of(5), Splitting())
    assert pickle.loads(pickle.dumps(partition)).ranges == partition.ranges
