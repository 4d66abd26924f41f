"""Units that were read ahead: whoever reads a queue, in whatever order, sees what was appended last at each offset."""

import random

import pytest

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.consume_queue import AHEAD, UNIT, UNIT_SIZE, ConsumeQueue
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.log_files import LogFiles

SIZE = 100


def new_queue(per_file: int) -> tuple[ConsumeQueue, FakeDisk]:
    disk = FakeDisk()
    disk.make_dirs("/store", sync=True)
    files = LogFiles(disk, "/store/consumequeue/T/0", per_file * UNIT_SIZE)
    files.load()
    return ConsumeQueue("T", 0, Upkeep(disk, 8), files), disk


def append(queue: ConsumeQueue, count: int, tag: int) -> None:
    for _ in range(count):
        assert queue.append(queue.next_offset, max(queue.max_physical, 0), SIZE, tag)
    queue.write_out()


def tags(queue: ConsumeQueue, offset: int, count: int) -> list[int]:
    return [tag for _, _, tag in UNIT.iter_unpack(queue.units(offset, count))]


def test_who_goes_through_a_queue_reads_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, _ = new_queue(10_000)
    append(queue, 4000, 1)
    reads: list[int] = []
    read = ConsumeQueue.read

    def watched(self: ConsumeQueue, position: int, length: int) -> bytes:
        reads.append(length)
        return read(self, position, length)

    monkeypatch.setattr(ConsumeQueue, "read", watched)
    for offset in range(0, 4000, 40):
        assert len(tags(queue, offset, 40)) == 40
    assert len(reads) <= 4000 * UNIT_SIZE // AHEAD + 1
    assert max(reads) == AHEAD


@pytest.mark.parametrize("per_file", [7, 300, 10_000])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_reads_appends_and_cuts(per_file: int, seed: int) -> None:
    chance = random.Random(seed)
    queue, _ = new_queue(per_file)
    model: list[int] = []
    positions = [0, 0]  # of two who go through the queue
    for turn in range(1, 1500):
        match chance.randrange(12):
            case 0 | 1 | 2:
                count = chance.choice([1, 3, 100])
                append(queue, count, turn)
                model += [turn] * count
            case 3 if model and chance.random() < 0.3:
                end = chance.randrange(len(model))
                queue.truncate_to(end)
                del model[end:]
            case 4:
                offset, count = chance.randrange(len(model) + 2), chance.choice([1, 32, 300])
                found = tags(queue, offset, count)
                assert found == model[offset : offset + len(found)]
                assert bool(found) == (offset < len(model))
            case _:
                who = chance.randrange(2)
                positions[who] = min(positions[who], len(model))
                found = tags(queue, positions[who], 32)
                assert found == model[positions[who] : positions[who] + len(found)]
                assert bool(found) == (positions[who] < len(model))
                # One read ends with its file, and gives all that the file has.
                there = min(32, len(model) - positions[who], per_file - positions[who] % per_file)
                assert len(found) == there
                positions[who] += len(found)


def test_a_queue_that_is_made_anew_has_nothing_of_the_old_one() -> None:
    queue, _ = new_queue(1000)
    append(queue, 200, 1)
    assert tags(queue, 0, 10) == [1] * 10
    assert tags(queue, 10, 10) == [1] * 10
    queue.destroy()
    assert tags(queue, 20, 10) == []
    append(queue, 30, 2)
    assert tags(queue, 20, 10) == [2] * 10
