"""The attempts of a send, row by row of the table in `producer.attempts`, against brokers that follow a script."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import MessageQueue, SendStatus, connect
from cometmq.client.errors import (
    AccessDenied,
    BrokerBusy,
    BrokerFailed,
    InvalidMessage,
    MessageRefused,
    NoRoute,
    SendFailed,
    TopicNotFound,
)
from cometmq.client.producer import Producer
from cometmq.client.producer.pressure import BackPressure
from cometmq.remoting.errors import ConnectFailed, ConnectionLost, Timeout, TooManyRequests
from support.fake_cluster import CUT, HANG, FakeCluster
from support.wire import until


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster("a", "b") as running:
        yield running


@pytest.fixture(params=["first", "short"])
async def producer(cluster: FakeCluster, request: pytest.FixtureRequest) -> AsyncIterator[Producer]:
    """A producer that sends its first message, or one that has found the short way already."""
    async with connect(cluster.nameserver) as mq, mq.producer("PG", send_timeout=20) as producer:
        if request.param == "short":
            await producer.send("T", b"warm")
            await producer.send("T", b"warm")
            assert producer._short.paths
            for broker in cluster.brokers.values():
                broker.sends.clear()
        yield producer


@asynccontextmanager
async def opened(cluster: FakeCluster, **options: Any) -> AsyncIterator[Producer]:
    async with connect(cluster.nameserver) as mq, mq.producer("PG", **options) as producer:
        yield producer


def scripted(cluster: FakeCluster, *entries: int | str) -> None:
    """Both brokers follow the same script: whichever is chosen first."""
    for broker in cluster.brokers.values():
        broker.script.extend(entries)


async def test_stored(cluster: FakeCluster, producer: Producer) -> None:
    assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
    assert cluster.sends == 1


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_stored_but_not_as_safely(cluster: FakeCluster, producer: Producer, code: int) -> None:
    scripted(cluster, code)
    receipt = await producer.send("T", b"x")
    names = {10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
    assert receipt.status == names[code]
    assert cluster.sends == 1, "it is stored: nobody asked for another attempt"


@pytest.mark.parametrize("code", [1, 14, 16, 17, 204, 205])
async def test_codes_that_are_retried_on_another_broker(cluster: FakeCluster, producer: Producer, code: int) -> None:
    cluster.script.append(code)
    receipts = [await producer.send("T", b"%d" % number) for number in range(4)]
    assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}
    assert cluster.sends == 5, "one of four sends took two attempts"


async def test_attempts_take_turns_over_the_brokers_and_share_one_key(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, 1, 1, 1)
    with pytest.raises(SendFailed, match="3 attempts") as caught:
        await producer.send("T", b"x")
    failed = caught.value
    names = [attempt.broker_name for attempt in failed.attempts]
    assert names in (["a", "b", "a"], ["b", "a", "b"])
    assert isinstance(failed.__cause__, BrokerFailed)
    assert (failed.code, failed.__cause__) == (1, failed.attempts[-1].error)
    keys = {
        request.header.properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
        for broker in cluster.brokers.values()
        for request in broker.sends
    }
    assert len(keys) == 1, "a repeat can be recognised"


@pytest.mark.parametrize(("code", "error"), [(13, MessageRefused), (17, TopicNotFound), (16, AccessDenied)])
async def test_what_the_last_broker_said_is_the_cause(
    cluster: FakeCluster, producer: Producer, code: int, error: type[Exception]
) -> None:
    scripted(cluster, code, code)
    with pytest.raises((error, SendFailed)) as caught:
        await producer.send("T", b"x")
    if code == 13:
        assert isinstance(caught.value, MessageRefused)
        assert cluster.sends == 1, "the message will not get better"
    else:
        assert isinstance(caught.value.__cause__, error)
        assert cluster.sends == 3


async def test_a_busy_broker_is_spared(cluster: FakeCluster) -> None:
    cluster.known = {"a"}
    cluster["a"].script.append(2)
    async with connect(cluster.nameserver) as mq, mq.producer("PG") as producer:
        with pytest.raises(BrokerBusy):
            await producer.send("T", b"x")
    assert cluster.sends == 1


async def test_a_busy_broker_and_another_one(cluster: FakeCluster, producer: Producer) -> None:
    cluster["a"].script.append(2)
    for number in range(4):
        await producer.send("T", b"%d" % number)
    assert cluster.sends == 5


async def test_a_lost_connection(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, CUT)
    receipt = await producer.send("T", b"x")
    assert receipt.status is SendStatus.SEND_OK
    assert cluster.sends == 3, "each broker hung up once, the third attempt was stored"


async def test_all_connections_lost(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, CUT, CUT)
    with pytest.raises(SendFailed) as caught:
        await producer.send("T", b"x")
    assert isinstance(caught.value.__cause__, ConnectionLost)


async def test_one_budget_for_all_attempts(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, HANG, HANG, HANG)
    with pytest.raises(SendFailed, match="1 attempts") as caught:
        await producer.send("T", b"x", timeout=0.3)
    assert isinstance(caught.value.__cause__, Timeout)
    assert cluster.sends == 1


async def test_an_attempt_timeout_leaves_time_for_others(cluster: FakeCluster) -> None:
    scripted(cluster, HANG)
    async with opened(cluster, attempt_timeout=0.2, send_timeout=20) as producer:
        assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK
    assert cluster.sends == 3


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_another_broker_when_not_stored_ok(cluster: FakeCluster, code: int) -> None:
    scripted(cluster, code)
    async with opened(cluster, retry_when_not_stored_ok=True, retries=1) as producer:
        receipt = await producer.send("T", b"x")
        assert receipt.status is not SendStatus.SEND_OK, "the last receipt, when no broker does better"
        assert cluster.sends == 2
        assert (await producer.send("T", b"y")).status is SendStatus.SEND_OK
        cluster.script.extend([code, 13])
        receipt = await producer.send("T", b"z")
        assert receipt.status is not SendStatus.SEND_OK, "a stored message is no failure, whatever comes after it"


async def test_no_retries(cluster: FakeCluster) -> None:
    scripted(cluster, 1)
    async with connect(cluster.nameserver) as mq, mq.producer("PG", retries=0) as producer:
        with pytest.raises(SendFailed, match="1 attempts"):
            await producer.send("T", b"x")


async def test_keyed_and_explicit_queues_get_one_attempt(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, 1, 1, CUT)
    with pytest.raises(BrokerFailed):
        await producer.send("T", b"x", queue=MessageQueue("T", "a", 1))
    assert [request.header.queue_id for request in cluster["a"].sends] == [1]
    with pytest.raises(BrokerFailed):
        await producer.send("T", b"x", sharding_key="user-7")
    cluster["a"].script.clear()
    cluster["a"].script.append(CUT)
    with pytest.raises(SendFailed, match="1 attempts"):
        await producer.send("T", b"x", queue=MessageQueue("T", "a", 0))
    with pytest.raises(InvalidMessage, match="no queue of the topic"):
        await producer.send("T", b"x", queue=MessageQueue("U", "a", 0))


async def test_a_cancelled_send_ends_at_once(cluster: FakeCluster, producer: Producer) -> None:
    scripted(cluster, HANG)
    task = asyncio.ensure_future(producer.send("T", b"x"))
    await until(lambda: cluster.sends == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cluster["a"].script.clear()
    cluster["b"].script.clear()
    assert (await producer.send("T", b"y")).status is SendStatus.SEND_OK


async def test_a_broker_that_has_gone_leads_to_a_fresh_route(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send("T", b"x")
    await producer.send("T", b"x")
    await cluster["a"].server.close(grace=0.1)
    cluster.known = {"b"}
    cluster.asked.clear()
    for _ in range(4):
        assert (await producer.send("T", b"y")).queue.broker_name == "b"
    assert "T" in cluster.asked
    with pytest.raises(SendFailed) as caught:
        await producer.send("T", b"y", queue=MessageQueue("T", "a", 0))
    assert isinstance(caught.value.__cause__, ConnectFailed) or caught.value.code == 10003


async def test_a_broker_whose_address_changed(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send("T", b"x")
    cluster.known = {"a"}
    await cluster["b"].server.close(grace=0.1)
    for _ in range(6):
        assert (await producer.send("T", b"y")).queue.broker_name == "a"


async def test_strict_order_keeps_the_queues_of_a_broker_that_is_down(cluster: FakeCluster) -> None:
    cluster.order_conf = "a:2;b:2"
    cluster.known = {"a"}
    async with connect(cluster.nameserver) as mq, mq.producer("PG", send_timeout=5) as producer:
        assert len(await producer.queues("T")) == 4
        # A key of broker b waits for b; one of a is served.
        outcomes = [
            await asyncio.gather(producer.send("T", b"x", sharding_key=f"k{number}"), return_exceptions=True)
            for number in range(8)
        ]
        flat = [each for (each,) in outcomes]
        failed = [each for each in flat if isinstance(each, SendFailed)]
        assert 0 < len(failed) < 8
        assert {each.code for each in failed} == {10003}
        # Without a key the other broker takes it.
        for _ in range(4):
            assert (await producer.send("T", b"x")).queue.broker_name == "a"


async def test_a_topic_that_was_deleted(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send("T", b"x")
    cluster.missing = {"T", "TBW102"}
    scripted(cluster, 17, 17, 17)
    with pytest.raises(SendFailed) as caught:
        await producer.send("T", b"y")
    assert isinstance(caught.value.__cause__, TopicNotFound)
    with pytest.raises(NoRoute, match="does not exist"):
        await producer.send("T", b"z")
    cluster.missing.clear()
    assert (await producer.send("T", b"made again")).status is SendStatus.SEND_OK


async def test_a_server_that_goes_away_is_asked_again_on_a_new_connection(
    cluster: FakeCluster, producer: Producer
) -> None:
    scripted(cluster, 1500, 1500) if producer._short.paths else scripted(cluster, 1500)
    assert (await producer.send("T", b"x")).status is SendStatus.SEND_OK


async def test_back_pressure(cluster: FakeCluster) -> None:
    async with opened(cluster, back_pressure=BackPressure(messages=10), send_timeout=20) as producer:
        await producer.send("T", b"x")
        for broker in cluster.brokers.values():
            broker.script.extend([HANG] * 10)
        waiting = [asyncio.ensure_future(producer.send("T", b"x")) for _ in range(10)]
        await until(lambda: cluster.sends == 11)
        with pytest.raises(TooManyRequests, match="10 messages of 10 bytes are on the way"):
            await producer.send("T", b"x", timeout=0.1)
        assert cluster.sends == 11
        for broker in cluster.brokers.values():
            broker.script.clear()
        later = asyncio.ensure_future(producer.send("T", b"later"))
        waiting.pop().cancel()
        assert (await later).status is SendStatus.SEND_OK
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_order_of_calls_is_the_order_on_the_wire(cluster: FakeCluster) -> None:
    """Also for those who wait for a route, or for the connection, while others come later and need not."""
    async with connect(cluster.nameserver) as mq, mq.producer("PG") as producer:
        queue = MessageQueue("T", "a", 0)
        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(producer.send("T", b"%d" % number, queue=queue)))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert [request.body for request in cluster["a"].sends] == [b"%d" % number for number in range(60)]
