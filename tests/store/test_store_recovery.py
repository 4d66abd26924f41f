"""Opening what was left behind: clean and unclean ends, the tail of the log, power losses."""

import logging
from pathlib import Path

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import StoreDamaged, StoreLocked
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.record import MAGIC_BLANK, encode_blank
from support.left_store import FILE, LOG, check_whole, flip, left, log_path, open_again, overwrite, read, spoil, tree
from support.store_kit import BORN, StoreKit, bodies, message, read_queue

# The usual ends


def test_after_a_clean_end_nothing_is_dispatched_again() -> None:
    kit, tickets = left(clean=True)
    store = kit.store()
    recovered = store.open()
    assert recovered.clean
    assert recovered.dispatched == 0
    assert recovered.start == FILE * (tickets[-1].physical_offset // FILE), "only the last file was read"
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"more")).queue_offset == 100


@pytest.mark.parametrize("clean", [True, False])
def test_store_times_go_on_where_they_ended_when_the_clock_has_stepped_back(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    last = tickets[-1].store_timestamp
    kit.clock.set_wall(last - 400)
    store = kit.store()
    assert store.open().last_timestamp == last
    store.start()
    assert kit.put(store, message("T", 0, b"more")).store_timestamp == last


def test_the_last_time_is_that_of_a_record_that_is_in_no_queue() -> None:
    """Half messages of the old kind have no unit: what the queues know is not the end of the log."""
    kit, _ = left(clean=True)
    store = kit.opened()
    kit.clock.advance(5)
    half = Message("T", 0, b"half", b"", sys_flag=0x4, born_host=BORN)
    ticket = store.put(half)
    kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    store.close()
    assert kit.store().open().last_timestamp == ticket.store_timestamp


def test_the_files_of_a_clean_end_are_not_touched() -> None:
    kit, _ = left(clean=True)
    before = tree(kit.fake)
    store = open_again(kit)
    store.close()
    assert tree(kit.fake) == before


def test_after_a_kill_everything_is_there(caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=False)
    store = kit.store()
    recovered = store.open()
    assert not recovered.clean
    assert recovered.end == tickets[-1].end_offset
    assert "not closed cleanly" in caplog.text
    check_whole(store, tickets)


def test_after_a_kill_only_what_is_younger_than_the_checkpoint_is_read(caplog: pytest.LogCaptureFixture) -> None:
    kit = StoreKit(maxIndexNum="40", flushConsumeQueueThoroughInterval="1000")
    store = kit.opened()
    kit.fill(store, 200)
    kit.runner.advance(10)
    more = kit.fill(store, 100, topic="U")
    kit.runner.advance(10)
    kit.killed()
    store = kit.store()
    recovered = store.open()
    assert recovered.start > 0
    assert [record.queue_offset for record in read_queue(store, "T", 0)] == list(range(100))
    assert [record.queue_offset for record in read_queue(store, "U", 0)] == list(range(50))
    for number in (0, 99, 150):
        assert store.query("T", f"k{number}", 9).ranges, "the index is whole, though its last file was not kept"
    assert store.query("U", "k99", 9).ranges[0].start == more[99].physical_offset
    assert "whole log" not in caplog.text


def test_an_empty_directory_is_a_store() -> None:
    kit = StoreKit()
    store = open_again(kit)
    assert store.watermarks.appended == 0
    store.close()
    store = open_again(kit)
    store.start()
    kit.killed()
    store = open_again(kit)
    store.start()
    assert kit.put(store, message("T", 0, b"a")).physical_offset == 0


def test_progress_is_told() -> None:
    kit, _ = left(clean=False)
    told: list[tuple[int, int]] = []
    store = kit.store()
    store.open(lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] <= told[-1][1]


def test_a_store_that_is_in_use_is_refused() -> None:
    kit = StoreKit()
    store = kit.opened()
    other = kit.store()
    with pytest.raises(StoreLocked, match="process"):
        other.open()
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK


def test_a_refused_opening_gives_the_lock_back() -> None:
    kit, tickets = left(clean=True)
    flip(kit.fake, tickets[-3].physical_offset + 100)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            open_again(kit)
    assert kit.fake.locks == {}
    assert kit.fake.open_files == 0


# Torn and zero tails


@pytest.mark.parametrize("kept", [0, 3, 4, 7, 8, 40, 100, 200])
def test_a_torn_last_record_is_cut(kept: int, caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=False)
    last = tickets[-1]
    size = last.end_offset - last.physical_offset
    spoil(kit.fake, last.physical_offset + kept, bytes(size - kept))
    store = kit.store()
    recovered = store.open()
    check_whole(store, tickets[:-1])
    if kept >= 4:
        assert f"the log ends at {last.physical_offset}" in caplog.text
    assert recovered.quarantined == ()
    assert (
        read(kit.fake, log_path(last.physical_offset))[last.physical_offset % FILE :].count(0)
        == FILE - last.physical_offset % FILE
    )
    store.start()
    again = kit.put(store, message("T", 1, b"again"))
    assert (again.physical_offset, again.queue_offset) == (last.physical_offset, last.queue_offset)


def test_a_last_record_with_a_flipped_bit_is_cut_after_a_crash() -> None:
    kit, tickets = left(clean=False)
    flip(kit.fake, tickets[-1].physical_offset + 95)
    check_whole(open_again(kit), tickets[:-1])


def test_a_last_record_that_went_bad_after_a_clean_end_is_kept_aside(caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=True)
    last = tickets[-1]
    original = read(kit.fake, log_path(last.physical_offset))
    flip(kit.fake, last.physical_offset + 95)
    store = kit.store()
    recovered = store.open()
    check_whole(store, tickets[:-1])
    (path,) = recovered.quarantined
    kept = read(kit.fake, path)
    size = last.end_offset - last.physical_offset
    assert path.endswith(f"{last.physical_offset:020d}")
    assert sum(a != b for a, b in zip(kept, original[last.physical_offset % FILE :][:size], strict=False)) == 1
    assert "checksum" in caplog.text
    assert "consume queues know records" in caplog.text


def test_files_made_ahead_are_no_end() -> None:
    kit, tickets = left(clean=False)
    following = (tickets[-1].end_offset // FILE + 1) * FILE
    for start in (following, following + FILE):
        file = kit.fake.open(f"{LOG}/{start:020d}", size=FILE, create=True)
        file.close()
    store = open_again(kit)
    check_whole(store, tickets)
    assert not kit.fake.exists(f"{LOG}/{following + FILE:020d}")


def test_an_empty_last_file_is_removed() -> None:
    kit, tickets = left(clean=False)
    following = (tickets[-1].end_offset // FILE + 1) * FILE
    kit.fake.open(f"{LOG}/{following:020d}", size=0, create=True).close()
    check_whole(open_again(kit), tickets)
    assert not kit.fake.exists(f"{LOG}/{following:020d}")


def test_a_blank_record_without_a_next_file_is_taken_back() -> None:
    kit, tickets = left(clean=False, count=20)
    end = tickets[-1].end_offset
    blank = bytearray(8)
    encode_blank(blank, 0, FILE - end)
    spoil(kit.fake, end, bytes(blank))
    store = open_again(kit)
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"fits")).physical_offset == end


def test_a_blank_record_before_an_empty_next_file_stays() -> None:
    kit, tickets = left(clean=False, count=20)
    end = tickets[-1].end_offset
    blank = bytearray(8)
    encode_blank(blank, 0, FILE - end)
    spoil(kit.fake, end, bytes(blank))
    kit.fake.open(f"{LOG}/{FILE:020d}", size=FILE, create=True).close()
    store = open_again(kit)
    assert store.watermarks.appended == FILE
    store.start()
    assert kit.put(store, message("T", 0, b"there")).physical_offset == FILE
    assert int.from_bytes(read(kit.fake, log_path(0))[end + 4 : end + 8], "big", signed=True) == MAGIC_BLANK


def test_what_was_cut_never_comes_back() -> None:
    """A longer old record behind a shorter new one must not be taken for a part of the log."""
    kit, tickets = left(clean=False, count=40)
    bad = tickets[20]
    spoil(kit.fake, bad.physical_offset, bytes(FILE - bad.physical_offset % FILE))
    for later in kit.fake.list_dir(LOG):
        if int(later) > bad.physical_offset:
            kit.fake.unlink(f"{LOG}/{later}")
    # Whole records of an earlier life stand behind the end.
    stale = read(kit.fake, log_path(0))[: tickets[3].end_offset]
    spoil(kit.fake, bad.physical_offset + 500, stale)
    store = open_again(kit)
    check_whole(store, tickets[:20])
    store.start()
    after = kit.put(store, message("T", 0, b"short"))
    kit.killed()
    store = open_again(kit)
    assert store.watermarks.appended == after.end_offset
    assert bodies(store, "T", 0)[-1] == b"short"


# Power loss: a first look; tests/crash does it at every write


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_power_loss_at_many_moments(flush: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    kit = StoreKit(flushDiskType=flush, flushConsumeQueueThoroughInterval="2000")
    store = kit.opened()
    acknowledged: list[tuple[int, int]] = []  # operations done when it was acknowledged, number of the message
    tickets: list[Ticket] = []

    def settled(number: int) -> None:
        acknowledged.append((len(kit.fake.operations), number))

    for number in range(160):
        each = message("T", number % 2, b"%d" % number + bytes(150), KEYS=f"k{number}", UNIQ_KEY=f"U{number:031d}")
        tickets.append(store.put(each, lambda _, number=number: settled(number)))  # type: ignore[misc]
        if number % 3:
            kit.runner.run()
        if number % 10 == 0:
            kit.runner.advance(0.7)
    kit.runner.run()
    disk = kit.fake
    total = len(disk.operations)
    moments = sorted({*range(0, total, 11), total})
    for seed, moment in enumerate(moments):
        after = StoreKit(disk.crash(seed, moment), flushDiskType=flush)
        store = after.store()
        store.open()
        end = store.watermarks.appended
        there = [ticket for ticket in tickets if ticket.end_offset <= end]
        assert end == (there[-1].end_offset if there else 0) or end % FILE == 0
        check_whole(store, there) if end % FILE else None
        if flush == "SYNC_FLUSH":
            safe = [number for at, number in acknowledged if at <= moment]
            assert len(there) > max(safe, default=-1), (seed, moment)
        store.start()
        more = after.put(store, message("T", 0, b"more"))
        assert more.queue_offset == len(there[::2])
        store.close()
        again = after.store()
        assert again.open().clean
        assert bodies(again, "T", 0)[-1] == b"more"
        again.close()


# Only the process died


def test_after_the_death_of_the_process_the_index_is_kept() -> None:
    kit = StoreKit(maxIndexNum="4000", flushConsumeQueueThoroughInterval="1000")
    store = kit.opened()
    tickets = kit.fill(store, 150)
    kit.runner.advance(10)
    tickets += kit.fill(store, 50)
    kit.runner.advance(10)
    (name,) = kit.fake.list_dir("/store/index")
    kit.killed()
    store = kit.store()
    recovered = store.open()
    assert recovered.start > 0, "it is not built anew from the first file"
    assert kit.fake.list_dir("/store/index") == [name]
    assert store.query("T", "k149", 9).ranges[0].start == tickets[149].physical_offset


def test_after_a_power_loss_the_index_is_built_anew() -> None:
    kit = StoreKit(maxIndexNum="4000", flushConsumeQueueThoroughInterval="1000", flushDiskType="SYNC_FLUSH")
    store = kit.opened()
    tickets = kit.fill(store, 150)
    kit.runner.advance(10)
    kit.power_lost(1)
    store = kit.store()
    recovered = store.open()
    assert recovered.start == 0
    check_whole(store, tickets)


def test_a_turn_of_the_index_that_was_not_finished_is_taken_back() -> None:
    kit = StoreKit(maxIndexNum="4000", maxHashSlotNum="7")
    store = kit.opened()
    tickets = kit.fill(store, 60)
    assert store.index is not None
    path = store.index.files[-1].path
    before = read(kit.fake, path)
    tickets += [store.put(message("T", number % 2, b"x", KEYS=f"k{number}")) for number in range(60, 90)]
    kit.runner.run()
    # As if it had died before the header was stored: all chains begin with entries that it does not know.
    overwrite(kit.fake, path, 0, before[:40])
    kit.killed()
    store = open_again(kit)
    check_whole(store, tickets)
    assert store.index is not None
    assert store.index.files[-1].count == 60 * 2 + 30 + 1


def test_a_copy_of_a_directory_is_not_trusted(tmp_path: Path) -> None:
    kit = StoreKit(maxIndexNum="4000")
    store = kit.opened()
    tickets = kit.fill(store, 30)
    kit.killed()
    kit.fake.dump("/store", str(tmp_path))
    other = StoreKit(RealDisk(), tmp_path, maxIndexNum="4000")
    store = other.store()
    store.open()
    check_whole(store, tickets)
    store.close()
