"""A queue of batches: units, the search for a message in a batch and for a moment, recovery, expiry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.batch_consume_queue import BATCH_UNIT, BATCH_UNIT_SIZE, BatchConsumeQueue
from cometmq.broker.store.consume_queue import Boundary
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.log_files import LogFiles

PER_FILE = 4
FOLDER = "/store/batchconsumequeue/T/0"


def queue_on(disk) -> BatchConsumeQueue:
    files = LogFiles(disk, FOLDER, PER_FILE * BATCH_UNIT_SIZE)
    files.load()
    return BatchConsumeQueue("T", 0, Upkeep(disk, 8), files)


def fill(queue: BatchConsumeQueue, counts: list[int], *, first: int | None = None, times: list[int] | None = None):
    """Batches of so many messages, each record of 100 bytes."""
    offset = queue.next_offset if first is None else first
    physical = max(queue.max_physical, 0)
    for number, count in enumerate(counts):
        time = times[number] if times else physical
        assert queue.append(offset, physical, 100, 0, time, batch_count=count)
        offset += count
        physical += 100
    queue.write_out()


def filled(counts: list[int], **more) -> tuple[FakeDisk, BatchConsumeQueue]:
    disk = FakeDisk()
    queue = queue_on(disk)
    fill(queue, counts, **more)
    return disk, queue


COUNTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
STARTS = [sum(COUNTS[:n]) for n in range(len(COUNTS) + 1)]


def test_layout():
    disk = FakeDisk()
    queue = queue_on(disk)
    queue.append(7, 5467, 568, -2, 1794848781297, batch_count=3)
    queue.write_out()
    assert disk.read_file(f"{FOLDER}/{0:020d}")[:46].hex() == (
        "000000000000155b" "00000238" "fffffffffffffffe" "000001a1e552f3f1" "0000000000000007" "0003" "ffffffff"
        "00000000"
    )  # fmt: skip


class TestOffsets:
    def test_are_those_of_messages(self):
        _, queue = filled(COUNTS)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 39, 39)
        assert queue.max_physical == 1000

    def test_of_a_turn_are_seen_when_it_is_written_out(self):
        queue = queue_on(FakeDisk())
        queue.append(0, 0, 100, 0, batch_count=5)
        assert (queue.max_offset, queue.next_offset) == (0, 5)
        queue.write_out()
        assert queue.max_offset == 5

    def test_a_queue_may_begin_anywhere_without_blanks(self):
        disk, queue = filled([3, 4], first=1_000_000)
        assert (queue.min_offset, queue.max_offset) == (1_000_000, 1_000_007)
        assert disk.list_dir(FOLDER) == [f"{0:020d}"]
        again = queue_on(disk)
        again.recover(thorough=True)
        assert (again.min_offset, again.max_offset) == (1_000_000, 1_000_007)

    def test_what_the_queue_has_is_passed_over(self):
        _, queue = filled(COUNTS)
        assert not queue.append(36, 900, 100, 0, batch_count=3)
        assert not queue.append(39, 100, 100, 0, batch_count=3)
        assert queue.append(39, 1000, 100, 0, batch_count=3)

    @pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, 0), (0, -1), (0, 32768)])
    def test_what_is_no_batch_is_passed_over(self, offset, count):
        queue = queue_on(FakeDisk())
        assert not queue.append(offset, 0, 100, 0, batch_count=count)
        queue.write_out()
        assert queue.unit_count == 0


class TestReading:
    def test_every_message_is_in_its_batch(self):
        _, queue = filled(COUNTS)
        for number, count in enumerate(COUNTS):
            for offset in range(STARTS[number], STARTS[number] + count):
                assert queue.unit(offset) == (number * 100, 100, 0)
                first = next(queue.entries(offset, 1))
                assert first == (STARTS[number], number * 100, 100, 0, count)

    def test_a_read_ends_with_its_file(self):
        _, queue = filled(COUNTS)
        assert [unit[4] for unit in BATCH_UNIT.iter_unpack(queue.units(5, 100))] == [4, 8]
        assert [unit[4] for unit in BATCH_UNIT.iter_unpack(queue.units(9, 2))] == [9, 14]
        assert queue.next_file_offset(5) == 9
        assert queue.next_file_offset(9) == 31
        assert queue.next_file_offset(38) == 39

    @pytest.mark.parametrize("offset", [-1, 39, 40, 10**9])
    def test_where_nothing_is(self, offset):
        _, queue = filled(COUNTS)
        assert queue.units(offset, 5) == b""
        assert queue.unit(offset) is None

    def test_of_an_empty_queue(self):
        queue = queue_on(FakeDisk())
        assert queue.units(0, 5) == b""
        assert queue.next_file_offset(0) == 0


class TestSearchByTime:
    @given(steps=st.lists(st.integers(0, 3), min_size=1, max_size=18), asked=st.integers(-2, 60))
    def test_is_what_looking_at_each_batch_gives(self, steps, asked):
        times = [sum(steps[: number + 1]) for number in range(len(steps))]
        _, queue = filled([2] * len(times), times=times)
        lower = min(sum(time < asked for time in times), len(times) - 1)
        upper = max(sum(time <= asked for time in times) - 1, 0)
        assert queue.offset_by_time(asked, Boundary.LOWER) == 2 * lower
        assert queue.offset_by_time(asked, Boundary.UPPER) == 2 * upper

    def test_stays_within_the_queue(self):
        _, queue = filled(COUNTS)
        queue.correct_min(350)
        assert queue.offset_by_time(0, Boundary.LOWER) == queue.min_offset == 9
        assert queue.offset_by_time(0, Boundary.UPPER) == 9

    def test_of_an_empty_queue_is_0(self):
        for boundary in Boundary:
            assert queue_on(FakeDisk()).offset_by_time(5, boundary) == 0


class TestRecovery:
    @pytest.mark.parametrize("thorough", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 12, 13, 17])
    def test_finds_the_end(self, count, thorough):
        disk, _ = filled([2] * count)
        queue = queue_on(disk)
        queue.recover(thorough=thorough)
        assert (queue.min_offset, queue.max_offset) == (0, 2 * count)
        assert queue.max_physical == (count * 100 if count else -1)
        fill(queue, [3])
        assert queue.unit(2 * count + 2) == (count * 100, 100, 0)

    @pytest.mark.parametrize("kept", range(11))
    def test_truncation(self, kept):
        disk, queue = filled(COUNTS)
        queue.truncate(kept * 100 - 50)
        for found in (queue, queue_on(disk)):
            if found is not queue:
                found.recover(thorough=False)
            assert found.max_offset == STARTS[kept]
            assert found.unit_count == kept
        fill(queue, COUNTS[kept:], first=STARTS[kept])
        assert queue.max_offset == 39
        assert queue.unit(38) == (900, 100, 0)

    def test_of_the_turn(self):
        _, queue = filled([2, 2])
        queue.append(4, 200, 100, 0, batch_count=2)
        queue.truncate(200)
        assert (queue.max_offset, queue.next_offset) == (4, 4)


class TestExpiry:
    @pytest.mark.parametrize(
        ("min_physical", "lowest", "files"),
        [(0, 0, 3), (1, 3, 3), (100, 3, 3), (301, 9, 2), (400, 9, 2), (750, 31, 1), (901, 39, 1), (5000, 39, 1)],
    )
    def test_moves_the_lowest_offset_past_what_is_gone(self, min_physical, lowest, files):
        disk, queue = filled(COUNTS)
        assert queue.delete_expired(min_physical) == 3 - files
        assert (queue.min_offset, queue.max_offset) == (lowest, 39)
        assert len(disk.list_dir(FOLDER)) == files
        again = queue_on(disk)
        again.recover(thorough=True)
        again.correct_min(min_physical)
        assert (again.min_offset, again.max_offset) == (lowest, 39)

    def test_a_destroyed_queue_begins_anew(self):
        disk, queue = filled(COUNTS)
        queue.destroy()
        assert not disk.exists(FOLDER)
        fill(queue, [2], first=0)
        assert (queue.min_offset, queue.max_offset) == (0, 2)
