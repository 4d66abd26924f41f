"""What is lost when: clean stop, kill -9, crash of the operating system, power loss, with sync and async flush.

The promises: SYNC_FLUSH loses nothing that was acknowledged, whatever happens. ASYNC_FLUSH loses nothing when the
process dies, and at most the flush interval, 500 ms, when the machine does.
"""

import random
from pathlib import Path

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from support.crash_nursery import Nursery
from support.crash_writer import QUEUES, TOPIC, body_of, queue_of
from support.store_kit import StoreKit, bodies, message, record_at

FLUSH = ("SYNC_FLUSH", "ASYNC_FLUSH")
#: The printed promise of ASYNC_FLUSH, in seconds.
INTERVAL = 0.5
PAUSE = 0.02


def load(kit: StoreKit, store: Store, count: int = 90) -> dict[bytes, float]:
    """Put messages, one every 20 ms, and give the acknowledged ones with their moments."""
    acknowledged = {}
    for number in range(count):
        body = b"%06d" % number + bytes(number % 7 * 150)
        ticket = store.put(message("T", 0, body, KEYS=f"k{number}"))
        kit.runner.run()
        assert ticket.status is PutStatus.PUT_OK
        acknowledged[body] = kit.clock.monotonic()
        kit.runner.advance(PAUSE)
    return acknowledged


@pytest.mark.parametrize("flush", FLUSH)
def test_a_clean_stop_loses_nothing(flush: str, tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path, flushDiskType=flush)
    store = kit.opened()
    acknowledged = load(kit, store)
    store.close()
    store = kit.store()
    assert store.open().clean
    assert bodies(store, "T", 0) == list(acknowledged)
    store.close()


@pytest.mark.parametrize("flush", FLUSH)
def test_kill_9_loses_nothing(flush: str, tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path, flushDiskType=flush)
    nursery = Nursery()
    try:
        said = nursery.kill_one(tmp_path, 0, kit.properties, random.Random(1), load=(0.1, 0.2))
    finally:
        nursery.close()
    acknowledged = [tuple(int(word) for word in line.split()) for line in said if line[:1].isdigit()]
    assert len(acknowledged) > 10
    store = kit.store()
    assert not store.open().clean
    assert sum(store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)) >= len(acknowledged)
    for number, queue_offset, physical in acknowledged:
        record = record_at(store, physical)
        assert (record.body, record.queue_id) == (body_of(number), queue_of(number))
        assert record.queue_offset == queue_offset
    store.close()


@pytest.mark.parametrize("event", ["crash of the operating system", "power loss"])
@pytest.mark.parametrize("flush", FLUSH)
def test_the_end_of_the_machine_loses_no_more_than_promised(flush: str, event: str) -> None:
    """Many outcomes of one end. A power loss may also tear the page that was being written."""
    kit = StoreKit(flushDiskType=flush)
    acknowledged = load(kit, kit.opened())
    end = kit.clock.monotonic()
    running = kit.fake
    lost = 0
    for seed in range(60):
        kit.disk = running
        kit.power_lost(seed if event == "power loss" else 1000 + seed)
        store = kit.store()
        store.open()
        found = bodies(store, "T", 0)
        assert found == list(acknowledged)[: len(found)], "the log loses its end, never something before it"
        for body in list(acknowledged)[len(found) :]:
            assert flush == "ASYNC_FLUSH", "SYNC_FLUSH loses nothing"
            assert end - acknowledged[body] <= INTERVAL + PAUSE, "only what was acknowledged in the last half second"
            lost += 1
        store.close()
    # The test can see a loss where there is one.
    assert (lost > 0) is (flush == "ASYNC_FLUSH")
