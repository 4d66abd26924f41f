"""A consume queue: the rules of appending, offsets, recovery, truncation, expiry, and the search by time."""

import errno
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.consume_queue import BLANK_UNIT, UNIT, UNIT_SIZE, Boundary, ConsumeQueue
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.log_files import LogFiles
from cometmq.protocol.hashing import tags_code

#: Units of a file: few, so that queues have many files.
PER_FILE = 10
FILE = PER_FILE * UNIT_SIZE
FOLDER = "/store/consumequeue/T/0"
SIZE = 100


def new_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs("/store", sync=True)
    return disk


def queue_on(disk, folder=FOLDER, per_file=PER_FILE) -> ConsumeQueue:
    """A queue as it is found on a disk; not recovered."""
    files = LogFiles(disk, folder, per_file * UNIT_SIZE)
    files.load()
    return ConsumeQueue("T", 0, Upkeep(disk, 8), files)


def recovered(disk, *, thorough=True, per_file=PER_FILE) -> ConsumeQueue:
    queue = queue_on(disk, per_file=per_file)
    queue.recover(thorough=thorough)
    return queue


def fill(queue: ConsumeQueue, count: int, *, first: int | None = None, physical: int | None = None) -> None:
    """Messages one after the other, in one turn."""
    first = queue.next_offset if first is None else first
    physical = max(queue.max_physical, 0) if physical is None else physical
    for number in range(first, first + count):
        assert queue.append(number, physical, SIZE, number)
        physical += SIZE
    queue.write_out()


def filled(count: int, **first) -> tuple[FakeDisk, ConsumeQueue]:
    disk = new_disk()
    queue = queue_on(disk)
    fill(queue, count, **first)
    return disk, queue


def places(queue: ConsumeQueue) -> list[int]:
    """The physical offset of every message that can be read."""
    found, offset = [], queue.min_offset
    while offset < queue.max_offset:
        units = [physical for physical, _, _ in UNIT.iter_unpack(queue.units(offset, 7))]
        assert units
        found += units
        offset += len(units)
    return found


def raw(disk, start=0) -> bytes:
    return disk.read_file(f"{FOLDER}/{start:020d}")


class TestUnits:
    @pytest.mark.parametrize(
        ("tags", "code"),
        [("TagA", "000000000027A807"), ("_RECALL_TAG_", "FFFFFFFFCD7A5AD4"), ("", "0000000000000000")],
    )
    def test_are_offset_size_and_the_sign_extended_tags_code(self, tags, code):
        disk = new_disk()
        queue = queue_on(disk)
        queue.append(0, 0x0102030405, 0x11223344, tags_code(tags))
        queue.write_out()
        assert raw(disk)[:UNIT_SIZE].hex().upper() == "000000010203040511223344" + code
        assert not any(raw(disk)[UNIT_SIZE:])
        assert len(raw(disk)) == FILE

    def test_unit_n_is_at_byte_20_n(self):
        disk, _ = filled(25)
        assert disk.list_dir(FOLDER) == [f"{start:020d}" for start in (0, 200, 400)]
        for number in range(25):
            start, inside = divmod(number * UNIT_SIZE, FILE)
            assert UNIT.unpack_from(raw(disk, start * FILE), inside) == (number * SIZE, SIZE, number)

    def test_can_be_read_one_by_one_and_in_a_row(self):
        _, queue = filled(25)
        assert queue.unit(7) == (700, SIZE, 7)
        assert queue.unit(25) is None
        assert queue.unit(-1) is None
        assert list(queue.entries(8, 2)) == [(8, 800, SIZE, 8, 1), (9, 900, SIZE, 9, 1)]

    def test_a_read_ends_with_its_file_and_with_the_queue(self):
        _, queue = filled(25)
        assert len(queue.units(7, 100)) == 3 * UNIT_SIZE
        assert len(queue.units(20, 100)) == 5 * UNIT_SIZE
        assert queue.units(25, 100) == b""
        assert queue.units(99, 1) == b""
        assert queue.next_file_offset(7) == 10
        assert queue.next_file_offset(10) == 20

    def test_a_missing_file_is_a_hole_in_the_queue(self):
        disk, queue = filled(25)
        disk.unlink(f"{FOLDER}/{200:020d}")
        queue = recovered(disk, thorough=False)
        assert queue.files.gap() == (200, 400)
        assert queue.units(12, 4) == b""
        assert queue.unit(22) == (2200, SIZE, 22)


class TestAppending:
    def test_readers_see_a_turn_when_it_is_written_out(self):
        queue = queue_on(new_disk())
        queue.append(0, 0, SIZE, 0)
        assert (queue.next_offset, queue.max_offset, queue.units(0, 1)) == (1, 0, b"")
        queue.write_out()
        assert (queue.next_offset, queue.max_offset) == (1, 1)
        assert queue.units(0, 1) == UNIT.pack(0, SIZE, 0)

    def test_a_turn_is_one_write(self):
        disk = new_disk()
        queue = queue_on(disk, per_file=1000)
        fill(queue, 64)
        before = len(disk.operations)
        fill(queue, 64)
        assert [operation.kind for operation in disk.operations[before:]] == ["write"]

    def test_an_empty_turn_writes_nothing(self):
        disk, queue = filled(3)
        before = len(disk.operations)
        queue.write_out()
        assert len(disk.operations) == before

    def test_a_record_that_the_queue_has_is_passed_over(self):
        _, queue = filled(5)
        assert queue.max_physical == 500
        assert not queue.append(4, 400, SIZE, 9)
        assert not queue.append(5, 400, SIZE, 9)
        assert not queue.append(3, 0, SIZE, 9)
        assert queue.append(5, 401, SIZE, 9)
        queue.write_out()
        assert places(queue) == [0, 100, 200, 300, 400, 401]

    def test_an_offset_that_the_queue_has_is_passed_over(self, caplog):
        _, queue = filled(5)
        assert not queue.append(4, 700, SIZE, 0)
        assert "message 4 is in the queue already" in caplog.text
        queue.write_out()
        assert queue.max_offset == 5
        assert queue.max_physical == 500

    def test_an_offset_too_far_is_appended_at_the_end_and_said_aloud(self, caplog):
        _, queue = filled(5)
        assert queue.append(9, 700, SIZE, 0)
        queue.write_out()
        assert queue.unit(5) == (700, SIZE, 0)
        assert "message 9 comes where 5 was expected" in caplog.text
        assert caplog.records[-1].levelno == logging.ERROR

    def test_offset_0_in_a_queue_that_has_messages_is_appended_at_the_end(self):
        """RocketMQ does not check a 0."""
        _, queue = filled(5)
        assert queue.append(0, 700, SIZE, 0)
        queue.write_out()
        assert queue.unit(5) == (700, SIZE, 0)


class TestBeginningLater:
    @pytest.mark.parametrize(("first", "file"), [(3, 0), (13, 200), (19, 200), (20, 400), (1234567, 24691200)])
    def test_blank_units_stand_for_what_came_before(self, first, file):
        disk = new_disk()
        queue = queue_on(disk)
        fill(queue, 1, first=first, physical=5000)
        assert disk.list_dir(FOLDER) == [f"{file:020d}"]
        blanks = first % PER_FILE
        unit = UNIT.pack(5000, SIZE, first)
        assert raw(disk, file) == (BLANK_UNIT * blanks + unit).ljust(FILE, b"\0")
        assert (queue.min_offset, queue.max_offset) == (first, first + 1)
        assert queue.units(first, 9) == unit
        assert queue.unit(first - 1) is None

    def test_a_blank_unit_is_offset_0_with_the_largest_size(self):
        assert BLANK_UNIT.hex() == "00000000000000007fffffff0000000000000000"

    @pytest.mark.parametrize("thorough", [False, True])
    @pytest.mark.parametrize("min_physical", [0, 4000, 5000])
    def test_blank_units_stay_invisible_after_a_restart(self, thorough, min_physical):
        disk = new_disk()
        fill(queue_on(disk), 20, first=13, physical=5000)
        queue = recovered(disk, thorough=thorough)
        queue.correct_min(min_physical)
        assert (queue.min_offset, queue.max_offset) == (13, 33)
        assert queue.max_physical == 7000

    def test_blank_units_alone_are_no_record(self):
        """A crash right after they were written: RocketMQ would refuse every record before 2 GiB."""
        disk = new_disk()
        queue = queue_on(disk)
        queue.append(13, 5000, SIZE, 0)
        disk.fail_next("write", partial=3 * UNIT_SIZE)
        with pytest.raises(OSError, match="Input/output"):
            queue.write_out()
        disk.kill()
        queue = recovered(disk)
        queue.correct_min(0)
        assert (queue.min_offset, queue.max_offset, queue.max_physical) == (13, 13, -1)
        fill(queue, 2, first=13, physical=5000)
        assert places(queue) == [5000, 5100]

    def test_a_failure_while_they_are_written_can_be_tried_again(self):
        disk = new_disk()
        queue = queue_on(disk)
        queue.append(13, 5000, SIZE, 13)
        disk.fail_next("open", errno.ENOSPC)
        disk.fail_next("write", errno.ENOSPC, partial=7)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                queue.write_out()
            assert not queue.append(13, 5000, SIZE, 13)
        queue.write_out()
        assert raw(disk, 200)[: 5 * UNIT_SIZE] == BLANK_UNIT * 3 + UNIT.pack(5000, SIZE, 13) + bytes(UNIT_SIZE)

    def test_an_all_zero_file_is_no_reason_to_number_anew(self):
        disk = new_disk()
        LogFiles(disk, FOLDER, FILE).create(0)
        queue = recovered(disk)
        fill(queue, 2, first=57, physical=5000)
        assert (queue.min_offset, queue.max_offset) == (57, 59)
        assert disk.list_dir(FOLDER) == [f"{1000:020d}"]


class TestFailures:
    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
    def test_what_was_not_written_waits_for_the_next_try(self, error):
        disk, queue = filled(5)
        queue.append(5, 500, SIZE, 5)
        queue.append(6, 600, SIZE, 6)
        disk.fail_next("write", error)
        with pytest.raises(OSError) as caught:  # noqa: PT011
            queue.write_out()
        assert caught.value.errno == error
        assert (queue.max_offset, queue.next_offset) == (5, 7)
        assert not queue.append(6, 600, SIZE, 6)
        queue.write_out()
        assert places(queue) == [n * SIZE for n in range(7)]

    def test_a_failure_in_the_second_file_keeps_the_first(self):
        disk, queue = filled(5)
        for number in range(5, 15):
            queue.append(number, number * SIZE, SIZE, 0)
        disk.fail_next("open", errno.ENOSPC, path=f"{200:020d}")
        with pytest.raises(OSError, match="No space"):
            queue.write_out()
        assert (queue.max_offset, queue.next_offset) == (10, 15)
        queue.write_out()
        assert places(queue) == [n * SIZE for n in range(15)]

    def test_half_a_write_is_no_unit(self):
        disk, queue = filled(5)
        queue.append(5, 500, SIZE, 5)
        disk.fail_next("write", partial=9)
        with pytest.raises(OSError, match="Input/output"):
            queue.write_out()
        disk.kill()
        queue = recovered(disk)
        assert (queue.max_offset, queue.max_physical) == (5, 500)


@pytest.mark.parametrize("thorough", [False, True], ids=["search", "scan"])
class TestRecovery:
    @pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 19, 20, 29, 30, 31, 39, 40, 45])
    def test_finds_the_end(self, count, thorough):
        disk, written = filled(count)
        queue = recovered(disk, thorough=thorough)
        assert (queue.min_offset, queue.max_offset) == (0, count)
        assert queue.max_physical == (count * SIZE if count else -1)
        assert places(queue) == places(written) == [n * SIZE for n in range(count)]
        fill(queue, 3)
        assert places(queue) == [n * SIZE for n in range(count + 3)]

    def test_of_an_empty_next_file(self, thorough):
        disk, queue = filled(10)
        queue.files.create(200)
        queue = recovered(disk, thorough=thorough)
        assert queue.max_offset == 10
        fill(queue, 1)
        assert queue.max_offset == 11
        assert disk.list_dir(FOLDER) == [f"{start:020d}" for start in (0, 200)]

    def test_of_a_queue_whose_only_file_lost_its_units_keeps_the_numbers(self, thorough):
        disk = new_disk()
        LogFiles(disk, FOLDER, FILE).create(400)
        queue = recovered(disk, thorough=thorough)
        assert (queue.min_offset, queue.max_offset) == (20, 20)
        fill(queue, 1, first=20, physical=9000)
        assert queue.unit(20) == (9000, SIZE, 20)

    @pytest.mark.parametrize("written", [1, 8, 11])
    def test_a_half_written_unit_is_the_end(self, written, thorough):
        """Until the size is there, it is none."""
        disk, queue = filled(13)
        half = UNIT.pack(1300, SIZE, 13)[:written]
        queue.files.last.write(3 * UNIT_SIZE, [half])
        queue = recovered(disk, thorough=thorough)
        assert (queue.max_offset, queue.max_physical) == (13, 1300)

    @pytest.mark.parametrize("unit", [(-1, 5, 0), (5, -1, 0), (5, 0, 0), (-(2**63), 1, 1)])
    def test_negative_numbers_are_no_unit(self, unit, thorough):
        disk, queue = filled(13)
        queue.files.last.write(3 * UNIT_SIZE, [UNIT.pack(*unit)])
        assert recovered(disk, thorough=thorough).max_offset == 13


class TestRecoveryAfterACrash:
    def test_ends_at_a_hole_and_removes_what_comes_after(self):
        disk, queue = filled(45)
        queue.files.files[3].write(4 * UNIT_SIZE, [bytes(UNIT_SIZE)])
        queue = recovered(disk)
        assert queue.max_offset == 34
        assert disk.list_dir(FOLDER) == [f"{start:020d}" for start in (0, 200, 400, 600)]
        # What stands behind the hole does not come back when it is filled.
        fill(queue, 1, physical=3400)
        for thorough in (True, False):
            assert recovered(disk, thorough=thorough).max_offset == 35

    def test_wipes_what_stands_behind_a_large_hole(self):
        disk = new_disk()
        queue = queue_on(disk, per_file=300_000)
        fill(queue, 100_000)
        queue.files.last.write(4000 * UNIT_SIZE, [bytes(700 * UNIT_SIZE)])
        assert recovered(disk, per_file=300_000).max_offset == 4000
        assert not any(raw(disk)[4000 * UNIT_SIZE :])

    def test_looks_at_the_last_three_files(self):
        disk, queue = filled(45)
        queue.files.files[1].write(0, [bytes(UNIT_SIZE)])
        assert recovered(disk).max_offset == 45
        queue.files.files[2].write(0, [bytes(UNIT_SIZE)])
        queue = recovered(disk)
        assert queue.max_offset == 20
        assert queue.max_physical == 2000

    def test_syncs_what_the_dead_process_may_not_have(self):
        disk, queue = filled(25)
        disk.kill()
        queue = recovered(disk)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        assert flush.finish()
        again = recovered(disk.crash(1))
        assert places(again) == [n * SIZE for n in range(25)]

    def test_of_a_large_file_is_the_same_as_unit_by_unit(self):
        disk = new_disk()
        queue = queue_on(disk, per_file=20_000)
        fill(queue, 17_777)
        for thorough in (True, False):
            assert recovered(disk, per_file=20_000, thorough=thorough).max_offset == 17_777


class TestTruncation:
    @pytest.mark.parametrize(
        ("physical", "kept"),
        [
            (2500, 25),
            (2400, 24),
            (2399, 24),
            (2301, 24),
            (2300, 23),
            (2000, 20),
            (1999, 20),
            (1000, 10),
            (1, 1),
            (0, 0),
        ],
    )
    def test_keeps_what_begins_before(self, physical, kept):
        disk, queue = filled(25)
        queue.truncate(physical)
        assert queue.max_offset == queue.next_offset == kept
        assert queue.max_physical == (kept * SIZE if kept else 0)
        assert places(queue) == [n * SIZE for n in range(kept)]
        for thorough in (True, False):
            again = recovered(disk, thorough=thorough)
            assert again.max_offset == kept
        fill(queue, 3, physical=kept * SIZE)
        assert places(recovered(disk)) == [n * SIZE for n in range(kept + 3)]

    def test_what_was_cut_off_never_comes_back(self):
        """The log goes on with messages of other queues: the old units would point into them."""
        disk, queue = filled(18)
        queue.truncate(1200)
        fill(queue, 2, physical=5000)
        for thorough in (True, False):
            assert places(recovered(disk, thorough=thorough)) == [*(n * SIZE for n in range(12)), 5000, 5100]

    def test_units_of_the_turn_are_cut_too(self):
        _, queue = filled(5)
        queue.append(5, 500, SIZE, 0)
        queue.truncate(500)
        queue.write_out()
        assert queue.max_offset == 5

    def test_of_everything_keeps_the_numbers_of_a_queue_that_has_lost_its_beginning(self):
        disk, queue = filled(45)
        queue.delete_expired(3000)
        assert queue.min_offset == 30
        queue.truncate(3000)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (30, 30, 30)
        assert recovered(disk).max_offset == 30
        fill(queue, 1, first=30, physical=3000)
        assert queue.unit(30) == (3000, SIZE, 30)

    def test_of_an_empty_queue_is_nothing(self):
        disk = new_disk()
        queue = queue_on(disk)
        queue.truncate(700)
        assert (queue.max_offset, queue.max_physical) == (0, -1)
        assert not disk.exists(FOLDER)
        fill(queue, 1, physical=0)
        assert queue.max_offset == 1

    def test_is_safe_after_a_flush(self):
        disk, queue = filled(25)
        queue._upkeep.begin_flush().sync()
        queue.truncate(1100)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        flush.finish()
        for seed in range(20):
            assert recovered(disk.crash(seed)).max_offset == 11


class TestLowestOffset:
    @pytest.mark.parametrize(
        ("min_physical", "lowest"),
        [(0, 0), (1, 1), (100, 1), (101, 2), (999, 10), (1000, 10), (1001, 11), (2400, 24), (2401, 25), (9999, 25)],
    )
    def test_is_the_first_message_whose_record_is_there(self, min_physical, lowest):
        _, queue = filled(25)
        queue.correct_min(min_physical)
        assert queue.min_offset == lowest
        assert queue.max_offset == 25
        assert queue.units(lowest - 1, 1) == b""

    def test_never_goes_back(self):
        _, queue = filled(25)
        queue.correct_min(1500)
        queue.correct_min(300)
        assert queue.min_offset == 15

    def test_of_a_queue_that_is_used_up_is_its_end(self):
        _, queue = filled(25)
        queue.correct_min(9999)
        assert (queue.min_offset, queue.max_offset) == (25, 25)
        fill(queue, 1, physical=10_000)
        queue.correct_min(9999)
        assert (queue.min_offset, queue.max_offset) == (25, 26)

    def test_costs_one_read_when_nothing_has_changed(self):
        disk = new_disk()
        queue = queue_on(disk, per_file=5000)
        fill(queue, 4000)
        reads = []
        queue.files.files[0] = _Counting(queue.files.last, reads)
        queue.correct_min(0)
        assert len(reads) == 1


class _Counting:
    """A file that notes its reads."""

    def __init__(self, file, reads):
        self._file = file
        self._reads = reads

    def __getattr__(self, name):
        return getattr(self._file, name)

    def read(self, position, length):
        self._reads.append((position, length))
        return self._file.read(position, length)


class TestExpiry:
    @pytest.mark.parametrize(
        ("min_physical", "files"),
        [(0, 5), (900, 5), (901, 4), (1000, 4), (1900, 4), (1901, 3), (3901, 1), (99999, 1)],
    )
    def test_removes_files_whose_last_record_is_gone_but_never_the_last(self, min_physical, files):
        disk, queue = filled(45)
        assert queue.delete_expired(min_physical) == 5 - files
        assert len(disk.list_dir(FOLDER)) == files
        assert queue.min_offset == min(-(-min_physical // SIZE), 45)
        assert queue.max_offset == 45
        assert recovered(disk).max_offset == 45

    def test_an_empty_next_file_protects_nothing_that_is_not_full(self):
        _, queue = filled(9)
        queue.files.create(200)
        assert queue.delete_expired(99999) == 0
        assert queue.min_offset == 9

    def test_leaves_a_file_that_is_being_synced_for_later(self):
        disk, queue = filled(25)
        flush = queue._upkeep.begin_flush()
        assert queue.delete_expired(1500) == 0
        assert queue.min_offset == 15
        flush.sync()
        flush.finish()
        assert disk.list_dir(FOLDER) == [f"{start:020d}" for start in (200, 400)]


def brute(times: list[int], timestamp: int, boundary: Boundary) -> int:
    if boundary is Boundary.LOWER:
        return sum(time < timestamp for time in times)
    return max(sum(time <= timestamp for time in times) - 1, 0)


class TestSearchByTime:
    @given(
        steps=st.lists(st.integers(0, 3), min_size=1, max_size=47),
        expired=st.integers(0, 46),
        asked=st.integers(-2, 150),
        boundary=st.sampled_from(Boundary),
    )
    def test_is_what_looking_at_each_message_gives(self, steps, expired, asked, boundary):
        times = [sum(steps[: number + 1]) for number in range(len(steps))]
        expired = min(expired, len(times))
        _, queue = filled(len(times))
        queue.correct_min(expired * SIZE)
        found = queue.offset_by_time(
            asked,
            boundary,
            lambda physical, size: times[physical // SIZE] if physical >= expired * SIZE and size == SIZE else -1,
            min_physical=expired * SIZE,
        )
        assert found == min(expired + brute(times[expired:], asked, boundary), len(times))

    @pytest.mark.parametrize(
        ("timestamp", "lower", "upper"),
        [(0, 0, 0), (10, 0, 2), (15, 3, 2), (20, 3, 4), (21, 5, 4), (30, 5, 5), (31, 6, 5), (999, 6, 5)],
    )
    def test_boundaries(self, timestamp, lower, upper):
        times = [10, 10, 10, 20, 20, 30]
        _, queue = filled(len(times))

        def time_of(physical, size):
            return times[physical // SIZE]

        assert queue.offset_by_time(timestamp, Boundary.LOWER, time_of) == lower
        assert queue.offset_by_time(timestamp, Boundary.UPPER, time_of) == upper

    def test_of_an_empty_queue_is_0(self):
        for boundary in Boundary:
            assert queue_on(new_disk()).offset_by_time(5, boundary, lambda physical, size: 1) == 0

    def test_of_a_record_that_cannot_be_read_is_the_lowest_offset(self):
        _, queue = filled(9)

        def time_of(physical, size):
            return -1 if physical == 400 else physical

        assert queue.offset_by_time(450, Boundary.LOWER, time_of) == 0
        queue.correct_min(100)
        assert queue.offset_by_time(450, Boundary.LOWER, time_of) == 1

    def test_asks_for_few_records(self):
        disk = new_disk()
        queue = queue_on(disk, per_file=20_000)
        fill(queue, 15_000)
        asked = []

        def time_of(physical, size):
            asked.append(physical)
            return physical

        assert queue.offset_by_time(777_700, Boundary.LOWER, time_of) == 7777
        assert len(asked) <= 17


class TestFlushing:
    def test_flushed_units_survive_a_power_loss(self):
        disk, queue = filled(25)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        assert flush.finish()
        assert not queue._upkeep.written
        fill(queue, 3)
        for seed in range(30):
            survived = recovered(disk.crash(seed))
            assert survived.max_offset >= 25
            assert places(survived)[:25] == [n * SIZE for n in range(25)]

    def test_a_power_loss_never_leaves_a_hole_or_a_wrong_unit_before_the_end(self):
        """Many turns, some of them flushed, a power loss after each operation: units are those of their places."""
        dice = random.Random(5)
        disk = new_disk()
        queue = queue_on(disk, per_file=300)
        safe = [(0, 0)]
        for _ in range(30):
            fill(queue, dice.randrange(1, 90))
            if dice.random() < 0.3:
                flush = queue._upkeep.begin_flush()
                flush.sync()
                flush.finish()
                safe.append((len(disk.operations), queue.max_offset))
        for moment in range(1, len(disk.operations) + 1):
            found = recovered(disk.crash(moment, at=moment), per_file=300)
            flushed = max(count for at, count in safe if at <= moment)
            assert found.max_offset >= flushed
            assert places(found)[:flushed] == [n * SIZE for n in range(flushed)]

    @pytest.mark.parametrize(("count", "due"), [(204, False), (205, True), (410, True)])
    def test_waits_for_dirty_pages(self, count, due):
        queue = queue_on(new_disk(), per_file=1000)
        fill(queue, count)
        assert bool(queue._upkeep.begin_flush(1)) is True  # new names go with any flush
        assert queue.is_due(1) is due
        assert queue.is_due(0)

    def test_a_full_file_is_always_due(self):
        _, queue = filled(PER_FILE)
        assert queue.is_due(100)

    def test_a_failed_sync_leaves_everything_to_do(self):
        disk, queue = filled(25)
        disk.fail_next("sync")
        flush = queue._upkeep.begin_flush()
        with pytest.raises(OSError, match="Input/output"):
            flush.sync()
        assert not flush.finish()
        assert queue.flushed == 0
        assert queue in queue._upkeep.written
        assert FOLDER in queue._upkeep.folders
        assert [file.holds for file in queue.files.files] == [0, 0, 0]

    def test_what_is_written_while_a_sync_runs_is_for_the_next(self):
        _, queue = filled(5)
        flush = queue._upkeep.begin_flush()
        fill(queue, 3)
        flush.sync()
        flush.finish()
        assert queue.flushed == 5 * UNIT_SIZE
        assert queue.is_due(0)

    def test_a_truncation_while_a_sync_runs_is_for_the_next(self):
        _, queue = filled(8)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        queue.truncate(300)
        fill(queue, 5, physical=9000)
        flush.finish()
        assert queue.flushed < queue.written
        assert queue.is_due(0)

    def test_a_queue_that_is_removed_while_a_sync_runs_is_no_failure(self):
        disk, queue = filled(25)
        flush = queue._upkeep.begin_flush()
        queue.destroy()
        flush.sync()
        assert flush.finish()
        assert disk.open_files == 0


class TestRealDisk:
    def test_the_same_on_a_real_disk(self, tmp_path):
        folder = f"{tmp_path}/consumequeue/T/0"
        queue = queue_on(RealDisk(), folder)
        fill(queue, 25)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        assert flush.finish()
        queue.truncate(2200)
        assert queue.delete_expired(1150) == 1
        queue._upkeep.open_files.close()
        again = queue_on(RealDisk(), folder)
        again.recover(thorough=True)
        again.correct_min(1150)
        assert (again.min_offset, again.max_offset) == (12, 22)
        assert places(again) == [n * SIZE for n in range(12, 22)]
        again._upkeep.open_files.close()
