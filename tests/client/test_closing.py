"""The end of clients, producers and consumers: once, in order, with nothing left behind, even when it is cancelled."""

import asyncio
from collections.abc import Callable, Iterable

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer import rebalance
from cometmq.client.message import ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.fake_cluster import HANG, FakeCluster
from support.wire import until

Name = Callable[[str], str]


class Stuck:
    """A handler that is busy until it is let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.go = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.inside += 1
        try:
            await self.go.wait()
        finally:
            self.inside -= 1


async def filled(mq: Client, topic: str, group: str) -> None:
    async with mq.producer(group) as producer:
        await producer.send(topic, b"1")


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_close_that_is_cancelled_leaves_nothing_behind(broker: AnyBroker, name: Name, ordered: bool) -> None:
    before = asyncio.all_tasks()
    mq = connect(broker.nameserver)
    await mq.start()
    await filled(mq, name("T"), name("PG"))
    handler = Stuck()
    push = mq.push_consumer(name("CG"), {name("T"): "*"}, handler, start_from="first", ordered=ordered, trace=True)
    await push.start()
    pull = mq.pull_consumer(name("CG2")).subscribe(name("T"))
    await pull.start()
    await mq.producer(name("PG2"), trace=True, latency_fault_tolerance=True).start()
    await until(lambda: handler.inside == 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await mq.close()
    assert handler.inside == 0, "what ran was ended"
    assert not mq.consumers
    assert not mq.producers
    assert not mq.is_running
    await until(lambda: asyncio.all_tasks() == before)
    # Whoever comes next has the message, and its queue's lock.
    async with connect(broker.nameserver) as other:
        again = Stuck()
        again.go.set()
        async with other.push_consumer(
            name("CG"), {name("T"): "*"}, again, start_from="first", ordered=ordered
        ) as consumer:
            await until(lambda: any(queue.topic == name("T") for queue in consumer.assignments))


async def test_a_second_close_waits_for_the_first(broker: AnyBroker, name: Name) -> None:
    mq = connect(broker.nameserver)
    await mq.start()
    await filled(mq, name("T"), name("PG"))
    handler = Stuck()
    consumer = mq.push_consumer(name("CG"), {name("T"): "*"}, handler, start_from="first")
    await consumer.start()
    await until(lambda: handler.inside == 1)
    closes = [asyncio.ensure_future(close()) for close in (consumer.close, consumer.close, mq.close, mq.close)]
    await asyncio.sleep(0)
    assert mq.is_running, "its members still work"
    assert not any(close.done() for close in closes)
    handler.go.set()
    await asyncio.gather(*closes)
    assert not mq.is_running


async def test_a_handler_may_close_its_consumer_while_that_closes(mq: Client, name: Name) -> None:
    await filled(mq, name("T"), name("PG"))
    closing = asyncio.Event()
    inside = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        inside.set()
        await closing.wait()
        await consumer.close()

    consumer = mq.push_consumer(name("CG"), {name("T"): "*"}, handler, start_from="first")
    await consumer.start()
    await inside.wait()
    close = asyncio.ensure_future(consumer.close())
    await until(lambda: consumer._state == "closing")
    closing.set()
    async with asyncio.timeout(10):  # the close waits 30 s for a handler that does not end
        await close


async def test_a_producer_whose_close_is_cancelled_leaves_its_group() -> None:
    async with FakeCluster("a") as cluster, connect(cluster.nameserver) as mq:
        producer = mq.producer("PG", accumulate=True, trace=True, send_timeout=20)
        await producer.start()
        cluster.script.append(HANG)
        send = asyncio.ensure_future(producer.send("T", b"is never answered"))
        await until(lambda: cluster.sends == 1)
        close = asyncio.ensure_future(producer.close())
        await until(lambda: not producer._is_open)
        close.cancel()
        await asyncio.wait([close])
        assert list(mq.producers) == []
        async with mq.producer("PG") as again:
            await again.send("T", b"x")
        send.cancel()


async def test_a_broker_that_is_silent_keeps_no_other_one_from_the_renewal_of_its_locks(
    name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "LOCK_TIMEOUT", 0.05)
    monkeypatch.setattr(rebalance, "RENEW_AGAIN", 0.05)
    asked: list[set[MessageQueue]] = []
    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq:
            await filled(mq, name("T"), name("PG"))
            async with mq.push_consumer(
                name("CG"), {name("T"): "*"}, Stuck(), ordered=True, close_timeout=0
            ) as consumer:
                await until(lambda: len([q for q in consumer.assignments if q.topic == name("T")]) == 4)
                own = [queue for queue in consumer.assignments if queue.topic == name("T")]
                silent = MessageQueue(name("T"), "silent", 0)
                held = consumer.new_assignment(silent)
                held.locked_at = 0.0
                consumer.assignments[silent] = held
                master, lock = mq.routes.brokers.master, consumer.rebalance.lock

                async def locked(queues: Iterable[MessageQueue], *more: list[MessageQueue]) -> set[MessageQueue]:
                    asked.append({queue for queue in queues if queue.topic == name("T")})
                    return await lock(queues, *more)

                monkeypatch.setattr(consumer.rebalance, "lock", locked)
                monkeypatch.setattr(
                    mq.routes.brokers, "master", lambda name: "127.0.0.1:1" if name == "silent" else master(name)
                )
                for _ in range(2):
                    since = asyncio.get_running_loop().time()
                    await consumer.rebalance.renew_locks()
                    renewed = [consumer.assignments[queue].locked_at for queue in own]
                    assert all(moment is not None and moment >= since for moment in renewed)
                assert held.locked_at == 0.0, "it said nothing, so that its lock counts as before"
                assert asked.count({*own, silent}) == 2
                await until(lambda: asked.count({silent}) >= 2)
                assert asked.count({*own, silent}) == 2, "only this one is asked again soon"
                del consumer.assignments[silent]
