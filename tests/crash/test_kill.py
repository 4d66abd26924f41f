"""kill -9 at random moments under load, on a real disk: what was acknowledged can be read, in order, and nothing else.

The ledger is outside of the process: what has come through its pipe was acknowledged. Each store lives through several
deaths, some of them during recovery.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.protocol.record import Record, decode_record, decode_records
from support.crash_checks import scan_log
from support.crash_nursery import Nursery
from support.crash_writer import IN_FLIGHT, QUEUES, TOPIC, body_of, queue_of

#: Files so small that each life rolls some.
OPTIONS = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "200",
    "maxIndexNum": "400",
    "commitLogReserveStep": "32768",
}
#: Numbers of one life; none writes that many.
LIFE = 1_000_000


@dataclass
class Outside:
    """What is known of a store outside of its processes."""

    #: Number -> queue offset and physical offset.
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: By life: the highest number that was acknowledged.
    highest: dict[int, int] = field(default_factory=dict)
    #: By queue: how many messages were read by now, and the last of them.
    read: list[int] = field(default_factory=lambda: [0] * QUEUES)
    last: list[int] = field(default_factory=lambda: [-1] * QUEUES)
    #: All numbers that were read, by life.
    found: dict[int, set[int]] = field(default_factory=dict)

    def heard(self, said: list[bytes]) -> dict[int, tuple[int, int]]:
        """Take the lines of a writer into the ledger; gives the acknowledgements among them."""
        new = {}
        for line in said:
            if line[:1].isdigit():
                number, queue_offset, physical = (int(word) for word in line.split())
                new[number] = (queue_offset, physical)
                life = number // LIFE
                self.highest[life] = max(self.highest.get(life, -1), number)
        self.acknowledged |= new
        return new


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def opened(folder: Path, properties: dict[str, str]) -> Store:
    runner = ManualRunner(FakeClock())
    store = Store(folder, StoreOptions.from_properties(properties), runner=runner, clock=runner.clock)
    store.open()
    return store


def check_record(record: Record, queue_id: int, queue_offset: int) -> int:
    """A record is what its number says; gives the number."""
    number = int(record.body[:10])
    assert record.body == body_of(number)
    assert (record.topic, record.queue_id) == (TOPIC, queue_id)
    assert queue_of(number) == queue_id
    assert record.queue_offset == queue_offset
    return number


def check_new(store: Store, outside: Outside) -> None:
    """Every message that has come since the last look: in order, whole, and nothing that nobody wrote."""
    for queue_id in range(QUEUES):
        end = store.max_offset(TOPIC, queue_id)
        offset = outside.read[queue_id]
        assert end >= offset, f"queue {queue_id} has gone back from {offset} to {end}"
        while offset < end:
            result = store.get_message("g", TOPIC, queue_id, offset, 32)
            assert result is not None
            records = list(decode_records(b"".join(result.buffers())))
            result.release()
            assert len(records) == result.message_count > 0
            for record in records:
                number = check_record(record, queue_id, offset)
                assert number > outside.last[queue_id], "the order is that of the puts"
                outside.last[queue_id] = number
                life = number // LIFE
                outside.found.setdefault(life, set()).add(number)
                offset += 1
            assert offset == result.next_begin_offset
        outside.read[queue_id] = end
    for life, numbers in outside.found.items():
        first = life * LIFE
        assert numbers == set(range(first, first + len(numbers))), "what is there is all that was put before it"
        assert max(numbers) <= outside.highest.get(life, first) + 5 * (IN_FLIGHT + 5), "nobody has put that many"


def check_acknowledged(store: Store, entries: dict[int, tuple[int, int]]) -> None:
    for number, (queue_offset, physical) in entries.items():
        queue = store.queues.get(TOPIC, queue_of(number))
        unit = queue.unit(queue_offset) if queue is not None else None
        assert unit is not None, f"message {number} is lost"
        assert unit[0] == physical
        found = store.message_at(physical)
        assert found is not None
        with found:
            assert check_record(decode_record(found.buffers()[0]), queue_of(number), queue_offset) == number


def check_everything(store: Store, outside: Outside) -> None:
    """The whole store, message by message and key by key."""
    logged = scan_log(store)
    assert len(logged) == sum(len(numbers) for numbers in outside.found.values())
    for request in logged:
        queue = store.queues.get(request.topic, request.queue_id)
        assert queue is not None
        assert queue.unit(request.queue_offset) == (request.physical_offset, request.size, request.tags_code)
        assert request.keys is not None
        result = store.query(TOPIC, request.keys.decode(), 64)
        assert [part.start for part in result.ranges].count(request.physical_offset) == 1
        result.release()
    again = Outside(acknowledged=outside.acknowledged, highest=outside.highest)
    check_new(store, again)
    assert again.found == outside.found
    check_acknowledged(store, outside.acknowledged)


def killed_often(nursery: Nursery, folder: Path, kills: int, seed: int, **more: str) -> int:
    """Kill a writer on the same directory many times; gives how many messages were acknowledged."""
    dice = random.Random(seed)
    properties = OPTIONS | more
    outside = Outside()
    for life in range(kills):
        said = nursery.kill_one(folder, life * LIFE, properties, dice)
        new = outside.heard(said)
        store = opened(folder, properties)
        check_acknowledged(store, new)
        check_new(store, outside)
        if life % 10 == 9:
            check_everything(store, outside)
        store.close()
        if dice.random() < 0.6:
            # As if this one had been killed too.
            (folder / "abort").write_text("1")
    return len(outside.acknowledged)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (1, {"flushDiskType": "ASYNC_FLUSH"}),
        (2, {"flushDiskType": "SYNC_FLUSH"}),
        (3, {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": "16384", "mappedFileSizeConsumeQueue": "400"}),
        (4, {"flushDiskType": "SYNC_FLUSH", "enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}),
        (5, {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "5", "flushIntervalConsumeQueue": "7"}),
        (6, {"flushDiskType": "SYNC_FLUSH", "flushIntervalConsumeQueue": "3"}),
    ],
)
def test_nothing_acknowledged_is_lost_by_kill_9(
    nursery: Nursery, tmp_path: Path, seed: int, more: dict[str, str]
) -> None:
    # A life under load, 85 of 100, has 1 to 60 acknowledgements at least.
    assert killed_often(nursery, tmp_path, 18, seed, **more) > 100


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(100, 120))
def test_nothing_acknowledged_is_lost_by_many_kills(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    flush = ("ASYNC_FLUSH", "SYNC_FLUSH")[seed % 2]
    assert killed_often(nursery, tmp_path, 100, seed, flushDiskType=flush) > 500
