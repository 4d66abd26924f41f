"""Java and Python in one group: they agree on who has which queue, on the order, and on the queue of a key."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from cometmq.client import connect
from cometmq.client.consumer.push import PushConsumer
from cometmq.client.message import ReceivedMessage
from support.cluster import Cluster
from support.mq_client import JAVA, OLD_JAVA, MqClient
from support.mq_client import PushConsumer as JavaConsumer
from support.server_process import wait_for

Clients = Callable[[str], MqClient]
Unique = Callable[[str], str]
PATIENCE = 60
QUEUES = 7
#: Small and large hash codes, negative ones, the smallest of all, text beyond ASCII and beyond the first plane.
KEYS = ("a", "user-7", "user-8", "order 15", "zzzzzzzz", "polygenelubricants", "größe", "値", "😀", "0")


class Received(list[ReceivedMessage]):
    """What a handler got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self]


async def within(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.01)


def share(consumer: PushConsumer, topic: str) -> set[int]:
    return {queue.queue_id for queue in consumer.assignments if queue.topic == topic}


async def settled(java: JavaConsumer, python: PushConsumer, topic: str) -> tuple[set[int], set[int]]:
    """The shares of both, once each has its half; no queue twice, and none missing."""
    async with asyncio.timeout(PATIENCE):
        while True:
            theirs, ours = await asyncio.to_thread(java.assigned), share(python, topic)
            if not theirs & ours and theirs | ours == set(range(QUEUES)) and min(len(theirs), len(ours)) == QUEUES // 2:
                return theirs, ours
            await asyncio.sleep(0.05)


async def consumed(java: JavaConsumer, python: Received, bodies: Iterable[str]) -> Counter[str]:
    """How often each of the two's messages was delivered, once none is missing."""
    wanted = set(bodies)
    async with asyncio.timeout(PATIENCE):
        while True:
            got = Counter(one.body for one in await asyncio.to_thread(java.consumed)) + Counter(python.bodies)
            if wanted <= set(got):
                return Counter({body: times for body, times in got.items() if body in wanted})
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", [JAVA, pytest.param(OLD_JAVA, marks=pytest.mark.slow)])
@pytest.mark.parametrize("first", ["java first", "python first"])
async def test_a_java_and_a_python_consumer_share_the_queues(
    cluster: Cluster, clients: Clients, unique: Unique, name: str, first: str
) -> None:
    """Who comes second is told by the broker, and so is who stays: nobody waits for a round of 20 s."""
    client, ns = clients(name), cluster.nameserver
    topic, group = cluster.make_topic(unique("Mixed"), queues=QUEUES), unique("CG_mixed")
    received = Received()
    java: JavaConsumer | None = None
    async with connect(ns) as mq, mq.producer(unique("PG_mixed"), send_timeout=20) as producer:
        if first == "java first":
            java = await asyncio.to_thread(client.push, ns, group, topic)
        async with mq.push_consumer(group, {topic: "*"}, received, start_from="first") as python:
            if java is None:
                await within(lambda: len(share(python, topic)) == QUEUES)
                java = await asyncio.to_thread(client.push, ns, group, topic)
            theirs, ours = await settled(java, python, topic)
            bodies = [f"both {number}" for number in range(10 * QUEUES)]
            for body in bodies:
                await producer.send(topic, body.encode())
            got = await consumed(java, received, bodies)
            assert set(got.values()) == {1}, "nothing changes hands here"
            assert {message.queue.queue_id for message in received} == ours
            assert {one.queue for one in java.consumed()} == theirs
        # Python left and said so: Java has everything, and goes on where Python was.
        await asyncio.to_thread(wait_for, "Java has all", PATIENCE, lambda: java.assigned() == set(range(QUEUES)))
        bodies = [f"java {number}" for number in range(2 * QUEUES)]
        for body in bodies:
            await producer.send(topic, body.encode())
        assert len(await consumed(java, received, bodies)) == len(bodies)
        repeated = {one.body for one in java.consumed()} & set(received.bodies)
        assert not repeated, "Python had committed what it had done"
        java.stop()


async def test_nothing_is_lost_while_queues_change_hands(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    """Python comes and goes three times beside Java, under a stream of messages: at least once, in few cases twice."""
    client, ns = clients(JAVA), cluster.nameserver
    topic, group = cluster.make_topic(unique("Handed"), queues=QUEUES), unique("CG_handed")
    received, bodies, enough = [Received() for _ in range(3)], list[str](), asyncio.Event()
    java = await asyncio.to_thread(client.push, ns, group, topic)
    async with connect(ns) as other, other.producer(unique("PG_handed"), send_timeout=20) as producer:

        async def stream() -> None:
            while not enough.is_set():
                body = f"m{len(bodies)}"
                await producer.send(topic, body.encode())
                bodies.append(body)
                await asyncio.sleep(0.002)

        streaming = asyncio.ensure_future(stream())
        for some in received:
            async with connect(ns) as mq, mq.push_consumer(group, {topic: "*"}, some, start_from="first") as python:
                await settled(java, python, topic)
                least = len(some) + 20
                await within(lambda here=some, least=least: len(here) > least)  # type: ignore[misc]
        enough.set()
        await streaming
    by_python = Received(message for some in received for message in some)
    got = await consumed(java, by_python, bodies)
    await asyncio.to_thread(java.stop)
    twice = sum(times - 1 for times in got.values())
    print(f"{len(bodies)} messages, {len(by_python)} by Python, {twice} repeated in six hand-overs")
    # Who takes a queue over begins where the last commit was: what the other one did since comes twice.
    assert all(len(set(some.bodies)) == len(some) for some in received), "but not twice to one member"


async def test_python_goes_on_where_java_was(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    client, ns = clients(JAVA), cluster.nameserver
    topic, group = cluster.make_topic(unique("Resumed"), queues=QUEUES), unique("CG_resumed")
    await asyncio.to_thread(client.send, ns, topic, 21, prefix="old")
    java = await asyncio.to_thread(client.push, ns, group, topic)
    assert len(await asyncio.to_thread(java.consumed, 21)) == 21
    await asyncio.to_thread(java.stop)
    await asyncio.to_thread(client.send, ns, topic, 7, prefix="new")
    received = Received()
    async with connect(ns) as mq, mq.push_consumer(group, {topic: "*"}, received, start_from="first"):
        await within(lambda: {f"new-{number}" for number in range(7)} <= set(received.bodies))
    assert len(received) == 7


@pytest.mark.parametrize("name", [JAVA, pytest.param(OLD_JAVA, marks=pytest.mark.slow)])
async def test_one_key_has_one_queue_in_both_languages(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, ns = clients(name), cluster.nameserver
    topic = cluster.make_topic(unique("Hashed"), queues=QUEUES)
    theirs, ours = {}, {}
    async with connect(ns) as mq, mq.producer(unique("PG_hashed"), send_timeout=20) as producer:
        for key in KEYS:
            (told,) = await asyncio.to_thread(client.send, ns, topic, 1, shard=key)
            theirs[key] = told.queue
            ours[key] = (await producer.send(topic, b"x", sharding_key=key)).queue.queue_id
    assert ours == theirs
    assert len(set(ours.values())) > 2, "the keys show something"


async def test_what_java_sends_in_order_python_consumes_in_order(
    cluster: Cluster, clients: Clients, unique: Unique
) -> None:
    """Every third message fails once: its queue waits for it."""
    client, ns = clients(JAVA), cluster.nameserver
    topic = cluster.make_topic(unique("JavaOrder"), queues=4)
    keys = KEYS[:4]
    for half in ("x", "y"):
        for key in keys:
            await asyncio.to_thread(client.send, ns, topic, 5, shard=key, prefix=f"{key} {half}")
    done: list[str] = []
    failed: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        body = message.body.decode()
        if message.queue_offset % 3 == 0 and message.reconsume_times == 0:
            failed.add(body)
            raise ValueError("not yet")
        done.append(body)

    async with (
        connect(ns) as mq,
        mq.push_consumer(unique("CG_javaorder"), {topic: "*"}, handle, ordered=True, start_from="first", suspend=0.02),
    ):
        await within(lambda: len(done) >= 40)
    assert failed
    for key in keys:
        line = [body for body in done if body.startswith(f"{key} ")]
        assert line == [f"{key} {half}-{number}" for half in ("x", "y") for number in range(5)]


async def test_what_python_sends_in_order_java_consumes_in_order(
    cluster: Cluster, clients: Clients, unique: Unique
) -> None:
    """Each send of a key is awaited before the next: a real broker stores what comes together in any order."""
    client, ns = clients(JAVA), cluster.nameserver
    topic = cluster.make_topic(unique("PythonOrder"), queues=4)
    keys = KEYS[:4]
    async with connect(ns) as mq, mq.producer(unique("PG_pythonorder"), send_timeout=20) as producer:

        async def send_line(key: str) -> None:
            for number in range(20):
                await producer.send(topic, f"{key} {number}".encode(), sharding_key=key)

        await asyncio.gather(*(send_line(key) for key in keys))
    consumer = await asyncio.to_thread(client.push, ns, unique("CG_pythonorder"), topic, orderly=True, suspend=50)
    seen = await asyncio.to_thread(consumer.consumed, 80)
    await asyncio.to_thread(consumer.stop)
    assert len(seen) == 80
    for key in keys:
        line = [one.body for one in seen if one.properties["__SHARDINGKEY"] == key]
        assert line == [f"{key} {number}" for number in range(20)]


async def test_an_ordered_queue_has_one_owner_of_either_language(
    cluster: Cluster, clients: Clients, unique: Unique
) -> None:
    """The broker's locks count for both: a queue that changes hands keeps its order."""
    client, ns = clients(JAVA), cluster.nameserver
    topic, group = cluster.make_topic(unique("Locked"), queues=QUEUES), unique("CG_locked")
    received = Received()
    async with connect(ns) as mq, mq.producer(unique("PG_locked"), send_timeout=20) as producer:
        java = await asyncio.to_thread(client.push, ns, group, topic, orderly=True, suspend=50)
        async with mq.push_consumer(
            group, {topic: "*"}, received, ordered=True, start_from="first", rebalance_soon=0.2
        ) as python:
            await settled(java, python, topic)
            bodies = [f"{key} {number}" for number in range(10) for key in KEYS]
            for body in bodies:
                await producer.send(topic, body.encode(), sharding_key=body.rsplit(" ", 1)[0])
            got = await consumed(java, received, bodies)
            assert set(got.values()) == {1}
            lines: dict[int, list[int]] = {}
            for one in await asyncio.to_thread(java.consumed):
                lines.setdefault(one.queue, []).append(one.offset)
            for message in received:
                lines.setdefault(message.queue.queue_id, []).append(message.queue_offset)
            assert all(line == list(range(len(line))) for line in lines.values()), lines
        await asyncio.to_thread(java.stop)
