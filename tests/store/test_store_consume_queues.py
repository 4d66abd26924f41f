"""All queues of a store: loading, the turn of a dispatcher, open files, flushing, expiry, and ten thousand of them."""

import errno
import os
import threading
import time

import psutil
import pytest

from cometmq.broker.store.append_log import OpenFiles
from cometmq.broker.store.batch_consume_queue import BatchConsumeQueue
from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue
from cometmq.broker.store.consume_queues import ConsumeQueues, QueueGap
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import FileLengthWrong, FileNameWrong
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.options import StoreOptions

OPTIONS = {"mappedFileSizeConsumeQueue": "200", "mapperFileSizeBatchConsumeQueue": "460"}
ROOT = "/store"


def new_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(ROOT, sync=True)
    return disk


def queues_on(disk, root=ROOT, *, batch=(), **options: str) -> ConsumeQueues:
    return ConsumeQueues(
        disk, root, StoreOptions.from_properties(OPTIONS | options), is_batch_topic=frozenset(batch).__contains__
    )


def opened(disk, root=ROOT, *, thorough=True, **more) -> ConsumeQueues:
    queues = queues_on(disk, root, **more)
    queues.load()
    queues.recover(thorough=thorough)
    return queues


class Log:
    """Gives out physical offsets, as a commit log does."""

    def __init__(self, queues: ConsumeQueues) -> None:
        self.queues = queues
        self.end = 0

    def add(self, topic: str, queue_id: int, count: int = 1, size: int = 100) -> None:
        for _ in range(count):
            offset = self.queues.queue(topic, queue_id).next_offset
            assert self.queues.append(topic, queue_id, offset, self.end, size, 7, self.end)
            self.end += size


def numbers(queues: ConsumeQueues) -> dict[tuple[str, int], tuple[int, int]]:
    return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in queues}


class TestLoading:
    def test_of_nothing(self):
        queues = opened(new_disk())
        assert len(queues) == 0
        assert queues.max_physical == -1
        assert queues.get("T", 0) is None

    @pytest.mark.parametrize("thorough", [False, True])
    def test_finds_what_was_written(self, thorough):
        disk = new_disk()
        log = Log(queues_on(disk, batch=["B"]))
        for topic, queue_id, count in (("T", 0, 25), ("T", 1, 3), ("%RETRY%g", 0, 10), ("B", 7, 4)):
            log.add(topic, queue_id, count)
        log.queues.write_out()
        queues = opened(disk, thorough=thorough, batch=["B"])
        assert numbers(queues) == {("T", 0): (0, 25), ("T", 1): (0, 3), ("%RETRY%g", 0): (0, 10), ("B", 7): (0, 4)}
        assert queues.max_physical == log.end == 4200
        assert sorted(queues.topics) == ["%RETRY%g", "B", "T"]
        assert sorted(queues.of_topic("T")) == [0, 1]
        assert isinstance(queues.get("B", 7), BatchConsumeQueue)
        assert isinstance(queues.get("T", 1), ConsumeQueue)

    def test_recover_says_how_far_the_queues_know_the_log(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0, 3)
        log.add("T", 1, 2)
        log.queues.write_out()
        seen = []
        queues = ConsumeQueues(disk, ROOT, StoreOptions.from_properties(OPTIONS), progress=lambda *a: seen.append(a))
        queues.load()
        assert queues.recover(thorough=True) == 500
        assert seen == [(1, 2), (2, 2)]

    def test_passes_over_folders_that_are_no_queue_ids(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0)
        log.queues.write_out()
        disk.make_dirs(f"{ROOT}/consumequeue/T/notes")
        disk.make_dirs(f"{ROOT}/consumequeue/T/-1")
        disk.make_dirs(f"{ROOT}/consumequeue/Empty")
        assert list(numbers(opened(disk))) == [("T", 0)]

    def test_refuses_files_of_another_length(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0)
        log.queues.write_out()
        with pytest.raises(FileLengthWrong, match="T/0/0"):
            opened(disk, mappedFileSizeConsumeQueue="400")

    def test_refuses_files_with_other_names(self):
        disk = new_disk()
        disk.open(f"{ROOT}/consumequeue/T/0/notes.txt", size=200, create=True).close()
        with pytest.raises(FileNameWrong, match=r"notes\.txt"):
            opened(disk)

    def test_rounds_file_sizes_up_to_whole_units(self):
        disk = new_disk()
        queues = queues_on(disk, mappedFileSizeConsumeQueue="190", mapperFileSizeBatchConsumeQueue="450", batch=["B"])
        queues.append("T", 0, 0, 0, 100, 0)
        queues.append("B", 0, 0, 100, 100, 0)
        queues.write_out()
        assert disk.size(f"{ROOT}/consumequeue/T/0/{0:020d}") == 200
        assert disk.size(f"{ROOT}/batchconsumequeue/B/0/{0:020d}") == 460

    def test_tells_of_missing_files(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 3, 35)
        log.queues.write_out()
        disk.unlink(f"{ROOT}/consumequeue/T/3/{200:020d}")
        assert opened(disk).gaps() == [QueueGap("T", 3, 10, 20)]


class TestTurns:
    def test_one_write_for_each_queue_that_got_something(self):
        disk = new_disk()
        log = Log(queues_on(disk, mappedFileSizeConsumeQueue="6000"))
        for queue_id in range(4):
            log.add("T", queue_id)
        log.queues.write_out()
        before = len(disk.operations)
        for _ in range(16):
            for queue_id in (0, 1, 3):
                log.add("T", queue_id)
        log.queues.write_out()
        assert [operation.kind for operation in disk.operations[before:]] == ["write"] * 3
        log.queues.write_out()
        assert len(disk.operations) == before + 3

    def test_a_new_queue_has_no_file_until_something_is_appended(self):
        disk = new_disk()
        queues = queues_on(disk)
        queue = queues.queue("T", 5)
        assert (queue.min_offset, queue.max_offset) == (0, 0)
        assert queue.units(0, 1) == b""
        assert not disk.exists(f"{ROOT}/consumequeue")
        assert queues.queue("T", 5) is queue

    def test_a_queue_that_cannot_be_written_holds_up_only_itself_and_those_after_it(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        for queue_id in range(3):
            log.add("T", queue_id)
        disk.fail_next("write", errno.ENOSPC, path="T/1/")
        with pytest.raises(OSError, match="No space"):
            log.queues.write_out()
        assert [log.queues.get("T", n).max_offset for n in range(3)] == [1, 0, 0]
        log.add("T", 1)
        log.queues.write_out()
        assert [log.queues.get("T", n).max_offset for n in range(3)] == [1, 2, 1]
        assert numbers(opened(disk)) == {("T", 0): (0, 1), ("T", 1): (0, 2), ("T", 2): (0, 1)}

    def test_what_is_dispatched_again_changes_nothing(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0, 5)
        log.queues.write_out()
        assert not log.queues.append("T", 0, 2, 200, 100, 7)
        before = len(disk.operations)
        log.queues.write_out()
        assert len(disk.operations) == before

    def test_extended_and_batch_arguments_reach_their_queues(self):
        disk = new_disk()
        queues = queues_on(disk, batch=["B"], enableConsumeQueueExt="true", mappedFileSizeConsumeQueueExt="400")
        queues.append("T", 0, 0, 0, 100, 7, 55, bit_map=b"\x01")
        queues.append("L", 0, 0, 0, 100, 7, 55, extended=False)
        queues.append("B", 0, 0, 100, 100, 7, 66, batch_count=3)
        queues.write_out()
        unit = queues.get("T", 0).ext.get(queues.get("T", 0).unit(0)[2])
        assert (unit.tags_code, unit.store_time, unit.bit_map) == (7, 55, b"\x01")
        assert queues.get("L", 0).unit(0) == (0, 100, 7)
        assert queues.get("B", 0).max_offset == 3
        again = opened(disk, batch=["B"], enableConsumeQueueExt="true", mappedFileSizeConsumeQueueExt="400")
        assert again.get("T", 0).ext.get(again.get("T", 0).unit(0)[2]) == unit


class TestOpenFiles:
    def test_the_least_used_are_closed(self):
        disk = new_disk()
        log = Log(queues_on(disk, maxOpenConsumeQueueFiles="3"))
        for queue_id in (0, 1, 2, 0, 3, 0, 4):
            log.add("T", queue_id)
            log.queues.write_out()
            assert disk.open_files <= 3
        still = {queue.queue_id for queue in log.queues if queue.files.last.is_open}
        assert still == {0, 3, 4}
        assert log.queues.get("T", 1).unit(0) == (100, 100, 7)
        assert disk.open_files == 3

    def test_walks_over_all_queues_leave_no_file_open(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        for queue_id in range(20):
            log.add("T", queue_id, 15)
        log.queues.write_out()
        log.queues.close()
        assert disk.open_files == 0
        queues = opened(disk)
        assert disk.open_files == 0
        queues.correct_min(1000)
        queues.truncate(29_000)
        queues.delete_expired(5000)
        assert disk.open_files == 0
        queues.get("T", 4).unit(10)
        queues.correct_min(6000)
        assert disk.open_files == 1

    def test_a_file_that_is_held_is_closed_later(self):
        files = OpenFiles(1)
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0)
        log.add("T", 1)
        log.queues.write_out()
        first, second = (log.queues.get("T", n).files.last for n in range(2))
        files.use(first)
        first.hold()
        files.use(second)
        assert first.is_open
        first.release()
        assert not first.is_open

    def test_none_stays_open_after_close(self):
        disk = new_disk()
        log = Log(queues_on(disk, enableConsumeQueueExt="true"))
        for queue_id in range(5):
            log.add("T", queue_id, 30)
        log.queues.close()
        assert disk.open_files == 0
        assert log.queues.get("T", 0).max_offset == 30


class TestFlushing:
    def test_everything_flushed_survives(self):
        disk = new_disk()
        log = Log(queues_on(disk, batch=["B"]))
        for topic in ("T", "U", "B"):
            log.add(topic, 0, 25)
        log.queues.write_out()
        log.queues.flush()
        wanted = numbers(log.queues)
        log.add("V", 0, 3)
        log.queues.write_out()
        for seed in range(20):
            found = numbers(opened(disk.crash(seed), batch=["B"]))
            assert {key: found[key] for key in wanted} == wanted

    def test_syncs_only_what_has_changed(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0)
        log.add("T", 1)
        log.queues.write_out()
        log.queues.flush()
        log.add("T", 1)
        log.queues.write_out()
        before = len(disk.operations)
        log.queues.flush()
        assert [(o.kind, o.path.split("/")[-2]) for o in disk.operations[before:]] == [("sync", "1")]
        log.queues.flush()
        assert len(disk.operations) == before + 1
        assert not log.queues.begin_flush()

    def test_in_a_thread_while_the_owner_goes_on(self):
        disk = new_disk()
        log = Log(queues_on(disk, maxOpenConsumeQueueFiles="1"))
        for queue_id in range(4):
            log.add("T", queue_id, 5)
        log.queues.write_out()
        gate = disk.gate("sync")
        flush = log.queues.begin_flush()
        thread = threading.Thread(target=flush.sync)
        thread.start()
        gate.reached.wait()
        for queue_id in range(4):
            log.add("T", queue_id, 5)
        log.queues.write_out()
        log.queues.truncate(3000)
        gate.open()
        thread.join()
        assert flush.finish()
        assert disk.open_files <= 2
        for seed in range(5):
            found = opened(disk.crash(seed))
            assert all(queue.max_offset >= 5 for queue in found)

    def test_a_failed_sync_is_told_and_nothing_counts_as_flushed(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("T", 0)
        log.queues.write_out()
        disk.fail_next("sync")
        with pytest.raises(OSError, match="Input/output"):
            log.queues.flush()
        assert log.queues.get("T", 0).flushed == 0
        log.queues.flush()
        assert log.queues.get("T", 0).flushed == 20

    def test_a_power_loss_at_any_moment_of_a_roll_leaves_no_gap(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        for _ in range(12):
            log.add("T", 0, 7)
            log.queues.write_out()
        assert len(log.queues.get("T", 0).files.files) == 9
        for moment in range(1, len(disk.operations) + 1):
            for seed in range(3):
                crashed = disk.crash(seed, at=moment)
                found = opened(crashed)
                assert found.gaps() == []
                queue = found.get("T", 0)
                if queue is not None:
                    physical = [UNIT.unpack(queue.units(n, 1))[0] for n in range(queue.max_offset)]
                    assert physical == [n * 100 for n in range(queue.max_offset)]


class TestRemoving:
    def test_a_topic(self):
        disk = new_disk()
        log = Log(queues_on(disk, enableConsumeQueueExt="true"))
        log.add("T", 0, 25)
        log.add("T", 1)
        log.add("U", 0)
        log.queues.write_out()
        log.queues.delete_topic("T")
        log.queues.delete_topic("nobody")
        assert numbers(log.queues) == {("U", 0): (0, 1)}
        assert disk.list_dir(f"{ROOT}/consumequeue") == ["U"]
        assert disk.list_dir(f"{ROOT}/consumequeue_ext") == ["U"]
        log.queues.flush()
        assert numbers(opened(disk.crash(1))) == {("U", 0): (0, 1)}
        log.add("T", 0)
        log.queues.write_out()
        assert log.queues.get("T", 0).max_offset == 1

    def test_a_topic_in_the_middle_of_a_turn(self):
        log = Log(queues_on(new_disk()))
        log.add("T", 0)
        log.add("U", 0)
        log.queues.delete_topic("T")
        log.queues.write_out()
        assert numbers(log.queues) == {("U", 0): (0, 1)}

    def test_everything(self):
        disk = new_disk()
        log = Log(queues_on(disk, batch=["B"]))
        log.add("T", 0, 25)
        log.add("B", 0)
        log.queues.write_out()
        log.queues.destroy()
        assert len(log.queues) == 0
        assert disk.list_dir(f"{ROOT}/consumequeue") == []
        assert disk.list_dir(f"{ROOT}/batchconsumequeue") == []
        assert disk.open_files == 0

    def test_queues_whose_records_are_gone(self):
        disk = new_disk()
        log = Log(queues_on(disk))
        log.add("Old", 0, 3)
        log.add("System", 0)
        log.add("T", 0)
        log.queues.write_out()
        log.queues.queue("Unused", 0)
        log.add("T", 1)
        log.queues.write_out()
        assert log.queues.destroy_expired(400, {"System"}.__contains__) == [("Old", 0)]
        assert set(numbers(log.queues)) == {("System", 0), ("T", 0), ("T", 1), ("Unused", 0)}
        log.queues.correct_min(450)
        assert numbers(log.queues)["System", 0] == (1, 1)


COUNT = 10_000


@pytest.fixture
def many(tmp_path):
    """Ten thousand queues of RocketMQ's own size, with a few units each."""
    for number in range(COUNT):
        folder = f"{tmp_path}/consumequeue/Topic{number // 100}/{number % 100}"
        os.makedirs(folder)
        descriptor = os.open(f"{folder}/{0:020d}", os.O_CREAT | os.O_WRONLY)
        os.ftruncate(descriptor, 6_000_000)
        units = b"".join(UNIT.pack((number * 9 + n) * 100, 100, n) for n in range(number % 9))
        os.pwrite(descriptor, units, 0)
        os.close(descriptor)
    return str(tmp_path)


@pytest.mark.parametrize("thorough", [False, True], ids=["clean", "crashed"])
def test_ten_thousand_queues(many, thorough):
    process = psutil.Process()
    memory, files, begin = process.memory_info().rss, process.num_fds(), time.process_time()
    queues = ConsumeQueues(RealDisk(), many, StoreOptions())
    queues.load()
    queues.recover(thorough=thorough)
    queues.correct_min(45_000)
    seconds = time.process_time() - begin
    assert len(queues) == COUNT
    assert process.num_fds() == files
    assert process.memory_info().rss - memory < 200_000_000
    # On a quiet machine 1 s; of CPU time, as the machine of a test run is none.
    assert seconds < 5
    assert queues.get("Topic99", 98).max_offset == 9998 % 9
    assert queues.get("Topic0", 8).min_offset == 8
    assert queues.get("Topic42", 42).min_offset == 0
    queues.close()
