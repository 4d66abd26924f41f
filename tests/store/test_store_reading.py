"""Reading: every status, every limit, and what a range keeps."""

from collections.abc import Callable

import pytest

from cometmq.broker.store.consume_queue import Boundary
from cometmq.broker.store.consume_queue_ext import ExtUnit
from cometmq.broker.store.reading import GetResult, GetStatus, TagFilter
from cometmq.broker.store.store import Store
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.properties import find
from cometmq.protocol.record import decode_records
from support.store_kit import StoreKit, bodies, message, read_queue

MIB = 1 << 20


def get(store: Store, offset: int, count: int = 32, queue_id: int = 0, **arguments: object) -> GetResult:
    result = store.get_message("g", "T", queue_id, offset, count, **arguments)  # type: ignore[arg-type]
    assert result is not None
    return result


def filled(count: int = 20, queues: int = 1, size: int = 100, **properties: str) -> tuple[StoreKit, Store]:
    kit = StoreKit(mappedFileSizeCommitLog=str(8 * MIB), mappedFileSizeConsumeQueue="60000", **properties)
    store = kit.opened()
    for number in range(count):
        store.put(message("T", number % queues, f"{number}-".encode().ljust(size, b"x"), TAGS=f"Tag{number % 3}"))
    kit.runner.run()
    return kit, store


def offsets(result: GetResult) -> list[int]:
    return [record.queue_offset for record in decode_records(b"".join(result.buffers()))]


# Statuses


def test_a_store_that_is_closed_gives_nothing() -> None:
    kit, store = filled()
    store.close()
    assert store.get_message("g", "T", 0, 0, 1) is None
    assert store.message_at(0) is None
    assert kit.store().get_message("g", "T", 0, 0, 1) is None, "nor one that is not open"


def test_no_queue_is_a_queue_without_messages() -> None:
    _, store = filled(0)
    for offset in (0, 5):
        result = get(store, offset)
        assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
        assert (result.min_offset, result.max_offset) == (0, 0)
    assert store.queues.get("T", 0) is None, "asking makes no queue"


def test_what_can_be_no_queue() -> None:
    _, store = filled(0)
    result = store.get_message("g", "../T", 0, 3, 1)
    assert result is not None
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_offsets_outside_the_queue() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 200, queues=1)
    kit.clock.advance(80 * 3600)
    store.clean()
    kit.runner.advance(5)
    low, high = store.min_offset("T", 0), store.max_offset("T", 0)
    assert 0 < low < high == 200
    for offset, status, following in (
        (0, GetStatus.OFFSET_TOO_SMALL, low),
        (low - 1, GetStatus.OFFSET_TOO_SMALL, low),
        (high, GetStatus.OFFSET_OVERFLOW_ONE, high),
        (high + 1, GetStatus.OFFSET_OVERFLOW_BADLY, high),
    ):
        result = get(store, offset)
        assert (result.status, result.next_begin_offset) == (status, following)
        assert (result.min_offset, result.max_offset) == (low, high)
    assert get(store, low).status is GetStatus.FOUND


def test_a_slave_leaves_the_offset_to_its_master() -> None:
    kit, store = filled()
    store.close()
    for key, value, expected in (("brokerRole", "SLAVE", 25), ("offsetCheckInSlave", "true", 20)):
        kit.properties[key] = value
        slave = kit.opened()
        result = get(slave, 25)
        assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, expected)
        slave.close()


def test_found() -> None:
    _, store = filled()
    result = get(store, 3, 5)
    assert result.status is GetStatus.FOUND
    assert (result.message_count, result.next_begin_offset) == (5, 8)
    assert offsets(result) == [3, 4, 5, 6, 7]
    assert result.size == sum(map(len, result.buffers()))
    assert result.read() == b"".join(result.buffers())
    assert not result.suggest_pulling_from_slave
    result.release()


def test_messages_that_lie_together_are_one_range() -> None:
    _, store = filled(queues=1)
    result = get(store, 0)
    assert len(result.ranges) == len(result.buffers()) == 1
    result.release()
    _, store = filled(queues=2)
    result = get(store, 0)
    assert len(result.ranges) == 1, "one for each file"
    assert len(result.buffers()) == len(result.ranges[0].stretches) == 10
    assert result.ranges[0].length == result.size == len(result.read())
    result.release()


def test_all_filtered_out() -> None:
    _, store = filled()
    result = get(store, 2, wanted=TagFilter([tags_code("Nobody")]))
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 20)
    assert result.ranges == []


def test_a_unit_that_cannot_be_read() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 100, queues=1)
    # 20 units to a file; the second one disappears under the queue.
    queue = store.queues.get("T", 0)
    assert queue is not None
    queue.files.files[1].retire(force=True)
    result = get(store, 25)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_FOUND_NULL, 40)


def test_records_that_are_gone_are_skipped_up_to_the_next_file() -> None:
    kit = StoreKit(mappedFileSizeConsumeQueue="6000")
    store = kit.opened()
    kit.fill(store, 120, queues=1)
    files = store.commit_log.files.files
    in_first = [record.queue_offset for record in read_queue(store, "T", 0) if record.physical_offset < files[0].end]
    files[0].retire(force=True)
    result = get(store, 0, 5, max_bytes=None)
    assert result.status is GetStatus.FOUND, "the walk goes on in the next file"
    assert offsets(result)[0] == len(in_first)
    result.release()
    result = get(store, len(in_first) - 3, 2)
    assert result.status is GetStatus.FOUND
    while store.commit_log.files.files:
        store.commit_log.files.files[0].retire(force=True)
    result = get(store, 0, 5)
    assert result.status is GetStatus.MESSAGE_WAS_REMOVING
    assert result.next_begin_offset == 120, "after the last unit that was looked at"


# Limits


def test_no_more_messages_than_asked_for() -> None:
    _, store = filled(100)
    assert get(store, 0, 1).message_count == 1
    assert get(store, 0, 99).message_count == 99


def test_no_more_bytes_than_asked_for_but_always_one_message() -> None:
    _, store = filled(100, size=1000)
    size = get(store, 0, 1).size
    assert get(store, 0, 99, max_bytes=size * 3).message_count == 3
    assert get(store, 0, 99, max_bytes=size * 3 - 1).message_count == 2
    assert get(store, 0, 99, max_bytes=1).message_count == 1


@pytest.mark.parametrize("hot", [True, False])
def test_hot_and_cold_messages_have_limits_of_their_own(hot: bool) -> None:
    limits = {
        "maxTransferCountOnMessageInMemory": "9",
        "maxTransferCountOnMessageInDisk": "4",
        "maxTransferBytesOnMessageInMemory": "9000",
        "maxTransferBytesOnMessageInDisk": "3000",
    }
    kit = StoreKit(mappedFileSizeCommitLog=str(8 * MIB), **limits)
    kit.memory = MIB if hot else 1000
    store = kit.opened()
    for number in range(50):
        store.put(message("T", 0, b"%d" % number))
    for _ in range(20):
        store.put(message("T", 1, bytes(900)))
    kit.runner.run()
    assert get(store, 0).message_count == (9 if hot else 4)
    size = get(store, 0, 1, queue_id=1).size
    result = get(store, 0, queue_id=1)
    assert result.message_count == (9000 // size if hot else 3000 // size)
    assert result.hot is hot
    assert get(store, 0, 2).message_count == 2, "a client that asks for less gets less"


def test_a_lag_beyond_memory_suggests_the_slave() -> None:
    kit, store = filled(100, size=1000)
    kit.memory = 100_000
    store.close()
    store = kit.opened()
    end = store.watermarks.appended
    assert store.reading.hot_memory == 40_000
    first = get(store, 0, 1)
    assert first.suggest_pulling_from_slave
    assert not first.hot
    near = next(n for n in range(100) if end - get(store, n, 1).ranges[0].start <= 40_000)
    assert not get(store, near, 1).suggest_pulling_from_slave
    assert get(store, near, 1).hot
    assert get(store, near - 1, 1).suggest_pulling_from_slave
    assert store.is_hot("T", 0, near)
    assert not store.is_hot("T", 0, near - 1)
    assert not store.is_hot("T", 0, 100)
    assert not store.is_hot("None", 0, 0)


def test_a_filtered_walk_looks_at_so_many_units_only() -> None:
    _, store = filled(1000, size=10, maxFilterMessageSize="2000")
    result = get(store, 0, wanted=TagFilter([tags_code("Nobody")]))
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 100)
    result = get(store, 0, 300, wanted=TagFilter([tags_code("Nobody")]))
    assert result.next_begin_offset == 300, "but at as many as were asked for"


def test_one_read_stays_in_a_file_of_the_queue() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 100, queues=1)
    result = get(store, 15)
    assert offsets(result) == [15, 16, 17, 18, 19]
    result.release()
    wanted = TagFilter([tags_code("Tag2")])
    assert get(store, 18, wanted=wanted).status is GetStatus.NO_MATCHED_MESSAGE
    store.configure(store.options.updated({"travelCqFileNumWhenGetMessage": "2"}))
    result = get(store, 18, wanted=wanted)
    assert result.status is GetStatus.FOUND
    assert offsets(result)[0] == 20


@pytest.mark.parametrize("queues", [1, 3])
def test_a_walk_without_a_filter_is_one_with_a_filter_that_wants_all(queues: int) -> None:
    """The plain walk is written out for speed: it must give the same as the general one."""
    kit = StoreKit(mappedFileSizeConsumeQueue="1000", maxTransferBytesOnMessageInDisk="3000")
    kit.memory = 20_000
    store = kit.opened()
    kit.fill(store, 250, queues=queues)
    everything = PropertyFilter(b"TAGS", lambda value: True)
    for offset in range(store.max_offset("T", 0)):
        for count in (1, 5, 40):
            for max_bytes in (None, 900):
                plain, general = (
                    get(store, offset, count, max_bytes=max_bytes, wanted=wanted) for wanted in (None, everything)
                )
                assert [(part.stretches, part.hot) for part in plain.ranges] == [
                    (part.stretches, part.hot) for part in general.ranges
                ]
                for name in ("status", "next_begin_offset", "message_count", "size", "suggest_pulling_from_slave"):
                    assert getattr(plain, name) == getattr(general, name), (name, offset, count)
                plain.release()
                general.release()


# Filters


def test_tags_are_compared_by_their_hash() -> None:
    _, store = filled(30)
    result = get(store, 0, wanted=TagFilter([tags_code("Tag1")]))
    assert offsets(result) == list(range(1, 30, 3))
    assert result.next_begin_offset == 30
    result = get(store, 0, 3, wanted=TagFilter([tags_code("Tag1"), tags_code("Tag2")]))
    assert offsets(result) == [1, 2, 4]
    assert result.next_begin_offset == 5
    assert TagFilter([tags_code("x") + (1 << 32)]).matches_unit(tags_code("x"), None)


class PropertyFilter:
    """Wants messages whose property has a value."""

    needs_record = True

    def __init__(self, name: bytes, is_wanted: Callable[[bytes | None], bool]) -> None:
        self._name = name
        self._is_wanted = is_wanted
        self.units: list[tuple[int, ExtUnit | None]] = []

    def matches_unit(self, code: int, ext: ExtUnit | None) -> bool:
        self.units.append((code, ext))
        return True

    def matches_record(self, properties: bytes) -> bool:
        return self._is_wanted(find(properties, self._name))


def test_a_filter_may_look_at_properties() -> None:
    _, store = filled(12)
    wanted = PropertyFilter(b"TAGS", lambda value: value == b"Tag0")
    assert offsets(get(store, 0, wanted=wanted)) == [0, 3, 6, 9]


def test_a_filter_sees_the_extension_of_a_unit() -> None:
    kit = StoreKit(enableConsumeQueueExt="true", mappedFileSizeConsumeQueueExt="4096")
    store = kit.opened()
    store.fill_queues.bit_map_of = lambda request: b"\x05" if request.queue_offset == 1 else None
    for tag in ("A", "B", "C"):
        kit.put(store, message("T", 0, tag.encode(), TAGS=tag))
    wanted = PropertyFilter(b"TAGS", lambda value: True)
    assert get(store, 0, wanted=wanted).message_count == 3
    assert [code for code, _ in wanted.units] == [tags_code("A"), tags_code("B"), tags_code("C")]
    assert [ext.bit_map for _, ext in wanted.units if ext] == [b"", b"\x05", b""]
    assert [record.body for record in decode_records(get(store, 0, wanted=TagFilter([tags_code("B")])).read())] == [
        b"B"
    ]


# Ranges and files


def test_a_range_keeps_its_file_until_it_is_released() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 200, queues=1)
    result = get(store, 0, 5)
    before = result.read()
    first = store.commit_log.files.files[0]
    kit.clock.advance(80 * 3600)
    store.clean()
    kit.runner.advance(5)
    assert kit.disk.exists(first.path), "it hangs on its reader"
    assert store.commit_log.min_offset == first.end
    assert result.read() == before == b"".join(result.buffers())
    assert get(store, store.min_offset("T", 0), 1).status is GetStatus.FOUND
    result.release()
    result.release()
    assert not kit.disk.exists(first.path)


def test_a_released_range_says_so() -> None:
    _, store = filled()
    result = get(store, 0)
    result.release()
    with pytest.raises(RuntimeError, match="released"):
        result.buffers()


def test_slices_stay_good_after_the_release() -> None:
    _, store = filled()
    with get(store, 0).ranges[0] as part:
        buffers = part.buffers()
        data = part.read()
    store.close()
    assert b"".join(buffers) == data


# By physical offset


def test_records_by_physical_offset() -> None:
    kit, store = filled()
    ticket = kit.put(store, message("T", 0, b"last"))
    found = store.message_at(ticket.physical_offset)
    assert found is not None
    assert (found.start, found.length) == (ticket.physical_offset, ticket.end_offset - ticket.physical_offset)
    found.release()
    for wrong in (-1, ticket.physical_offset + 1, ticket.end_offset, ticket.end_offset - 4, 1 << 60):
        assert store.message_at(wrong) is None
    assert all(file.holds == 0 for file in store.commit_log.files.files)


# By time


def test_offsets_by_time() -> None:
    kit = StoreKit()
    store = kit.opened()
    times = []
    for number in range(60):
        times.append(kit.put(store, message("T", 0, b"%d" % number)).store_timestamp)
        kit.clock.advance(0.010 if number % 2 else 0.0)
    for ask in range(times[0] - 15, times[-1] + 15):
        lower = next((n for n, time in enumerate(times) if time >= ask), 60)
        upper = max((n for n, time in enumerate(times) if time <= ask), default=0)
        assert store.offset_by_time("T", 0, ask) == lower
        assert store.offset_by_time("T", 0, ask, Boundary.UPPER) == upper
    assert store.offset_by_time("None", 0, times[0]) == 0
    assert store.earliest_time("T", 0) == store.reading.earliest_time_of_log() == times[0]
    assert store.message_time("T", 0, 7) == times[7]
    assert store.message_time("T", 0, 60) == store.message_time("None", 0, 0) == store.earliest_time("None", 0) == -1


# By key


def test_queries_by_key_and_unique_key() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 200)
    for number in (0, 57, 199):
        result = store.query("T", f"k{number}", 10)
        (found,) = result.ranges
        with found:
            assert found.read().find(b"%d-x" % number) > 0
        unique = store.message_by_unique_key("T", f"U{number:031d}")
        assert unique is not None
        assert unique.start == found.start
        unique.release()
    assert store.query("T", "nobody", 10).ranges == []
    assert store.query("Other", "k0", 10).ranges == []
    assert store.message_by_unique_key("T", "nobody") is None
    last = store.query("T", "k199", 1)
    assert last.index_last_update_offset == last.ranges[0].start
    assert last.index_last_update_timestamp == store.message_time("T", 1, 99)


def test_queries_are_bounded_by_count_and_time() -> None:
    kit = StoreKit(maxMsgsNumBatch="8")
    store = kit.opened()
    times = []
    for number in range(30):
        times.append(kit.put(store, message("T", 0, b"%d" % number, KEYS="same")).store_timestamp)
        kit.clock.advance(2)
    assert len(store.query("T", "same", 5).ranges) == 5
    result = store.query("T", "same", 100)
    assert len(result.ranges) == 8
    starts = [part.start for part in result.ranges]
    assert starts == sorted(starts), "in the order of the log"
    assert [record.body for part in result.ranges for record in decode_records(part.read())][-1] == b"29"
    some = store.query("T", "same", 100, times[3], times[5])
    assert [record.body for part in some.ranges for record in decode_records(part.read())] == [b"3", b"4", b"5"]


def test_a_store_without_index_answers_no_query() -> None:
    kit = StoreKit(messageIndexEnable="false")
    store = kit.opened()
    kit.fill(store, 3)
    assert store.query("T", "k0", 9).ranges == []
    assert bodies(store, "T", 0)
    assert not kit.disk.exists("/store/index")
