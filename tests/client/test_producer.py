"""Sends over real sockets: receipts, keys, batches, delays, refusals, and what a user sees when nothing works."""

import asyncio
import socket
from collections.abc import Callable
from datetime import timedelta

import pytest

from cometmq.client import Client, Message, MessageQueue, SendStatus, connect
from cometmq.client.errors import (
    Closed,
    GroupInUse,
    InvalidMessage,
    MessageRefused,
    NoNameserver,
    NoRoute,
    SendFailed,
    Unsupported,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.compression import decompress
from cometmq.protocol.message_id import decode_message_id, decode_unique_key
from cometmq.protocol.record import Record, decode_record
from cometmq.protocol.requests.offsets import GetMaxOffset, OffsetAnswer
from cometmq.protocol.requests.queries import ViewMessage
from cometmq.protocol.sysflag import CompressionType
from cometmq.remoting.errors import Timeout
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.fake_cluster import FakeCluster
from support.standalone import make_topic

Name = Callable[[str], str]


async def stored(mq: Client, broker: AnyBroker, offset_message_id: str) -> Record:
    """The record that a receipt names."""
    place = decode_message_id(offset_message_id)
    answer = await mq.remoting.request(broker.address, 33, ViewMessage(place.physical_offset))
    assert answer.code == 0, answer.remark
    return decode_record(answer.body)


async def until_stored(mq: Client, queue: MessageQueue, end: int) -> None:
    """Nobody answers for a oneway message, and the threads of a real broker may be in no hurry."""
    header = GetMaxOffset(queue.topic, queue.queue_id)
    async with asyncio.timeout(20):
        while True:
            address = mq.routes.brokers.master(queue.broker_name)
            answer = await mq.remoting.request(address, RequestCode.GET_MAX_OFFSET, header)
            if answer.header(OffsetAnswer).offset == end:
                return
            await asyncio.sleep(0.01)


async def test_a_message_is_where_its_receipt_says(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        receipt = await producer.send(name("T"), b"paid", tag="paid", keys=["o-1", "o-2"], properties={"amount": "42"})
    assert receipt.status is SendStatus.SEND_OK
    assert receipt.queue.topic == name("T")
    assert decode_unique_key(receipt.message_id).host == mq.address
    record = await stored(mq, broker, receipt.offset_message_id)
    assert (record.body, record.topic) == (b"paid", name("T"))
    assert (record.queue_id, record.queue_offset) == (receipt.queue.queue_id, receipt.queue_offset)
    pairs = record.property_map()
    assert pairs["TAGS"] == "paid"
    assert pairs["KEYS"] == "o-1 o-2"
    assert pairs["amount"] == "42"
    assert pairs["UNIQ_KEY"] == receipt.message_id


async def test_round_robin_over_all_queues(mq: Client, name: Name) -> None:
    await make_topic(mq, name("T"), 4)
    async with mq.producer(name("PG")) as producer:
        queues = {(await producer.send(name("T"), b"x")).queue for _ in range(8)}
        assert queues == set(await producer.queues(name("T")))
    assert len(queues) == 4


async def test_one_key_one_queue_in_order(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        receipts = await asyncio.gather(
            *(producer.send(name("T"), b"%d" % number, sharding_key="user-7") for number in range(20))
        )
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == list(range(20)), "call order is the order on the wire"
        explicit = MessageQueue(name("T"), "broker-a", 2)
        assert (await producer.send(name("T"), b"x", queue=explicit)).queue == explicit


async def test_own_selectors(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG"), selector=lambda queues, message, key: queues[-1]) as producer:
        assert {(await producer.send(name("T"), b"x")).queue.queue_id for _ in range(5)} == {3}
    stranger = MessageQueue("elsewhere", "broker-z", 0)
    async with mq.producer(name("PG2"), selector=lambda queues, message, key: stranger) as producer:
        with pytest.raises(InvalidMessage, match="none of the topic's queues"):
            await producer.send(name("T"), b"x")
    with pytest.raises(ValueError, match="java_hash"):
        mq.producer(name("PG3"), selector="alphabetical")


async def test_a_batch_has_a_receipt_for_each_message(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("PG"), max_message_size=1000) as producer:
        receipts = await producer.send_batch(
            name("T"), [b"a", Message(b"b", tag="x"), *(b"%d" % n * 100 for n in range(9))]
        )
    assert len(receipts) == 11
    assert len({receipt.message_id for receipt in receipts}) == 11
    records = [await stored(mq, broker, receipt.offset_message_id) for receipt in receipts]
    assert [record.body for record in records] == [b"a", b"b", *(b"%d" % n * 100 for n in range(9))]
    assert [record.queue_offset for record in records] == [receipt.queue_offset for receipt in receipts]
    assert [record.property_map()["UNIQ_KEY"] for record in records] == [receipt.message_id for receipt in receipts]
    assert records[1].property_map()["TAGS"] == "x"


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_large_bodies_are_compressed(mq: Client, broker: AnyBroker, name: Name, kind: str) -> None:
    body = b"again and again " * 1000
    async with mq.producer(name("PG"), compression=kind) as producer:
        receipt = await producer.send(name("T"), body)
        small = await producer.send(name("T"), b"small")
    record = await stored(mq, broker, receipt.offset_message_id)
    assert len(record.body) < len(body) / 10
    assert decompress(record.body, CompressionType[kind.upper()]) == body
    assert (await stored(mq, broker, small.offset_message_id)).body == b"small"


async def test_delays(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        by_level = await producer.send(name("T"), b"x", delay_level=3)
        by_time = await producer.send(name("T"), b"x", delay=timedelta(seconds=10))
        for receipt in (by_level, by_time):
            record = await stored(mq, broker, receipt.offset_message_id)
            assert record.topic == "SCHEDULE_TOPIC_XXXX"
            assert record.property_map()["DELAY"] == "3"
        with pytest.raises(MessageRefused, match="timer"):
            await producer.send(name("T"), b"x", delay=timedelta(seconds=11))


async def test_a_delay_that_an_old_broker_would_forget_is_not_sent(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        receipt = await producer.send(name("T"), b"x")
        address = mq.routes.brokers.master(receipt.queue.broker_name)
        mq.routes.brokers.versions[address] = 407
        with pytest.raises(Unsupported, match="too old for a delay"):
            await producer.send(name("T"), b"x", delay=timedelta(seconds=11))


async def test_what_cannot_be_sent(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG"), max_message_size=100) as producer:
        with pytest.raises(InvalidMessage, match="empty"):
            await producer.send(name("T"), b"")
        with pytest.raises(InvalidMessage, match="101 bytes"):
            await producer.send(name("T"), b"x" * 101)
        with pytest.raises(InvalidMessage, match="belongs to the system"):
            await producer.send("SCHEDULE_TOPIC_XXXX", b"x")
        with pytest.raises(TypeError, match="encode"):
            await producer.send(name("T"), "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="batch cannot be delayed"):
            await producer.send_batch(name("T"), [Message(b"x", delay_level=1)])
        with pytest.raises(InvalidMessage, match="batch is empty"):
            await producer.send_batch(name("T"), [])


async def test_oneway_messages_arrive(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        first = await producer.send(name("T"), b"x", sharding_key="k")
        await producer.send_oneway(name("T"), b"y", sharding_key="k")
        await until_stored(mq, first.queue, first.queue_offset + 2)


async def test_one_producer_of_a_group_for_each_client(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")):
        with pytest.raises(GroupInUse, match="already"):
            await mq.producer(name("PG")).start()
    async with mq.producer(name("PG")):
        pass


async def test_a_producer_that_is_not_open(mq: Client, name: Name) -> None:
    producer = mq.producer(name("PG"))
    with pytest.raises(Closed):
        await producer.send(name("T"), b"x")
    async with producer:
        pass
    with pytest.raises(Closed):
        await producer.send(name("T"), b"x")


async def test_nobody_is_there(unused_tcp_port: int) -> None:
    async with connect(f"127.0.0.1:{unused_tcp_port}") as mq, mq.producer("PG") as producer:
        with pytest.raises(NoNameserver, match="no nameserver answered") as caught:
            await producer.send("T", b"x")
    assert caught.value.retriable
    assert "check that a nameserver runs" in caught.value.remedy


async def test_a_nameserver_that_is_silent_takes_no_more_time_than_a_send_has() -> None:
    """It takes connections and never answers, as a process that was stopped."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with connect(f"127.0.0.1:{silent.getsockname()[1]}") as mq, mq.producer("PG") as producer:
            for send in (
                producer.send("T", b"x", timeout=0.1),
                producer.send("T", b"x", sharding_key="k", timeout=0.1),
                producer.send_batch("T", [b"x"], timeout=0.1),
                producer.request("T", b"x", timeout=0.1),
            ):
                with pytest.raises(Timeout, match="finding the route of T took all the time"):
                    await send


async def test_no_broker_has_registered() -> None:
    async with FakeCluster() as cluster, connect(cluster.nameserver) as mq, mq.producer("PG") as producer:
        cluster.missing |= {"T", "TBW102"}
        with pytest.raises(NoRoute, match="no broker is registered with the nameserver") as caught:
            await producer.send("T", b"x")
        assert caught.value.retriable


async def test_a_topic_that_nobody_makes() -> None:
    with EmbeddedBroker(config={"autoCreateTopicEnable": False}) as broker:
        async with connect(broker.nameserver) as mq, mq.producer("PG") as producer:
            with pytest.raises(NoRoute, match=r"auto-creation is off on broker-a \(autoCreateTopicEnable\)"):
                await producer.send("T", b"x")


async def test_a_broker_that_dies_and_comes_back() -> None:
    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq, mq.producer("PG", send_timeout=2) as producer:
            await producer.send("T", b"x")
            broker.restart()
            assert (await producer.send("T", b"y")).status is SendStatus.SEND_OK
            broker.close()
            with pytest.raises(SendFailed, match="not sent") as caught:
                await producer.send("T", b"z")
            assert caught.value.attempts
            assert caught.value.__cause__ is caught.value.attempts[-1].error


async def test_nothing_is_left_after_the_close(broker: AnyBroker, name: Name) -> None:
    before = asyncio.all_tasks()
    async with connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        await producer.send(name("T"), b"x")
    assert asyncio.all_tasks() == before
