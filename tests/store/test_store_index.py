"""The index: rolling over, loading, replays, queries over several files, expiry."""

import errno
import random
from datetime import timedelta, timezone

import pytest

from cometmq.broker.store.clock import FakeClock, SystemClock
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.index import Index
from cometmq.broker.store.index_file import IndexFileWrong
from cometmq.broker.store.index_keys import key_hash
from cometmq.broker.store.options import StoreOptions

OPTIONS = {"maxHashSlotNum": "20", "maxIndexNum": "11"}
#: Entries of a file.
PER_FILE = 10
ROOT = "/store"
TIME = 1_794_847_494_054  # 2026-11-16 16:44:54.054 UTC
ALWAYS = (0, 2**62)


def new_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(f"{ROOT}/index", sync=True)
    return disk


def index_on(disk, clock=None, on_full=None, **options: str) -> Index:
    clock = clock or FakeClock(TIME)
    return Index(disk, ROOT, StoreOptions.from_properties(OPTIONS | options), clock, on_full=on_full)


def record(number: int, keys: bytes | None = None, unique: bytes | None = None, topic: str = "T"):
    """The nth record: a second later than the one before it, 100 bytes further."""
    return topic, keys, unique, number * 100, TIME + number * 1000


def records(count: int, first: int = 0):
    """Records with a unique key of their own and one of three keys."""
    return [record(n, b"mod%d" % (n % 3), b"unique%d" % n) for n in range(first, first + count)]


def loaded(disk, *, clean=True, safe=0, **options: str) -> Index:
    index = index_on(disk, **options)
    index.load(clean=clean, safe_timestamp=safe)
    return index


def entry_count(index: Index) -> int:
    return sum(file.count - 1 for file in index.files)


def found(index: Index, key: str, begin: int = 0, end: int = 2**62, count: int = 64, topic: str = "T") -> list[int]:
    return [offset // 100 for offset in index.query(topic, key, count, begin, end).offsets]


class TestPutting:
    def test_unique_key_first_then_each_key(self):
        index = index_on(new_disk())
        index.put_turn([record(0, b"a b", b"u")])
        assert [index.files[0].entry(n)[0] for n in (1, 2, 3)] == [key_hash("T", key) for key in ("u", "a", "b")]
        assert entry_count(index) == 3

    @pytest.mark.parametrize(
        ("keys", "count"), [(b" a  b ", 2), (b"  ", 0), (b"", 0), (None, 0), (b"a", 1), (b"a a", 2)]
    )
    def test_empty_pieces_are_no_keys(self, keys, count):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn([record(0, keys)])
        assert entry_count(index) == count
        # Without a key there is no file.
        assert bool(disk.list_dir(f"{ROOT}/index")) is bool(count)

    def test_the_topic_is_part_of_the_key(self):
        index = index_on(new_disk())
        index.put_turn([record(0, b"k", topic="T"), record(1, b"k", topic="U")])
        assert found(index, "k") == [0]
        assert found(index, "k", topic="U") == [1]

    def test_keys_of_other_alphabets(self):
        index = index_on(new_disk())
        index.put_turn([record(0, "Schlüssel \U0001f511".encode()), record(1, b"plain")])
        assert found(index, "Schlüssel") == found(index, "\U0001f511") == [0]
        assert found(index, "plain") == [1]

    def test_an_empty_turn(self):
        index = index_on(new_disk())
        index.put_turn([])
        assert (index.files, index.end_physical) == ([], -1)


class TestRollingOver:
    def test_files_begin_where_the_last_one_ended(self):
        clock = FakeClock(TIME)
        index = index_on(new_disk(), clock)
        index.put_turn(records(5))
        assert [(file.name, file.is_full) for file in index.files] == [("20261116164454054", True)]
        clock.advance(1.5)
        index.put_turn([record(9, b"k")])
        assert [file.name for file in index.files] == ["20261116164454054", "20261116164455554"]
        first, second = index.files
        assert (first.end_physical, first.end_time) == (400, TIME + 4000)
        assert (second.begin_physical, second.begin_time) == (900, TIME + 9000)
        # The seconds of the first entry are those since the end of the file before.
        assert second.entry(1) == (key_hash("T", "k"), 900, 5, 0)

    def test_a_record_may_lie_in_two_files(self):
        index = index_on(new_disk())
        index.put_turn([record(n, b"a b", b"u%d" % n) for n in range(5)])
        assert [file.count - 1 for file in index.files] == [10, 5]
        assert index.files[0].end_physical == index.files[1].begin_physical == 300
        assert found(index, "b") == [4, 3, 2, 1, 0]

    def test_names_rise_although_the_clock_does_not(self):
        clock = FakeClock(TIME)
        index = index_on(new_disk(), clock)
        index.put_turn(records(15))
        assert [file.name for file in index.files] == ["20261116164454054", "20261116164454055", "20261116164454056"]
        clock.set_wall(TIME - 3_600_000)
        index.put_turn(records(5, 15))
        assert index.files[-1].name == "20261116164454057"
        assert [file.name for file in loaded(index._disk).files] == [file.name for file in index.files]

    def test_names_are_in_local_time(self):
        zone = timezone(timedelta(hours=8))
        index = index_on(new_disk(), FakeClock(TIME, zone=zone))
        index.put_turn(records(1))
        assert index.files[0].name == "20261117004454054"

    def test_the_owner_is_told_of_full_files(self):
        disk = new_disk()
        full = []
        index = index_on(disk, on_full=full.append)
        index.put_turn(records(5))
        assert full == []
        index.put_turn(records(6, 5))
        assert full == index.files[:2]
        assert disk.open_files == 3
        for file in full:
            file.sync()
            file.release()
        assert disk.open_files == 1
        assert found(index, "mod0") == [9, 6, 3, 0]

    def test_without_an_owner_they_are_synced_at_once(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(6))
        assert [operation.path for operation in disk.operations if operation.kind == "sync"] == [index.files[0].path]

    @pytest.mark.parametrize("fault", ["open", "write", "sync"])
    def test_a_failure_can_be_tried_again(self, fault):
        """At every place where it can come: nothing is lost, nothing comes twice."""
        wanted = index_on(new_disk())
        for start in range(0, 20, 4):
            wanted.put_turn(records(4, start))
        contents = [wanted._disk.read_file(file.path) for file in wanted.files]
        failures = 0
        for after in range(12):
            disk = new_disk()
            index = index_on(disk)
            disk.fail_next(fault, errno.ENOSPC, after=after)
            for start in range(0, 20, 4):
                try:
                    index.put_turn(records(4, start))
                except OSError:
                    failures += 1
                    index.put_turn(records(4, start))
            assert [disk.read_file(file.path) for file in index.files] == contents
            assert disk.list_dir(f"{ROOT}/index") == [file.name for file in index.files]
        assert failures >= 3


class TestReplays:
    @pytest.mark.parametrize("again", range(12))
    def test_from_anywhere_change_nothing(self, again):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(12))
        before = [disk.read_file(file.path) for file in index.files]
        index.put_turn(records(12 - again, again))
        assert [disk.read_file(file.path) for file in index.files] == before

    @pytest.mark.parametrize("keys", [b"", b"a", b"a b c d"])
    @pytest.mark.parametrize("unique", [b"", b"u"])
    def test_of_the_last_record_put_what_it_lacks(self, keys, unique):
        """However many keys of it the file that survived took in."""
        names = ([unique] if unique else []) + keys.split()
        for taken in range(len(names) + 1):
            disk = new_disk()
            index = index_on(disk)
            filler = PER_FILE - taken
            index.put_turn([record(n, b"x%d" % n) for n in range(filler)])
            index.put_turn([record(50, keys, unique)])
            # The second file was not full when the power went.
            again = loaded(disk, clean=False, safe=2**62)
            assert len(again.files) == 1
            again.put_turn(
                [*(record(n, b"x%d" % n) for n in range(filler)), record(50, keys, unique), record(51, b"z")]
            )
            assert entry_count(again) == filler + len(names) + 1
            for name in names:
                assert found(again, name.decode()) == [50]

    def test_the_first_record_of_the_log_is_no_replay(self):
        index = index_on(new_disk())
        index.put_turn([record(0, b"k")])
        assert found(index, "k") == [0]
        index.put_turn([record(0, b"k")])
        assert found(index, "k") == [0]


class TestLoading:
    def test_of_nothing(self):
        index = loaded(new_disk())
        assert (index.files, index.end_physical, index.total_size) == ([], -1, 0)
        assert index.query("T", "k", 5, *ALWAYS).offsets == []

    def test_after_a_clean_exit_goes_on_in_the_last_file(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(7))
        index.close()
        assert disk.open_files == 0
        again = loaded(disk)
        assert disk.open_files == 0
        assert again.end_physical == 600
        again.put_turn(records(2, 7))
        assert len(again.files) == 2
        assert found(again, "mod1") == [7, 4, 1]

    @pytest.mark.parametrize(
        ("safe", "kept"), [(0, 0), (TIME + 3999, 0), (TIME + 4000, 1), (TIME + 9000, 2), (TIME + 99_000, 2)]
    )
    def test_after_an_unclean_exit_keeps_what_was_full_and_synced(self, safe, kept):
        disk = new_disk()
        index_on(disk).put_turn(records(12))
        again = loaded(disk, clean=False, safe=safe)
        assert len(again.files) == len(disk.list_dir(f"{ROOT}/index")) == kept
        assert again.end_physical == (kept * 500 - 100 if kept else -1)
        again.put_turn(records(12))
        assert entry_count(again) == 24

    def test_after_an_unclean_exit_only_the_first_file_of_a_millisecond_was_surely_synced(self):
        disk = new_disk()
        index = index_on(disk)
        # Three full files that end at the same time: the checkpoint knows of one of them at least.
        index.put_turn([("T", None, b"u%d" % n, n * 100, TIME) for n in range(3 * PER_FILE + 1)])
        index.close()
        assert [file.end_physical for file in loaded(disk, clean=False, safe=TIME).files] == [(PER_FILE - 1) * 100]

    def test_after_an_unclean_exit_no_file_stays_behind_one_that_goes(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(20))
        damaged, last = index.files[1], index.files[-1]
        index.close()
        file = disk.open(damaged.path)
        file.write(36, [bytes(4)])
        file.close()
        assert len(loaded(disk, clean=False, safe=last.end_time).files) == 1

    def test_after_the_death_of_the_process_everything_is_synced_that_it_had_not(self):
        """A later power loss must not take a file, or its name, that the next checkpoints take for granted."""
        disk = new_disk()
        index = index_on(disk, on_full=lambda file: None)
        index.put_turn(records(12))
        again = index_on(disk)
        again.load(clean=False, safe_timestamp=0, intact=True)
        again.flush()
        for seed in range(8):
            lost = disk.crash(seed, len(disk.operations))
            assert entry_count(loaded(lost)) == 24

    def test_expiry_leaves_the_first_file_of_a_millisecond(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn([("T", None, b"u%d" % n, n * 100, TIME) for n in range(3 * PER_FILE + 1)])
        assert index.delete_expired(PER_FILE * 100) == 0
        assert index.delete_expired(2 * PER_FILE * 100) == 1
        index.close()
        assert len(loaded(disk, clean=False, safe=TIME).files) == 1

    def test_passes_over_what_is_no_index_file(self, caplog):
        disk = new_disk()
        index_on(disk).put_turn(records(2))
        disk.open(f"{ROOT}/index/notes.txt", size=5, create=True)
        disk.make_dirs(f"{ROOT}/index/2026")
        assert len(loaded(disk).files) == 1
        assert "notes.txt is no index file" in caplog.text

    @pytest.mark.parametrize("clean", [True, False])
    def test_removes_an_empty_file(self, clean):
        disk = new_disk()
        disk.open(f"{ROOT}/index/20261116164454054", size=0, create=True)
        assert loaded(disk, clean=clean).files == []
        assert disk.list_dir(f"{ROOT}/index") == []

    def test_refuses_another_geometry(self):
        disk = new_disk()
        index_on(disk).put_turn(records(2))
        with pytest.raises(IndexFileWrong, match="20261116164454054"):
            loaded(disk, maxIndexNum="12")
        assert disk.open_files == 1

    def test_after_a_power_loss_everything_is_found_once_the_log_is_replayed(self):
        disk = new_disk()
        safe = [(0, 0)]

        def on_full(file):
            file.sync()
            file.release()
            safe.append((len(disk.operations), file.end_time))

        index = index_on(disk, on_full=on_full)
        for start in range(0, 40, 3):
            index.put_turn(records(3, start))
        moments = range(1, len(disk.operations) + 1)
        for moment in moments:
            time = max(stamp for at, stamp in safe if at <= moment)
            again = loaded(disk.crash(moment, at=moment), clean=False, safe=time)
            again.put_turn(records(42))
            assert entry_count(again) == 84
            for number in (0, 5, 23, 41):
                assert found(again, f"unique{number}") == [number]


class TestQueries:
    @pytest.fixture
    def index(self):
        index = index_on(new_disk())
        index.put_turn(records(23))
        assert len(index.files) == 5
        return index

    def test_newest_first_over_all_files(self, index):
        assert found(index, "mod2") == [20, 17, 14, 11, 8, 5, 2]
        assert found(index, "unique13") == [13]
        assert found(index, "nobody") == []

    @pytest.mark.parametrize("count", [0, 1, 3, 7, 100])
    def test_no_more_than_asked_for(self, index, count):
        assert found(index, "mod2", count=count) == [20, 17, 14, 11, 8, 5, 2][:count]

    def test_no_more_than_the_option_allows(self):
        index = index_on(new_disk(), maxMsgsNumBatch="4")
        index.put_turn(records(23))
        assert found(index, "mod2", count=1000) == [20, 17, 14, 11]

    @pytest.mark.parametrize("begin", range(-2, 25, 3))
    @pytest.mark.parametrize("length", [0, 1, 5, 30])
    def test_in_a_time(self, index, begin, length):
        wanted = [n for n in range(22, -1, -1) if n % 3 == 1 and begin <= n <= begin + length]
        assert found(index, "mod1", TIME + begin * 1000, TIME + (begin + length) * 1000) == wanted

    def test_tell_how_far_the_index_is(self, index):
        answer = index.query("T", "nobody", 5, *ALWAYS)
        assert (answer.last_update_timestamp, answer.last_update_offset) == (TIME + 22_000, 2200)

    def test_leave_only_the_last_file_open(self, index):
        found(index, "mod2")
        assert index._disk.open_files == 1

    def test_against_a_plain_search(self):
        dice = random.Random(11)
        index = index_on(new_disk(), maxHashSlotNum="7", maxIndexNum="100", maxMsgsNumBatch="5000")
        rows, time = [], TIME
        for number in range(600):
            time += dice.randrange(900)
            rows.append(("T", b"k%d" % dice.randrange(12), None, number * 100, time))
            if number % 50 == 49:
                index.put_turn(rows[-50:])
        for _ in range(300):
            key = f"k{dice.randrange(12)}"
            begin = TIME + dice.randrange(-5000, 280_000)
            end = begin + dice.randrange(100_000)
            got = set(index.query("T", key, 5000, begin, end).offsets)
            near = {row[3] for row in rows if row[1] == key.encode() and begin - 1000 <= row[4] <= end + 1000}
            sure = {row[3] for row in rows if row[1] == key.encode() and begin + 1000 <= row[4] <= end}
            # Times are whole seconds since the begin of a file; the first entry of a file has those of the one before.
            firsts = {file.begin_physical for file in index.files}
            assert sure - firsts <= got <= near


class TestLeaving:
    def test_expiry_removes_files_from_the_beginning(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(23))
        ends = [file.end_physical for file in index.files]
        assert ends == [400, 900, 1400, 1900, 2200]
        assert index.delete_expired(400) == 0
        assert index.delete_expired(901) == 2
        assert index.delete_expired(10**9) == 2
        assert index.delete_expired(10**9) == 0
        assert disk.list_dir(f"{ROOT}/index") == [index.files[0].name]
        assert found(index, "mod2") == [20]

    def test_truncation_takes_what_the_log_has_lost(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(23))
        index.truncate(2300)
        assert len(index.files) == 5
        index.truncate(700)
        assert [file.end_physical for file in index.files] == [400, 600]
        assert disk.list_dir(f"{ROOT}/index") == [file.name for file in index.files]
        assert found(index, "mod1") == [4, 1]
        index.put_turn([record(7, b"other")])
        assert found(index, "other") == [7]
        index.truncate(0)
        assert (index.files, disk.open_files) == ([], 0)

    def test_destroy(self):
        disk = new_disk()
        index = index_on(disk)
        index.put_turn(records(23))
        index.destroy()
        assert disk.list_dir(f"{ROOT}/index") == []
        assert disk.open_files == 0
        index.put_turn(records(1))
        assert found(index, "unique0") == [0]

    def test_the_same_on_a_real_disk(self, tmp_path):
        options = StoreOptions.from_properties(OPTIONS)
        index = Index(RealDisk(), str(tmp_path), options, SystemClock())
        for start in range(0, 30, 4):
            index.put_turn(records(4, start))
        index.flush()
        index.close()
        again = Index(RealDisk(), str(tmp_path), options, SystemClock())
        again.load(clean=True, safe_timestamp=0)
        assert [file.count - 1 for file in again.files] == [10] * 6 + [4]
        assert found(again, "mod0") == [n for n in range(31, -1, -1) if n % 3 == 0]
        assert again.total_size == 7 * (40 + 80 + 220)
        again.close()
