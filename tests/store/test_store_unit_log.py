"""Which bytes are units: the test that looks at all of them at once, against one that looks at each."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.batch_consume_queue import BATCH_UNIT, BatchConsumeQueue
from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue

EDGES = [0, 1, -1, 255, 256, 0x7FFFFFFF, -0x80000000, 0x00FF0000, 0x01000000]
WIDE = [*EDGES, 2**63 - 1, -(2**63), 1 << 40]


def plain(physical: int, size: int) -> bool:
    return physical >= 0 and size > 0


units = st.tuples(st.sampled_from(WIDE), st.sampled_from(EDGES), st.sampled_from(WIDE))
batch_units = st.tuples(
    st.sampled_from(WIDE), st.sampled_from(EDGES), st.sampled_from(WIDE), st.sampled_from(WIDE),
    st.sampled_from(WIDE), st.sampled_from([0, 1, -1, 256, 32767, -32768]), st.just(-1), st.just(0),
)  # fmt: skip
GOOD, GOOD_BATCH = (5, 6, -7), (5, 6, -7, 8, 9, 1, -1, 0)


@given(good=st.integers(0, 300), rest=st.lists(units, max_size=4), tail=st.binary(max_size=19))
def test_units_of_consume_queues(good, rest, tail):
    rows = [GOOD] * good + rest
    data = b"".join(UNIT.pack(*row) for row in rows) + tail
    wanted = next((number for number, row in enumerate(rows) if not plain(row[0], row[1])), len(rows))
    assert ConsumeQueue.SHAPE.count_valid(data) == wanted


@given(good=st.integers(0, 100), rest=st.lists(batch_units, max_size=4), tail=st.binary(max_size=45))
def test_units_of_batch_queues(good, rest, tail):
    rows = [GOOD_BATCH] * good + rest
    data = b"".join(BATCH_UNIT.pack(*row) for row in rows) + tail
    wanted = next(
        (n for n, row in enumerate(rows) if not (plain(row[0], row[1]) and row[4] >= 0 and row[5] > 0)), len(rows)
    )
    assert BatchConsumeQueue.SHAPE.count_valid(data) == wanted


@pytest.mark.parametrize("queue", [ConsumeQueue, BatchConsumeQueue])
def test_nothing_is_no_unit(queue):
    for length in (0, 1, 19, 20, 45, 46, 4096):
        assert queue.SHAPE.count_valid(bytes(length)) == 0


@pytest.mark.parametrize("bad", [0, 1, 63, 1023, 99_999, None])
def test_of_a_large_file(bad):
    data = bytearray(UNIT.pack(1 << 40, 300, -1) * 100_000)
    if bad is not None:
        struct.pack_into(">i", data, bad * 20 + 8, 0)
    assert ConsumeQueue.SHAPE.count_valid(bytes(data)) == (100_000 if bad is None else bad)
