"""Opening a store whose queues or index are missing, lag behind the log or lead it."""

from collections.abc import Iterator

import pytest

from cometmq.broker.store.consume_queue import UNIT
from cometmq.broker.store.consume_queues import AnyQueue
from support.left_store import FILE, LOG, check_whole, left, log_path, open_again, overwrite, read, spoil
from support.store_kit import StoreKit, bodies, message, read_queue, record_at


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["consumequeue", "index", "both", "checkpoint"])
def test_queues_and_index_are_built_anew(clean: bool, lost: str) -> None:
    kit, tickets = left(clean=clean)
    for name in ("consumequeue", "index") if lost == "both" else (lost,):
        if name == "checkpoint":
            kit.fake.unlink("/store/checkpoint")
        else:
            kit.fake.remove_tree(f"/store/{name}")
    store = open_again(kit)
    check_whole(store, tickets)
    store.close()
    store = kit.store()
    assert store.open().dispatched == 0
    check_whole(store, tickets)


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_index_file_is_filled_again(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    names = kit.fake.list_dir("/store/index")
    assert len(names) >= 3
    kit.fake.unlink(f"/store/index/{names[-1]}")
    check_whole(open_again(kit), tickets)


class Known:
    """A topic table that knows which topics there are."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)

    def is_batch(self, topic: str) -> bool:
        return False

    def exists(self, topic: str) -> bool | None:
        return topic in self.topics


@pytest.mark.parametrize("clean", [True, False])
def test_one_lost_queue_of_a_known_topic_is_built_anew(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    kit.topics = Known("T")
    kit.fake.remove_tree("/store/consumequeue/T/1")
    check_whole(open_again(kit), tickets)


def test_queues_of_deleted_topics_are_not_brought_back() -> None:
    kit = StoreKit()
    kit.topics = Known("T", "Gone")
    store = kit.opened()
    kit.fill(store, 20, topic="Gone")
    tickets = kit.fill(store, 20)
    kit.topics.topics.discard("Gone")
    store.delete_topic("Gone")
    kit.killed()
    store = open_again(kit)
    assert store.queues.get("Gone", 0) is None
    check_whole(store, tickets)


def test_a_topic_that_was_made_anew_keeps_its_new_numbers() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 20)
    store.delete_topic("T")
    tickets = kit.fill(store, 6)
    assert tickets[0].queue_offset == 0
    kit.killed()
    store = open_again(kit)
    assert [record.physical_offset for record in read_queue(store, "T", 0)] == [t.physical_offset for t in tickets[::2]]


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_behind_the_log_is_filled(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=clean)
    # Units of the last 30 messages of one queue vanish: 20 units to a file.
    kit.fake.unlink(f"/store/consumequeue/T/1/{1600:020d}")
    overwrite(kit.fake, f"/store/consumequeue/T/1/{1200:020d}", 200, bytes(200))
    check_whole(open_again(kit), tickets)
    if clean:
        assert "whole log" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_ahead_of_the_log_is_cut(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    last = tickets[-1]
    unit = (last.end_offset + 400).to_bytes(8, "big") + (300).to_bytes(4, "big") + bytes(8)
    kit.fake.open(f"/store/consumequeue/T/0/{2000:020d}", size=400, create=True).close()
    overwrite(kit.fake, f"/store/consumequeue/T/0/{2000:020d}", 0, unit * 3)
    store = open_again(kit)
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"next")).queue_offset == 100


@pytest.mark.parametrize("kept", [1, 7, 8, 11, 12, 19])
def test_a_half_written_unit_is_written_again(kept: int) -> None:
    kit, tickets = left(clean=False)
    path = f"/store/consumequeue/T/1/{1600:020d}"
    before = read(kit.fake, path)
    overwrite(kit.fake, path, 380 + kept, bytes(20 - kept))
    overwrite(kit.fake, path, 180 + kept, bytes(20 - kept))
    store = open_again(kit)
    check_whole(store, tickets)
    store.close()
    assert read(kit.fake, path) == before, "the codes of the tags too"


def test_stale_units_behind_the_end_never_become_visible() -> None:
    kit, tickets = left(clean=True, count=100)
    store = kit.opened()
    store.close()
    # The log loses its last 30 messages, the queues still know them; then other messages come.
    cut = tickets[70]
    spoil(kit.fake, cut.physical_offset, bytes(FILE - cut.physical_offset % FILE))
    for name in kit.fake.list_dir(LOG):
        if int(name) > cut.physical_offset:
            kit.fake.unlink(f"{LOG}/{name}")
    store = kit.opened()
    check_whole(store, tickets[:70])
    kit.put(store, message("T", 0, b"new"))
    store.close()
    for _ in range(2):
        store = open_again(kit)
        assert store.max_offset("T", 0) == 36
        assert bodies(store, "T", 0)[-1] == b"new"
        assert store.max_offset("T", 1) == 35
        store.close()


def test_without_a_log_there_are_no_queues() -> None:
    kit, _ = left(clean=True)
    kit.fake.remove_tree(LOG)
    store = open_again(kit)
    assert store.watermarks.appended == 0
    assert len(store.queues) == 0
    assert store.query("T", "k1", 9).ranges == []
    store.start()
    assert kit.put(store, message("T", 0, b"a")).physical_offset == 0


def test_a_log_that_begins_late_fills_its_queues_with_blanks() -> None:
    kit, tickets = left(clean=False)
    kit.fake.unlink(f"{LOG}/{0:020d}")
    kit.fake.remove_tree("/store/consumequeue")
    store = open_again(kit)
    first = next(ticket for ticket in tickets if ticket.physical_offset >= FILE)
    queue_id = tickets.index(first) % 2
    assert store.min_offset("T", queue_id) == first.queue_offset
    assert store.max_offset("T", queue_id) == 100
    assert record_at(store, first.physical_offset).queue_offset == first.queue_offset
    store.close()
    again = open_again(kit)
    assert again.min_offset("T", queue_id) == first.queue_offset


def test_delays_keep_their_time_when_the_queue_is_built_anew() -> None:
    kit = StoreKit()
    store = kit.opened()
    due = []
    for level in (1, 3, 18):
        ticket = kit.put(store, message("T", 0, b"later", DELAY=str(level)))
        due.append(ticket.store_timestamp + [1, 10, 7200][[1, 3, 18].index(level)] * 1000)
        kit.clock.advance(1)
    kit.killed()
    kit.fake.remove_tree("/store/consumequeue")
    store = open_again(kit)
    codes = []
    for level in (1, 3, 18):
        queue = store.queues.get("SCHEDULE_TOPIC_XXXX", level - 1)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        codes.append(unit[2])
    assert codes == due


def test_what_was_recovered_is_safe_at_once() -> None:
    """Consumers see it now: the next power loss must not take it back."""
    for seed in range(10):
        kit, tickets = left(clean=False, flushDiskType="SYNC_FLUSH")
        store = kit.opened()
        check_whole(store, tickets)
        kit.power_lost(seed)
        check_whole(open_again(kit), tickets)


@pytest.mark.parametrize("clean", [True, False])
def test_queues_that_were_only_looked_at_keep_no_file_open(clean: bool) -> None:
    kit = StoreKit()
    store = kit.opened()
    for number in range(200):
        store.put(message("T", number, b"x"))
    kit.runner.run()
    if clean:
        store.close()
    else:
        kit.killed()
    store = open_again(kit)
    assert len(store.queues) == 200
    assert kit.fake.open_files < 10


# Queue offsets that no checksum covers


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, 64, 101, 198, 199])
@pytest.mark.parametrize("bit", [0, 1, 6, 41, 62])
def test_a_flipped_queue_offset_hides_no_message(clean: bool, which: int, bit: int) -> None:
    """The record says that it is another message of its queue; the ones before and after it tell which it is."""
    kit, tickets = left(clean=clean)
    at = tickets[which].physical_offset + 20 + 7 - bit // 8
    old = read(kit.fake, log_path(at))[at % FILE]
    spoil(kit.fake, at, bytes([old ^ 1 << bit % 8]))
    store = open_again(kit)
    found = [unit[0] for queue in store.queues for _, *unit in _entries(queue)]
    if which < 2:
        # The first record of a queue has none before it.
        assert set(found) >= {ticket.physical_offset for ticket in tickets} - {tickets[which].physical_offset}
    else:
        assert sorted(found) == [ticket.physical_offset for ticket in tickets]
    for ticket in tickets[2:]:
        queue = store.queues.get("T", tickets.index(ticket) % 2)
        assert queue is not None
        unit = queue.unit(ticket.queue_offset)
        assert unit is not None
        assert unit[0] == ticket.physical_offset


def _entries(queue: AnyQueue) -> Iterator[tuple[int, int]]:
    for offset in range(queue.min_offset, queue.max_offset):
        unit = queue.unit(offset)
        assert unit is not None
        yield offset, unit[0]


#: A unit that falls back is cut; one that goes on in a wrong place is not, and the whole queue is built anew.
@pytest.mark.parametrize(("last", "failing"), [((0, 100, 0), 800), ((50_000, 100, 0), 400)])
def test_a_rebuild_that_a_failure_broke_off_is_done_again(last: tuple[int, int, int], failing: int) -> None:
    """Queue T-0 has no message in the last files: nothing there tells that it lacks some."""
    kit = StoreKit()
    store = kit.opened()
    tickets = kit.fill(store, 60, queues=1)
    others = kit.fill(store, 200, topic="U", queues=1)
    kit.runner.advance(70)
    assert others[-1].physical_offset - tickets[-1].physical_offset > 2 * FILE
    store.close()
    # Its last unit points to another record: the queue is filled again, and the disk fails on the way.
    overwrite(kit.fake, f"/store/consumequeue/T/0/{800:020d}", 19 * 20, UNIT.pack(*last))
    kit.fake.fail_next("write", path=f"/consumequeue/T/0/{failing:020d}")
    with pytest.raises(OSError, match="error"):
        kit.store().open()
    kit.killed()
    again = kit.store()
    assert not again.open().clean
    assert [record.queue_offset for record in read_queue(again, "T", 0)] == list(range(60))
    assert len(read_queue(again, "U", 0)) == len(others)
