"""Cleaning: which files go, when, and what hangs on them."""

import errno

import pytest

from cometmq.broker.store.disk import DiskUsage
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.running_flags import Flag
from cometmq.broker.store.store import Store
from support.store_kit import StoreKit, bodies, message, read_queue

HOUR = 3600
FILE = 16384


def used(percent: int) -> DiskUsage:
    return DiskUsage(total=1000, used=percent * 10, available=1000 - percent * 10)


def filled(count: int = 300, **properties: str) -> tuple[StoreKit, Store]:
    kit = StoreKit(**properties)
    store = kit.opened()
    kit.fill(store, count)
    assert len(store.commit_log.files.files) >= 4
    return kit, store


def starts(store: Store) -> list[int]:
    return [file.start for file in store.commit_log.files.files]


def at_hour(kit: StoreKit, hour: int) -> None:
    """Move both clocks to the next such hour of the day (UTC in tests)."""
    now = kit.clock.local(kit.clock.wall())
    seconds = ((hour - now.hour) % 24) * HOUR - now.minute * 60 - now.second + 60
    kit.clock.advance(seconds if seconds > 0 else seconds + 24 * HOUR)
    kit.runner.advance(30)


# When


def test_young_files_stay_whatever_the_hour() -> None:
    kit, store = filled()
    before = starts(store)
    at_hour(kit, 4)
    kit.runner.advance(60)
    assert starts(store) == before


def test_old_files_go_at_the_hour_of_delete_when() -> None:
    kit, store = filled(deleteWhen="07;19")
    last = starts(store)[-1]
    at_hour(kit, 8)
    # Files keep the time of their last write; only the clock moves.
    kit.clock.advance(72 * HOUR)
    kit.runner.advance(600)
    assert starts(store)[0] == 0, "not at this hour"
    at_hour(kit, 19)
    kit.runner.advance(60)
    assert starts(store) == [last], "all but the last"
    assert store.commit_log.min_offset == last
    assert not kit.disk.exists(f"/store/commitlog/{0:020d}")


def test_an_operator_need_not_wait_for_the_hour() -> None:
    kit, store = filled(deleteWhen="07")
    at_hour(kit, 8)
    kit.clock.advance(72 * HOUR)
    store.clean()
    kit.runner.advance(5)
    assert len(starts(store)) == 1


def test_only_expired_files_go_and_the_walk_stops_at_the_first_young_one() -> None:
    kit, store = filled()
    first, second, third = store.commit_log.files.files[:3]
    kit.clock.advance(100 * HOUR)
    now = kit.clock.wall() / 1000
    kit.fake.set_modified(second.path, now - 10 * HOUR)
    store.clean()
    kit.runner.advance(5)
    assert starts(store)[:2] == [second.start, third.start]
    assert not kit.disk.exists(first.path)


def test_a_round_removes_so_many_files_with_pauses() -> None:
    kit, store = filled(600, deleteFileBatchMax="2", deleteCommitLogFilesInterval="100", deleteWhen="07")
    at_hour(kit, 8)
    kit.clock.advance(100 * HOUR)
    before = len(starts(store))
    assert before >= 7
    store.clean()
    kit.runner.run()
    assert len(starts(store)) == before - 1
    kit.runner.advance(0.15)
    assert len(starts(store)) == before - 2
    kit.runner.advance(5)
    assert len(starts(store)) == before - 2, "the next ones with the next round"
    kit.runner.advance(10)
    assert len(starts(store)) == before - 4
    kit.runner.advance(20 * 10)
    assert len(starts(store)) == 1


@pytest.mark.parametrize(("percent", "goes"), [(74, False), (75, False), (76, True)])
def test_above_the_ratio_expired_files_go_at_any_hour(percent: int, goes: bool) -> None:
    kit, store = filled(deleteWhen="07")
    at_hour(kit, 8)
    kit.clock.advance(100 * HOUR)
    kit.fake.space = used(percent)
    kit.runner.advance(120)
    assert (len(starts(store)) == 1) is goes
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.PUT_OK


@pytest.mark.parametrize(("percent", "goes"), [(85, False), (86, True)])
def test_very_full_disks_lose_young_files_too(percent: int, goes: bool) -> None:
    kit, store = filled(deleteWhen="07")
    kit.fake.space = used(percent)
    kit.runner.advance(120)
    assert (len(starts(store)) == 1) is goes
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.PUT_OK


def test_young_files_are_not_forced_when_that_is_forbidden() -> None:
    kit, store = filled(cleanFileForciblyEnable="false")
    before = starts(store)
    kit.fake.space = used(95)
    kit.runner.advance(120)
    assert starts(store) == before


def test_an_unknown_ratio_removes_expired_files() -> None:
    kit, store = filled(deleteWhen="07")
    at_hour(kit, 8)
    kit.clock.advance(100 * HOUR)
    kit.fake.space = DiskUsage(0, 0, 0)
    kit.runner.advance(120)
    assert len(starts(store)) == 1
    assert store.flags.writable


def test_the_warning_level_refuses_messages_until_there_is_room() -> None:
    kit, store = filled()
    kit.fake.space = used(91)
    kit.runner.advance(61)
    refused = kit.put(store, message("T", 0, b"x"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "0.91 used, limit 0.90" in refused.remark
    assert store.flags.bits & Flag.DISK_FULL
    assert store.flags.bits & Flag.LOGIC_DISK_FULL
    kit.fake.space = used(87)
    kit.runner.advance(11)
    assert not store.flags.writable, "it stays until the forced level is left too"
    kit.fake.space = used(85)
    kit.runner.advance(11)
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.PUT_OK


def test_a_refused_reservation_has_the_disk_looked_at() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fake.space = used(99)
    kit.fake.fail_next("reserve", times=1)
    kit.put(store, message("T", 0, b"a"))
    kit.runner.run()
    assert kit.put(store, message("T", 0, b"b")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_store_that_stops_on_a_full_disk_is_checked_at_the_next_start() -> None:
    kit, store = filled()
    kit.fake.space = used(95)
    kit.runner.advance(61)
    store.close()
    assert kit.disk.exists("/store/abort")


def test_a_store_that_opens_on_a_full_disk_notices_soon_that_there_is_room() -> None:
    kit, store = filled(cleanFileForciblyEnable="false")
    store.close()
    kit.fake.space = used(95)
    store = kit.opened(cleanFileForciblyEnable="false")
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.fake.space = used(20)
    kit.runner.advance(11)
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.PUT_OK


# Readers


def test_a_file_that_is_read_hangs_and_goes_by_force_after_a_while() -> None:
    kit, store = filled(deleteWhen="07")
    at_hour(kit, 8)
    result = store.get_message("g", "T", 0, 0, 1)
    assert result is not None
    first = store.commit_log.files.files[0]
    kit.clock.advance(100 * HOUR)
    store.clean()
    kit.runner.advance(5)
    assert first.retired
    assert kit.disk.exists(first.path)
    assert store.commit_log.min_offset == first.end
    assert starts(store)[0] == 0, "the ones after it wait"
    kit.runner.advance(100)
    assert kit.disk.exists(first.path)
    kit.runner.advance(40)
    assert not kit.disk.exists(first.path)
    kit.runner.advance(60)
    assert len(starts(store)) == 1
    result.release()


def test_a_file_that_cannot_be_removed_stays_in_the_log() -> None:
    kit, store = filled(deleteWhen="07")
    at_hour(kit, 8)
    kit.clock.advance(100 * HOUR)
    kit.fake.fail_next("unlink", errno.EACCES, path="/commitlog/")
    store.clean()
    kit.runner.run()
    assert store.commit_log.min_offset == 0
    assert len(bodies(store, "T", 0)) == 150
    kit.runner.advance(15)
    assert len(starts(store)) == 1


# Queues and index


def test_queues_and_index_follow_the_log() -> None:
    kit, store = filled(400)
    queue = store.queues.get("T", 0)
    assert queue is not None
    files_before = len(queue.files.files)
    index_before = len(store.index.files) if store.index else 0
    kit.clock.advance(100 * HOUR)
    store.clean()
    kit.runner.advance(30)
    minimum = store.commit_log.min_offset
    assert minimum > 0
    assert len(queue.files.files) < files_before
    assert store.index is not None
    assert len(store.index.files) < index_before
    for queue_id in (0, 1):
        records = read_queue(store, "T", queue_id)
        assert records[0].queue_offset == store.min_offset("T", queue_id)
        assert records[0].physical_offset >= minimum
        assert records[-1].queue_offset == store.max_offset("T", queue_id) - 1 == 199
    result = store.query("T", "k0", 9)
    assert result.ranges == [], "what the index still knows is not in the log any more"
    store.close()
    again = kit.opened()
    assert again.commit_log.min_offset == minimum
    assert again.min_offset("T", 0) == records[0].queue_offset or again.min_offset("T", 0) > 0


def test_an_empty_queue_keeps_its_numbers() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 30, topic="Old", queues=1)
    kit.fill(store, 300, topic="New", queues=1)
    kit.clock.advance(100 * HOUR)
    store.clean()
    kit.runner.advance(60)
    assert store.commit_log.min_offset > 30 * 300
    assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (30, 30)
    assert kit.put(store, message("Old", 0, b"more")).queue_offset == 30
    assert bodies(store, "Old", 0) == [b"more"]


def test_many_queues_are_cleaned_in_steps() -> None:
    kit = StoreKit()
    store = kit.opened()
    for number in range(350):
        store.put(message("T", number, b"x"))
    kit.runner.run()
    kit.fill(store, 200, topic="New", queues=1)
    kit.clock.advance(100 * HOUR)
    store.clean()
    kit.runner.advance(60)
    assert all(store.min_offset("T", number) == 1 for number in range(0, 350, 50))


def test_expired_queues_can_be_removed_with_their_numbers() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 5, topic="Old", queues=1)
    kit.fill(store, 5, topic="rmq_sys_x", queues=1)
    kit.fill(store, 300, topic="New", queues=1)
    kit.clock.advance(100 * HOUR)
    store.clean()
    kit.runner.advance(60)
    assert store.clean_expired_queues() == [("Old", 0)]
    assert not kit.disk.exists("/store/consumequeue/Old")
    assert kit.put(store, message("Old", 0, b"anew")).queue_offset == 0
    assert kit.put(store, message("rmq_sys_x", 0, b"x")).queue_offset == 5


def test_topics_can_be_deleted() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 6, topic="A")
    kit.fill(store, 6, topic="B")
    kit.fill(store, 6, topic="%LMQ%x", queues=1)
    store.delete_topic("A")
    assert store.max_offset("A", 0) == 0
    assert kit.put(store, message("A", 0, b"anew")).queue_offset == 0
    assert bodies(store, "A", 0) == [b"anew"]
    assert store.clean_unused_topics(["A"]) == ["B"]
    assert store.max_offset("B", 0) == 0
    assert store.max_offset("%LMQ%x", 0) == 6
    store.close()
    again = kit.opened()
    assert again.max_offset("B", 0) == 0, "a clean start does not bring it back"
    assert bodies(again, "A", 0) == [b"anew"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("comes_last", [False, True])
def test_what_is_under_way_when_a_topic_is_deleted_does_not_meet_what_comes_after(flush: str, comes_last: bool) -> None:
    """It has numbers of the old topic, and the new one begins with 0: both in one queue would hide messages."""
    kit = StoreKit(flushDiskType=flush)
    store = kit.opened()
    store.dispatch.comes_last = comes_last
    kit.fill(store, 5, topic="A", queues=1)
    before = [store.put(message("A", 0, b"before")) for _ in range(3)]
    store.delete_topic("A")
    assert [ticket.queue_offset for ticket in before] == [5, 6, 7]
    after = [store.put(message("A", 0, b"%d" % number)) for number in range(4)]
    kit.runner.run()
    assert {ticket.status for ticket in before + after} == {PutStatus.PUT_OK}
    assert [ticket.queue_offset for ticket in after] == [0, 1, 2, 3]
    assert bodies(store, "A", 0) == [b"0", b"1", b"2", b"3"]
    # Written, and put off: neither in the queue nor pending.
    last = store.put(message("A", 0, b"last"), lambda _: store.delete_topic("A"))
    kit.runner.run()
    assert last.queue_offset == 4
    assert kit.put(store, message("A", 0, b"anew")).queue_offset == 0
    assert bodies(store, "A", 0) == [b"anew"]


def test_a_close_in_the_middle_of_a_round() -> None:
    kit, store = filled()
    kit.clock.advance(100 * HOUR)
    kit.runner.hold("clean")
    store.clean()
    kit.runner.run()
    store.close()
    kit.runner.let_go("clean")
    kit.runner.advance(100)
    assert kit.fake.open_files == 0
    again = kit.opened()
    assert again.commit_log.min_offset == FILE


# What cannot be removed


def test_a_queue_file_that_cannot_be_removed_is_tried_again_in_the_next_round() -> None:
    kit, store = filled()
    kit.clock.advance(100 * HOUR)
    kit.fake.fail_next("unlink", errno.EIO, path="/consumequeue/")
    store.clean()
    kit.runner.advance(5)
    assert kit.disk.exists(f"/store/consumequeue/T/0/{0:020d}")
    kit.runner.advance(80)
    assert not kit.disk.exists(f"/store/consumequeue/T/0/{0:020d}")
    assert store.flags.writable


def test_a_file_that_somebody_removed_by_hand_does_not_stop_the_cleaner() -> None:
    kit, store = filled()
    kit.clock.advance(100 * HOUR)
    kit.fake.unlink(store.commit_log.files.files[0].path)
    store.clean()
    kit.runner.advance(5)
    assert len(starts(store)) == 1


def test_a_reader_is_not_bothered_with_a_file_that_cannot_be_removed() -> None:
    kit, store = filled()
    kit.clock.advance(100 * HOUR)
    reader = store.get_message("g", "T", 0, 0, 1)
    assert reader is not None
    store.clean()
    kit.runner.advance(5)
    kit.fake.fail_next("unlink", errno.EIO, path="/commitlog/")
    reader.release()
    assert starts(store)[0] == 0
    kit.runner.advance(300)
    assert len(starts(store)) == 1


def test_nothing_is_removed_when_the_numbering_of_the_queues_could_not_be_saved() -> None:
    kit, store = filled()
    kit.clock.advance(100 * HOUR)
    kit.fake.fail_next("sync", errno.EIO, path="/consumequeue/")
    store.clean()
    kit.runner.advance(5)
    before = starts(store)
    assert before[0] == 0
    assert "read-only" in store.flags.reason
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.runner.advance(300)
    assert starts(store) == before, "not tried again as if nothing had happened"
    store.close()
    assert kit.disk.exists("/store/abort")
