"""One index file: header, slots, entries, chains, and what damage and full disks do to it."""

import errno
import os
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.index_file import IndexFile, IndexFileWrong, NewEntries

SLOTS, ENTRIES = 10, 50
FIRST = 40 + 4 * SLOTS
SIZE = FIRST + 20 * ENTRIES
NAME = "20261116164454054"
TIME = 1_794_847_494_037


def new_file(disk=None, *, slots=SLOTS, entries=ENTRIES, end_physical=0, end_time=0) -> IndexFile:
    file = IndexFile(disk or FakeDisk(), "/store/index", NAME, slots, entries)
    file.create(end_physical, end_time)
    return file


def put(file: IndexFile, *rows: tuple[int, int, int]) -> int:
    return file.put(NewEntries(*zip(*rows, strict=True)))


def content(file: IndexFile) -> bytes:
    return file._disk.read_file(file.path)


def header(file: IndexFile) -> tuple[int, ...]:
    return struct.unpack_from(">qqqqii", content(file))


def entry(file: IndexFile, number: int) -> tuple[int, ...]:
    return struct.unpack_from(">iqii", content(file), 40 + 4 * file.slots + 20 * number)


def slot(file: IndexFile, number: int) -> int:
    return struct.unpack_from(">i", content(file), 40 + 4 * number)[0]


class TestLayout:
    def test_of_a_new_file(self):
        file = new_file()
        assert content(file) == bytes(SIZE)
        assert file.count == 1
        assert not file.is_full

    def test_of_a_file_after_another(self):
        file = new_file(end_physical=777, end_time=TIME)
        assert header(file) == (TIME, TIME, 777, 777, 0, 0)

    def test_of_entries(self):
        file = new_file()
        put(file, (23, 1000, TIME), (23, 1100, TIME + 2999), (7, 1100, TIME + 2999), (33, 1200, TIME + 3000))
        assert header(file) == (TIME, TIME + 3000, 1000, 1200, 2, 5)
        assert [entry(file, n) for n in range(6)] == [
            (0, 0, 0, 0),
            (23, 1000, 0, 0),
            (23, 1100, 2, 1),
            (7, 1100, 2, 0),
            (33, 1200, 3, 2),
            (0, 0, 0, 0),
        ]
        assert [slot(file, n) for n in range(SLOTS)] == [0, 0, 0, 4, 0, 0, 0, 3, 0, 0]

    def test_rocketmq_s_own_size(self):
        assert IndexFile(FakeDisk(), "/i", NAME, 5_000_000, 20_000_000).size == 420_000_040


class TestTimes:
    def test_the_first_entry_counts_from_the_file_before(self):
        file = new_file(end_physical=500, end_time=TIME - 65_500)
        put(file, (1, 600, TIME), (2, 600, TIME), (3, 700, TIME + 1000))
        assert [entry(file, n)[2] for n in (1, 2, 3)] == [65, 0, 1]
        assert header(file)[:4] == (TIME, TIME + 1000, 600, 700)

    @pytest.mark.parametrize(
        ("shift", "seconds"),
        [(-1, 0), (-5_000_000, 0), (999, 0), (1000, 1), (2**31 * 1000, 2**31 - 1), (2**50, 2**31 - 1)],
    )
    def test_seconds_stay_within_an_i32(self, shift, seconds):
        file = new_file()
        put(file, (1, 100, TIME))
        put(file, (1, 200, TIME + shift))
        assert entry(file, 2)[2] == seconds

    def test_a_time_of_0_counts_nothing(self):
        file = new_file()
        put(file, (1, 100, 0), (1, 200, 5_000))
        assert entry(file, 2)[2] == 0


class TestCapacity:
    def test_is_one_less_than_the_entries(self):
        file = new_file()
        assert put(file, *((n, n * 10, TIME) for n in range(60))) == ENTRIES - 1
        assert file.is_full
        assert header(file)[5] == ENTRIES
        assert put(file, (1, 5000, TIME)) == 0
        assert header(file)[3] == 480

    def test_takes_from_a_start(self):
        file = new_file()
        assert file.put(NewEntries([1, 2, 3], [10, 20, 30], [TIME] * 3), 2) == 1
        assert entry(file, 1)[:2] == (3, 30)


class TestTurns:
    """Many entries at once are stored by columns; the bytes must be those of one after the other."""

    @given(
        hashes=st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=300, unique_by=lambda value: value % 700),
        twice=st.booleans(),
        damage=st.lists(st.tuples(st.integers(0, 699), st.integers(-(2**31), 2**31 - 1)), max_size=5),
        entries=st.sampled_from([50, 1000]),
    )
    def test_are_what_single_entries_give(self, hashes, twice, damage, entries):
        rows = [(key_hash, n * 10_000_000_000, TIME + 7000) for n, key_hash in enumerate(hashes)]
        if twice:
            rows[-1] = (rows[0][0], rows[-1][1], TIME)
        files = [new_file(slots=700, entries=entries) for _ in range(2)]
        for file in files:
            put(file, (5, 0, TIME), (6, 0, TIME))
            for number, value in damage:
                struct.pack_into(">i", file._stored(), 40 + 4 * number, value)
        taken = put(files[0], *rows)
        assert taken == min(len(rows), entries - 3)
        for row in rows[:taken]:
            put(files[1], row)
        assert content(files[0]) == content(files[1])
        assert files[0].slots_used == files[1].slots_used


def all_of(file: IndexFile, key_hash: int, *, begin=0, end=2**62, count=1000) -> list[int]:
    found: list[int] = []
    file.select(key_hash, begin, end, found, count)
    return found


class TestSelect:
    @given(
        rows=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 4000)), max_size=49),
        asked=st.integers(0, 30),
        begin=st.integers(-5000, 200_000),
        length=st.integers(0, 200_000),
        count=st.integers(0, 8),
    )
    def test_is_what_looking_at_each_entry_gives(self, rows, asked, begin, length, count):
        file = new_file()
        time, wanted, entries = TIME, [], []
        for number, (key_hash, step) in enumerate(rows):
            time += step
            entries.append((key_hash, number * 10, time))
        if entries:
            put(file, *entries)
        for key_hash, physical, time in entries:
            shown = entries[0][2] + (time - entries[0][2]) // 1000 * 1000
            if key_hash == asked and TIME + begin <= shown <= TIME + begin + length:
                wanted.append(physical)
        wanted = wanted[::-1][:count]
        assert all_of(file, asked, begin=TIME + begin, end=TIME + begin + length, count=count) == wanted
        file.close()
        assert all_of(file, asked, begin=TIME + begin, end=TIME + begin + length, count=count) == wanted

    @pytest.mark.parametrize(
        ("begin", "end", "overlaps"),
        [(0, 99, False), (0, 100, True), (150, 160, True), (200, 999, True), (201, 999, False), (0, 999, True)],
    )
    def test_overlap(self, begin, end, overlaps):
        file = new_file()
        put(file, (1, 10, 100), (1, 20, 200))
        assert file.overlaps(begin, end) is overlaps


class TestDamage:
    def test_a_chain_that_bites_its_tail_ends(self):
        disk = FakeDisk()
        file = new_file(disk)
        put(file, *((3, n * 10, TIME) for n in range(20)))
        view = disk.open(file.path).writable_view()
        for number in range(1, 20):
            for before in (number, number + 1, 20, 21, -1, 2**31 - 1):
                struct.pack_into(">i", view, FIRST + 20 * number + 16, before)
                assert all_of(file, 3) == [n * 10 for n in range(19, number - 2, -1)]

    @pytest.mark.parametrize("value", [-1, 22, 49, 50, 51, 2**31 - 1, -(2**31)])
    def test_a_slot_that_points_nowhere_is_empty(self, value):
        disk = FakeDisk()
        file = new_file(disk)
        put(file, *((3, n * 10, TIME) for n in range(20)))
        struct.pack_into(">i", disk.open(file.path).writable_view(), 40 + 4 * 3, value)
        assert all_of(file, 3) == []
        put(file, (13, 500, TIME))
        assert entry(file, 21)[3] == 0
        assert all_of(file, 13) == [500]

    def test_negative_seconds_end_a_chain(self):
        disk = FakeDisk()
        file = new_file(disk)
        put(file, (3, 10, TIME), (3, 20, TIME), (3, 30, TIME))
        struct.pack_into(">i", disk.open(file.path).writable_view(), FIRST + 20 * 2 + 12, -1)
        assert all_of(file, 3) == [30]

    def test_any_bytes_are_survived(self):
        dice = random.Random(3)
        for _ in range(200):
            disk = FakeDisk()
            put(new_file(disk), *((n, n * 10, TIME) for n in range(30)))
            writer = disk.open(f"/store/index/{NAME}")
            for _ in range(12):
                writer.write(dice.randrange(SIZE - 4), [dice.randbytes(4)])
            file = IndexFile(disk, "/store/index", NAME, SLOTS, ENTRIES)
            file.load()
            for key_hash in range(30):
                assert len(all_of(file, key_hash)) <= ENTRIES
            file.entries_of(290)
            file.cut(150)
            assert file.count >= 1
            put(file, (5, 10_000, TIME))

    @pytest.mark.parametrize("length", [1, 39, 40, SIZE - 1, SIZE + 1])
    def test_another_length_is_refused_with_the_keys_to_look_at(self, length):
        disk = FakeDisk()
        disk.open(f"/store/index/{NAME}", size=length, create=True)
        file = IndexFile(disk, "/store/index", NAME, SLOTS, ENTRIES)
        file.load()
        with pytest.raises(IndexFileWrong, match=f"{length} bytes, {SIZE} were expected") as caught:
            file.check_length()
        assert "maxHashSlotNum" in caught.value.remedy


class TestCutting:
    @given(st.lists(st.integers(0, 40), min_size=1, max_size=49), st.integers(-1, 60))
    def test_leaves_the_file_as_if_the_rest_had_never_come(self, hashes, cut):
        rows = [(key_hash, number * 10, TIME) for number, key_hash in enumerate(hashes)]
        file = new_file()
        put(file, *rows)
        file.cut(cut * 10)
        kept = [row for row in rows if row[1] < cut * 10]
        if not kept:
            assert file.count == 1
            assert all(all_of(file, key_hash) == [] for key_hash in range(41))
            return
        wanted = new_file()
        put(wanted, *kept)
        assert content(file)[36:FIRST] == content(wanted)[36:FIRST]
        assert header(file)[0] == header(wanted)[0]
        assert header(file)[2:] == header(wanted)[2:]
        for key_hash in range(41):
            assert all_of(file, key_hash) == all_of(wanted, key_hash)
        assert file.entries_of(kept[-1][1]) == 1

    def test_the_end_time_is_no_later_than_before(self):
        file = new_file()
        put(file, (1, 0, TIME), (1, 10, TIME + 1500), (1, 20, TIME + 1600))
        file.cut(20)
        assert file.end_time == TIME + 1600
        file.cut(10)
        assert file.end_time == TIME + 999


class TestFullDisk:
    def test_is_an_error_and_the_file_goes_on_later(self):
        """Pages are written before they are stored through the map: a signal would end the process."""
        disk = FakeDisk()
        file = new_file(disk, slots=5000, entries=5000)
        rows = [(n * 1033 % 5000, n * 10, TIME) for n in range(40)]
        done, failed = 0, 0
        while done < len(rows):
            disk.fail_next("write", errno.ENOSPC, after=failed % 3)
            try:
                file.put(NewEntries(*zip(*rows, strict=True)), done)
            except OSError:
                failed += 1
                assert header(file)[5] in (0, file.count)
            done = file.count - 1
            disk.heal()
        assert failed > 2
        wanted = new_file(slots=5000, entries=5000)
        put(wanted, *rows)
        assert content(file) == content(wanted)

    def test_blocks_are_taken_where_entries_are(self, tmp_path):
        file = IndexFile(RealDisk(), str(tmp_path), NAME, 500_000, 2_000_000)
        file.create(0, 0)
        put(file, (77, 10, TIME))
        file.sync()
        status = os.stat(file.path)
        assert status.st_size == file.size == 42_000_040
        assert status.st_blocks * 512 < 400_000
        file.close()


class TestLeaving:
    def test_a_held_file_stays_open_until_it_is_released(self):
        disk = FakeDisk()
        file = new_file(disk)
        put(file, (1, 10, TIME))
        file.hold()
        file.close()
        assert disk.open_files == 1
        file.sync()
        file.release()
        assert disk.open_files == 0
        assert all_of(file, 1) == [10]

    def test_a_synced_file_survives_with_its_name(self):
        disk = FakeDisk()
        disk.make_dirs("/store/index", sync=True)
        file = new_file(disk)
        put(file, (1, 10, TIME))
        wanted = content(file)
        file.sync()
        put(file, (1, 20, TIME))
        for seed in range(10):
            after = disk.crash(seed)
            assert after.size(file.path) == SIZE
            assert struct.unpack_from(">iqii", after.read_file(file.path), FIRST + 20) == (1, 10, 0, 0)
        assert wanted != content(file)

    def test_a_destroyed_file_is_gone(self):
        disk = FakeDisk()
        file = new_file(disk)
        file.destroy()
        assert not disk.exists(file.path)
        assert disk.open_files == 0
