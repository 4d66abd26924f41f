"""Accumulation: sends at the same time become batches, and every sender gets the receipt of its own message."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from cometmq.client import Client, Message, SendReceipt, connect
from cometmq.client.errors import InvalidMessage, SendFailed
from cometmq.client.hooks import SendContext, SendHook
from cometmq.client.producer.accumulate import Accumulate
from cometmq.client.producer.outgoing import Packer
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.message_id import UniqueKeyGenerator, decode_message_id
from cometmq.protocol.record import Record, decode_record
from cometmq.protocol.requests.queries import ViewMessage
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.fake_cluster import FakeCluster
from support.wire import until

Name = Callable[[str], str]


class Requests(SendHook):
    """What was sent: how many messages with each request."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def before_send(self, context: SendContext) -> None:
        self.sizes.append(context.unique_key.count(",") + 1)


async def stored(mq: Client, broker: AnyBroker, offset_message_id: str) -> Record:
    place = decode_message_id(offset_message_id)
    answer = await mq.remoting.request(broker.address, 33, ViewMessage(place.physical_offset))
    assert answer.code == 0, answer.remark
    return decode_record(answer.body)


async def test_many_sends_few_requests_own_receipts(mq: Client, broker: AnyBroker, name: Name) -> None:
    requests = Requests()
    async with mq.producer(name("PG"), accumulate=True, hooks=[requests]) as producer:
        bodies = [b"%d" % number for number in range(200)]
        receipts = await asyncio.gather(
            *(producer.send(name("T"), body, keys=body.decode(), properties={"n": body.decode()}) for body in bodies)
        )
    assert sum(requests.sizes) == 200
    assert len(requests.sizes) < 20, "sends at the same time go together"
    assert len({receipt.message_id for receipt in receipts}) == 200
    for body, receipt in list(zip(bodies, receipts, strict=True))[::37]:
        record = await stored(mq, broker, receipt.offset_message_id)
        assert (record.body, record.queue_offset) == (body, receipt.queue_offset)
        pairs = record.property_map()
        assert pairs["UNIQ_KEY"] == receipt.message_id
        assert (pairs["KEYS"], pairs["n"]) == (body.decode(), body.decode())


async def test_the_short_way_accumulates_too(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("PG"), accumulate=True) as producer:
        await producer.send(name("T"), b"first")
        receipts = await asyncio.gather(*(producer.send(name("T"), b"%d" % number) for number in range(100)))
    assert max(Counter(receipt.queue for receipt in receipts).values()) == 100, "one batch, one queue"
    assert [receipt.queue_offset - receipts[0].queue_offset for receipt in receipts] == list(range(100))
    assert (await stored(mq, broker, receipts[42].offset_message_id)).body == b"42"


@pytest.mark.parametrize("address", ["192.0.2.2", "2001:db8::1"])
def test_plain_items_are_those_of_the_general_way(address: str) -> None:
    made = [Packer(UniqueKeyGenerator(address, 1, 2), compression=None, max_message_size=1000) for _ in range(2)]
    bodies = [b"a", b"bb" * 100, b"a", b"\x00\xff"]
    pieces, keys = made[0].plain_items(bodies)
    items = decode_batch(b"".join(pieces))
    assert [(item.flag, item.body) for item in items] == [(0, body) for body in bodies]
    assert [item.properties for item in items] == [f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02".encode() for key in keys]
    for body, item in zip(bodies, items, strict=True):
        _, size, head, tail = made[1].item(body)
        assert size == len(body) + made[0].plain_overhead == len(head + body + tail)
        assert len(decode_batch(head + body + tail)[0].properties) == len(item.properties)


async def test_a_body_that_is_too_large_or_empty_is_refused_and_the_others_go(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG"), accumulate=True, max_message_size=100) as producer:
        await producer.send(name("T"), b"opens the short way")
        results = await asyncio.gather(
            producer.send(name("T"), b"x" * 100),
            producer.send(name("T"), b"x" * 101),
            producer.send(name("T"), b""),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [SendReceipt, InvalidMessage, InvalidMessage]


async def test_a_batch_is_closed_by_its_size(mq: Client, name: Name) -> None:
    requests = Requests()
    how = Accumulate(max_bytes=1000, max_delay=30)
    async with mq.producer(name("PG"), accumulate=how, hooks=[requests]) as producer:
        await producer.send(name("T"), b"makes the topic", timeout=3)
        requests.sizes.clear()
        # Six of 174 bytes exceed the limit; without it they would wait for half a minute.
        async with asyncio.timeout(20):
            await asyncio.gather(*(producer.send(name("T"), bytes(100)) for _ in range(6)))
    assert requests.sizes == [6]


async def test_what_does_not_go_together(mq: Client, name: Name) -> None:
    requests = Requests()
    async with mq.producer(name("PG"), accumulate=True, hooks=[requests]) as producer:
        await asyncio.gather(
            producer.send(name("T"), b"a", tag="x"),
            producer.send(name("T"), b"b", tag="x"),
            producer.send(name("T"), b"c", tag="y"),
            producer.send(name("T"), Message(b"d", tag="x", wait_store_ok=False)),
            producer.send(name("T"), b"e", tag="x", delay_level=1),
            producer.send(name("T"), b"f", tag="x", timeout=3),
            producer.send(name("T2"), b"g", tag="x"),
        )
    assert sorted(requests.sizes) == [1, 1, 1, 1, 1, 2]


async def test_keys_stay_on_their_queues(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG"), accumulate=True) as producer:
        # Once the topic is known, all of them join their batches in one turn: one for each queue.
        await producer.send(name("T"), b"makes the topic")
        receipts = await asyncio.gather(
            *(producer.send(name("T"), b"%d" % n, sharding_key=f"user-{n % 8}") for n in range(80))
        )
        for user in range(8):
            own = receipts[user::8]
            assert len({receipt.queue for receipt in own}) == 1
            assert [each.queue_offset for each in own] == sorted(each.queue_offset for each in own)


async def test_above_the_limit_messages_go_one_by_one(mq: Client, name: Name) -> None:
    requests = Requests()
    how = Accumulate(max_bytes=1024 * 1024, max_delay=0.05, total_bytes=1000)
    async with mq.producer(name("PG"), accumulate=how, hooks=[requests]) as producer:
        await asyncio.gather(*(producer.send(name("T"), bytes(600)) for _ in range(5)))
    assert sorted(requests.sizes) == [1, 1, 1, 2]


async def test_a_failure_fails_all_of_a_batch_each_with_its_own_error() -> None:
    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq, mq.producer("PG", accumulate=True, send_timeout=1) as producer:
            await producer.send("T", b"x")
            broker.close()
            results = await asyncio.gather(
                *(producer.send("T", b"%d" % number) for number in range(10)), return_exceptions=True
            )
    assert all(isinstance(result, SendFailed) for result in results)
    assert len({id(result) for result in results}) == 10


async def test_who_gives_up_leaves_the_others_their_own_receipts(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("PG"), accumulate=True) as producer:
        await producer.send(name("T"), b"opens the short way")
        sends = [asyncio.ensure_future(producer.send(name("T"), b"%d" % number)) for number in range(10)]
        await until(lambda: producer._accumulator is not None and producer._accumulator.held)
        sends[3].cancel()
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(each) for each in results] == [SendReceipt] * 3 + [asyncio.CancelledError] + [SendReceipt] * 6
    receipts = [each for each in results if isinstance(each, SendReceipt)]
    for body, receipt in zip([b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"8", b"9"], receipts, strict=True):
        assert (await stored(mq, broker, receipt.offset_message_id)).body == body


async def test_a_batch_that_a_busy_broker_refuses_goes_to_another_one() -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", accumulate=True) as producer,
    ):
        for _ in range(4):
            await producer.send("T", b"opens the ways to both", timeout=3)
        cluster.script.append(2)
        receipts = await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(5)))
        assert producer._accumulator is not None
        assert producer._accumulator.held == 0
        assert len({receipt.queue.broker_name for receipt in receipts}) == 1
        one, other = (broker.sends[-1].body for broker in cluster.brokers.values())
        assert one == other, "the same bytes, once more"


async def test_the_close_waits_for_batches_that_were_written() -> None:
    async with FakeCluster("a") as cluster, connect(cluster.nameserver) as mq:
        producer = mq.producer("PG", accumulate=Accumulate(max_bytes=200))
        await producer.start()
        await producer.send("T", b"opens the short way")
        cluster["a"].delay = 0.2
        sends = [asyncio.ensure_future(producer.send("T", bytes(150))) for _ in range(3)]
        await until(lambda: len(cluster["a"].sends) == 4)
        assert not any(send.done() for send in sends)
        await producer.close()
        assert [send.done() for send in sends] == [True] * 3
        assert [each.status for each in await asyncio.gather(*sends)] == ["SEND_OK"] * 3


async def test_the_close_sends_what_waits(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG"), accumulate=Accumulate(max_delay=30)) as producer:
        waiting = [asyncio.ensure_future(producer.send(name("T"), b"%d" % number)) for number in range(3)]
        await until(lambda: producer._accumulator is not None and producer._accumulator.held)
    assert [each.status for each in await asyncio.gather(*waiting)] == ["SEND_OK"] * 3


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"max_bytes": 3 << 20}, {"max_delay": 31}, {"total_bytes": 0}])
def test_limits_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Accumulate(**wrong)  # type: ignore[arg-type]
