"""A15: the lite pull loop: subscribe and poll; seek, pause, assign, manual commit; crash and resume."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer.pull import PullConsumer
from support.member_process import MemberProcess
from support.standalone import StandaloneProcess, fill, make_topic
from support.wire import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("a15")) as running:
        yield running


@pytest.fixture
async def mq(broker: StandaloneProcess) -> AsyncIterator[Client]:
    async with connect(broker.nameserver) as client:
        yield client


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def drain(consumer: PullConsumer, count: int) -> list[bytes]:
    """Poll until that many have come."""
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(0.5)]
    return bodies


async def test_subscribe_poll_seek_and_pause(mq: Client) -> None:
    topic = "TopicA15"
    queues = await make_topic(mq, topic, 2)
    await fill(mq, topic, *numbered(*range(10)), queue=0)
    async with mq.pull_consumer("CG", start_from="first").subscribe(topic) as consumer:
        assert await drain(consumer, 10) == numbered(*range(10))
        await until(lambda: consumer.assignment == queues)
        await consumer.seek(queues[0], 8)
        assert await drain(consumer, 2) == numbered(8, 9)
        await consumer.seek_to_begin(queues[0])
        assert await drain(consumer, 10) == numbered(*range(10))
        consumer.pause([queues[1]])
        # A pull that was held at the broker when the pause began may bring one more answer.
        await fill(mq, topic, b"held", queue=1)
        held = [message.body for message in await consumer.poll(0.2)]
        await fill(mq, topic, b"paused", queue=1)
        await fill(mq, topic, b"10", queue=0)
        assert await drain(consumer, 1) == [b"10"], "the other queue goes on"
        consumer.resume([queues[1]])
        assert held + await drain(consumer, 2 - len(held)) == [b"held", b"paused"]


async def test_assign_and_commit_by_hand(mq: Client, broker: StandaloneProcess) -> None:
    topic = "TopicA15assigned"
    queues = await make_topic(mq, topic, 2)
    await fill(mq, topic, b"other", queue=1)
    await fill(mq, topic, *numbered(*range(6)), queue=0)
    options = {"start_from": "first", "auto_commit": False}
    async with mq.pull_consumer("CG_assigned", **options).assign(queues[:1]) as consumer:
        assert await drain(consumer, 6) == numbered(*range(6))
        assert await mq.admin().committed_offset("CG_assigned", queues[0]) is None, "nothing commits by itself"
        await consumer.commit({queues[0]: 2})
    async with (
        connect(broker.nameserver) as other,
        other.pull_consumer("CG_assigned", **options).assign(queues) as consumer,
    ):
        assert sorted(await drain(consumer, 5)) == [*numbered(2, 3, 4, 5), b"other"]


async def test_a_crash_and_the_next_one_resumes(mq: Client, broker: StandaloneProcess, tmp_path: Path) -> None:
    topic = "TopicA15crash"
    (queue,) = await make_topic(mq, topic, 1)
    sent = numbered(*range(200))
    with MemberProcess(tmp_path / "first", "pull", broker.nameserver, "CG_crash", topic) as first:
        await asyncio.to_thread(first.ready)
        await fill(mq, topic, *sent[:100])
        await until(lambda: len(first.bodies) >= 20)
        filling = asyncio.create_task(fill(mq, topic, *sent[100:]))
        first.kill()
        before = first.bodies
        await filling
    committed = await mq.admin().committed_offset("CG_crash", queue)
    assert committed is not None
    assert 0 < committed <= len(before), "only what was handled is committed"
    with MemberProcess(tmp_path / "second", "pull", broker.nameserver, "CG_crash", topic) as second:
        await until(lambda: len(second.bodies) == len(sent) - committed)
        after = second.bodies
    assert before == sent[: len(before)]
    assert after == sent[committed:], "it begins where the first one had committed, and nothing is missing"
