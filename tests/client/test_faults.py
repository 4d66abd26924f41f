"""The SDK over a bad network: sends end in time, consumers go on, nothing that was acknowledged is lost.

Every client speaks to the broker and to the nameserver through a link that delays, splits, cuts, half-closes and goes
silent. The seed is printed; `COMETMQ_SEED` repeats a run.
"""

import asyncio
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import psutil
import pytest

from cometmq.client import Client, connect
from cometmq.client.errors import BrokerError, ClientError, RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.remoting.errors import TransportError
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.faulty_link import FaultyLink
from support.loops import until

SEED = int(os.environ.get("COMETMQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
#: Seconds of a send, and by how much a busy machine may be late.
TIMEOUT, SLACK = 2.0, 5.0
#: Seconds until everything has come after the faults: retries and reconnects included.
DRAIN = 90.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")


class Network:
    """A broker whose route leads through a bad link, and a bad link to its nameserver."""

    def __init__(self, broker: AnyBroker, to_broker: FaultyLink, to_nameserver: FaultyLink) -> None:
        self.broker = broker
        self.links = (to_broker, to_nameserver)
        self.nameserver = to_nameserver.address

    def fail(self, is_faulty: bool) -> None:
        for link in self.links:
            link.is_faulty = is_faulty
            link.cut_all()

    def client(self, **options: object) -> Client:
        return connect(self.nameserver, **options)


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with EmbeddedBroker(config={"brokerIP1": "127.0.0.2", "bindAddress": "127.0.0.1"}) as broker:
        port = broker.address.rsplit(":", 1)[1]
        async with (
            FaultyLink(f"127.0.0.2:{port}", f"127.0.0.1:{port}", SEED) as to_broker,
            FaultyLink("127.0.0.1:0", broker.nameserver, SEED + 1) as to_nameserver,
        ):
            yield Network(broker, to_broker, to_nameserver)


class Ledger:
    """What was sent and acknowledged, and what came."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.failed: Counter[str] = Counter()
        self.slowest = 0.0
        self.came: Counter[bytes] = Counter()

    @property
    def missing(self) -> set[bytes]:
        return self.acknowledged - self.came.keys()

    def summary(self) -> str:
        doubles = sum(count - 1 for count in self.came.values())
        return (
            f"{len(self.acknowledged)} acknowledged, {self.failed.total()} failed {dict(self.failed)},"
            f" slowest {self.slowest:.2f} s, {len(self.came)} came, {doubles} doubles"
        )


async def keep_sending(mq: Client, topic: str, ledger: Ledger, until_time: float, key: str | None, name: str) -> None:
    loop = asyncio.get_running_loop()
    async with mq.producer(f"PG_{name}") as producer:
        number = 0
        while loop.time() < until_time:
            body, began = f"{name}-{number}".encode(), loop.time()
            number += 1
            try:
                await producer.send(topic, body, sharding_key=key, timeout=TIMEOUT)
            except (BrokerError, ClientError, TransportError) as error:
                ledger.failed[type(error).__name__] += 1
            else:
                ledger.acknowledged.add(body)
            ledger.slowest = max(ledger.slowest, loop.time() - began)
            await asyncio.sleep(0.005)


class InOrder:
    """The handler of one ordered member: per queue nothing is passed over, and one message at a time."""

    def __init__(self, ledger: Ledger, seen: dict[MessageQueue, int], problems: list[str]) -> None:
        self._ledger, self._seen, self._problems = ledger, seen, problems
        self._busy: set[MessageQueue] = set()

    async def __call__(self, message: ReceivedMessage) -> None:
        queue, offset = message.queue, message.queue_offset
        if queue in self._busy:
            self._problems.append(f"two at once of {queue}")
        if offset > self._seen.get(queue, -1) + 1:
            self._problems.append(f"{offset} of {queue} came after {self._seen.get(queue)}")
        self._busy.add(queue)
        await asyncio.sleep(0.001)
        self._busy.discard(queue)
        self._seen[queue] = max(self._seen.get(queue, -1), offset)
        self._ledger.came[message.body] += 1


def at_random(ledger: Ledger) -> Callable[[ReceivedMessage], object]:
    """The handler of a concurrent member, which fails now and then."""
    rng = random.Random(SEED + 2)

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(rng.uniform(0, 0.01))
        if rng.random() < 0.01:
            raise RetryLater(delay_level=1)
        ledger.came[message.body] += 1

    return handle


def in_a_thread(ledger: Ledger) -> Callable[[ReceivedMessage], object]:
    """The handler of another member: a plain function."""

    def handle(message: ReceivedMessage) -> None:
        ledger.came[message.body] += 1

    return handle


def left_over(before: set["asyncio.Task[object]"], links: tuple[FaultyLink, ...]) -> list[str]:
    own = {task for link in links for task in link._tasks}
    return [task.get_name() for task in asyncio.all_tasks() - before - own if "_accepted" not in repr(task)]


def handler_threads() -> list[str]:
    """The threads of plain handlers, the only ones that the SDK has; the broker in this process has others."""
    return [thread.name for thread in threading.enumerate() if "-handler" in thread.name]


def sockets() -> int:
    """The TCP sockets of this process; the broker opens files as it goes, which say nothing here."""
    return len(psutil.Process().net_connections(kind="tcp"))


async def storm(network: Network, seconds: float) -> None:
    before = asyncio.all_tasks()
    connected = sockets()
    free, ordered = Ledger(), Ledger()
    seen: dict[MessageQueue, int] = {}
    problems: list[str] = []
    quick = {"start_from": "first", "rebalance_interval": 2, "persist_interval": 1}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(network.client(heartbeat_interval=2)) for _ in range(3)]
        async with clients[0].producer("PG_first") as producer:
            for topic in ("FREE", "ORDERED"):
                await producer.send(topic, b"first", timeout=30)
        for mq, made in zip(clients[1:], (at_random, in_a_thread), strict=True):
            handler = InOrder(ordered, seen, problems)
            await stack.enter_async_context(
                mq.push_consumer("CG_FREE", {"FREE": "*"}, made(free), close_timeout=10, **quick)
            )
            await stack.enter_async_context(
                mq.push_consumer("CG_ORDERED", {"ORDERED": "*"}, handler, ordered=True, close_timeout=10, **quick)
            )
        network.fail(True)
        end = asyncio.get_running_loop().time() + seconds
        senders = [keep_sending(clients[0], "FREE", free, end, None, f"free{n}") for n in range(3)]
        senders += [keep_sending(clients[0], "ORDERED", ordered, end, f"key{n}", f"ordered{n}") for n in range(3)]
        await asyncio.gather(*senders)
        network.fail(False)
        faults = sum((link.counts for link in network.links), Counter[str]())
        at_end = {"free": len(free.came), "ordered": len(ordered.came)}
        try:
            await until(lambda: not free.missing and not ordered.missing, "everything came", DRAIN)
        finally:
            print(f"\nseed {SEED}: {dict(faults)}\ncame during the faults: {at_end}")
            print(f"free: {free.summary()}\nordered: {ordered.summary()}")
        threads = handler_threads()
    assert not problems
    assert max(free.slowest, ordered.slowest) < TIMEOUT + SLACK, "a send ends within its timeout"
    assert faults["cut"] + faults["silence"] + faults["half_close"] > 0, "the network was bad"
    assert threads, "a plain function runs in a thread"
    assert free.acknowledged, "sends succeeded all the same"
    assert min(at_end.values()) > 0, "consumers went on under faults"
    for link in network.links:
        link.cut_all()
    await until(lambda: not left_over(before, network.links), "no task is left")
    await until(lambda: sockets() <= connected, "no socket is left")
    await until(lambda: not handler_threads(), "no thread is left")


async def test_a_bad_network_loses_nothing_and_hangs_nobody(network: Network) -> None:
    await storm(network, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_bad_network_for_two_minutes(network: Network) -> None:
    await storm(network, 120)
