"""How much a batch takes: never more than allowed, no queue forgotten, and everything in the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from cometmq.spark.limits import Limits, ends_within, shares
from cometmq.spark.queue_range import QueueId

pytestmark = pytest.mark.spark

QUEUES = [QueueId("t", "a", number) for number in range(8)]
A, B, C = QUEUES[:3]

backlogs = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10**6))


@given(backlogs, st.integers(1, 10**6))
def test_shares_add_up_to_the_limit(backlog: dict[QueueId, int], limit: int) -> None:
    given_out = shares(backlog, limit)
    assert given_out.keys() == backlog.keys()
    assert sum(given_out.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= given_out[queue] <= backlog[queue] for queue in backlog)
    waiting = [queue for queue, count in backlog.items() if count]
    if limit >= len(waiting):
        assert all(given_out[queue] for queue in waiting)


@given(backlogs, st.integers(1, 5000))
def test_a_backlog_comes_to_its_end(backlog: dict[QueueId, int], limit: int) -> None:
    left = {queue: count % 10_000 for queue, count in backlog.items()}
    rounds = -(-sum(left.values()) // limit)
    for _ in range(min(rounds, 200)):
        taken = shares(left, limit)
        left = {queue: count - taken[queue] for queue, count in left.items()}
    assert rounds > 200 or not any(left.values())


def test_shares_follow_the_backlogs() -> None:
    assert shares({A: 901, B: 91, C: 11}, 103) == {A: 91, B: 10, C: 2}
    assert shares({A: 5, B: 9, C: 7}, 2) == {A: 0, B: 1, C: 1}


def test_ends_by_messages_and_by_bytes() -> None:
    begins, latest = {A: 100, B: 0}, {A: 200, B: 100}
    assert ends_within(begins, latest, Limits(), {}) == latest
    assert ends_within(begins, latest, Limits(max_offsets=50), {}) == {A: 125, B: 25}
    assert ends_within(begins, latest, Limits(max_bytes=10_000), {A: 100.0, B: 100.0}) == {A: 150, B: 50}
    assert ends_within(begins, latest, Limits(20, 100), {A: 10.0, B: 10.0}) == {A: 105, B: 5}
    # A message larger than the limit is read nevertheless, alone.
    assert sum(ends_within(begins, latest, Limits(max_bytes=1), {A: 9.0, B: 9.0}).values()) == 101
    # What cannot be estimated is not held back.
    assert ends_within(begins, latest, Limits(max_bytes=1), {}) == latest


def test_waiting_for_enough_messages() -> None:
    limits = Limits(min_offsets=10, max_delay=60.0)
    assert limits.must_wait(9, 59.9)
    assert not limits.must_wait(10, 0.0)
    assert not limits.must_wait(9, 60.0)
    assert not Limits().must_wait(1, 0.0)


def test_what_spark_is_told() -> None:
    assert Limits().as_read_limit() == ReadAllAvailable()
    assert Limits(5, 6, 3).as_read_limit() == ReadMaxRows(5)
    assert Limits(max_bytes=6, min_offsets=3).as_read_limit() == ReadMaxBytes(6)
    assert Limits(min_offsets=3).as_read_limit() == ReadMinRows(3)
    assert Limits(5, 6, 3).under(ReadMaxRows(5)) == Limits(5, 6, 3)
    assert Limits(5, 6, 3).under(ReadAllAvailable()) == Limits()
