"""The first offsets of a new group: brokers of RocketMQ lose some of those that come at once, so none may."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from cometmq.client import Client, MessageQueue, connect
from cometmq.client.consumer import offsets as offsets_module
from cometmq.client.consumer.offsets import BrokerOffsets
from support.fake_cluster import FakeBroker, FakeCluster
from support.wire import until

GROUP = "CG_new"
QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(4)]
KEPT = {(GROUP, topic): {0: 100, 1: 101, 2: 102, 3: 103} for topic in ("T", "U")}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster("broker-a", "broker-b") as running:
        yield running


@pytest.fixture
def fake(cluster: FakeCluster) -> FakeBroker:
    return cluster["broker-a"]


@pytest.fixture
async def mq(cluster: FakeCluster) -> AsyncIterator[Client]:
    async with connect(cluster.nameserver) as client:
        await client.routes.get("T")
        yield client


@pytest.fixture
def store(mq: Client) -> BrokerOffsets:
    """A store of which brokers have heard nothing."""
    made = BrokerOffsets(mq, GROUP)
    for queue in QUEUES:
        made.update(queue, 100 + queue.queue_id)
    return made


async def test_the_first_offset_of_a_topic_goes_alone(fake: FakeBroker, store: BrokerOffsets) -> None:
    await store.persist(QUEUES)
    await until(lambda: fake.offsets == KEPT)
    assert fake.offset_requests == ["asked"] * 2 + ["told"] * 6


async def test_later_ones_wait_for_nobody(fake: FakeBroker, store: BrokerOffsets) -> None:
    await store.persist(QUEUES)
    await until(lambda: fake.offsets == KEPT)
    fake.offset_gate.clear()
    async with asyncio.timeout(5):
        await store.persist(QUEUES)
    assert "asked" not in fake.offset_requests[8:]


async def test_offsets_that_are_awaited_are_kept_as_well(fake: FakeBroker, store: BrokerOffsets) -> None:
    await store.commit(QUEUES)
    assert fake.offsets == KEPT


async def test_each_broker_has_a_first_one(cluster: FakeCluster, store: BrokerOffsets) -> None:
    others = [MessageQueue("T", "broker-b", number) for number in range(4)]
    for queue in others:
        store.update(queue, 7)
    await store.commit([*QUEUES, *others])
    assert cluster["broker-a"].offsets == KEPT
    assert cluster["broker-b"].offsets == {(GROUP, "T"): dict.fromkeys(range(4), 7)}


async def test_a_queue_that_goes_meanwhile_is_left_to_its_new_owner(fake: FakeBroker, store: BrokerOffsets) -> None:
    fake.offset_gate.clear()
    persisting = asyncio.create_task(store.persist(QUEUES))
    await until(lambda: len(fake.offset_requests) == 2)
    store.forget(QUEUES[3])
    fake.offset_gate.set()
    await persisting
    await until(lambda: len(fake.offsets.get((GROUP, "U"), ())) == 4 and len(fake.offsets[GROUP, "T"]) == 3)
    assert fake.offsets[GROUP, "T"] == {0: 100, 1: 101, 2: 102}


async def test_a_silent_broker_takes_one_timeout(
    fake: FakeBroker, store: BrokerOffsets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offsets_module, "TIMEOUT", 0.2)
    fake.offset_gate.clear()
    with caplog.at_level(logging.WARNING):
        await store.persist(QUEUES)
    # The first ones at once, then the others, for which nobody waits.
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    await until(lambda: fake.offset_requests == ["asked"] * 2 + ["told"] * 6)
    fake.offset_gate.set()
