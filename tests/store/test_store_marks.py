"""The lock and the abort file of a store."""

import os

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import StoreLocked
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.marks import Marks
from support import golden_store


@pytest.fixture(params=["real", "fake"])
def place(request, tmp_path):
    if request.param == "real":
        return RealDisk(), f"{tmp_path}/store"
    return FakeDisk(), "/data/store"


class TestAbort:
    def test_a_new_directory_is_clean(self, place):
        marks = Marks(*place)
        assert not marks.unclean
        assert marks.unclean_pid() is None

    def test_the_first_start_writes_the_process_and_an_empty_backup(self, place):
        disk, root = place
        marks = Marks(disk, root)
        marks.set_abort()
        assert marks.unclean
        assert disk.read_file(f"{root}/abort") == str(os.getpid()).encode()
        assert disk.read_file(f"{root}/abort.bak") == b""

    def test_after_an_unclean_end_the_backup_names_the_process_that_died(self, place):
        disk, root = place
        Marks(disk, root).set_abort(4321)
        marks = Marks(disk, root)
        assert marks.unclean
        assert marks.unclean_pid() == 4321
        marks.set_abort(77)
        assert disk.read_file(f"{root}/abort") == b"77"
        assert disk.read_file(f"{root}/abort.bak") == b"4321"

    def test_a_clean_end_leaves_only_the_backup_and_that_marks_nothing(self, place):
        disk, root = place
        marks = Marks(disk, root)
        marks.set_abort()
        marks.clear_abort()
        assert not marks.unclean
        assert disk.list_dir(root) == ["abort.bak"]
        assert not Marks(disk, root).unclean
        marks.clear_abort()

    @pytest.mark.parametrize("content", [b"", b"not a number", b"\xff" * 100, b"-5", b"0x10"])
    def test_whatever_is_in_it_the_end_was_unclean(self, place, content):
        disk, root = place
        disk.write_file(f"{root}/abort", content, backup=False)
        marks = Marks(disk, root)
        assert marks.unclean
        assert marks.unclean_pid() is None
        marks.set_abort(5)
        assert marks.unclean_pid() == 5

    @pytest.mark.parametrize(
        ("name", "unclean"),
        [("clean", False), ("clean49", False), ("killed", True), ("killed49", True), ("special", False)],
    )
    def test_golden(self, tmp_path, name, unclean):
        marks = Marks(RealDisk(), str(golden_store.unpack(name, tmp_path)))
        assert marks.unclean is unclean
        assert (marks.unclean_pid() is not None) is (name == "killed")

    def test_a_power_loss_after_the_start_is_an_unclean_end(self):
        disk = FakeDisk()
        marks = Marks(disk, "/data/store")
        marks.take_lock()
        marks.set_abort()
        for seed in range(50):
            assert Marks(disk.crash(seed), "/data/store").unclean
        marks.clear_abort()
        for seed in range(50):
            assert not Marks(disk.crash(seed), "/data/store").unclean


class TestLock:
    def test_one_at_a_time(self, place):
        disk, root = place
        first, second = Marks(disk, root), Marks(disk, root)
        first.take_lock()
        first.take_lock()
        assert first.is_locked
        with pytest.raises(StoreLocked) as caught:
            second.take_lock()
        assert caught.value.pid == os.getpid()
        assert not second.is_locked
        second.release_lock()
        with pytest.raises(StoreLocked):
            second.take_lock()
        first.release_lock()
        assert not first.is_locked
        second.take_lock()
        second.release_lock()
        assert disk.read_file(f"{root}/lock") == b"lock"

    def test_two_directories(self, place):
        disk, root = place
        one, two = Marks(disk, f"{root}/1"), Marks(disk, f"{root}/2")
        one.take_lock()
        two.take_lock()
        one.release_lock()
        two.release_lock()

    def test_another_way_to_the_same_directory(self, tmp_path):
        (tmp_path / "store").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "store")
        marks = Marks(RealDisk(), str(tmp_path / "store"))
        marks.take_lock()
        with pytest.raises(StoreLocked):
            Marks(RealDisk(), str(tmp_path / "link")).take_lock()
        marks.release_lock()
