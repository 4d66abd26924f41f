"""What happens between two steps of a pull consumer: cancelled polls, queues that go or are sought meanwhile."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Client, MessageQueue, connect
from cometmq.client.consumer.pull import PullConsumer
from cometmq.client.errors import ClientError
from cometmq.remoting.errors import TransportError
from cometmq.testing import EmbeddedBroker
from support.cluster import BROKER_NAME
from support.standalone import fill, make_topic
from support.wire import until

Name = Callable[[str], str]
FIRST = {"start_from": "first"}


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def drain(consumer: PullConsumer, count: int) -> list[bytes]:
    """Poll until that many have come."""
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(0.5)]
    return bodies


async def test_a_cancelled_poll_takes_no_wake_up_with_it(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    async with mq.pull_consumer(name("CG"), **FIRST).assign([queue]) as consumer:
        first = asyncio.create_task(consumer.poll(60))
        second = asyncio.create_task(consumer.poll(60))
        await until(lambda: len(consumer._waiters) == 2)
        first.cancel()
        await fill(mq, name("T"), b"1")
        async with asyncio.timeout(30):
            assert [message.body for message in await second] == [b"1"]
        # Woken by a message, and cancelled before it could take it: it is the next one's.
        third = asyncio.create_task(consumer.poll(60))
        fourth = asyncio.create_task(consumer.poll(60))
        await until(lambda: len(consumer._waiters) == 2)
        held = consumer.assignments[queue]
        give = consumer.has_messages

        def give_and_cancel(given: object) -> None:
            give(held)
            third.cancel()

        consumer.has_messages = give_and_cancel  # type: ignore[assignment]
        await fill(mq, name("T"), b"2")
        async with asyncio.timeout(30):
            assert [message.body for message in await fourth] == [b"2"]


async def test_polls_that_find_nothing_leave_nothing_behind(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    async with mq.pull_consumer(name("CG")).assign([queue]) as consumer:
        for _ in range(20):
            assert await consumer.poll(0.001) == []
        assert not len(consumer._waiters)


async def test_a_seek_while_the_broker_holds_a_pull(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), *numbered(0, 1, 2))
    async with mq.pull_consumer(name("CG"), **FIRST).assign([queue]) as consumer:
        assert await drain(consumer, 3) == numbered(0, 1, 2)
        # The pull for offset 3 is held now, and its answer must not come after what the seek brings.
        await asyncio.gather(consumer.seek(queue, 1), fill(mq, name("T"), b"3"))
        got = await drain(consumer, 3)
        # What came before the seek took effect is given out too.
        assert (got[1:] if got[0] == b"3" else got)[:2] == numbered(1, 2)
        await consumer.seek(queue, 0)
        assert await drain(consumer, 4) == numbered(0, 1, 2, 3)
        assert await consumer.poll(0.05) == []


async def test_a_seek_in_a_queue_that_goes_meanwhile_pulls_nothing(
    mq: Client, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), b"0")
    async with mq.pull_consumer(name("CG"), **FIRST).subscribe(name("T")) as consumer:
        await drain(consumer, 1)
        held = consumer.assignments[queue]
        ask = consumer.max_offset

        async def taken_away(asked: MessageQueue) -> int:
            await consumer.rebalance.drop(held)
            return await ask(asked)

        monkeypatch.setattr(consumer, "max_offset", taken_away)
        with pytest.raises(ClientError, match=r"not assigned|taken away"):
            await consumer.seek(queue, 0)
        assert held._task is None


async def test_a_queue_that_waits_for_room_of_all_goes_on_when_another_has_made_it(mq: Client, name: Name) -> None:
    queues = await make_topic(mq, name("T"), 3)
    for queue in queues:
        await fill(mq, name("T"), *numbered(*range(30)), queue=queue.queue_id)
    options = {"batch_size": 5, "max_cached_of_all": 4, **FIRST}
    async with mq.pull_consumer(name("CG"), **options).assign(queues) as consumer:
        assert sorted(await drain(consumer, 90)) == sorted(numbered(*range(30)) * 3)
        assert consumer.cached == 0


async def test_choices_that_overlap_begin_with_a_queue_once(mq: Client, name: Name) -> None:
    queues = await make_topic(mq, name("T"), 2)
    await fill(mq, name("T"), *numbered(*range(20)))
    async with mq.pull_consumer(name("CG"), rebalance_soon=0.001, **FIRST).assign(queues) as consumer:
        for _ in range(20):
            consumer.assign(queues)
            await asyncio.sleep(0)
        assert sorted(await drain(consumer, 20)) == sorted(numbered(*range(20)))
        assert await consumer.poll(0.1) == []


async def test_who_chooses_queues_after_the_start_gets_no_others(mq: Client, name: Name) -> None:
    queues = await make_topic(mq, name("T"), 3)
    async with mq.pull_consumer(name("CG"), rebalance_interval=0.01, **FIRST) as consumer:
        consumer.assign(queues[1:2])
        for queue in queues:
            await fill(mq, name("T"), b"%d" % queue.queue_id, queue=queue.queue_id)
        assert await drain(consumer, 1) == [b"1"]
        assert await consumer.poll(0.2) == []
        assert consumer.assignment == queues[1:2]


async def test_a_queue_that_is_taken_away_is_committed_up_to_the_last_poll(mq: Client, name: Name) -> None:
    """What was given out by that poll itself may be in work still: the next owner gets it again."""
    (queue,) = await make_topic(mq, name("T"), 1)
    await fill(mq, name("T"), *numbered(*range(10)))
    options = {"batch_size": 5, "commit_interval": 600.0, "persist_interval": 600.0, **FIRST}
    async with mq.pull_consumer(name("CG"), **options).subscribe(name("T")) as consumer:
        for expected in (numbered(*range(5)), numbered(*range(5, 10))):
            assert await drain(consumer, 5) == expected
        await consumer.rebalance.drop(consumer.assignments[queue])
        async with asyncio.timeout(30):
            while await mq.admin().committed_offset(name("CG"), queue) != 5:  # noqa: ASYNC110 - nobody would tell
                await asyncio.sleep(0.01)


async def test_a_close_ends_a_poll(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    consumer = mq.pull_consumer(name("CG")).assign([queue])
    await consumer.start()
    polls = [asyncio.create_task(consumer.poll(60)) for _ in range(2)]
    await until(lambda: len(consumer._waiters) == 2)
    await consumer.close()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*polls) == [[], []]


async def test_a_commit_that_fails_is_told_and_tried_again(unused_tcp_port: int) -> None:
    config = {"brokerName": BROKER_NAME, "listenPort": str(unused_tcp_port)}
    with EmbeddedBroker(config=config) as broker:
        async with connect(broker.nameserver) as mq:
            (queue,) = await make_topic(mq, "T", 1)
            await fill(mq, "T", *numbered(0, 1, 2))
            options = {"auto_commit": False, "persist_interval": 0.1, **FIRST}
            async with mq.pull_consumer("CG", **options).assign([queue]) as consumer:
                await drain(consumer, 3)
                broker._ports = (broker._running.nameserver.port, broker._running.broker.port)
                await asyncio.to_thread(broker._end)
                with pytest.raises(TransportError):
                    await consumer.commit()
                await asyncio.to_thread(broker.start)
                async with asyncio.timeout(60):
                    while await committed(mq, queue) != 3:  # noqa: ASYNC110 - nobody would tell
                        await asyncio.sleep(0.05)


async def committed(mq: Client, queue: MessageQueue) -> int | None:
    try:
        return await mq.admin().committed_offset("CG", queue)
    except TransportError:
        return None


async def test_another_subscription_counts_for_queues_that_are_read_already(mq: Client, name: Name) -> None:
    (queue,) = await make_topic(mq, name("T"), 1)
    async with (
        mq.pull_consumer(name("CG"), **FIRST).subscribe(name("T"), "a") as consumer,
        mq.producer("PG") as producer,
    ):
        await producer.send(name("T"), b"a1", tag="a")
        assert await drain(consumer, 1) == [b"a1"]
        consumer.subscribe(name("T"), "b")
        await producer.send(name("T"), b"a2", tag="a")
        await producer.send(name("T"), b"b1", tag="b")
        assert await drain(consumer, 1) == [b"b1"]
        assert consumer.assignment == [queue]


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_a_start_that_fails_leaves_nothing_behind(
    mq: Client, name: Name, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder for the offsets is a file."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path / "file"))
    before = asyncio.all_tasks()

    def made() -> object:
        options = {"model": "broadcasting"}
        if kind == "push":
            return mq.push_consumer(name("CG"), {name("T"): "*"}, **options)
        return mq.pull_consumer(name("CG"), **options).subscribe(name("T"))

    for _ in range(2):  # the group is free again
        with pytest.raises(NotADirectoryError):
            await made().start()  # type: ignore[attr-defined]
    assert not mq.consumers
    assert asyncio.all_tasks() == before


async def test_a_start_that_is_cancelled_leaves_nothing_behind(mq: Client, name: Name) -> None:
    await make_topic(mq, name("T"), 1)
    before = asyncio.all_tasks()
    for steps in range(12):
        push = mq.push_consumer(name("CG"), {name("T"): "*"})
        pull = mq.pull_consumer(name("CG2")).subscribe(name("T"))
        for consumer in (push, pull):
            starting = asyncio.create_task(consumer.start())
            for _ in range(steps):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled():
                await consumer.close()
        assert not mq.consumers
    await until(lambda: asyncio.all_tasks() == before)
