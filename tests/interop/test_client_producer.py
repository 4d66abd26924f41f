"""The SDK's producer beside RocketMQ's own tools: mqadmin reads our traces, and a Java client gets our replies."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cometmq.client import connect
from cometmq.client.message import ReceivedMessage
from support.cluster import Cluster
from support.mq_client import JAVA, MqClient
from support.plain_frames import create_topic
from support.server_process import wait_for
from support.wire import until

Clients = Callable[[str], MqClient]
Unique = Callable[[str], str]


async def _send_and_consume(nameserver: str, topic: str, group: str) -> str:
    """One message, sent and consumed with traces; its id."""
    done = asyncio.Event()

    async def take(message: ReceivedMessage) -> None:
        done.set()

    async with connect(nameserver) as mq:
        async with mq.producer(f"PG_{group}", trace=True, send_timeout=20) as producer:
            receipt = await producer.send(topic, b"traced", tag="TagT", keys="order-1")
        async with mq.push_consumer(group, {topic: "*"}, take, start_from="first", trace=True):
            async with asyncio.timeout(60):
                await done.wait()
    return receipt.message_id


def test_the_real_mqadmin_reads_our_traces(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    topic, group = unique("TopicTraced"), unique("CG_traced")
    create_topic(cluster.address, topic, 4)
    message_id = asyncio.run(_send_and_consume(cluster.nameserver, topic, group))
    java = clients(JAVA)
    text = ""

    def printed() -> bool:
        nonlocal text
        text, _ = java.admin("queryMsgTraceById", "-i", message_id, "-n", cluster.nameserver)
        return "Pub" in text and "Sub" in text

    wait_for("both sides are in the trace", 60, printed, pause=0.5)
    lines = [line.split() for line in text.splitlines()]
    (pub,) = [line for line in lines if line and line[0] == "Pub"]
    assert pub[1] == f"PG_{group}"
    assert "success" in pub
    (sub,) = [line for line in lines if line and line[0] == "Sub"]
    assert group in text
    assert "success" in sub


def test_a_java_client_gets_our_reply(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    topic, group = unique("TopicAsked"), unique("CG_asked")
    create_topic(cluster.address, topic, 4)
    java = clients(JAVA)

    async def answer(message: ReceivedMessage) -> None:
        await message.reply(b"python says " + message.body)

    async def serve() -> dict[str, object]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            async with (
                connect(cluster.nameserver) as mq,
                mq.push_consumer(group, {topic: "*"}, answer, start_from="first") as consumer,
            ):
                await until(lambda: len(consumer.assignments) > 4)  # its retry topic too
                return await loop.run_in_executor(pool, lambda: java.request(cluster.nameserver, topic, "hello"))

    assert "python says hello" in str(asyncio.run(serve()))
