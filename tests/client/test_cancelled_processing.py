"""A message whose processing is broken off: neither done nor failed. It comes again, and the others go on."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from cometmq.client import Client, connect
from cometmq.client.message import ReceivedMessage
from cometmq.testing import EmbeddedBroker
from support.cluster import BROKER_NAME
from support.standalone import Received, fill, make_topic
from support.wire import until

Name = Callable[[str], str]
FIRST = {"start_from": "first"}


async def break_off(message: ReceivedMessage) -> None:
    """Process a message, and be cancelled in the middle of it."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001), message.process():
            await asyncio.Event().wait()


async def test_the_others_go_on_and_it_comes_again_after_the_close(mq: Client, name: Name) -> None:
    await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), b"0", b"1", b"2")
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, **FIRST) as consumer:
        assert consumer.concurrency == 1
        async with asyncio.timeout(30):
            broken = await anext(consumer)
            waiting = asyncio.create_task(anext(consumer))
            await until(lambda: len(consumer._unsettled.waiters) == 1)
            await break_off(broken)
            await (await waiting).ack()
            last = await anext(consumer)
            await last.ack()
        assert last.body == b"2"
        assert set(consumer._unsettled) == {broken}
    again = Received()
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, again, **FIRST):
        await again.has(3)
    assert again.bodies == [b"0", b"1", b"2"], "the offset was held back at the one that was not settled"
    assert again[0].reconsume_times == 0


async def test_who_took_it_may_settle_it_still(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), b"0", b"1")
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, **FIRST) as consumer:
        broken = await anext(consumer)
        await break_off(broken)
        await (await anext(consumer)).ack()
        assert consumer.offsets_store.known(queue) in (None, 0)
        await broken.ack()
        assert consumer.offsets_store.known(queue) == 2
        assert not consumer._unsettled


async def test_an_ordered_queue_waits_for_it_and_other_queues_do_not(mq: Client, name: Name) -> None:
    queues = await make_topic(mq, name("T"), 2)
    await fill(mq, name("T"), b"a0", b"a1", queue=0)
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, ordered=True, **FIRST) as consumer:
        broken = await anext(consumer)
        await break_off(broken)
        await fill(mq, name("T"), b"b0", b"b1", queue=1)
        for body in (b"b0", b"b1"):
            async with asyncio.timeout(30):
                message = await anext(consumer)
            assert message.body == body, "the queue of the broken off one stands"
            await message.ack()
        assert await consumer.assignments[queues[0]].until_idle(0), "nobody works on it: a rebalance need not wait"
        await broken.ack()
        async with asyncio.timeout(30):
            last = await anext(consumer)
        assert last.body == b"a1"
        await last.ack()


async def test_an_ordered_queue_gets_it_again_after_the_consume_timeout(mq: Client, name: Name) -> None:
    await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), b"a0", b"a1")
    options = {"consume_timeout": 0.2, "suspend": 0.01, **FIRST}
    async with (
        asyncio.timeout(60),
        mq.push_consumer(name("CG"), {name("T"): "*"}, ordered=True, **options) as consumer,
    ):
        await break_off(await anext(consumer))
        got = []
        for _ in range(2):
            async with (await anext(consumer)).process() as message:
                got.append((message.body, message.reconsume_times))
    assert got == [(b"a0", 1), (b"a1", 0)]


async def test_it_is_given_back_after_the_consume_timeout() -> None:
    with EmbeddedBroker(config={"brokerName": BROKER_NAME}) as broker:
        async with connect(broker.nameserver) as mq:
            await make_topic(mq, "T", 1)
            await fill(mq, "T", b"0")
            options = {"consume_timeout": 0.1, "rebalance_interval": 0.1, **FIRST}
            async with asyncio.timeout(60), mq.push_consumer("CG", {"T": "*"}, **options) as consumer:
                await break_off(await anext(consumer))
                await until(lambda: not consumer._unsettled)
                await asyncio.to_thread(broker.advance, timedelta(seconds=11))
                again = await anext(consumer)
                assert (again.body, again.reconsume_times) == (b"0", 1)
                await again.ack()


async def test_a_handler_that_waited_for_something_cancelled_failed_and_its_worker_goes_on(
    mq: Client, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), *(b"%d" % number for number in range(5)))
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body != b"4":
            cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled
        got.append(message.body)

    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, concurrency=2, **FIRST) as consumer:
        await until(lambda: got == [b"4"] and not consumer._unsettled)
    assert caplog.text.count("waited for something that was cancelled") >= 4
