"""A24: one slow broker is avoided and later used again; when all are slow or failing, sends go on all the same.

Two real brokers; the slow one is behind a link that holds its answers back for 600 ms. The sends per broker over time
are printed.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client import SendReceipt, connect
from cometmq.client.errors import NoRoute
from cometmq.client.producer import Producer
from cometmq.testing import EmbeddedBroker
from support.cluster import OwnBroker
from support.fake_cluster import FakeCluster
from support.slow_link import SlowLink
from support.wire import until

#: From here on a broker counts as slow (ms) with the table of 5.x; it is left alone for 2 s then.
SLOW = 0.6
FAST, FAR = "broker-a", "broker-far"


class Traffic:
    """Sends all the time, some at once, and counts where they went, second by second."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.seconds: list[tuple[str, Counter[str]]] = []

    async def second(self, phase: str) -> Counter[str]:
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.0
        counts: Counter[str] = Counter()

        async def work() -> None:
            while loop.time() < end:
                receipt: SendReceipt = await self._producer.send("T", b"x", timeout=10)
                counts[receipt.queue.broker_name] += 1
                await asyncio.sleep(0.01)

        await asyncio.gather(*(work() for _ in range(4)))
        self.seconds.append((phase, counts))
        return counts

    def table(self) -> str:
        lines = [f"{'second':>6}  {'link':8}{FAST:>12}{FAR:>12}"]
        lines += [f"{n:6}  {p:8}{c[FAST]:12}{c[FAR]:12}" for n, (p, c) in enumerate(self.seconds, 1)]
        return "\n".join(lines)


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[tuple[SlowLink, str]]:
    """Two brokers; what their nameserver says of the second one leads through the link."""
    if sys.platform != "linux":
        pytest.skip("needs a second loopback address")
    with EmbeddedBroker(config={"brokerName": FAST}) as near:
        settings = {"brokerName": FAR, "brokerIP1": "127.0.0.2", "bindAddress": "127.0.0.1"}
        far = OwnBroker(tmp_path / "far", near.nameserver, settings)
        far.start()
        try:
            async with SlowLink(f"127.0.0.2:{far.port}", far.address) as slow_link:
                await _both_are_known(near.nameserver)
                yield slow_link, near.nameserver
        finally:
            far.kill()


async def _both_are_known(nameserver: str) -> None:
    async with connect(nameserver) as mq:
        async with asyncio.timeout(60):
            while True:
                try:
                    route = await mq.routes.fetch("TBW102")
                except NoRoute:
                    route = None
                if route is not None and {queue.broker_name for queue in route.publish} == {FAST, FAR}:
                    return
                await asyncio.sleep(0.1)


async def test_traffic_leaves_a_slow_broker_and_comes_back(link: tuple[SlowLink, str]) -> None:
    slow_link, nameserver = link
    async with (
        connect(nameserver) as mq,
        mq.producer("PG", latency_fault_tolerance=True, send_timeout=10) as producer,
    ):
        traffic = Traffic(producer)
        for _ in range(2):
            usual = await traffic.second("fast")
        slow_link.delay = SLOW
        slow = [await traffic.second("slow") for _ in range(5)]
        slow_link.delay = 0.0
        back: Counter[str] = Counter()
        for _ in range(20):
            back = await traffic.second("fast")
            if back[FAR] > 0.3 * back.total():
                break
        print(f"\n{traffic.table()}")
    assert usual[FAR] > 0.3 * usual.total(), "both brokers are used"
    # Each look at the slow broker costs four sends at most, and there is one look in two seconds and a half.
    moved = sum(slow[1:], Counter[str]())
    assert moved[FAR] < 0.25 * moved.total(), "the slow broker is left alone"
    assert moved[FAST] > 50, "sends go on at full speed"
    assert back[FAR] > 0.3 * back.total(), "the broker is used again when it is fast"


async def test_all_brokers_slow_or_failing_still_get_messages() -> None:
    async with (
        FakeCluster("a", "b") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", latency_fault_tolerance=True, latency_table=((1,), (60_000,))) as producer,
    ):
        for broker in cluster.brokers.values():
            broker.delay = 0.01
        receipts = [await producer.send("T", b"x") for _ in range(8)]
        assert {receipt.queue.broker_name for receipt in receipts} == {"a", "b"}


async def test_the_detector_finds_a_broker_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.client.producer.producer.ROUND", 0.05)
    monkeypatch.setattr("cometmq.client.producer.detector.INTERVAL", 0.0)
    async with (
        FakeCluster("a", "b") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", latency_fault_tolerance=True, send_timeout=10) as producer,
    ):
        await producer.send("T", b"x")
        cluster["a"].script.append(1)
        for _ in range(4):
            assert await producer.send("T", b"y")
        latencies = producer._latencies
        assert latencies is not None
        await until(lambda: latencies.is_reachable("a"))
        assert 30 in cluster["a"].asked, "GET_MAX_OFFSET"
