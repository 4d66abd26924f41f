"""What a user sees when servers go away: nameservers, brokers, topics; and groups that do not agree."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Client, connect
from cometmq.client.errors import BrokerError, ClientError, NoNameserver, NoRoute, SendFailed
from cometmq.client.message import ReceivedMessage
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


def complaints(caplog: pytest.LogCaptureFixture, group: str) -> list[str]:
    return [line for line in caplog.messages if group in line and "different subscriptions" in line]


async def test_members_that_subscribe_differently_go_on_and_the_broker_says_so(
    broker: AnyBroker, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Received(), Received()
    async with (
        connect(broker.nameserver) as first,
        connect(broker.nameserver) as second,
        first.producer(name("PG")) as producer,
    ):
        await producer.send(name("T"), b"0", tag="a")
        async with (
            first.push_consumer(name("CG"), {name("T"): "a"}, one, start_from="first") as member,
            second.push_consumer(name("CG"), {name("T"): "b"}, two, start_from="first") as other,
        ):
            await until(lambda: complaints(caplog, name("CG")), "the broker complains", 30)
            # Who gets what is anybody's guess now; but both have queues, and go on to pull them.
            await until(lambda: member.assignments and other.assignments, "both have queues", 60)
    complaint = complaints(caplog, name("CG"))[0]
    assert "'a'" in complaint
    assert "'b'" in complaint
