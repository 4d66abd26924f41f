"""A8: three queues, and members that come and go.

Equal shares, no loss, every group gets every message; one member too many stays idle; a member that is killed is
replaced; a broadcasting group gets all in each member and keeps its offsets in files.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.client import connect
from cometmq.client.consumer.push import PushConsumer
from support.member_process import MemberProcess
from support.standalone import Received, StandaloneProcess, fill, make_topic
from support.wire import until

TOPIC = "TopicA8"
EAGER = {"start_from": "first", "rebalance_interval": 0.2}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("a8")) as running:
        yield running


def shares(topic: str, *members: PushConsumer) -> list[int]:
    """How many queues each has, the largest share first."""
    return sorted((sum(queue.topic == topic for queue in member.assignments) for member in members), reverse=True)


async def test_members_come_and_go(broker: StandaloneProcess) -> None:
    got, other_group, sent = Received(), Received(), set[bytes]()
    async with connect(broker.nameserver) as mq, AsyncExitStack() as everybody:
        await make_topic(mq, TOPIC, 3)

        async def send_ten() -> None:
            bodies = [b"%d" % number for number in range(len(sent), len(sent) + 10)]
            await fill(mq, TOPIC, *bodies)
            sent.update(bodies)

        await everybody.enter_async_context(mq.push_consumer("CG_other", {TOPIC: "*"}, other_group, **EAGER))
        members: list[PushConsumer] = []
        stacks: list[AsyncExitStack] = []
        # Joining: the fourth is one too many.
        for expected in ([3], [2, 1], [1, 1, 1], [1, 1, 1, 0]):
            stack = await everybody.enter_async_context(AsyncExitStack())
            client = await stack.enter_async_context(connect(broker.nameserver))
            members.append(await stack.enter_async_context(client.push_consumer("CG", {TOPIC: "*"}, got, **EAGER)))
            stacks.append(stack)
            await until(lambda expected=expected: shares(TOPIC, *members) == expected)  # type: ignore[misc]
            await send_ten()
        queues = [queue for member in members for queue in member.assignments if queue.topic == TOPIC]
        assert len(queues) == len(set(queues)) == 3, "each queue is one member's"
        # Leaving, with messages on the way.
        for expected in ([1, 1, 1], [2, 1], [3]):
            members.pop(0)
            _, _ = await asyncio.gather(stacks.pop(0).aclose(), send_ten())
            await until(lambda expected=expected: shares(TOPIC, *members) == expected)  # type: ignore[misc]
        await got.has(len(sent))
        await other_group.has(len(sent))
    assert set(got.bodies) == set(other_group.bodies) == sent
    assert len(other_group) == len(sent), "nothing moved in this group: exactly once"
    print(f"\n{len(sent)} sent, {len(got) - len(sent)} came twice while queues moved")


async def test_who_is_killed_is_replaced(broker: StandaloneProcess, tmp_path: Path) -> None:
    topic, got = "TopicA8killed", Received()
    async with connect(broker.nameserver) as mq:
        await make_topic(mq, topic, 3)
        async with mq.push_consumer("CG_killed", {topic: "*"}, got, **EAGER) as survivor:
            with MemberProcess(tmp_path, "push", broker.nameserver, "CG_killed", topic) as other:
                await asyncio.to_thread(other.ready)
                await until(lambda: shares(topic, survivor) in ([1], [2]))
                await fill(mq, topic, *(b"before %d" % number for number in range(30)))
                await until(lambda: len({*got.bodies, *other.bodies}) == 30)
                printed = other.bodies
                assert printed, "both had a share"
                other.kill()
            await until(lambda: shares(topic, survivor) == [3])
            await fill(mq, topic, *(b"after %d" % number for number in range(10)))
            await until(lambda: len({body for body in got.bodies if body.startswith(b"after")}) == 10)
    assert {*got.bodies, *printed} == {
        *(b"before %d" % number for number in range(30)),
        *(b"after %d" % number for number in range(10)),
    }


async def test_broadcasting(broker: StandaloneProcess, tmp_path: Path) -> None:
    topic = "TopicA8all"
    first, second, again = Received(), Received(), Received()
    options = {"model": "broadcasting", **EAGER}
    async with connect(broker.nameserver) as mq, connect(broker.nameserver) as other:
        queues = await make_topic(mq, topic, 3)
        bodies = [b"%d" % number for number in range(12)]
        async with (
            mq.push_consumer("CG_all", {topic: "*"}, first, offsets_folder=str(tmp_path / "1"), **options),
            other.push_consumer("CG_all", {topic: "*"}, second, offsets_folder=str(tmp_path / "2"), **options),
        ):
            await fill(mq, topic, *bodies)
            await first.has(12)
            await second.has(12)
        assert sorted(first.bodies) == sorted(second.bodies) == sorted(bodies)
        for folder in ("1", "2"):
            (file,) = (tmp_path / folder).rglob("offsets.json")
            assert topic in file.read_text()
        committed = {await mq.admin().committed_offset("CG_all", queue) for queue in queues}
        assert committed == {None}, "the broker keeps nothing of it"
        await fill(mq, topic, b"new")
        async with mq.push_consumer("CG_all", {topic: "*"}, again, offsets_folder=str(tmp_path / "1"), **options):
            await again.has(1)
    assert again.bodies == [b"new"]
