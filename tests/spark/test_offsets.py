"""Offsets in Spark's log: one text for the same offsets, and the same ranges out of them at any time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark import offsets
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.offsets import INITIAL, Offsets, parse, ranges
from cometmq.spark.queue_range import QueueId, QueueRange

pytestmark = pytest.mark.spark

A0, A10, B0 = QueueId("t", "a", 0), QueueId("t", "a", 10), QueueId("t", "b", 0)

names = st.text("abcxyz019-_", min_size=1, max_size=4)
positions = st.dictionaries(st.builds(QueueId, names, names, st.integers(0, 20)), st.integers(0, 2**63 - 1))


@given(positions, positions)
def test_a_text_does_not_depend_on_the_order_and_says_everything(
    ends: dict[QueueId, int], begins: dict[QueueId, int]
) -> None:
    text = json.dumps(Offsets(ends, begins).to_json())
    shuffled = Offsets(dict(reversed(ends.items())), dict(reversed(begins.items())))
    assert json.dumps(shuffled.to_json()) == text
    assert parse(json.loads(text)) == Offsets(ends, begins)
    # What Spark read back and hands on is the same text once more.
    assert json.dumps(parse(json.loads(text)).to_json()) == text


def test_the_form_is_the_documented_one() -> None:
    text = json.dumps(Offsets({B0: 3, A10: 2, A0: 1}, {B0: 0}).to_json(), separators=(",", ":"))
    assert text == '{"from":{"t":{"b":{"0":0}}},"q":{"t":{"a":{"0":1,"10":2},"b":{"0":3}}},"v":1}'


def test_ranges_between_two_batches() -> None:
    start = Offsets({A0: 5, B0: 7}).to_json()
    end = Offsets({A0: 9, B0: 7, A10: 4}, {A10: 2}).to_json()
    assert ranges(start, end) == [QueueRange("t", "a", 0, 5, 9), QueueRange("t", "a", 10, 2, 4)]
    assert ranges(start, start) == []


def test_ranges_of_the_first_batch_come_from_its_end_alone() -> None:
    end = Offsets({A0: 9, B0: 7}, {A0: 4, B0: 7}).to_json()
    assert ranges(INITIAL, end) == [QueueRange("t", "a", 0, 4, 9)]
    assert ranges(INITIAL, INITIAL) == []


def test_a_queue_that_lost_messages_begins_anew() -> None:
    assert ranges(Offsets({A0: 50}).to_json(), Offsets({A0: 9}, {A0: 2}).to_json()) == [QueueRange("t", "a", 0, 2, 9)]


def test_a_checkpoint_of_somebody_else_is_refused() -> None:
    for foreign in ({"topic": {"0": 5}}, {"v": 2, "q": {}}, {"v": 1}):
        with pytest.raises(SparkSourceError, match="another source or to a newer version"):
            parse(foreign)
    with pytest.raises(SparkSourceError, match="does not say where queue 0 of topic t on broker a begins"):
        ranges(INITIAL, Offsets({A0: 9}).to_json())


def test_lag_of_a_query() -> None:
    latest = Offsets({A0: 9, B0: 7, A10: 4}).to_json()
    assert offsets.lag(Offsets({A0: 5, B0: 8}).to_json(), latest) == {A0: 4, B0: 0}
    assert offsets.lag(INITIAL, latest) == {}
