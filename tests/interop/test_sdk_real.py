"""The SDK against the real RocketMQ: what it does every day, with the nameserver and the broker that Java people run.

The same tests run against our broker: where the two differ, the test says so. 5.3.3 is in the default run; 4.9.7, and
ours, which the tests of `tests/client` know better, are slow ones.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cometmq.client import Client, Message, MessageQueue, SendStatus, connect
from cometmq.client.consumer.pull import PullConsumer
from cometmq.client.consumer.subscriptions import Sql, Tags
from cometmq.client.errors import SendFailed, Unsupported
from cometmq.client.message import ReceivedMessage
from cometmq.remoting.errors import TransportError
from support import real_rocketmq
from support.cluster import BROKER_NAME, OURS, REAL, Cluster
from support.real_rocketmq import V4, V5

Unique = Callable[[str], str]
#: Retries come at the levels 3, 4, ...: short ones.
SETTINGS = {"messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s", "enablePropertyFilter": "true"}
PATIENCE = 60
#: A consumer that looks for its queues often: the retry topic is made when the group is first seen.
EAGER = {"start_from": "first", "rebalance_interval": 0.2}


@pytest.fixture(
    scope="session", params=[V5, pytest.param(V4, marks=pytest.mark.slow), pytest.param(OURS, marks=pytest.mark.slow)]
)
def _peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := real_rocketmq.available():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(f"peer-{request.param}")
    made = (
        Cluster(OURS, folder, SETTINGS)
        if request.param == OURS
        else Cluster(REAL, folder, SETTINGS, nameserver_version=request.param, version=request.param)
    )
    with made as running:
        yield running


@pytest.fixture
def peer(_peer: Cluster) -> Cluster:
    """The cluster of the session, running whatever the test before did to it."""
    _peer.restart_broker()
    return _peer


@pytest.fixture
async def mq(peer: Cluster) -> AsyncIterator[Client]:
    async with connect(peer.nameserver) as client:
        yield client


async def within(condition: Callable[[], object]) -> None:
    """Wait until it holds. Brokers that share two cores with everybody else get their time."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.01)


class Received(list[ReceivedMessage]):
    """What a handler got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self]

    async def has(self, count: int) -> None:
        await within(lambda: len(self) >= count)


async def fill(mq: Client, topic: str, *bodies: bytes, **options: object) -> None:
    async with mq.producer(f"PG_{topic}", send_timeout=20) as producer:
        for body in bodies:
            await producer.send(topic, body, **options)  # type: ignore[arg-type]


async def test_every_way_of_sending_arrives(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic = peer.make_topic(unique("Ways"))
    long = b"again and again " * 1000
    async with mq.producer(unique("PG_ways"), send_timeout=20) as producer:
        receipt = await producer.send(topic, b"sync")
        assert receipt.status is SendStatus.SEND_OK
        batch = await producer.send_batch(topic, [b"batch 0", Message(b"batch 1", tag="x"), b"batch 2"])
        assert len({each.message_id for each in batch}) == 3
        assert len({each.offset_message_id for each in batch}) == 3
        first = batch[0].queue_offset
        assert [each.queue_offset for each in batch] == [first, first + 1, first + 2]
        await producer.send_oneway(topic, b"oneway")
        await producer.send(topic, long)
        many = await asyncio.gather(*(producer.send(topic, b"many %d" % number) for number in range(50)))
        assert len({(each.queue, each.queue_offset) for each in many}) == 50
    received = Received()
    async with mq.push_consumer(unique("CG_ways"), {topic: "*"}, received, start_from="first"):
        await received.has(56)
    expected = [b"sync", b"batch 0", b"batch 1", b"batch 2", b"oneway", long, *(b"many %d" % n for n in range(50))]
    assert Counter(received.bodies) == Counter(expected)
    (sync,) = [message for message in received if message.body == b"sync"]
    assert (sync.message_id, sync.offset_message_id) == (receipt.message_id, receipt.offset_message_id)
    assert (sync.queue, sync.queue_offset) == (receipt.queue, receipt.queue_offset)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_compressed_bodies(peer: Cluster, mq: Client, unique: Unique, kind: str) -> None:
    topic = peer.make_topic(unique("Compressed"), queues=1)
    long = b"again and again " * 1000
    async with mq.producer(unique("PG_compressed"), compression=kind, send_timeout=20) as producer:
        await producer.send(topic, long)
    received = Received()
    async with mq.push_consumer(unique("CG_compressed"), {topic: "*"}, received, start_from="first"):
        await received.has(1)
    assert received.bodies == [long]


async def test_properties_come_as_they_were_sent(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic = peer.make_topic(unique("Properties"), queues=1)
    async with mq.producer(unique("PG_properties"), send_timeout=20) as producer:
        message = Message(
            b"paid",
            tag="TagÄ",
            keys=["o-1", "o-2"],
            properties={"amount": "42", "naïve": "値"},
            flag=7,
            sharding_key="user-7",
            buyer_id="buyer",
        )
        receipt = await producer.send(topic, message)
    received = Received()
    async with mq.push_consumer(unique("CG_properties"), {topic: "TagÄ"}, received, start_from="first"):
        await received.has(1)
    (got,) = received
    assert (got.tag, got.keys, got.flag, got.sharding_key) == ("TagÄ", ["o-1", "o-2"], 7, "user-7")
    assert got.store_host == (peer.address.split(":")[0], int(peer.address.split(":")[1]))
    # 4.9 tells the region in its answer only, and does not keep WAIT=true.
    added = {} if peer.version == V4 else {"WAIT": "true", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert dict(got.properties) == {
        "TAGS": "TagÄ",
        "KEYS": "o-1 o-2",
        "amount": "42",
        "naïve": "値",
        "__SHARDINGKEY": "user-7",
        "BUYER_ID": "buyer",
        "UNIQ_KEY": receipt.message_id,
        "CLUSTER": "DefaultCluster",
        **added,
    }


async def test_a_delay_level_is_waited_for(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic = peer.make_topic(unique("Delayed"), queues=1)
    received = Received()
    async with mq.push_consumer(unique("CG_delayed"), {topic: "*"}, received, start_from="first"):
        await fill(mq, topic, b"later", delay_level=2)
        await received.has(1)
    (got,) = received
    assert got.topic == topic
    # The broker counts from when it stored it, which is after it was born.
    assert (got.stored_time - got.born_time).total_seconds() >= 1.9


async def test_a_delay_that_is_no_level_needs_a_broker_with_timers(peer: Cluster, mq: Client, unique: Unique) -> None:
    if peer.kind == OURS:
        pytest.skip("our broker has no timers so far")
    topic, delay = peer.make_topic(unique("Timed"), queues=1), timedelta(milliseconds=1500)
    received = Received()
    async with mq.push_consumer(unique("CG_timed"), {topic: "*"}, received, start_from="first"):
        if peer.version == V4:
            with pytest.raises(Unsupported, match="too old for a delay"):
                await fill(mq, topic, b"later", delay=delay)
            return
        await fill(mq, topic, b"later", delay=delay)
        await received.has(1)
    # The wheel turns once a second, and a message may come by one turn too early.
    assert (received[0].stored_time - received[0].born_time).total_seconds() >= 0.5
    assert received.bodies == [b"later"]


async def test_sql_is_judged_by_the_broker(peer: Cluster, mq: Client, unique: Unique) -> None:
    if peer.kind == OURS:
        pytest.skip("our broker refuses SQL92 so far")
    topic = peer.make_topic(unique("Sql"), queues=1)
    for price in ("5", "15", "25"):
        await fill(mq, topic, price.encode(), properties={"price": price})
    received = Received()
    async with mq.push_consumer(unique("CG_sql"), {topic: Sql("price > 10")}, received, start_from="first"):
        await received.has(2)
    assert sorted(received.bodies) == [b"15", b"25"]


async def test_tags_with_one_hash_code_are_told_apart(peer: Cluster, mq: Client, unique: Unique) -> None:
    """`Aa` and `BB` have one hash code: the broker lets both pass."""
    topic = peer.make_topic(unique("Tags"), queues=1)
    for tag in ("BB", "C", "Aa", None, "End"):
        await fill(mq, topic, (tag or "none").encode(), tag=tag)
    received = Received()
    async with mq.push_consumer(unique("CG_tags"), {topic: Tags("Aa", "End")}, received, start_from="first"):
        await received.has(2)
        assert received.bodies == [b"Aa", b"End"], "one queue: what was before the end was decided before it"


async def test_an_ordered_queue_waits_for_its_failed_message(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic = peer.make_topic(unique("Ordered"), queues=2)
    await fill(mq, topic, b"a0", b"a1", b"a2", queue=MessageQueue(topic, BROKER_NAME, 0))
    await fill(mq, topic, b"b0", b"b1", queue=MessageQueue(topic, BROKER_NAME, 1))
    got: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"a1" and message.reconsume_times < 2:
            raise ValueError("not yet")
        got.append((message.body, message.reconsume_times))

    group = unique("CG_ordered")
    async with mq.push_consumer(group, {topic: "*"}, handle, ordered=True, suspend=0.02, **EAGER):
        await within(lambda: len(got) == 5)
    assert [each for each in got if each[0].startswith(b"a")] == [(b"a0", 0), (b"a1", 2), (b"a2", 0)]
    assert [each for each in got if each[0].startswith(b"b")] == [(b"b0", 0), (b"b1", 0)]
    await within(lambda: [peer.committed(group, topic, queue) for queue in (0, 1)] == [3, 2])


async def test_a_failure_is_retried_and_ends_with_the_dead_letters(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic, group = peer.make_topic(unique("Retried"), queues=1), unique("CG_retried")
    await fill(mq, topic, b"poison", b"good", tag="t", keys="k", properties={"own": "1"})
    tries: list[tuple[bytes, int, str]] = []
    ids: set[str] = set()

    async def fail(message: ReceivedMessage) -> None:
        tries.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"poison":
            ids.add(message.message_id)
            raise ValueError("never")

    async with mq.push_consumer(group, {topic: "t"}, fail, max_reconsume_times=2, **EAGER):
        await within(lambda: peer.queues(f"%DLQ%{group}"))
    poison = [each for each in tries if each[0] == b"poison"]
    assert poison == [(b"poison", 0, topic), (b"poison", 1, topic), (b"poison", 2, topic)]
    assert len(ids) == 1, "one message id through all its tries"
    assert peer.committed(group, topic, 0) == 2
    dead = Received()
    queue = MessageQueue(f"%DLQ%{group}", BROKER_NAME, 0)
    async with mq.pull_consumer(unique("CG_dead"), start_from="first").assign([queue]) as consumer:
        dead.extend(await drain(consumer, 1))
    assert (dead[0].body, dead[0].tag, dead[0].keys, dead[0].properties["own"]) == (b"poison", "t", ["k"], "1")
    assert dead[0].message_id in ids


async def test_every_broadcast_consumer_gets_everything(
    peer: Cluster, mq: Client, unique: Unique, tmp_path: Path
) -> None:
    topic, group = peer.make_topic(unique("Broadcast"), queues=2), unique("CG_broadcast")
    await fill(mq, topic, b"1", b"2", b"3")
    options = {"start_from": "first", "model": "broadcasting"}
    one, two = Received(), Received()
    async with (
        connect(peer.nameserver) as other,
        mq.push_consumer(group, {topic: "*"}, one, offsets_folder=str(tmp_path / "one"), **options),
        other.push_consumer(group, {topic: "*"}, two, offsets_folder=str(tmp_path / "two"), **options),
    ):
        await one.has(3)
        await two.has(3)
    assert sorted(one.bodies) == sorted(two.bodies) == [b"1", b"2", b"3"]
    await fill(mq, topic, b"4")
    again = Received()
    async with mq.push_consumer(group, {topic: "*"}, again, offsets_folder=str(tmp_path / "one"), **options):
        await again.has(1)
    assert again.bodies == [b"4"]
    # A 4.9 broker says 0 where others say that there is none.
    assert not peer.committed(group, topic, 0), "the broker knows nothing of it"


async def drain(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """Poll until that many have come."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE):
        while len(messages) < count:
            messages += await consumer.poll(0.5)
    return messages


async def test_a_pull_consumer_seeks_and_commits(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic, group = peer.make_topic(unique("Pulled"), queues=1), unique("CG_pulled")
    bodies = [b"%d" % number for number in range(10)]
    await fill(mq, topic, *bodies)
    queue = MessageQueue(topic, BROKER_NAME, 0)
    options = {"start_from": "first", "auto_commit": False}
    async with mq.pull_consumer(group, **options).subscribe(topic) as consumer:
        assert [message.body for message in await drain(consumer, 10)] == bodies
        assert consumer.assignment == [queue]
        await consumer.seek(queue, 7)
        assert [message.body for message in await drain(consumer, 3)] == bodies[7:]
        await consumer.seek_to_begin(queue)
        assert [message.body for message in await drain(consumer, 10)] == bodies
        await consumer.commit({queue: 4})
        assert await consumer.committed(queue) == 4
        # Just before it: of messages stored in one millisecond 4.9 gives any, 5.x the first.
        before = (await first_of(consumer, queue)).stored_time - timedelta(milliseconds=1)
        assert await consumer.offset_for_time(queue, before) == 0
    assert peer.committed(group, topic, 0) == 4
    async with connect(peer.nameserver) as other, other.pull_consumer(group, **options).subscribe(topic) as consumer:
        assert [message.body for message in await drain(consumer, 6)] == bodies[4:]


async def first_of(consumer: PullConsumer, queue: MessageQueue) -> ReceivedMessage:
    await consumer.seek_to_begin(queue)
    return (await drain(consumer, 1))[0]


async def test_a_second_consumer_goes_on_where_the_first_was(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic, group = peer.make_topic(unique("Resumed")), unique("CG_resumed")
    await fill(mq, topic, *(b"%d" % number for number in range(12)))
    first = Received()
    async with mq.push_consumer(group, {topic: "*"}, first, start_from="first"):
        await first.has(12)
    assert [peer.committed(group, topic, queue) for queue in range(4)] == [3, 3, 3, 3]
    await fill(mq, topic, b"new")
    second = Received()
    async with (
        connect(peer.nameserver) as other,
        other.push_consumer(group, {topic: "*"}, second, start_from="first"),
    ):
        await second.has(1)
    assert second.bodies == [b"new"]


async def test_members_share_the_queues_and_take_over(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic, group = peer.make_topic(unique("Shared"), queues=5), unique("CG_shared")
    one, two = Received(), Received()

    def share(consumer: object) -> set[int]:
        return {queue.queue_id for queue in consumer.assignments if queue.topic == topic}  # type: ignore[attr-defined]

    async with mq.push_consumer(group, {topic: "*"}, one, start_from="first") as first:
        await within(lambda: len(share(first)) == 5)
        async with (
            connect(peer.nameserver) as other,
            other.push_consumer(group, {topic: "*"}, two, start_from="first") as second,
        ):
            # No short interval: the broker's notice alone makes them rebalance.
            await within(lambda: sorted((len(share(first)), len(share(second)))) == [2, 3])
            assert share(first) | share(second) == set(range(5))
            await fill(mq, topic, *(b"%d" % number for number in range(20)))
            await within(lambda: len({*one.bodies, *two.bodies}) == 20)
            assert len(one) + len(two) == 20
        await within(lambda: len(share(first)) == 5)


async def test_a_request_gets_its_reply(peer: Cluster, mq: Client, unique: Unique) -> None:
    topic = peer.make_topic(unique("Asked"), queues=1)

    async def echo(message: ReceivedMessage) -> None:
        await message.reply(b"echo of " + message.body, tag="answer")

    async with (
        connect(peer.nameserver) as asker,
        asker.producer(unique("PG_asker"), send_timeout=20) as producer,
        mq.push_consumer(unique("CG_asked"), {topic: "*"}, echo, start_from="first"),
    ):
        reply = await producer.request(topic, b"question", timeout=PATIENCE)
        assert (reply.body, reply.tag) == (b"echo of question", "answer")
        many = await asyncio.gather(
            *(producer.request(topic, b"%d" % number, timeout=PATIENCE) for number in range(10))
        )
        assert [each.body for each in many] == [b"echo of %d" % number for number in range(10)]


async def test_a_consumer_outlives_its_broker(peer: Cluster, unique: Unique) -> None:
    """kill -9 and a new start, with a consumer that waits and a producer that goes on sending.

    Neither heartbeat nor rebalance is due: the broker that knows nobody hears of the group when it is asked.
    """
    topic, group = peer.make_topic(unique("Restarted")), unique("CG_restarted")
    received = Received()
    stored: set[bytes] = set()
    options = {"start_from": "first", "persist_interval": 0.2, "rebalance_interval": 1000.0}
    async with (
        connect(peer.nameserver, heartbeat_interval=1000) as mq,
        mq.push_consumer(group, {topic: "*"}, received, **options),
        mq.producer(unique("PG_restarted"), send_timeout=5) as producer,
    ):

        async def send(body: bytes) -> bool:
            try:
                await producer.send(topic, body)
            except (SendFailed, TransportError):
                return False
            stored.add(body)
            return True

        assert await send(b"before")
        await received.has(1)
        await asyncio.to_thread(peer.kill_broker)
        assert not await send(b"during")
        await asyncio.to_thread(peer.restart_broker)
        async with asyncio.timeout(PATIENCE):
            number = 0
            while not await send(b"after %d" % number):
                number += 1
        for number in range(20):
            assert await send(b"later %d" % number)
        await within(lambda: stored <= set(received.bodies))
    # What was committed before the kill may have been lost with the broker's memory: at least once.
    again = Counter(received.bodies)
    assert {body for body, times in again.items() if times > 1} <= {b"before"}
