"""`mqbroker --standalone` as a child process that may be killed and started again at the same addresses.

Beside it what most tests of consumers need: messages to read, and a handler that keeps what it got.
"""

import asyncio
from pathlib import Path
from typing import Self

from cometmq.client import Client, MessageQueue
from cometmq.client.message import ReceivedMessage
from support.broker_process import BrokerProcess
from support.server_process import free_port
from support.wire import until

BROKER_NAME = "broker-a"


class StandaloneProcess(BrokerProcess):
    """A nameserver and a broker in one process. `with` starts it and waits until it is ready."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.nameserver = f"127.0.0.1:{free_port()}"
        options = ("--standalone", "-n", self.nameserver, "--store", str(folder / "store"))
        super().__init__(folder, *options, listenPort=str(free_port()), **settings)
        self._boots = 0

    def __enter__(self) -> Self:
        self.boot()
        return self

    def boot(self) -> None:
        """Start it, for the first time or again; returns when it is ready."""
        self.start()
        self._boots += 1
        self.ready(self._boots)


class Received(list[ReceivedMessage]):
    """What a handler got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self]

    async def has(self, count: int) -> None:
        """Wait until that many different bodies came."""
        await until(lambda: len(set(self.bodies)) >= count)


async def make_topic(mq: Client, topic: str, queues: int) -> list[MessageQueue]:
    """A topic with so many queues, and these."""
    await mq.admin().create_topic(topic, read_queues=queues, write_queues=queues)
    async with asyncio.timeout(30):
        while len((await mq.routes.fetch(topic)).publish) != queues:  # noqa: ASYNC110 - nobody would tell
            await asyncio.sleep(0.05)
    return [MessageQueue(topic, BROKER_NAME, number) for number in range(queues)]


async def fill(mq: Client, topic: str, *bodies: bytes, queue: int | None = None) -> None:
    """Send them one after the other."""
    target = None if queue is None else MessageQueue(topic, BROKER_NAME, queue)
    async with mq.producer("PG_fill", send_timeout=20) as producer:
        for body in bodies:
            await producer.send(topic, body, queue=target)
