"""Small things that the parts of the store expect of each other: holes, lives of a machine, runs of units, columns."""

import shutil
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue
from cometmq.broker.store.consume_queues import ConsumeQueues
from cometmq.broker.store.disk import Disk, RealDisk
from cometmq.broker.store.errand import Errand
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.index import Index
from cometmq.broker.store.marks import Marks
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.running_flags import Flag, RunningFlags


@pytest.fixture(params=["real", "fake"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return (RealDisk(), str(tmp_path)) if request.param == "real" else (FakeDisk(), "/root")


# Holes


def test_holes_are_passed_over(disk: tuple[Disk, str]) -> None:
    made, root = disk
    file = made.open(f"{root}/f", size=1 << 20, create=True)
    assert file.next_data(0) == 1 << 20
    file.write(500_000, [b"x"])
    assert file.next_data(0) <= 500_000
    assert file.next_data(0) > 400_000
    assert file.next_data(500_000) == 500_000
    assert file.next_data(600_000) == 1 << 20
    assert file.next_data(1 << 20) == 1 << 20
    file.close()


# Lives


def test_a_file_keeps_its_identity_and_a_copy_has_another(disk: tuple[Disk, str]) -> None:
    made, root = disk
    made.write_file(f"{root}/a", b"1", backup=False)
    made.write_file(f"{root}/b", b"1", backup=False)
    assert made.identity(f"{root}/a") == made.identity(f"{root}/a") is not None
    assert made.identity(f"{root}/a") != made.identity(f"{root}/b")
    assert made.identity(f"{root}/none") is None


def test_marks_know_whether_only_the_process_died() -> None:
    disk = FakeDisk()
    marks = Marks(disk, "/root")
    marks.take_lock()
    assert not marks.same_life
    marks.set_abort()
    assert marks.same_life
    disk.kill()
    again = Marks(disk, "/root")
    assert again.unclean
    assert again.same_life
    after = Marks(disk.crash(1), "/root")
    assert after.unclean
    assert not after.same_life
    again.take_lock()
    again.clear_abort()
    assert not again.unclean
    assert not again.same_life
    assert disk.list_dir("/root") == ["abort.bak", "lock"]


def test_a_real_copy_is_another_life(tmp_path: Path) -> None:
    marks = Marks(RealDisk(), str(tmp_path / "a"))
    marks.take_lock()
    marks.set_abort()
    assert marks.same_life
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert not Marks(RealDisk(), str(tmp_path / "b")).same_life
    marks.clear_abort()
    marks.release_lock()


# Runs of units


def queue(**properties: str) -> tuple[ConsumeQueues, ConsumeQueue]:
    options = StoreOptions.from_properties({"mappedFileSizeConsumeQueue": "200"} | properties)
    queues = ConsumeQueues(FakeDisk(), "/root", options)
    made = queues.queue("T", 0)
    assert isinstance(made, ConsumeQueue)
    return queues, made


def units(first: int, count: int) -> bytes:
    return b"".join(UNIT.pack(1000 * number, 900, number) for number in range(first, first + count))


def test_a_run_is_the_same_as_its_units_one_by_one() -> None:
    queues, run = queue()
    assert run.append_run(0, 0, units(0, 25), 24_900)
    queues.write_out()
    _, single = queue()
    for number in range(25):
        assert single.append(number, 1000 * number, 900, number)
    single.write_out()
    assert run.units(0, 10) == single.units(0, 10)
    assert (run.max_offset, run.max_physical) == (single.max_offset, single.max_physical) == (25, 24_900)


def test_a_run_that_is_not_the_next_is_not_taken() -> None:
    queues, run = queue()
    assert run.append_run(0, 0, units(0, 5), 4_900)
    assert not run.append_run(4, 4_000, units(4, 3), 6_900), "some are there already"
    assert not run.append_run(6, 6_000, units(6, 3), 8_900), "one is missing"
    assert not run.append_run(5, 4_800, units(5, 3), 7_900), "records overlap"
    assert run.append_run(5, 5_000, units(5, 3), 7_900)
    queues.write_out()
    assert run.max_offset == 8
    _, extended = queue(enableConsumeQueueExt="true")
    assert not extended.append_run(0, 0, units(0, 5), 4_900)


def test_a_queue_can_be_cut_at_an_offset() -> None:
    queues, cut = queue()
    cut.append_run(0, 0, units(0, 25), 24_900)
    queues.write_out()
    cut.truncate_to(12)
    assert (cut.max_offset, cut.max_physical) == (12, 11_900)
    assert cut.append_run(12, 30_000, UNIT.pack(30_000, 900, 7), 30_900)
    queues.write_out()
    assert cut.unit(12) == (30_000, 900, 7)
    assert cut.unit(13) is None


# Columns of keys


def test_columns_of_keys_are_the_same_as_items() -> None:
    options = StoreOptions.from_properties({"maxHashSlotNum": "20", "maxIndexNum": "50"})
    first, second = (Index(FakeDisk(), "/root", options, FakeClock()) for _ in range(2))
    items = [
        (f"T{number % 3}", b"a%d b" % number, b"u%d" % number, 1000 * number, 10**12 + number) for number in range(40)
    ]
    for start in range(0, 40, 8):
        turn = items[start : start + 8]
        first.put_turn(turn)
        rows = [
            (topic, key, offset, time)
            for topic, keys, unique, offset, time in turn
            for key in [unique, *keys.split(b" ")]
        ]
        topics, keys, offsets, times = zip(*rows, strict=True)
        second.put_new(topics, keys, offsets, times)
    second.put_new([], [], [], [])
    assert len(first.files) == len(second.files) > 2
    for one, other in zip(first.files, second.files, strict=True):
        assert one.count == other.count
        assert [one.entry(number) for number in range(1, one.count)] == [
            other.entry(number) for number in range(1, other.count)
        ]


# Errands


def test_an_errand_is_done_once_by_the_thread_or_by_who_cannot_wait() -> None:
    runner = ManualRunner()
    results: list[tuple[int | None, Exception | None]] = []
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        return 42

    runner.hold("x")
    errand = Errand(runner, work, lambda value, error: results.append((value, error)), lane="x")
    assert results == []
    errand.finish()
    assert results == [(42, None)]
    runner.let_go("x")
    runner.run()
    assert (results, calls) == ([(42, None)], [1])
    Errand(runner, work, lambda value, error: results.append((value, error)), lane="x")
    runner.run()
    assert len(results) == len(calls) == 2


def test_an_errand_brings_its_failure_back() -> None:
    runner = ManualRunner()
    results: list[tuple[None, Exception | None]] = []

    def fail() -> None:
        raise OSError(5, "broken")

    Errand(runner, fail, lambda value, error: results.append((value, error)), lane="x")
    runner.run()
    assert isinstance(results[0][1], OSError)


# Flags


def test_flags_are_rocketmqs_bits_and_keep_their_reasons() -> None:
    flags = RunningFlags()
    assert flags.writable
    assert flags.readable
    assert [int(flag) for flag in Flag] == [1, 2, 4, 8, 16, 32, 64]
    assert flags.set(Flag.DISK_FULL, "full")
    assert not flags.set(Flag.DISK_FULL, "fuller")
    assert flags.reason == "full"
    assert not flags.writable
    assert flags.queues_writable
    flags.set(Flag.INDEX_ERROR, "no index")
    assert not flags.queues_writable
    assert flags.reason == "full; no index"
    assert flags.clear(Flag.DISK_FULL)
    assert not flags.clear(Flag.DISK_FULL)
    assert not flags.writable
    flags.clear(Flag.INDEX_ERROR)
    assert flags.writable
    flags.set(Flag.NOT_READABLE, "hidden")
    assert flags.writable
    assert not flags.readable
    assert flags.reason == ""
