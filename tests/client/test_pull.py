"""Pull consumers over real sockets: subscribe and assign, poll, seek, pause, commit, and who notices new queues."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from cometmq.client import Client, MessageQueue, connect
from cometmq.client.consumer.pull import PullConsumer
from cometmq.client.errors import ClientError, Closed
from cometmq.protocol.requests.topics import CreateTopic
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]


async def fill(mq: Client, topic: str, *bodies: bytes, queue: int | None = None) -> None:
    async with mq.producer(f"PG_{topic}"[:100]) as producer:
        for body in bodies:
            target = None if queue is None else MessageQueue(topic, "broker-a", queue)
            await producer.send(topic, body, queue=target)


async def drain(consumer: PullConsumer, count: int) -> list[bytes]:
    """Poll until that many have come."""
    bodies: list[bytes] = []
    async with asyncio.timeout(20):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(0.5)]
    return bodies


async def test_subscribe_and_poll(mq: Client, name: Name) -> None:
    """A15: a loop that polls."""
    bodies = [b"%d" % number for number in range(30)]
    await fill(mq, name("T"), *bodies)
    async with mq.pull_consumer(name("CG"), start_from="first").subscribe(name("T")) as consumer:
        assert sorted(await drain(consumer, 30)) == sorted(bodies)
        assert len(consumer.assignment) == 4
        batch = asyncio.ensure_future(consumer.poll(5))
        await fill(mq, name("T"), b"new")
        assert [message.body for message in await batch] == [b"new"]
        assert await consumer.poll(0) == []


async def test_tags(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        for tag in ("a", "b", "c"):
            await producer.send(name("T"), tag.encode(), tag=tag)
    async with mq.pull_consumer(name("CG"), start_from="first").subscribe(name("T"), "a || c") as consumer:
        assert sorted(await drain(consumer, 2)) == [b"a", b"c"]


async def test_assigned_queues_alone_are_read(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"other", queue=1)
    await fill(mq, name("T"), b"mine", queue=0)
    queue = MessageQueue(name("T"), "broker-a", 0)
    async with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
        assert await drain(consumer, 1) == [b"mine"]
        assert consumer.assignment == [queue]
        assert await consumer.poll(0.05) == []
        other = MessageQueue(name("T"), "broker-a", 1)
        consumer.assign([other])
        assert await drain(consumer, 1) == [b"other"]
        assert consumer.assignment == [other]
        with pytest.raises(ClientError, match="cannot subscribe as well"):
            consumer.subscribe(name("T"))
    with pytest.raises(ClientError, match="cannot choose its queues"):
        mq.pull_consumer(name("CG2")).subscribe(name("T")).assign([queue])


async def test_seek(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), *(b"%d" % number for number in range(10)), queue=0)
    queue = MessageQueue(name("T"), "broker-a", 0)
    async with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
        assert await drain(consumer, 10) == [b"%d" % number for number in range(10)]
        await consumer.seek(queue, 7)
        assert await drain(consumer, 3) == [b"7", b"8", b"9"]
        await consumer.seek_to_begin(queue)
        assert (await drain(consumer, 10))[0] == b"0"
        await consumer.seek_to_end(queue)
        assert await consumer.poll(0.05) == []
        with pytest.raises(ClientError, match="outside of 0 to 10"):
            await consumer.seek(queue, 11)
        with pytest.raises(ClientError, match="not assigned"):
            await consumer.seek(MessageQueue(name("T"), "broker-a", 3), 0)
        assert await consumer.offset_for_time(queue, datetime.now(UTC) - timedelta(hours=1)) == 0
        assert await consumer.offset_for_time(queue, datetime.now(UTC) + timedelta(hours=1)) == 10


async def test_pause_and_resume(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"first", queue=0)
    queue = MessageQueue(name("T"), "broker-a", 0)
    async with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
        await drain(consumer, 1)
        consumer.pause([queue])
        await fill(mq, name("T"), b"held up", queue=0)
        # The pull that was under way when the pause began may still bring it; the next one does not come.
        first = await consumer.poll(0.1)
        await fill(mq, name("T"), b"paused", queue=0)
        assert await consumer.poll(0.1) == []
        consumer.resume([queue])
        assert len(await drain(consumer, 2 - len(first))) == 2 - len(first)


async def test_commits_by_hand_and_resumes_after_a_crash(broker: AnyBroker, mq: Client, name: Name) -> None:
    await fill(mq, name("T"), *(b"%d" % number for number in range(6)), queue=0)
    queue = MessageQueue(name("T"), "broker-a", 0)
    options = {"start_from": "first", "auto_commit": False, "batch_size": 3}
    async with (
        connect(broker.nameserver) as other,
        other.pull_consumer(name("CG"), **options).assign([queue]) as consumer,
    ):
        await drain(consumer, 3)
        assert await consumer.committed(queue) in (None, 0)
        await consumer.commit()
        assert await consumer.committed(queue) == 3
        await drain(consumer, 3)  # never committed, as if the process had died here
    async with mq.pull_consumer(name("CG"), **options).assign([queue]) as consumer:
        assert await drain(consumer, 3) == [b"3", b"4", b"5"]
        await consumer.commit({queue: 5})
        with pytest.raises(ValueError, match="negative"):
            await consumer.commit({queue: -1})
    async with (
        connect(broker.nameserver) as third,
        third.pull_consumer(name("CG"), **options).assign([queue]) as consumer,
    ):
        assert await drain(consumer, 1) == [b"5"]


async def test_auto_commit_at_the_close(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"0", b"1", queue=0)
    queue = MessageQueue(name("T"), "broker-a", 0)
    async with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
        await drain(consumer, 2)
    async with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
        assert await consumer.poll(0.1) == []
        assert await consumer.committed(queue) == 2


async def test_new_queues_are_noticed(broker: AnyBroker, mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"x")
    seen: list[int] = []
    consumer = mq.pull_consumer(name("CG"), queue_check_interval=0.1).subscribe(name("T"))
    consumer.on_queues_changed(name("T"), lambda topic, queues: seen.append(len(queues)))
    async with consumer:
        await until(lambda: len(consumer.assignment) == 4)
        header = CreateTopic(name("T"), "TBW102", 6, 6, 6, "SINGLE_TAG")
        assert (await mq.remoting.request(broker.address, 17, header)).code == 0
        await until(lambda: seen == [6])


async def test_a_consumer_that_is_not_open(mq: Client, name: Name) -> None:
    consumer = mq.pull_consumer(name("CG")).subscribe(name("T"))
    with pytest.raises(Closed):
        await consumer.poll()
    with pytest.raises(TypeError, match="no option batchsize"):
        mq.pull_consumer(name("CG"), batchsize=1)
    async with consumer:
        with pytest.raises(ValueError, match="negative"):
            await consumer.poll(-1)
    with pytest.raises(Closed):
        await consumer.poll()
