"""Clocks that are set forward and back between the records, and then the power goes.

Where recovery begins, and whether a tail is torn or damaged, is told by store times: they must not be believed blindly.
"""

import random

import pytest

from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from support.store_kit import StoreKit, message, read_queue

STEPS_MS = (0, 0, -500, -1500, -3_600_000, 3_600_000, -30 * 86_400_000)


def load(kit: StoreKit, store: Store, rng: random.Random) -> set[int]:
    """Messages with a clock that jumps; the physical offsets of the acknowledged ones."""
    acknowledged = set()
    for _ in range(8):
        tickets = kit.fill(store, rng.randrange(5, 60), size=rng.randrange(50, 400))
        acknowledged |= {ticket.physical_offset for ticket in tickets if ticket.status is PutStatus.PUT_OK}
        kit.clock.set_wall(kit.clock.wall() + rng.choice(STEPS_MS))
        if rng.random() < 0.5:
            kit.runner.advance(rng.choice((0.2, 1.1, 70.0)))
    kit.runner.hold("flush")
    for number in range(rng.randrange(30)):
        kit.put(store, message("T", number % 2, b"u" * rng.randrange(10, 3000)))
    return acknowledged


@pytest.mark.parametrize("seed", range(40))
def test_what_was_acknowledged_survives_a_clock_that_was_set_back(seed: int) -> None:
    rng = random.Random(seed)
    kit = StoreKit(flushDiskType="SYNC_FLUSH")
    acknowledged = load(kit, kit.opened(), rng)
    assert len(acknowledged) > 30
    kit.power_lost(seed)
    store = kit.opened()
    found: set[int] = set()
    for queue_id in (0, 1):
        records = read_queue(store, "T", queue_id)
        assert [record.queue_offset for record in records] == list(range(len(records)))
        found |= {record.physical_offset for record in records}
    assert acknowledged <= found
    for number in range(5):
        result = store.query("T", f"k{number}", 64)
        assert len(result.ranges) == 8, "one of each of the rounds"
        result.release()
    store.close()
