"""The fake disk: what a power loss may take and what it may not, faults, the death of a process."""

import errno
import os
import random
import threading

import pytest

from cometmq.broker.store.clock import FakeClock, SystemClock
from cometmq.broker.store.disk import DiskUsage
from cometmq.broker.store.errors import StoreLocked
from cometmq.broker.store.fake_disk import FakeDisk

PAGE = 4096
SEEDS = range(200)


def made(disk, path="/s/f", size=4 * PAGE):
    """A file that is safe with its length and entry."""
    disk.make_dirs(os.path.dirname(path), sync=True)
    file = disk.open(path, size=size, create=True)
    file.sync()
    disk.sync_dir(os.path.dirname(path))
    return file


def outcomes(disk, look, seeds=SEEDS, at=None):
    """Everything that a power loss may leave, as far as the seeds show it."""
    return {look(disk.crash(seed, at)) for seed in seeds}


class TestContent:
    def test_what_was_synced_survives(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(100, [b"safe"])
        file.sync()
        assert outcomes(disk, lambda left: left.read_file("/s/f")[98:106]) == {b"\0\0safe\0\0"}

    def test_what_was_not_synced_may_be_old_or_new(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"old"])
        file.sync()
        file.write(0, [b"new"])
        found = outcomes(disk, lambda left: left.read_file("/s/f")[:3])
        assert {b"old", b"new"} <= found
        # The page may be torn in the middle, new before old.
        assert found <= {b"old", b"nld", b"ned", b"new"}
        assert found - {b"old", b"new"}

    def test_any_subset_of_pages_of_one_write(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"x" * 4 * PAGE])
        found = outcomes(disk, lambda left: tuple(left.read_file("/s/f")[PAGE * i] for i in range(3)))
        assert found == {(a, b, c) for a in b"\0x" for b in b"\0x" for c in b"\0x"}

    def test_only_the_last_page_is_torn(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"x" * (3 * PAGE + 500)])
        torn = 0
        for seed in SEEDS:
            content = disk.crash(seed).read_file("/s/f")
            for page in range(3):
                assert content[PAGE * page : PAGE * (page + 1)] in (bytes(PAGE), b"x" * PAGE)
            tail = content[3 * PAGE :].rstrip(b"\0")
            assert tail == b"x" * len(tail)
            torn += 0 < len(tail) < 500
        assert torn > 10

    def test_a_page_may_stop_between_two_writes(self):
        disk = FakeDisk()
        file = made(disk)
        for text in (b"a", b"b", b"c"):
            file.write(10, [text])
        file.write(PAGE, [b"tail"])
        assert outcomes(disk, lambda left: left.read_file("/s/f")[10:11]) == {b"\0", b"a", b"b", b"c"}

    def test_syncing_one_file_says_nothing_about_another(self):
        disk = FakeDisk()
        one, two = made(disk, "/s/one"), made(disk, "/s/two")
        one.write(0, [b"1"])
        two.write(0, [b"2"])
        one.sync()
        assert outcomes(disk, lambda left: left.read_file("/s/one")[:1]) == {b"1"}
        assert outcomes(disk, lambda left: left.read_file("/s/two")[:1]) == {b"\0", b"2"}

    def test_the_pictures_of_files_are_thrown_apart(self):
        disk = FakeDisk()
        for name in "ab":
            made(disk, f"/s/{name}").write(0, [b"x"])
        found = outcomes(disk, lambda left: tuple(left.read_file(f"/s/{name}")[0] for name in "ab"))
        assert len(found) == 4

    def test_stores_through_a_writable_view_are_writes(self):
        disk = FakeDisk()
        file = made(disk)
        view = file.writable_view()
        view[0:4] = b"head"
        view[2 * PAGE : 2 * PAGE + 4] = b"tail"
        assert outcomes(disk, lambda left: left.read_file("/s/f")[:4]) == {bytes(4), b"head"}
        file.sync()
        view[0:4] = b"HEAD"
        assert outcomes(disk, lambda left: left.read_file("/s/f")[2 * PAGE : 2 * PAGE + 4]) == {b"tail"}
        assert {b"head", b"HEAD"} <= outcomes(disk, lambda left: left.read_file("/s/f")[:4])
        kinds = [operation.kind for operation in disk.operations if operation.inode and operation.kind == "view"]
        assert len(kinds) == 3

    def test_view_and_write_on_the_same_file_do_not_undo_each_other(self):
        disk = FakeDisk()
        file = made(disk)
        view = file.writable_view()
        view[0:2] = b"vv"
        file.write(2, [b"ww"])
        view[4:6] = b"VV"
        file.sync()
        assert outcomes(disk, lambda left: left.read_file("/s/f")[:6]) == {b"vvwwVV"}

    def test_what_is_written_during_a_sync_is_not_in_it(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"before"])
        gate = disk.gate("sync")
        thread = threading.Thread(target=file.sync)
        thread.start()
        assert gate.reached.wait(10)
        file.write(PAGE, [b"during"])
        gate.open()
        thread.join()
        assert outcomes(disk, lambda left: left.read_file("/s/f")[:6]) == {b"before"}
        assert {bytes(6), b"during"} <= outcomes(disk, lambda left: left.read_file("/s/f")[PAGE : PAGE + 6])

    def test_a_failed_sync_leaves_its_pages_in_doubt_for_ever(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"lost?"])
        disk.fail_next("sync")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
        file.write(PAGE, [b"later"])
        file.sync()
        assert file.read(0, 5) == b"lost?"
        assert outcomes(disk, lambda left: left.read_file("/s/f")[PAGE : PAGE + 5]) == {b"later"}
        assert {bytes(5), b"lost?"} <= outcomes(disk, lambda left: left.read_file("/s/f")[:5])

    def test_a_safe_write_stays_above_a_doubtful_one_of_the_same_page(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"doubtful"])
        disk.fail_next("sync")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
        file.write(0, [b"safe"])
        file.sync()
        assert outcomes(disk, lambda left: left.read_file("/s/f")[:4]) == {b"safe"}
        assert outcomes(disk, lambda left: left.read_file("/s/f")[4:8]) == {bytes(4), b"tful"}


class TestEntries:
    def test_a_new_file_may_be_missing_until_its_directory_is_synced(self):
        disk = FakeDisk()
        disk.make_dirs("/s", sync=True)
        file = disk.open("/s/f", size=PAGE, create=True)
        file.write(0, [b"x"])
        file.sync()
        assert outcomes(disk, lambda left: left.exists("/s/f")) == {True, False}
        disk.sync_dir("/s")
        assert outcomes(disk, lambda left: left.read_file("/s/f")[:1]) == {b"x"}

    def test_a_new_file_may_be_empty_until_it_is_synced(self):
        disk = FakeDisk()
        disk.make_dirs("/s", sync=True)
        file = disk.open("/s/f", size=PAGE, create=True)
        disk.sync_dir("/s")
        assert outcomes(disk, lambda left: left.size("/s/f")) == {0, PAGE}
        file.sync()
        assert outcomes(disk, lambda left: left.size("/s/f")) == {PAGE}

    def test_a_directory_takes_everything_below_it(self):
        disk = FakeDisk()
        disk.make_dirs("/s")
        file = disk.open("/s/f", size=PAGE, create=True)
        file.sync()
        disk.sync_dir("/s")
        assert outcomes(disk, lambda left: left.exists("/s/f")) == {True, False}
        disk.sync_dir("/")
        assert outcomes(disk, lambda left: left.exists("/s/f")) == {True}

    def test_an_unlinked_file_may_come_back(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"x"])
        file.sync()
        disk.unlink("/s/f")
        assert not disk.exists("/s/f")
        assert file.read(0, 1) == b"x"
        found = outcomes(disk, lambda left: left.exists("/s/f") and left.read_file("/s/f")[:1])
        assert found == {False, b"x"}
        disk.sync_dir("/s")
        assert outcomes(disk, lambda left: left.exists("/s/f")) == {False}

    def test_a_rename_happens_wholly_or_not_at_all(self):
        disk = FakeDisk()
        made(disk, "/s/old").write(0, [b"x"])
        disk.make_dirs("/t", sync=True)
        disk.rename("/s/old", "/t/new")
        found = outcomes(disk, lambda left: (left.exists("/s/old"), left.exists("/t/new")))
        assert found == {(True, False), (False, True)}
        disk.sync_dir("/t")
        assert outcomes(disk, lambda left: (left.exists("/s/old"), left.exists("/t/new"))) == {(False, True)}

    def test_a_rename_over_a_file_leaves_one_of_the_two(self):
        disk = FakeDisk()
        disk.write_file("/s/f", b"old", backup=False)
        scratch = disk.open("/s/tmp", size=3, create=True)
        scratch.write(0, [b"new"])
        scratch.sync()
        disk.rename("/s/tmp", "/s/f")
        disk.sync_dir("/")
        assert outcomes(disk, lambda left: left.read_file("/s/f")) == {b"old", b"new"}

    def test_a_removed_tree(self):
        disk = FakeDisk()
        made(disk, "/s/a/1")
        made(disk, "/s/a/2")
        disk.remove_tree("/s/a")
        found = outcomes(disk, lambda left: tuple(left.list_dir("/s/a")))
        assert {(), ("1", "2"), ("1",), ("2",)} == found
        disk.sync_dir("/s")
        assert outcomes(disk, lambda left: left.exists("/s/a")) == {False}

    @pytest.mark.parametrize("backup", [True, False])
    def test_a_whole_file_is_old_or_new_at_every_moment_of_its_replacement(self, backup):
        disk = FakeDisk()
        disk.make_dirs("/s", sync=True)
        disk.write_file("/s/f", b"first" * 2000, backup=backup)
        start = len(disk.operations)
        disk.write_file("/s/f", b"second" * 3000, backup=backup)
        assert len(disk.operations) > start + 4
        seen = set()
        for at in range(start, len(disk.operations) + 1):
            seen |= outcomes(disk, lambda left: left.read_file("/s/f"), range(20), at)
        assert seen == {b"first" * 2000, b"second" * 3000}
        assert outcomes(disk, lambda left: left.read_file("/s/f")) == {b"second" * 3000}
        if backup:
            assert outcomes(disk, lambda left: left.read_file("/s/f.bak")) == {b"first" * 2000}


class TestMoments:
    def test_the_same_seed_gives_the_same_outcome(self):
        disk = FakeDisk()
        made(disk).write(0, [bytes(range(256)) * 40])
        first = [disk.crash(seed).read_file("/s/f") for seed in range(20)]
        assert [disk.crash(seed).read_file("/s/f") for seed in range(20)] == first
        assert len(set(first)) > 5

    def test_a_moment_in_the_past_is_as_if_nothing_had_come_after(self):
        disk, moments = FakeDisk(), []
        file = made(disk, size=PAGE)
        for value in range(1, 30):
            file.write(value, [bytes([value])])
            file.sync()
            moments.append((len(disk.operations), value))
        random.Random(7).shuffle(moments)
        for at, value in moments:
            content = disk.crash(value, at).read_file("/s/f")
            assert content[: value + 1] == bytes(range(value + 1))
            assert not any(content[value + 1 :])

    def test_a_crashed_disk_is_a_disk_of_its_own(self):
        clock = FakeClock()
        disk = FakeDisk(clock)
        file = made(disk)
        file.write(0, [b"before"])
        file.sync()
        clock.advance(100)
        left = disk.crash(1)
        assert left.operations == []
        assert left.modified("/s/f") == clock.wall() / 1000 - 100
        again = left.open("/s/f")
        again.write(0, [b"after!"])
        assert file.read(0, 6) == b"before"
        again.sync()
        assert outcomes(left, lambda twice: twice.read_file("/s/f")[:6]) == {b"after!"}
        left.write_file("/s/g", b"new", backup=False)
        assert outcomes(left, lambda twice: twice.read_file("/s/g")) == {b"new"}

    def test_a_crash_changes_nothing(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"x"])
        count = len(disk.operations)
        for seed in range(10):
            disk.crash(seed)
        assert len(disk.operations) == count
        assert file.read(0, 1) == b"x"

    def test_every_operation_is_recorded(self):
        disk = FakeDisk()
        file = disk.open("/s/f", size=PAGE, create=True)
        file.write(5, [b"ab", b"c"])
        file.reserve(0, PAGE)
        file.sync()
        disk.sync_dir("/s")
        disk.rename("/s/f", "/s/g")
        disk.unlink("/s/g")
        kinds = [operation.kind for operation in disk.operations]
        assert kinds == [
            *("create", "entry"),  # the directory
            *("create", "entry", "create"),  # the file, and its length
            *("write", "reserve", "sync", "sync_dir", "rename", "unlink"),
        ]
        write = disk.operations[5]
        assert (write.path, write.offset, write.data) == ("/s/f", 5, b"abc")


class TestDeathOfTheProcess:
    def test_content_stays_and_handles_and_locks_go(self):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"written"])
        file.writable_view()[PAGE : PAGE + 6] = b"stored"
        disk.lock("/s/lock")
        disk.kill()
        with pytest.raises(OSError, match="killed"):
            file.write(0, [b"x"])
        assert disk.open_files == 0
        disk.lock("/s/lock").release()
        again = disk.open("/s/f")
        assert again.read(0, 7) == b"written"
        assert again.read(PAGE, 6) == b"stored"
        # It was in the page cache only: power may still take it.
        assert bytes(7) in outcomes(disk, lambda left: left.read_file("/s/f")[:7])
        again.sync()
        assert outcomes(disk, lambda left: left.read_file("/s/f")[PAGE : PAGE + 6]) == {b"stored"}

    def test_a_power_loss_frees_locks_too(self):
        disk = FakeDisk()
        disk.make_dirs("/s", sync=True)
        disk.lock("/s/lock")
        with pytest.raises(StoreLocked):
            disk.lock("/s/lock")
        disk.crash(1).lock("/s/lock")


class TestFaults:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_write_fails_and_leaves_what_got_through(self, code):
        disk = FakeDisk()
        file = made(disk)
        disk.fail_next("write", code, partial=3)
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            file.write(0, [b"abc", b"def"])
        assert (caught.value.errno, caught.value.filename) == (code, "/s/f")
        assert file.read(0, 6) == b"abc\0\0\0"
        file.write(0, [b"again!"])
        assert file.read(0, 6) == b"again!"

    @pytest.mark.parametrize(
        ("operation", "act"),
        [
            ("open", lambda disk, file: disk.open("/s/f")),
            ("open", lambda disk, file: disk.open("/s/new", size=10, create=True)),
            ("read", lambda disk, file: file.read(0, 1)),
            ("read", lambda disk, file: disk.read_file("/s/f")),
            ("sync", lambda disk, file: file.sync()),
            ("write_file", lambda disk, file: disk.write_file("/s/f", b"", backup=False)),
            ("write", lambda disk, file: disk.write_file("/s/f", b"x", backup=False)),
            ("sync", lambda disk, file: disk.write_file("/s/f", b"x", backup=False)),
            ("rename", lambda disk, file: disk.write_file("/s/f", b"x", backup=False)),
            ("rename", lambda disk, file: disk.rename("/s/f", "/s/g")),
            ("unlink", lambda disk, file: disk.unlink("/s/f")),
            ("sync_dir", lambda disk, file: disk.sync_dir("/s")),
        ],
    )
    def test_each_operation_can_fail_once(self, operation, act):
        disk = FakeDisk()
        file = made(disk)
        file.write(0, [b"x"])
        disk.fail_next(operation, errno.ENOSPC)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            act(disk, file)
        assert disk.list_dir("/s") == ["f"]
        assert disk.read_file("/s/f")[:1] == b"x"
        act(disk, file)

    def test_a_reservation_is_refused_in_silence(self):
        disk = FakeDisk()
        file = made(disk)
        disk.fail_next("reserve", errno.ENOSPC)
        assert file.reserve(0, PAGE) is False
        assert file.reserve(0, PAGE) is True

    def test_a_fault_waits_for_its_path_and_its_turn(self):
        disk = FakeDisk()
        one, two = made(disk, "/s/commitlog/1"), made(disk, "/s/index/2")
        disk.fail_next("sync", path="commitlog", after=1, times=2)
        two.sync()
        one.sync()
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                one.sync()
            two.sync()
        one.sync()

    def test_faults_are_taken_back(self):
        disk = FakeDisk()
        file = made(disk)
        disk.fail_next("sync", times=100)
        disk.heal()
        file.sync()

    def test_a_slow_write_takes_time_of_the_fake_clock(self):
        clock = FakeClock()
        disk = FakeDisk(clock)
        file = made(disk)
        disk.slow_next("write", 2.5)
        file.write(0, [b"slow"])
        assert clock.monotonic() == 2.5
        file.write(0, [b"fast"])
        assert clock.monotonic() == 2.5

    def test_a_slow_write_takes_real_time_with_a_real_clock(self):
        clock = SystemClock()
        disk = FakeDisk(clock)
        file = made(disk)
        disk.slow_next("write", 0.03)
        start = clock.monotonic()
        file.write(0, [b"slow"])
        assert clock.monotonic() - start >= 0.03

    def test_space_is_what_the_test_says(self):
        disk = FakeDisk()
        assert disk.usage("/s").ratio == 0.1
        disk.space = DiskUsage(100, 91, 9)
        assert disk.usage("/s").ratio == 0.91


class TestCopies:
    def test_to_the_real_disk_and_back(self, tmp_path):
        disk = FakeDisk()
        file = made(disk, "/s/log/0", size=1024 * 1024)
        file.write(500_000, [b"in the middle"])
        disk.write_file("/s/config/t.json", b"{}", backup=False)
        disk.write_file("/s/empty", b"", backup=False)
        disk.set_modified("/s/log/0", 1_700_000_123.0)
        disk.dump("/s", str(tmp_path / "out"))
        assert (tmp_path / "out/log/0").read_bytes() == disk.read_file("/s/log/0")
        assert (tmp_path / "out/config/t.json").read_bytes() == b"{}"
        again = FakeDisk()
        again.load(str(tmp_path / "out"), "/copy")
        assert again.list_dir("/copy") == ["config", "empty", "log"]
        assert again.read_file("/copy/log/0") == disk.read_file("/s/log/0")
        assert again.modified("/copy/log/0") == 1_700_000_123.0
        assert again.size("/copy/empty") == 0
        # What was loaded is safe.
        assert outcomes(again, lambda left: left.read_file("/copy/log/0")[500_000:500_013]) == {b"in the middle"}

    def test_big_files_take_no_memory(self):
        disk = FakeDisk()
        file = disk.open("/s/f", size=8 * 1024**3, create=True)
        file.write(5 * 1024**3, [b"far"])
        assert file.read(5 * 1024**3, 3) == b"far"
        assert bytes(file.view()[5 * 1024**3 : 5 * 1024**3 + 3]) == b"far"


def test_many_moments_are_cheap():
    """Thousands of power losses in one workload: the journal is followed, not replayed each time."""
    disk = FakeDisk()
    file = made(disk, size=64 * PAGE)
    dice = random.Random(1)
    for _ in range(1500):
        file.write(dice.randrange(63 * PAGE), [dice.randbytes(dice.randrange(1, PAGE))])
        if dice.random() < 0.2:
            file.sync()
    checked = 0
    current = bytearray(64 * PAGE)
    for at, operation in enumerate(disk.operations):
        if operation.kind == "write":
            current[operation.offset : operation.offset + len(operation.data)] = operation.data
        elif operation.kind == "sync":
            assert disk.crash(at, at + 1).read_file("/s/f") == bytes(current)
            checked += 1
    assert checked > 200
