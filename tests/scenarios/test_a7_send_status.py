"""A7: the three ways to send, with their good and their bad end; every SendStatus once; and moving to another broker.

The broker is a real one, on a disk that is slow when the test says so. There is no second copy of it yet, so the two
states that are about slaves come from a broker that follows a script.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.clock import SystemClock
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.client import SendReceipt, SendStatus, connect
from cometmq.client.errors import SendFailed
from cometmq.client.producer import Producer
from cometmq.remoting.errors import ConnectFailed
from support.fake_cluster import FakeCluster
from support.store_kit import read_queue
from support.wire import until

TOPIC = "TopicA7"


class SlowDiskBroker:
    """A broker that syncs every message, and its disk."""

    def __init__(self) -> None:
        self.disk = FakeDisk(SystemClock())
        settings = {
            "brokerName": "real",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": "/store",
            "flushDiskType": "SYNC_FLUSH",
            "syncFlushTimeout": "100",
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            "waitTimeMillsInSendQueue": "10000",
        }
        self.broker = Broker(BrokerConfig().with_properties(settings), disk=self.disk)

    def bodies(self) -> list[bytes]:
        return [record.body for queue in range(2) for record in read_queue(self.broker.state.store, TOPIC, queue)]


@pytest.fixture
async def real() -> AsyncIterator[SlowDiskBroker]:
    slow = SlowDiskBroker()
    await slow.broker.start()
    try:
        yield slow
    finally:
        slow.disk.heal()
        await slow.broker.close()


@pytest.fixture
async def cluster(real: SlowDiskBroker) -> AsyncIterator[FakeCluster]:
    async with FakeCluster("real", "other") as running:
        running.addresses["real"] = f"127.0.0.1:{real.broker.port}"
        running.known = {"real"}
        yield running


async def test_sync_async_and_oneway(real: SlowDiskBroker, cluster: FakeCluster) -> None:
    async with connect(cluster.nameserver) as mq, mq.producer("PG", send_timeout=5) as producer:
        # Sync: one after the other.
        for number in range(5):
            assert (await producer.send(TOPIC, b"sync %d" % number)).status is SendStatus.SEND_OK
        # Async: many at once, with a callback each.
        good: list[SendReceipt] = []
        bad: list[BaseException] = []

        def done(task: "asyncio.Task[SendReceipt]") -> None:
            error = task.exception()
            if error is None:
                good.append(task.result())
            else:
                bad.append(error)

        tasks = [asyncio.create_task(producer.send(TOPIC, b"async %d" % number)) for number in range(20)]
        for task in tasks:
            task.add_done_callback(done)
        await asyncio.wait(tasks)
        await producer.send_oneway(TOPIC, b"oneway")
        await producer.send(TOPIC, b"last")
        assert (len(good), bad) == (20, [])
        expected = {
            b"oneway",
            b"last",
            *(b"sync %d" % number for number in range(5)),
            *(b"async %d" % n for n in range(20)),
        }
        assert set(real.bodies()) >= expected - {b"oneway"}
        # The bad end: nobody is there any more.
        await real.broker.close()
        tasks = [asyncio.create_task(producer.send(TOPIC, b"too late", timeout=5)) for _ in range(3)]
        for task in tasks:
            task.add_done_callback(done)
        await asyncio.wait(tasks)
        assert [type(error) for error in bad] == [SendFailed] * 3
        assert all(isinstance(error.__cause__, ConnectFailed) for error in bad)
        with pytest.raises(ConnectFailed):
            await producer.send_oneway(TOPIC, b"too late")


async def test_every_status_once(real: SlowDiskBroker, cluster: FakeCluster) -> None:
    async with connect(cluster.nameserver) as mq, mq.producer("PG", send_timeout=20) as producer:
        seen = [(await producer.send(TOPIC, b"ok")).status]
        real.disk.slow_next("sync", 1.0, path="commitlog", times=3)
        seen.append((await producer.send(TOPIC, b"slow disk")).status)
        real.disk.heal()
        cluster.known = {"other"}
        await mq.routes.fetch(TOPIC)
        cluster.script.extend([11, 12])
        seen += [(await producer.send(TOPIC, b"slave")).status for _ in range(2)]
    assert seen == [
        SendStatus.SEND_OK,
        SendStatus.FLUSH_DISK_TIMEOUT,
        SendStatus.SLAVE_NOT_AVAILABLE,
        SendStatus.FLUSH_SLAVE_TIMEOUT,
    ]
    # A status that is not SEND_OK means stored; consumers see it when it is as safe as was asked for.
    await until(lambda: b"slow disk" in real.bodies())


async def test_retry_another_broker_when_not_store_ok(real: SlowDiskBroker, cluster: FakeCluster) -> None:
    cluster.known = {"real", "other"}
    async with (
        connect(cluster.nameserver) as mq,
        mq.producer("PG", send_timeout=20, retry_when_not_stored_ok=True) as producer,
    ):
        real.disk.slow_next("sync", 1.0, path="commitlog", times=1_000)
        receipts = [await producer.send(TOPIC, b"%d" % number) for number in range(3)]
    assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}
    assert {receipt.queue.broker_name for receipt in receipts} == {"other"}
    assert set(real.bodies()) <= {b"0", b"1", b"2"}


async def test_without_it_the_receipt_says_how_it_is(real: SlowDiskBroker, cluster: FakeCluster) -> None:
    cluster.known = {"real", "other"}

    async def statuses(producer: Producer) -> set[SendStatus]:
        return {(await producer.send(TOPIC, b"x")).status for _ in range(3)}

    async with connect(cluster.nameserver) as mq, mq.producer("PG", send_timeout=20) as producer:
        real.disk.slow_next("sync", 1.0, path="commitlog", times=1_000)
        assert SendStatus.FLUSH_DISK_TIMEOUT in await statuses(producer)
