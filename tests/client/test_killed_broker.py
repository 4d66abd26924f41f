"""A broker that is killed by SIGKILL in the middle of sends, again and again, and comes back.

Every send ends in a receipt or in an error within its time; what has a receipt is there afterwards; producers and
consumers go on by themselves. Against ours, and as a slow test against the real ones: they are judged by one measure.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.client import SendReceipt, connect
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.producer import Producer
from cometmq.remoting.errors import TransportError
from support import real_rocketmq
from support.cluster import OURS, REAL, Cluster
from support.loops import until
from support.real_rocketmq import V4, V5
from support.standalone import Received

KILLS = 3
SENDERS = 16
SEND_TIMEOUT = 2.0
#: Seconds that a send may be late on a machine with others on it. One that hangs would be later.
GRACE = 8.0
TOPIC = "T"


@pytest.fixture(
    params=[OURS, *(pytest.param(v, marks=[pytest.mark.slow, pytest.mark.interop]) for v in (V5, V4))], ids=str
)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if request.param != OURS and (reason := real_rocketmq.available()):
        pytest.skip(reason)
    kind = OURS if request.param == OURS else REAL
    with Cluster(kind, tmp_path, version=request.param if kind == REAL else V5) as running:
        running.make_topic(TOPIC)
        yield running


@dataclass
class Sends:
    """Senders that go on until they are told to stop, each with one message under way."""

    producer: Producer
    acknowledged: dict[bytes, SendReceipt] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    stopped: bool = False
    _number: int = 0

    async def one(self) -> None:
        while not self.stopped:
            self._number += 1
            body = b"%d" % self._number
            try:
                async with asyncio.timeout(SEND_TIMEOUT + GRACE):
                    self.acknowledged[body] = await self.producer.send(TOPIC, body)
            except (BrokerError, ClientError, TransportError) as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    async def more(self, count: int) -> None:
        """Wait until so many more have a receipt."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, f"{count} more are acknowledged", 60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{}, {"accumulate": True}], ids=["single", "accumulated"])
async def test_nothing_acknowledged_is_lost(cluster: Cluster, options: dict[str, bool]) -> None:
    received = Received()
    async with (
        connect(cluster.nameserver) as mq,
        mq.producer("PG", send_timeout=SEND_TIMEOUT, **options) as producer,
        mq.push_consumer("CG", {TOPIC: "*"}, received, start_from="first"),
    ):
        sends = Sends(producer)
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(sends.one())
            for _ in range(KILLS):
                await sends.more(100)
                cluster.kill_broker()
                await asyncio.to_thread(cluster.restart_broker)
            await sends.more(100)
            sends.stopped = True
        await until(lambda: set(received.bodies) >= sends.acknowledged.keys(), "everything was consumed", 60)
    places = Counter((message.queue, message.queue_offset) for message in received)
    stored = Counter({message.body: 0 for message in received})
    stored.update(body for body, _ in {(message.body, message.offset_message_id) for message in received})
    by_place = {message.offset_message_id: message.body for message in received}
    misplaced = [body for body, receipt in sends.acknowledged.items() if by_place[receipt.offset_message_id] != body]
    assert not misplaced, "each is where its receipt says"
    print(
        f"\n{cluster.kind}: {KILLS} kills, {len(sends.acknowledged)} acknowledged, none lost; "
        f"failed sends: {dict(sends.errors)}; stored without a receipt or twice: "
        f"{sum(stored.values()) - len(sends.acknowledged)}; handed out again: {sum(places.values()) - len(places)}"
    )
    assert sends.errors, "a kill was noticed"
