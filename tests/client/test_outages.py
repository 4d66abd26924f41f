"""What a user sees when servers go away: nameservers, brokers, topics; and groups that do not agree."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer import push
from cometmq.client.consumer.agreement import differences
from cometmq.client.consumer.subscriptions import Sql, Subscription, subscription_data
from cometmq.client.errors import BrokerError, ClientError, NoNameserver, NoRoute, SendFailed
from cometmq.client.message import ReceivedMessage
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.remoting.errors import TransportError
from cometmq.testing import EmbeddedBroker
from support.cluster import OURS, AnyBroker, Cluster
from support.loops import until
from support.server_process import free_port

Name = Callable[[str], str]


class Received(list[bytes]):
    """What a handler got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message.body)


async def test_without_a_nameserver_a_send_says_which_were_asked() -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with connect(addresses) as mq, mq.producer("PG") as producer:
        with pytest.raises(NoNameserver) as caught:
            await producer.send("T", b"x", timeout=1)
        assert all(address in str(caught.value) for address in addresses)


async def test_a_consumer_that_starts_before_its_servers_begins_when_they_come() -> None:
    with EmbeddedBroker() as broker:
        nameserver = broker.nameserver
        async with connect(nameserver) as mq, mq.producer("PG") as producer:
            await producer.send("T", b"before")
        broker._ports = (broker._running.nameserver.port, broker._running.broker.port)
        await asyncio.to_thread(broker._end)
        received = Received()
        async with connect(nameserver) as mq, mq.push_consumer("CG", {"T": "*"}, received, start_from="first"):
            assert not received
            await asyncio.to_thread(broker.start)
            await until(lambda: received == [b"before"], "it was consumed", 60)


async def test_consumers_and_producers_outlive_a_restart_of_everything() -> None:
    """No heartbeat and no rebalance is due meanwhile: the new connection is introduced by the pull that opens it."""
    with EmbeddedBroker() as broker:
        received, in_order = Received(), Received()
        slow = {"start_from": "first", "rebalance_interval": 600}
        async with (
            connect(broker.nameserver, heartbeat_interval=600) as mq,
            mq.producer("PG") as producer,
            mq.push_consumer("CG", {"T": "*"}, received, **slow),
            mq.push_consumer("CG_O", {"T": "*"}, in_order, ordered=True, **slow),
        ):
            await producer.send("T", b"before")
            await until(lambda: len(received) == len(in_order) == 1, "consumed", 60)
            outcomes: list[str] = []
            restart = asyncio.create_task(asyncio.to_thread(broker.restart))
            while not restart.done() or outcomes[-1:] != ["ok"]:
                try:
                    await producer.send("T", b"%d" % len(outcomes), timeout=2)
                    outcomes.append("ok")
                except (BrokerError, ClientError, TransportError) as error:
                    outcomes.append(type(error).__name__)
                await asyncio.sleep(0.02)
            await restart
            sent = {b"%d" % n for n, outcome in enumerate(outcomes) if outcome == "ok"} | {b"before"}
            loop = asyncio.get_running_loop()
            began = loop.time()
            await until(lambda: sent <= set(received) and sent <= set(in_order), "consumed again", 60)
            print(
                f"\n{len(sent)} sent, {len(outcomes) + 1 - len(sent)} refused, drained in {loop.time() - began:.1f} s"
            )


async def test_without_nameservers_what_is_known_goes_on_and_what_is_new_says_why(tmp_path: Path) -> None:
    received = Received()
    with Cluster(OURS, tmp_path) as cluster:
        nameserver = cluster.nameserver
        cluster.make_topic("T")
        async with (
            connect(nameserver, route_interval=0.05) as mq,
            mq.producer("PG") as producer,
            mq.push_consumer("CG", {"T": "*"}, received, start_from="first", rebalance_interval=0.05) as consumer,
        ):
            await producer.send("T", b"before")
            await until(lambda: received == [b"before"], "consumed", 60)
            queues = [queue for queue in consumer.assignments if queue.topic == "T"]
            cluster.kill_nameserver()
            for number in range(20):
                await producer.send("T", b"%d" % number)
                await asyncio.sleep(0.02)
            await until(lambda: len(received) == 21, "consumed without a nameserver", 60)
            assert set(queues) <= set(consumer.assignments), "it keeps its queues"
            with pytest.raises(NoNameserver, match=f"no nameserver answered .*{nameserver}"):
                await producer.send("Unknown", b"x", timeout=2)


async def test_a_producer_whose_topic_is_deleted_hears_that_it_does_not_exist() -> None:
    with EmbeddedBroker(config={"autoCreateTopicEnable": False}) as broker:
        async with connect(broker.nameserver) as mq, mq.producer("PG") as producer:
            await mq.admin().create_topic("T", read_queues=2, write_queues=2)
            await producer.send("T", b"1", timeout=10)
            await mq.admin().delete_topic("T")
            errors: list[Exception] = []
            for _ in range(2):
                with pytest.raises((NoRoute, SendFailed)) as caught:
                    await producer.send("T", b"2", timeout=10)
                errors.append(caught.value)
            print(f"\n{errors[0]}\n{errors[1]}")
            # The first is told by the broker; then the topic is forgotten, and the next is told why it has no route.
            assert all("T" in str(error) and "not exist" in str(error) for error in errors)
            assert isinstance(errors[1], NoRoute)
            assert "autoCreateTopicEnable" in str(errors[1])


async def test_a_topic_that_is_deleted_and_comes_back_goes_on(
    mq: Client, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    received = Received()
    async with mq.producer(name("PG")) as producer:
        used = (await producer.send(name("T"), b"1")).queue
        async with mq.push_consumer(name("CG"), {name("T"): "*"}, received, start_from="first"):
            await until(lambda: received == [b"1"], "the first", 60)
            await mq.admin().delete_topic(name("T"))
            await until(lambda: f"topic={name('T')}" in caplog.text and "pull failed" in caplog.text, "it is told", 60)
            await mq.admin().create_topic(name("T"), read_queues=4, write_queues=4)
            other = used._replace(queue_id=(used.queue_id + 1) % 4)
            await producer.send(name("T"), b"2", queue=other, timeout=10)
            await until(lambda: b"2" in received, "the second", 60)


def complaints(caplog: pytest.LogCaptureFixture, group: str, text: str) -> list[str]:
    return [line for line in caplog.messages if group in line and text in line]


async def test_members_that_subscribe_differently_go_on_and_are_told(
    broker: AnyBroker, name: Name, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "AGREEMENT_FIRST", 0.1)
    monkeypatch.setattr(push, "AGREEMENT_INTERVAL", 0.1)
    one, two = Received(), Received()
    async with (
        connect(broker.nameserver) as first,
        connect(broker.nameserver) as second,
        first.producer(name("PG")) as producer,
    ):
        await producer.send(name("T"), b"0", tag="a")
        async with (
            first.push_consumer(name("CG"), {name("T"): "a || c"}, one, start_from="first") as member,
            second.push_consumer(name("CG"), {name("T"): "b"}, two, start_from="first") as other,
        ):
            # Who gets what is anybody's guess now; but both have queues, and go on to pull them.
            await until(lambda: member.assignments and other.assignments, "both have queues", 60)
            # Whoever is not the one that the broker heard last learns of the other.
            told = "subscribe differently"
            await until(lambda: complaints(caplog, name("CG"), told), "a member complains", 60)
            for _ in range(3):
                await member.agreement.look()
    # Each member tells a difference once.
    assert 1 <= len(complaints(caplog, name("CG"), told)) <= 2
    for complaint in complaints(caplog, name("CG"), told):
        assert re.search(r"with '(a \|\| c|b)' here and with '(a \|\| c|b)' elsewhere", complaint)


async def test_a_topic_that_is_missing_is_told_once(
    own_broker: EmbeddedBroker, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        connect(own_broker.nameserver) as mq,
        mq.push_consumer(name("CG"), {name("T"): "*"}, Received(), rebalance_soon=0.01) as consumer,
    ):
        rounds = Counter[str]()
        mine = consumer.rebalance._mine

        async def counted(topic: str) -> object:
            rounds[topic] += 1
            return await mine(topic)

        consumer.rebalance._mine = counted  # type: ignore[assignment,method-assign]
        await until(lambda: rounds[name("T")] >= 5, "it is looked for again and again", 30)
        told = [line for line in caplog.messages if "no nameserver knows the topic" in line and "keeps its" in line]
        assert len(told) == 1


async def test_a_broker_tells_of_members_that_subscribe_differently(
    own_broker: EmbeddedBroker, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        connect(own_broker.nameserver) as first,
        connect(own_broker.nameserver) as second,
        first.producer(name("PG")) as producer,
    ):
        await producer.send(name("T"), b"makes the topic")
        told = "different subscriptions"
        async with (
            first.push_consumer(name("CG"), {name("T"): "a"}, Received()),
            second.push_consumer(name("CG"), {name("T"): "b"}, Received()),
        ):
            await until(lambda: complaints(caplog, name("CG"), told), "the broker complains", 30)
    complaint = complaints(caplog, name("CG"), told)[0]
    assert "'a'" in complaint
    assert "'b'" in complaint


def test_what_counts_as_a_difference() -> None:
    def table(**wanted: Subscription) -> dict[str, SubscriptionData]:
        return {topic: subscription_data(topic, each, 1) for topic, each in wanted.items()}

    retries = {"%RETRY%CG": subscription_data("%RETRY%CG", "*", 1)}
    assert differences(table(T="a || b"), table(T="b||a")) == []
    assert differences(table(T="*") | retries, table(T="*")) == []
    assert differences(table(T="*"), table(T=Sql("a > 1"))) == ["T with '*' here and with 'a > 1' elsewhere"]
    assert differences(table(T="a", U="*"), table(T="a", V="*")) == [
        "U with '*' here and not elsewhere",
        "V not here and with '*' elsewhere",
    ]
