"""The short way of a read gives what the careful way gives, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store import reading
from cometmq.broker.store.reading import MessageFilter, TagFilter
from cometmq.broker.store.store import Store
from cometmq.protocol.hashing import tags_code
from support.store_kit import StoreKit, message

TAGS = ["Aa", "BB", "CC", ""]
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["T", "U"]), st.integers(0, 1), st.sampled_from(TAGS), st.integers(0, 900)),
    min_size=1,
    max_size=60,
)


def seen(store: Store, offset: int, count: int, size: int | None, wanted: MessageFilter | None) -> tuple[object, ...]:
    found = store.get_message("G", "T", 0, offset, count, size, wanted)
    assert found is not None
    data = found.read()
    assert b"".join(found.buffers()) == data
    found.release()
    return (
        found.status,
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        found.message_count,
        found.size,
        found.suggest_pulling_from_slave,
        found.hot,
        data,
    )


@given(
    MESSAGES,
    st.integers(0, 40),
    st.integers(-1, 40),
    st.none() | st.integers(0, 8000),
    st.sampled_from([None, ["Aa"], ["CC", "nobody"], [""], ["nobody"]]),
    st.sampled_from([2000, 20_000, 1 << 30]),
    st.sampled_from(["3", "4096"]),
)
def test_both_ways_give_the_same(
    messages: list[tuple[str, int, str, int]],
    offset: int,
    count: int,
    size: int | None,
    tags: list[str] | None,
    memory: int,
    most: str,
) -> None:
    kit = StoreKit(maxTransferCountOnMessageInMemory=most, maxTransferBytesOnMessageInMemory="6000")
    kit.memory = memory
    store = kit.opened()
    for number, (topic, queue_id, tag, length) in enumerate(messages):
        kit.put(store, message(topic, queue_id, b"%d" % number * (length // 2), TAGS=tag))
    wanted = None if tags is None else TagFilter([tags_code(tag) for tag in tags])
    short = seen(store, offset, count, size, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "take_all", lambda *_: None)
        patch.setattr(reading, "take_tagged", lambda *_: None)
        careful = seen(store, offset, count, size, wanted)
    assert short == careful
    store.close()


def test_the_short_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = StoreKit()
    store = kit.opened()
    for number in range(10):
        kit.put(store, message("T", 0, b"x", TAGS="a" if number % 2 else "b"), message("U", 0, b"y"))
    monkeypatch.setattr(reading.Reading, "_walk_plain", None)
    monkeypatch.setattr(reading.Reading, "_wants", None)
    everything = store.get_message("G", "T", 0, 0, 32)
    assert everything is not None
    assert (everything.message_count, everything.next_begin_offset) == (10, 10)
    tagged = store.get_message("G", "T", 0, 0, 3, wanted=TagFilter([tags_code("a")]))
    assert tagged is not None
    assert (tagged.message_count, tagged.next_begin_offset) == (3, 6)
    nothing = store.get_message("G", "T", 0, 0, 3, wanted=TagFilter([tags_code("c")]))
    assert nothing is not None
    assert (nothing.status.name, nothing.next_begin_offset) == ("NO_MATCHED_MESSAGE", 10)
    for found in (everything, tagged):
        found.release()
    store.close()


@pytest.mark.parametrize("physical", [-50, 1 << 40])
def test_damaged_units_are_left_to_the_careful_way(physical: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 6, queues=1)
    queue = store.queues.get("T", 0)
    assert queue is not None
    good = queue.units(0, 6)
    bad = good[:40] + reading.UNIT.pack(physical, 100, 0) + good[60:]
    monkeypatch.setattr(reading.ConsumeQueue, "units", lambda queue, offset, count: bad[offset * 20 :][: count * 20])
    found = store.get_message("G", "T", 0, 0, 32)
    assert found is not None
    assert (found.message_count, found.next_begin_offset) == (5, 6)
    found.release()
    store.close()
