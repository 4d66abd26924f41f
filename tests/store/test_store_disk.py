"""The disk seam: the real disk and the fake one pass the same suite; then what only the real one can show."""

import contextlib
import errno
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading

import pytest

from cometmq.broker.store import disk as disk_module
from cometmq.broker.store.disk import IOV_MAX, DiskUsage, RealDisk
from cometmq.broker.store.errors import StoreLocked
from cometmq.broker.store.fake_disk import FakeDisk

MIB = 1024**2


@contextlib.contextmanager
def os_error(*codes):
    with pytest.raises(OSError, match=r"^\[Errno") as caught:
        yield
    assert caught.value.errno in codes


@pytest.fixture(params=["real", "fake"])
def place(request, tmp_path):
    """A disk and a directory on it."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = FakeDisk()
    disk.make_dirs("/root")
    return disk, "/root"


class TestBothDisks:
    def test_a_new_file_has_its_full_length_in_zeros(self, place):
        disk, root = place
        file = disk.open(f"{root}/a/b/c", size=10_000, create=True)
        assert file.size == 10_000
        assert file.path == f"{root}/a/b/c"
        assert file.read(0, 20_000) == bytes(10_000)
        assert bytes(file.view()) == bytes(10_000)
        assert disk.size(f"{root}/a/b/c") == 10_000
        assert disk.is_dir(f"{root}/a/b")
        file.close()

    def test_an_existing_file_keeps_length_and_content_when_it_is_created_again(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=100, create=True)
        file.write(0, [b"first"])
        file.close()
        again = disk.open(f"{root}/f", size=200, create=True)
        assert again.size == 100
        assert again.read(0, 5) == b"first"
        again.close()

    def test_an_empty_file_gets_its_length_when_it_is_created_again(self, place):
        disk, root = place
        disk.open(f"{root}/f", create=True).close()
        assert disk.size(f"{root}/f") == 0
        file = disk.open(f"{root}/f", size=50, create=True)
        assert file.size == 50 == disk.size(f"{root}/f")
        assert bytes(file.view()) == bytes(50)
        file.close()

    def test_a_missing_file_is_not_made_without_being_asked(self, place):
        disk, root = place
        with pytest.raises(FileNotFoundError):
            disk.open(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            disk.read_file(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            disk.size(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            disk.modified(f"{root}/f")
        assert disk.list_dir(root) == []

    def test_writes_gather_and_show_in_reads_and_in_views_that_were_there_before(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=8192, create=True)
        view = file.view()
        file.write(4090, [b"ab", bytearray(b"cd"), memoryview(b"..efgh")[2:]])
        assert file.read(4090, 8) == b"abcdefgh"
        assert bytes(view[4090:4098]) == b"abcdefgh"
        assert file.read(8190, 10) == b"\0\0"
        assert file.read(9000, 10) == b""
        file.close()

    def test_more_buffers_than_one_system_call_takes(self, place):
        disk, root = place
        count = 3 * IOV_MAX + 7
        file = disk.open(f"{root}/f", size=4 * count, create=True)
        file.write(0, [index.to_bytes(4, "big") for index in range(count)])
        assert file.read(0, 4 * count) == b"".join(index.to_bytes(4, "big") for index in range(count))
        file.close()

    def test_empty_buffers_are_no_obstacle(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=10, create=True)
        file.write(0, [])
        file.write(0, [b""])
        file.write(10, [b"", b""])
        file.write(0, [b"", b"ab", b"", b"cd", b""])
        assert file.read(0, 10) == b"abcd" + bytes(6)
        file.close()

    @pytest.mark.parametrize(("offset", "length"), [(95, 6), (100, 1), (-1, 1), (0, 101)])
    def test_a_write_never_grows_the_file(self, place, offset, length):
        disk, root = place
        file = disk.open(f"{root}/f", size=100, create=True)
        for buffers in ([b"x" * length], [b"x" * (length - 1), b"x"]):
            with pytest.raises(OSError, match="do not fit") as caught:
                file.write(offset, buffers)
            assert caught.value.errno == errno.EFBIG
        assert file.read(0, 200) == bytes(100)
        assert disk.size(f"{root}/f") == 100
        file.close()

    def test_a_view_refuses_stores_and_a_writable_one_takes_them(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=5000, create=True)
        view, writable = file.view(), file.writable_view()
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1
        writable[4095:4097] = b"xy"
        assert bytes(view[4095:4097]) == b"xy" == file.read(4095, 2)
        file.sync()
        assert len(view) == len(writable) == 5000
        file.close()
        assert disk.read_file(f"{root}/f")[4095:4097] == b"xy"

    def test_slices_outlive_the_close(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=4096, create=True)
        file.write(0, [b"message"])
        piece = file.view()[0:7]
        file.close()
        file.close()
        gc.collect()
        assert bytes(piece) == b"message"
        disk.unlink(f"{root}/f")
        assert bytes(piece) == b"message"
        with os_error(errno.EBADF):
            file.read(0, 1)

    def test_two_handles_of_a_file_see_the_same(self, place):
        disk, root = place
        one = disk.open(f"{root}/f", size=4096, create=True)
        two = disk.open(f"{root}/f")
        view = two.view()
        one.write(10, [b"hello"])
        assert two.read(10, 5) == b"hello" == bytes(view[10:15])
        one.close()
        two.write(10, [b"HELLO"])
        assert bytes(view[10:15]) == b"HELLO"
        two.close()

    def test_reserving_changes_neither_length_nor_content(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=MIB, create=True)
        file.write(0, [b"kept"])
        file.reserve(0, 64 * 1024)
        file.reserve(MIB - 4096, 10 * MIB)
        assert file.reserve(MIB, 4096) is False
        assert disk.size(f"{root}/f") == MIB
        assert file.read(0, 5) == b"kept\0"
        file.close()

    def test_directories(self, place):
        disk, root = place
        assert disk.list_dir(f"{root}/none") == []
        disk.make_dirs(f"{root}/x/y", sync=True)
        disk.make_dirs(f"{root}/x/y")
        disk.make_dirs(f"{root}/x/a")
        disk.open(f"{root}/x/m", size=1, create=True).close()
        assert disk.list_dir(f"{root}/x") == ["a", "m", "y"]
        assert disk.is_dir(f"{root}/x")
        assert not disk.is_dir(f"{root}/x/m")
        assert not disk.is_dir(f"{root}/x/none")
        assert disk.exists(f"{root}/x/m")
        assert not disk.exists(f"{root}/x/m/under")
        disk.sync_dir(f"{root}/x")
        with pytest.raises(FileNotFoundError):
            disk.sync_dir(f"{root}/none")

    def test_removing_is_done_once_and_may_be_asked_twice(self, place):
        disk, root = place
        disk.open(f"{root}/t/q/1", size=10, create=True).close()
        disk.open(f"{root}/t/2", size=10, create=True).close()
        disk.unlink(f"{root}/t/2")
        disk.unlink(f"{root}/t/2")
        assert disk.list_dir(f"{root}/t") == ["q"]
        disk.remove_tree(f"{root}/t")
        disk.remove_tree(f"{root}/t")
        assert not disk.exists(f"{root}/t")
        with os_error(errno.EISDIR, errno.EPERM):
            disk.unlink(root)

    def test_renames_replace(self, place):
        disk, root = place
        disk.write_file(f"{root}/a", b"new", backup=False)
        disk.write_file(f"{root}/b", b"old", backup=False)
        disk.rename(f"{root}/a", f"{root}/b")
        assert disk.read_file(f"{root}/b") == b"new"
        assert disk.list_dir(root) == ["b"]
        disk.make_dirs(f"{root}/d")
        disk.rename(f"{root}/b", f"{root}/d/c")
        assert disk.read_file(f"{root}/d/c") == b"new"
        disk.rename(f"{root}/d", f"{root}/e")
        assert disk.read_file(f"{root}/e/c") == b"new"
        with pytest.raises(FileNotFoundError):
            disk.rename(f"{root}/a", f"{root}/b")

    def test_whole_files_are_replaced_with_and_without_backup(self, place):
        disk, root = place
        path = f"{root}/config/t.json"
        disk.write_file(path, b"one", backup=True)
        assert disk.list_dir(f"{root}/config") == ["t.json"]
        disk.write_file(path, b"two", backup=True)
        assert (disk.read_file(path), disk.read_file(f"{path}.bak")) == (b"two", b"one")
        disk.write_file(path, b"three!", backup=False)
        assert (disk.read_file(path), disk.read_file(f"{path}.bak")) == (b"three!", b"one")
        disk.write_file(path, b"", backup=True)
        assert (disk.read_file(path), disk.read_file(f"{path}.bak")) == (b"", b"three!")
        assert disk.list_dir(f"{root}/config") == ["t.json", "t.json.bak"]

    def test_a_lock_keeps_a_second_store_of_the_same_process_out(self, place):
        disk, root = place
        lock = disk.lock(f"{root}/lock")
        with pytest.raises(StoreLocked) as caught:
            disk.lock(f"{root}/lock")
        assert caught.value.pid == os.getpid()
        assert str(os.getpid()) in str(caught.value)
        assert caught.value.remedy
        lock.release()
        lock.release()
        assert disk.read_file(f"{root}/lock") == b"lock"
        second = disk.lock(f"{root}/lock")
        # An old lock that is released once more takes nothing from its successor.
        lock.release()
        with pytest.raises(StoreLocked):
            disk.lock(f"{root}/lock")
        second.release()

    def test_usage_of_a_directory_that_is_not_there_yet(self, place):
        disk, root = place
        usage = disk.usage(f"{root}/will/be/made")
        assert usage.total > 0
        assert 0 <= usage.ratio <= 1

    def test_writing_moves_the_time_of_a_file(self, place):
        disk, root = place
        file = disk.open(f"{root}/f", size=100, create=True)
        if isinstance(disk, FakeDisk):
            disk.set_modified(f"{root}/f", 1000.0)
            disk.clock.advance(10)
        else:
            os.utime(f"{root}/f", (1000.0, 1000.0))
        assert disk.modified(f"{root}/f") == 1000.0
        file.write(0, [b"x"])
        assert disk.modified(f"{root}/f") > 1_600_000_000
        file.close()


class TestUsageRatio:
    @pytest.mark.parametrize(
        ("used", "available", "ratio"),
        [
            (0, 100, 0.0),
            (1, 999, 0.01),
            (10, 990, 0.01),
            (11, 989, 0.02),
            (75, 25, 0.75),
            (751, 249, 0.76),
            (5, 0, 1.0),
        ],
    )
    def test_rounds_up_to_whole_percents(self, used, available, ratio):
        assert DiskUsage(used + available, used, available).ratio == ratio

    def test_a_reserve_for_root_counts_as_used_up(self):
        assert DiskUsage(total=100, used=45, available=45).ratio == 0.5

    def test_unknown(self):
        assert DiskUsage(0, 0, 0).ratio == -1.0


class TestRealFile:
    def test_is_sparse_until_blocks_are_reserved(self, tmp_path):
        disk, path = RealDisk(), str(tmp_path / "f")
        file = disk.open(path, size=64 * MIB, create=True)
        assert os.stat(path).st_blocks * 512 <= 64 * 1024
        if not file.reserve(0, 4 * MIB):
            pytest.skip("this file system reserves no blocks")
        reserved = os.stat(path)
        assert 4 * MIB <= reserved.st_blocks * 512 <= 5 * MIB
        assert reserved.st_size == 64 * MIB
        file.write(0, [b"x" * MIB])
        assert os.stat(path).st_blocks == reserved.st_blocks
        assert file.reserve(4 * MIB, 4 * MIB)
        assert 8 * MIB <= os.stat(path).st_blocks * 512 <= 9 * MIB
        # The last step ends with the file.
        assert file.reserve(63 * MIB, 4 * MIB)
        assert os.stat(path).st_size == 64 * MIB
        assert os.stat(path).st_blocks * 512 <= 10 * MIB
        file.close()

    def test_a_view_takes_no_blocks_either(self, tmp_path):
        disk, path = RealDisk(), str(tmp_path / "f")
        file = disk.open(path, size=64 * MIB, create=True)
        assert file.view()[32 * MIB] == 0
        file.writable_view()[0] = 1
        file.sync()
        assert os.stat(path).st_blocks * 512 <= 64 * 1024
        file.close()

    @pytest.mark.parametrize("most", [1, 3, 7, 4096])
    def test_short_writes_go_on_where_they_ended(self, tmp_path, monkeypatch, most):
        real_pwrite, real_pwritev = os.pwrite, os.pwritev
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_pwrite(fd, memoryview(data)[:most], offset))
        monkeypatch.setattr(
            os, "pwritev", lambda fd, buffers, offset: real_pwritev(fd, [b"".join(buffers)[:most]], offset)
        )
        file = RealDisk().open(str(tmp_path / "f"), size=100, create=True)
        file.write(1, [b"one", b"", b"two", b"three"])
        file.write(50, [b"a single buffer"])
        assert file.read(0, 65) == b"\0onetwothree".ljust(50, b"\0") + b"a single buffer"
        file.close()

    def test_a_disk_that_takes_nothing_is_an_error_and_not_an_endless_loop(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
        monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 0)
        file = RealDisk().open(str(tmp_path / "f"), size=100, create=True)
        with pytest.raises(OSError, match="nothing was written"):
            file.write(0, [b"x"])
        file.close()

    def test_systems_without_pwritev(self, tmp_path, monkeypatch):
        monkeypatch.delattr(os, "pwritev")
        file = RealDisk().open(str(tmp_path / "f"), size=100, create=True)
        file.write(5, [b"one", b"two"])
        assert file.read(5, 6) == b"onetwo"
        file.close()

    def test_short_reads_go_on_where_they_ended(self, tmp_path, monkeypatch):
        file = RealDisk().open(str(tmp_path / "f"), size=100, create=True)
        file.write(0, [bytes(range(100))])
        real_pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, length, offset: real_pread(fd, min(length, 7), offset))
        assert file.read(10, 50) == bytes(range(10, 60))
        assert file.read(90, 50) == bytes(range(90, 100))
        file.close()

    @pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EDQUOT, errno.ENOSYS])
    def test_a_file_system_that_cannot_reserve_is_no_failure(self, tmp_path, monkeypatch, code):
        import ctypes

        monkeypatch.setattr(disk_module, "_fallocate", lambda: lambda *arguments: -1)
        monkeypatch.setattr(ctypes, "get_errno", lambda: code)
        file = RealDisk().open(str(tmp_path / "f"), size=100, create=True)
        assert file.reserve(0, 50) is False
        monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EIO)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.reserve(0, 50)
        monkeypatch.setattr(disk_module, "_fallocate", lambda: None)
        assert file.reserve(0, 50) is False
        file.close()

    def test_no_descriptor_is_left(self, tmp_path):
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
        if before is None:
            pytest.skip("needs /proc")
        disk = RealDisk()
        for index in range(20):
            file = disk.open(str(tmp_path / str(index)), size=8192, create=True)
            file.view()
            file.writable_view()[0] = 1
            file.sync()
            file.close()
        disk.lock(str(tmp_path / "lock")).release()
        disk.sync_dir(str(tmp_path))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_reads_while_another_thread_writes(self, tmp_path):
        file = RealDisk().open(str(tmp_path / "f"), size=MIB, create=True)
        view, bad = file.view(), []

        def reader():
            for _ in range(2000):
                # Written in this order: whoever sees a mark sees what was written before it.
                mark = view[0]
                if mark and bytes(view[4096 : 4096 + 64]) == bytes(64):
                    bad.append(mark)

        thread = threading.Thread(target=reader)
        thread.start()
        for value in range(1, 200):
            file.write(4096, [bytes([value]) * 64])
            file.write(0, [bytes([value])])
        thread.join()
        assert bad == []
        file.close()


class TestReadOnlyDisk:
    def test_changes_nothing(self, tmp_path):
        path = str(tmp_path / "f")
        (tmp_path / "f").write_bytes(b"content")
        disk = RealDisk(read_only=True)
        file = disk.open(path, size=100, create=True)
        assert (file.size, file.read(0, 10), bytes(file.view())) == (7, b"content", b"content")
        with os_error(errno.EBADF):
            file.write(0, [b"x"])
        with os_error(errno.EROFS):
            file.writable_view()
        file.close()
        for refused in (
            lambda: disk.unlink(path),
            lambda: disk.rename(path, path + "2"),
            lambda: disk.write_file(path, b"", backup=False),
            lambda: disk.remove_tree(str(tmp_path)),
            lambda: disk.make_dirs(str(tmp_path / "d")),
            lambda: disk.lock(str(tmp_path / "lock")),
        ):
            with os_error(errno.EROFS):
                refused()
        with pytest.raises(FileNotFoundError):
            disk.open(str(tmp_path / "none"), size=10, create=True)
        assert os.listdir(tmp_path) == ["f"]
        assert disk.read_file(path) == b"content"


OWNER = """
import sys
from cometmq.broker.store.disk import RealDisk
lock = RealDisk().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""

#: What Java's `tryLock(0, 1, false)` asks of the kernel, in another process.
ASKER = """
import fcntl, struct, sys
with open(sys.argv[1], "r+b") as file:
    layout = "@hhqqi4x"
    whole = struct.pack(layout, fcntl.F_WRLCK, 0, int(sys.argv[2]), int(sys.argv[3]), 0)
    kind, _, start, length, pid = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, whole))
    print("free" if kind == fcntl.F_UNLCK else f"{start} {length} {pid}")
"""


@pytest.fixture
def owner(tmp_path):
    """Another process that holds the lock of a directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


class TestLockBetweenProcesses:
    def test_the_owner_is_named(self, tmp_path, owner):
        with pytest.raises(StoreLocked) as caught:
            RealDisk().lock(str(tmp_path / "lock"))
        assert caught.value.pid == owner.pid
        assert f"process {owner.pid}" in str(caught.value)
        assert str(tmp_path / "lock") in str(caught.value)

    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
    def test_it_is_free_when_the_owner_dies(self, tmp_path, owner, end):
        owner.send_signal(end)
        owner.wait()
        RealDisk().lock(str(tmp_path / "lock")).release()
        assert (tmp_path / "lock").read_bytes() == b"lock"

    def test_it_is_free_when_the_owner_ends(self, tmp_path, owner):
        owner.communicate("")
        RealDisk().lock(str(tmp_path / "lock")).release()

    def test_a_refused_one_does_not_free_it(self, tmp_path, owner):
        for _ in range(3):
            with pytest.raises(StoreLocked):
                RealDisk().lock(str(tmp_path / "lock"))

    @pytest.mark.skipif(sys.platform != "linux", reason="asks in the layout of Linux")
    def test_it_is_the_record_lock_that_java_takes(self, tmp_path):
        path = str(tmp_path / "lock")

        def ask(start, length):
            command = [sys.executable, "-c", ASKER, path, str(start), str(length)]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

        lock = RealDisk().lock(path)
        assert ask(0, 1) == f"0 1 {os.getpid()}"
        assert ask(1, 0) == "free"
        # Reading the file would close a descriptor of it, and with that give the lock back.
        with pytest.raises(OSError, match="give the lock back"):
            RealDisk().read_file(path)
        with pytest.raises(OSError, match="give the lock back"):
            RealDisk().open(path)
        with pytest.raises(StoreLocked):
            RealDisk().lock(path)
        assert ask(0, 1) == f"0 1 {os.getpid()}"
        lock.release()
        assert ask(0, 1) == "free"

    def test_an_owner_that_cannot_be_seen(self, tmp_path, monkeypatch):
        def refuse(*arguments):
            raise OSError(errno.EAGAIN, "taken")

        monkeypatch.setattr(disk_module.fcntl, "lockf", refuse)
        monkeypatch.setattr(disk_module, "lock_owner", lambda descriptor: (True, None))
        with pytest.raises(StoreLocked, match="another process") as caught:
            RealDisk().lock(str(tmp_path / "lock"))
        assert caught.value.pid is None
        # Gone each time we ask, taken each time we try: somebody has it.
        monkeypatch.setattr(disk_module, "lock_owner", lambda descriptor: (False, None))
        with pytest.raises(StoreLocked):
            RealDisk().lock(str(tmp_path / "lock"))

    def test_a_failure_of_another_kind_is_told_as_it_is(self, tmp_path, monkeypatch):
        def refuse(*arguments):
            raise OSError(errno.ENOLCK, "no locks here")

        monkeypatch.setattr(disk_module.fcntl, "lockf", refuse)
        with pytest.raises(OSError, match="no locks here"):
            RealDisk().lock(str(tmp_path / "lock"))


def test_a_huge_file_is_mapped_whole(tmp_path):
    file = RealDisk().open(str(tmp_path / "f"), size=1024 * MIB, create=True)
    file.write(1024 * MIB - 5, [b"tail!"])
    assert bytes(file.view()[-5:]) == b"tail!"
    assert os.stat(tmp_path / "f").st_blocks * 512 < MIB
    assert isinstance(file.view().obj, mmap.mmap)
    file.close()
