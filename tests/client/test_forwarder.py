"""The forwarder: everything arrives, in order per key, as it was; also when the target goes away in the middle."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from cometmq.client import Client, Message, connect
from cometmq.client.audit import SEQUENCE, SendAudit
from cometmq.client.errors import NoRoute
from cometmq.client.forwarder import Forwarder
from cometmq.client.message import ReceivedMessage
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]


@pytest.fixture(scope="module")
def second() -> Iterator[EmbeddedBroker]:
    """Another cluster."""
    with EmbeddedBroker(config={"brokerName": "broker-b", "brokerClusterName": "Second"}) as running:
        yield running


@pytest.fixture
async def target(second: EmbeddedBroker) -> AsyncIterator[Client]:
    async with connect(second.nameserver) as client:
        yield client


async def make(mq: Client, topic: str, queues: int) -> None:
    await mq.admin().create_topic(topic, read_queues=queues, write_queues=queues)


async def fill(mq: Client, topic: str, keys: int, each: int) -> list[str]:
    """Numbered messages of some keys; their ids."""
    ids = []
    async with mq.producer(f"PG_{topic}"[:100]) as producer:
        for number in range(each):
            sends = (producer.send(topic, b"%d" % number, sharding_key=f"k{key}") for key in range(keys))
            ids += [receipt.message_id for receipt in await asyncio.gather(*sends)]
    return ids


class Arrived(list[ReceivedMessage]):
    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)

    def by_key(self) -> dict[str | None, list[int]]:
        found = defaultdict(list)
        for message in self:
            found[message.sharding_key].append(int(message.body))
        return dict(found)


async def test_messages_move_to_another_cluster_with_more_queues_in_order(
    mq: Client, target: Client, name: Name
) -> None:
    await make(target, name("New"), 8)
    ids = await fill(mq, name("Old"), keys=15, each=20)
    arrived = Arrived()
    async with (
        Forwarder(mq, name("Old"), target, name("New"), group=name("G")) as forwarder,
        target.push_consumer(name("CG"), {name("New"): "*"}, arrived, ordered=True, start_from="first"),
    ):
        await until(lambda: len(arrived) == 300)
        assert sum(forwarder.forwarded.values()) == 300
    assert arrived.by_key() == {f"k{key}": list(range(20)) for key in range(15)}
    assert sorted(message.message_id for message in arrived) == sorted(ids)
    assert len({message.queue for message in arrived}) > 4, "the queues beyond the old four are used"
    queue_of = {message.sharding_key: message.queue for message in arrived}
    assert all(queue_of[message.sharding_key] == message.queue for message in arrived)


async def test_everything_that_belongs_to_a_message_is_kept_and_nothing_else(
    broker: AnyBroker, mq: Client, target: Client, name: Name
) -> None:
    await make(target, name("New"), 1)
    large = bytes(range(256)) * 40
    async with mq.producer(name("PG"), hooks=[SendAudit()]) as producer:
        sent = [
            Message(b"a", tag="t", keys=["k1", "k2"], properties={"price": "42"}, flag=7, buyer_id="b"),
            Message(large, sharding_key="s", wait_store_ok=False),
            Message(b"late", delay_level=1, properties={"own": "x"}),
        ]
        for message in sent:
            await producer.send(name("Old"), message)
    await asyncio.to_thread(broker.advance, timedelta(seconds=2))
    arrived = Arrived()
    async with (
        Forwarder(mq, name("Old"), target, name("New"), group=name("G")),
        target.push_consumer(name("CG"), {name("New"): "*"}, arrived, start_from="first"),
    ):
        await until(lambda: len(arrived) == 3)
    first, second, third = sorted(arrived, key=lambda message: len(message.body))[:3]
    assert (first.body, first.tag, first.keys, first.flag) == (b"a", "t", ["k1", "k2"], 7)
    assert (first.properties["price"], first.properties["BUYER_ID"]) == ("42", "b")
    assert (second.body, second.properties["own"]) == (b"late", "x")
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & set(second.properties), "a delay that is over begins again"
    assert (third.body, third.sharding_key, third.properties["WAIT"]) == (large, "s", "false")
    assert third.record.size < len(large), "a large body is compressed again"
    assert all(SEQUENCE not in message.properties for message in arrived)
    assert all(message.properties["CLUSTER"] == "Second" for message in arrived)


async def test_a_target_that_goes_away_loses_nothing_and_keeps_the_order(mq: Client, name: Name) -> None:
    with EmbeddedBroker() as own:
        async with connect(own.nameserver) as target:
            await make(target, "New", 6)
            arrived = Arrived()
            options = {"producer_options": {"send_timeout": 1.0}, "suspend": 0.05}
            async with Forwarder(mq, name("Old"), target, "New", group=name("G"), **options) as forwarder:
                await fill(mq, name("Old"), keys=10, each=20)
                await until(lambda: sum(forwarder.forwarded.values()) > 20)
                restarted = asyncio.ensure_future(asyncio.to_thread(own.restart))
                await fill(mq, name("Old"), keys=10, each=20)
                await restarted
                async with target.push_consumer("CG", {"New": "*"}, arrived, ordered=True, start_from="first"):
                    await until(lambda: len({message.message_id for message in arrived}) == 400)
    for key, numbers in arrived.by_key().items():
        assert key is not None
        # Twice 0 to 19; what came twice came again at once.
        steps = [numbers[0], *(b - a for a, b in pairwise(numbers))]
        assert set(steps) <= {0, 1, -19}, (key, numbers)
        assert steps.count(-19) == 1


async def test_without_keys_a_queue_keeps_its_order_or_is_spread(mq: Client, name: Name) -> None:
    await make(mq, name("Old"), 2)
    for topic in ("New", "Spread"):
        await make(mq, name(topic), 8)
    async with mq.producer(name("PG")) as producer:
        for number in range(80):
            await producer.send(name("Old"), b"%d" % number)
    arrived, spread = Arrived(), Arrived()
    async with (
        Forwarder(mq, name("Old"), mq, name("New"), group=name("G1")),
        Forwarder(mq, name("Old"), mq, name("Spread"), group=name("G2"), spread=True),
        mq.push_consumer(name("C1"), {name("New"): "*"}, arrived, ordered=True, start_from="first"),
        mq.push_consumer(name("C2"), {name("Spread"): "*"}, spread, start_from="first"),
    ):
        await until(lambda: len(arrived) == len(spread) == 80)
    queues = defaultdict(list)
    for message in arrived:
        queues[message.queue].append(int(message.body))
    # One queue or two, as the hash of their names has it; two sources in one queue may be mixed.
    for parity in (0, 1):
        assert [n for numbers in queues.values() for n in numbers if n % 2 == parity] == list(range(parity, 80, 2))
    assert len({message.queue for message in spread}) == 8


async def test_a_part_that_failed_is_sent_again_and_the_rest_is_not(
    mq: Client, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    """A selector that fails once for one key: the other keys of the batch are there already."""
    for topic in ("Old", "New"):
        await make(mq, name(topic), 1)
    failures = 2
    chosen: list[str] = []

    def select(queues, message, key):  # type: ignore[no-untyped-def]
        nonlocal failures
        if key == "k1" and failures:
            failures -= 1
            raise RuntimeError("not now")
        chosen.append(key)
        return queues[0]

    await fill(mq, name("Old"), keys=3, each=2)
    arrived = Arrived()
    with caplog.at_level(logging.WARNING, "cometmq.client.forwarder"):
        async with (
            Forwarder(mq, name("Old"), mq, name("New"), group=name("G"), selector=select, suspend=0.01),
            mq.push_consumer(name("CG"), {name("New"): "*"}, arrived, ordered=True, start_from="first"),
        ):
            await until(lambda: len(arrived) == 6)
    assert arrived.by_key() == {f"k{key}": [0, 1] for key in range(3)}
    assert sorted(chosen) == ["k0", "k0", "k1", "k1", "k2", "k2"], "nothing is sent twice"
    assert "could not be forwarded" in caplog.text


async def test_what_cannot_be_a_forwarder(mq: Client, name: Name) -> None:
    with pytest.raises(ValueError, match="itself"):
        Forwarder(mq, "T", mq, "T", group="G")
    with pytest.raises(TypeError, match="no option ordered"):
        Forwarder(mq, "T", mq, "U", group="G", ordered=False)
    forwarder = Forwarder(mq, name("Old"), mq, name("Nowhere"), group=name("G"))
    with pytest.raises(NoRoute):
        await forwarder.start()
    assert name("G") not in mq.producers
