"""Logs as files of one size: names, loading, making ahead, and files that readers still hold."""

import errno
import os
import random
import threading

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import FileLengthWrong, FileNameWrong
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.log_files import LogFiles, file_name

SIZE = 8192


@pytest.fixture(params=["real", "fake"])
def place(request, tmp_path):
    if request.param == "real":
        return RealDisk(), f"{tmp_path}/log"
    return FakeDisk(), "/root/log"


def loaded(disk, folder, size=SIZE, *, durable=False):
    files = LogFiles(disk, folder, size, durable=durable)
    files.load()
    return files


def filled(disk, folder, count, *, first=0, durable=False):
    """A log of some files; each begins with its number."""
    files = loaded(disk, folder, durable=durable)
    for index in range(first, first + count):
        files.create(index * SIZE).write(0, [b"%d" % index])
    return files


class TestNames:
    @pytest.mark.parametrize(
        ("start", "name"),
        [
            (0, "00000000000000000000"),
            (6_000_000, "00000000000006000000"),
            (1024**3, "00000000001073741824"),
            (2**63 - 1, "09223372036854775807"),
        ],
    )
    def test_are_the_offset_in_twenty_digits(self, start, name):
        assert file_name(start) == name


class TestLoading:
    def test_nothing_is_an_empty_log(self, place):
        files = loaded(*place)
        assert files.files == []
        assert files.first is None
        assert files.last is None
        assert files.find(0) is None
        assert files.gap() is None
        assert files.drop_first() is False

    def test_files_come_back_in_order_and_closed(self, place):
        filled(*place, 12).close()
        files = loaded(*place)
        assert [file.start for file in files.files] == [index * SIZE for index in range(12)]
        assert not any(file.is_open for file in files.files)
        assert [file.read(0, 2).rstrip(b"\0") for file in files.files] == [b"%d" % index for index in range(12)]
        files.close()

    def test_a_log_need_not_begin_at_zero(self, place):
        filled(*place, 3, first=7).close()
        files = loaded(*place)
        assert files.first.start == 7 * SIZE
        assert files.last.end == 10 * SIZE

    def test_directories_are_passed_over(self, place):
        disk, folder = place
        filled(disk, folder, 1).close()
        disk.make_dirs(f"{folder}/compacting")
        assert len(loaded(disk, folder).files) == 1

    def test_an_empty_last_file_is_removed(self, place):
        disk, folder = place
        filled(disk, folder, 2).close()
        disk.open(f"{folder}/{file_name(2 * SIZE)}", create=True).close()
        assert len(loaded(disk, folder, durable=True).files) == 2
        assert disk.list_dir(folder) == [file_name(0), file_name(SIZE)]

    def test_an_empty_file_in_the_middle_of_a_durable_log_is_refused(self, place):
        disk, folder = place
        filled(disk, folder, 3).close()
        disk.unlink(f"{folder}/{file_name(SIZE)}")
        disk.open(f"{folder}/{file_name(SIZE)}", create=True).close()
        with pytest.raises(FileLengthWrong):
            loaded(disk, folder, durable=True)
        # What can be made anew is made anew.
        files = loaded(disk, folder)
        assert files.gap() == (SIZE, 2 * SIZE)
        assert not disk.exists(f"{folder}/{file_name(SIZE)}")

    @pytest.mark.parametrize("length", [1, SIZE - 1, SIZE + 1, 2 * SIZE])
    def test_another_length_is_refused_with_both_lengths(self, place, length):
        disk, folder = place
        filled(disk, folder, 1).close()
        disk.open(f"{folder}/{file_name(SIZE)}", size=length, create=True).close()
        with pytest.raises(FileLengthWrong, match=f"{length} bytes, {SIZE} were expected") as caught:
            loaded(disk, folder)
        assert caught.value.path == f"{folder}/{file_name(SIZE)}"
        assert "mappedFileSize" in caught.value.remedy

    @pytest.mark.parametrize("name", ["readme.txt", "-0000000000000008192", "0x2000", "8192.bak", "1" * 21, "\u0661"])
    def test_a_stranger_is_refused(self, place, name):
        disk, folder = place
        disk.open(f"{folder}/{name}", size=SIZE, create=True).close()
        with pytest.raises(FileNameWrong) as caught:
            loaded(disk, folder)
        assert caught.value.path == f"{folder}/{name}"

    def test_an_offset_between_two_files_is_refused(self, place):
        disk, folder = place
        disk.open(f"{folder}/{file_name(SIZE + 1)}", size=SIZE, create=True).close()
        with pytest.raises(FileNameWrong, match="multiple"):
            loaded(disk, folder)

    def test_two_names_of_one_offset_are_refused(self, place):
        disk, folder = place
        for name in (file_name(0), "0"):
            disk.open(f"{folder}/{name}", size=SIZE, create=True).close()
        with pytest.raises(FileNameWrong, match="two files"):
            loaded(disk, folder)

    def test_a_gap_is_found(self, place):
        disk, folder = place
        filled(disk, folder, 5).close()
        disk.unlink(f"{folder}/{file_name(2 * SIZE)}")
        files = loaded(disk, folder)
        assert files.gap() == (2 * SIZE, 3 * SIZE)
        assert files.find(2 * SIZE) is None
        assert files.find(3 * SIZE).start == 3 * SIZE


class TestFinding:
    def test_every_byte_belongs_to_one_file(self, place):
        files = filled(*place, 3, first=2)
        for offset in (2 * SIZE, 2 * SIZE + 1, 3 * SIZE - 1):
            assert files.find(offset) is files.files[0]
        assert files.find(3 * SIZE) is files.files[1]
        assert files.find(5 * SIZE - 1) is files.files[2]
        for offset in (-1, 0, 2 * SIZE - 1, 5 * SIZE, 2**62):
            assert files.find(offset) is None
        files.close()


class TestMaking:
    def test_a_new_file_is_the_last_one(self, place):
        disk, folder = place
        files = loaded(disk, folder)
        file = files.create(0)
        assert (file.start, file.end, file.size) == (0, SIZE, SIZE)
        assert files.last is file
        assert disk.size(file.path) == SIZE
        assert files.create(SIZE) is files.last
        files.close()

    @pytest.mark.parametrize("start", [-SIZE, 1, SIZE - 1, SIZE // 2])
    def test_a_start_between_two_files_is_a_mistake(self, place, start):
        with pytest.raises(ValueError, match="no file begins"):
            loaded(*place).create(start)

    def test_going_back_is_a_mistake(self, place):
        files = filled(*place, 2)
        for start in (0, SIZE):
            with pytest.raises(ValueError, match="would not come after"):
                files.create(start)
        files.close()

    def test_a_file_size_of_nothing_is_a_mistake(self, place):
        disk, folder = place
        with pytest.raises(ValueError, match="0 bytes"):
            LogFiles(disk, folder, 0)

    def test_a_prepared_file_is_taken(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        files.prepare(SIZE, reserve=4096)
        prepared = files.prepared
        assert disk.size(prepared.path) == SIZE
        assert files.last.start == 0
        assert files.take_prepared(2 * SIZE) is None
        assert files.create(SIZE) is prepared
        assert files.prepared is None
        assert prepared.is_open
        files.close()

    def test_preparing_twice_leaves_one(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        files.prepare(SIZE)
        first = files.prepared
        files.prepare(SIZE)
        assert files.prepared is not first
        assert not first.is_open
        assert disk.list_dir(folder) == [file_name(0), file_name(SIZE)]
        files.create(SIZE).write(0, [b"x"])
        files.close()

    def test_preparing_another_start_removes_the_one_before(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        files.prepare(SIZE)
        files.prepare(2 * SIZE)
        assert disk.list_dir(folder) == [file_name(0), file_name(2 * SIZE)]
        files.drop_prepared()
        assert disk.list_dir(folder) == [file_name(0)]
        files.drop_prepared()
        files.close()

    def test_a_preparation_that_comes_late_does_no_harm(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        files.create(SIZE).write(0, [b"message"])
        files.prepare(SIZE)
        assert files.prepared is None
        files.drop_prepared()
        assert files.last.read(0, 7) == b"message"
        assert disk.list_dir(folder) == [file_name(0), file_name(SIZE)]
        files.close()

    def test_preparing_and_creating_at_the_same_time(self, place):
        disk, folder = place
        for index in range(30):
            files = loaded(disk, f"{folder}{index}")
            files.create(0)
            thread = threading.Thread(target=files.prepare, args=(SIZE,))
            thread.start()
            file = files.create(SIZE)
            file.write(0, [b"mine"])
            thread.join()
            files.drop_prepared()
            assert [one.start for one in files.files] == [0, SIZE]
            assert disk.exists(file.path)
            assert file.read(0, 4) == b"mine"
            files.close()

    def test_what_is_left_of_a_crash_is_used_again(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        disk.open(f"{folder}/{file_name(SIZE)}", create=True).close()
        assert files.create(SIZE).size == SIZE
        files.close()

    def test_a_file_of_another_length_in_the_way_is_refused(self, place):
        disk, folder = place
        files = filled(disk, folder, 1)
        disk.open(f"{folder}/{file_name(SIZE)}", size=10, create=True).close()
        with pytest.raises(FileLengthWrong):
            files.create(SIZE)
        assert len(files.files) == 1
        files.close()

    def test_a_durable_file_survives_power_loss_as_soon_as_it_is_made(self):
        disk = FakeDisk()
        files = loaded(disk, "/a/b/log", durable=True)
        files.create(0)
        files.prepare(SIZE)
        for seed in range(100):
            left = disk.crash(seed)
            assert [left.size(f"/a/b/log/{name}") for name in left.list_dir("/a/b/log")] == [SIZE, SIZE]

    @pytest.mark.parametrize("operation", ["open", "sync", "sync_dir"])
    def test_a_disk_without_room_leaves_no_half_file_in_the_log(self, operation):
        disk = FakeDisk()
        files = filled(disk, "/log", 1, durable=True)
        opened = disk.open_files
        disk.fail_next(operation, errno.ENOSPC, path="/log")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            files.create(SIZE)
        assert len(files.files) == 1
        assert disk.open_files == opened
        # Some space later it works.
        assert files.create(SIZE).size == SIZE


class TestRemoving:
    def test_everything_after_an_offset(self, place):
        disk, folder = place
        for offset, left in [(-1, 0), (0, 1), (1, 1), (SIZE - 1, 1), (SIZE, 2), (SIZE + 1, 2), (9 * SIZE, 4)]:
            files = filled(disk, f"{folder}{offset}", 4)
            files.prepare(4 * SIZE)
            dropped = files.drop_after(offset)
            assert [file.start // SIZE for file in files.files] == list(range(left))
            assert dropped == [f"{folder}{offset}/{file_name(index * SIZE)}" for index in range(3, left - 1, -1)]
            assert disk.list_dir(f"{folder}{offset}") == [file_name(index * SIZE) for index in range(left)]
            assert files.prepared is None
            files.close()

    def test_the_first_ones(self, place):
        disk, folder = place
        files = filled(disk, folder, 3)
        assert files.drop_first()
        assert files.drop_first()
        assert files.first.start == 2 * SIZE == files.last.start
        assert disk.list_dir(folder) == [file_name(2 * SIZE)]
        files.close()

    def test_a_held_file_hangs_on_and_is_not_the_first_any_more(self, place):
        disk, folder = place
        files = filled(disk, folder, 3)
        held = files.files[0]
        assert held.hold()
        assert files.drop_first() is False
        assert files.first.start == SIZE
        assert files.files[0] is held
        assert held.read(0, 1) == b"0"
        assert files.drop_first() is False
        held.release()
        assert files.files[0].start == SIZE
        assert disk.list_dir(folder) == [file_name(SIZE), file_name(2 * SIZE)]
        files.close()

    def test_force_takes_a_held_file(self, place):
        disk, folder = place
        files = filled(disk, folder, 2)
        held = files.files[0]
        held.hold()
        piece = held.view()[0:1]
        assert files.drop_first() is False
        assert files.drop_first(force=True) is True
        assert files.first.start == SIZE
        assert not disk.exists(held.path)
        assert bytes(piece) == b"0" == held.read(0, 1)
        held.release()
        assert not held.is_open
        files.close()

    def test_the_whole_log(self, place):
        disk, folder = place
        files = filled(disk, folder, 3)
        files.files[1].hold()
        files.prepare(3 * SIZE)
        files.destroy()
        assert files.files == []
        assert not disk.exists(folder)
        # It can begin anew.
        files.create(0).write(0, [b"x"])
        assert disk.list_dir(folder) == [file_name(0)]
        files.close()

    def test_a_power_loss_leaves_no_hole_behind_removed_files(self):
        disk = FakeDisk()
        files = filled(disk, "/log", 6, durable=True)
        start = len(disk.operations)
        for _ in range(3):
            files.drop_first()
        files.drop_after(4 * SIZE)
        for at in range(start, len(disk.operations) + 1):
            for seed in range(10):
                assert loaded(disk.crash(seed, at), "/log", durable=True).gap() is None
        assert [file.start // SIZE for file in loaded(disk.crash(1), "/log").files] == [3, 4]

    def test_a_file_that_cannot_be_removed_stays_one_of_the_log(self):
        disk = FakeDisk()
        files = filled(disk, "/log", 2)
        disk.fail_next("unlink")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            files.drop_first()
        assert [file.start for file in files.files] == [0, SIZE]
        assert files.first.start == SIZE
        assert files.drop_first()
        assert [file.start for file in files.files] == [SIZE]


class TestOpening:
    def test_files_open_when_they_are_used_and_close_when_they_are_told(self, place):
        files = filled(*place, 2)
        files.close()
        first, second = files.files
        assert not first.is_open
        assert first.read(0, 1) == b"0"
        assert first.is_open
        assert not second.is_open
        first.close()
        first.close()
        first.write(1, [b"again"])
        assert bytes(first.view()[:6]) == b"0again"
        first.writable_view()[6:7] = b"!"
        first.sync()
        assert first.read(0, 7) == b"0again!"
        assert first.reserve(SIZE, 10) is False
        assert first.modified() > 1_600_000_000
        files.close()

    def test_a_held_file_stays_open_until_it_is_let_go(self, place):
        files = filled(*place, 1)
        file = files.files[0]
        file.hold()
        file.hold()
        file.close()
        assert file.is_open
        file.release()
        assert file.is_open
        file.release()
        assert not file.is_open
        # The wish is over with that.
        file.hold()
        file.read(0, 1)
        file.release()
        assert file.is_open
        files.close()

    def test_letting_go_what_is_not_held_is_a_mistake(self, place):
        files = filled(*place, 1)
        with pytest.raises(RuntimeError, match="not held"):
            files.files[0].release()
        files.close()

    def test_a_file_that_shrank_behind_our_back(self, place):
        disk, folder = place
        filled(disk, folder, 1).close()
        files = loaded(disk, folder)
        disk.unlink(files.files[0].path)
        with pytest.raises(FileNotFoundError):
            files.files[0].read(0, 1)
        disk.open(files.files[0].path, size=10, create=True).close()
        with pytest.raises(FileLengthWrong):
            files.files[0].read(0, 1)

    def test_threads_that_open_at_the_same_time_share_one_file(self):
        disk = FakeDisk()
        filled(disk, "/log", 1).close()
        assert disk.open_files == 0
        for _ in range(30):
            file = loaded(disk, "/log").files[0]
            barrier = threading.Barrier(4)

            def read(file=file, barrier=barrier):
                barrier.wait()
                file.read(0, 1)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert disk.open_files == 1
            file.close()


class _Model:
    """What a file of a log must be, in the plainest words."""

    def __init__(self, file):
        self.file = file
        self.holds = 0
        self.retired = False
        self.gone = False


@pytest.mark.parametrize("seed", range(400))
def test_holding_and_retiring_in_any_order(seed):
    """A file goes when it is retired and nobody holds it, not earlier, not later, and never twice."""
    dice = random.Random(seed)
    disk = FakeDisk()
    files = filled(disk, "/log", 4, durable=dice.random() < 0.5)
    models = [_Model(file) for file in files.files]
    for _ in range(60):
        model = dice.choice(models)
        file = model.file
        match dice.randrange(6):
            case 0 | 1:
                assert file.hold() is not model.retired
                model.holds += not model.retired
            case 2 if model.holds:
                file.release()
                model.holds -= 1
                model.gone = model.gone or (model.retired and not model.holds)
            case 2:
                with pytest.raises(RuntimeError):
                    file.release()
            case 3 if not model.gone and dice.random() < 0.3:
                model.retired = True
                model.gone = not model.holds
                assert file.retire() is model.gone
            case 3 if not model.gone and dice.random() < 0.1:
                model.retired = model.gone = True
                assert file.retire(force=True) is True
            case 4 if not model.gone:
                file.close()
                assert file.is_open <= (model.holds > 0)
            case 5 if not model.gone or (model.holds and file.is_open):
                assert file.read(0, 1) == b"%d" % (file.start // SIZE)
        for one in models:
            assert one.file.holds == one.holds
            assert one.file.retired is one.retired
            assert disk.exists(one.file.path) is not one.gone
            assert (one.file in files.files) is not one.gone
            assert (files.find(one.file.start) is one.file) is not one.gone
        expected = next((one.file for one in models if not one.retired), None)
        assert files.first is expected
    for model in models:
        for _ in range(model.holds):
            model.file.release()
        if not model.gone:
            model.file.close()
    assert disk.open_files == 0
