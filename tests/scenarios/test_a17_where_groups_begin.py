"""A17: where a new group begins: LAST, FIRST, TIMESTAMP (half an hour ago by default); a second start resumes."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cometmq.client import connect
from cometmq.testing import EmbeddedBroker
from support.standalone import Received, StandaloneProcess, fill, make_topic
from support.wire import until

#: Nothing counts as being in memory still. A topic that is young would be read from its beginning by every new group.
OLD = {"accessMessageInMemoryMaxRatio": "0"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("a17"), **OLD) as running:
        yield running


async def test_last_and_first_and_the_second_start(broker: StandaloneProcess) -> None:
    topic = "TopicA17"
    async with connect(broker.nameserver) as mq:
        queues = await make_topic(mq, topic, 2)
        await fill(mq, topic, *(b"old %d" % number for number in range(10)))
        last, first = Received(), Received()
        async with (
            mq.push_consumer("CG_last", {topic: "*"}, last) as latest,
            mq.push_consumer("CG_first", {topic: "*"}, first, start_from="first"),
        ):
            await until(lambda: all(queue in latest.assignments for queue in queues))
            await fill(mq, topic, *(b"new %d" % number for number in range(4)))
            await last.has(4)
            await first.has(14)
        assert sorted(last.bodies) == [b"new %d" % number for number in range(4)]
        assert len(first) == 14
        # What is sent meanwhile is not lost to either, wherever they would begin as new groups.
        await fill(mq, topic, b"meanwhile")
        for group, start in (("CG_last", "last"), ("CG_first", "first"), ("CG_last", "first")):
            again = Received()
            async with mq.push_consumer(group, {topic: "*"}, again, start_from=start):
                if (group, start) == ("CG_last", "first"):
                    await fill(mq, topic, b"end")
                await again.has(1)
            assert again.bodies == [b"end" if (group, start) == ("CG_last", "first") else b"meanwhile"]


async def test_a_moment(broker: StandaloneProcess) -> None:
    topic = "TopicA17moment"
    async with connect(broker.nameserver) as mq:
        (queue,) = await make_topic(mq, topic, 1)
        await fill(mq, topic, *(b"old %d" % number for number in range(5)))
        newest = await mq.admin().message_at(queue, 4)
        moment = newest.stored_time + timedelta(milliseconds=1)
        await until(lambda: datetime.now(UTC) > moment)
        await fill(mq, topic, b"new")
        got = Received()
        async with mq.push_consumer("CG_moment", {topic: "*"}, got, start_from=moment):
            await got.has(1)
        assert got.bodies == [b"new"]


async def test_half_an_hour_ago(tmp_path: Path) -> None:
    """The broker's clock is an hour late at first, and right from then on."""
    broker = EmbeddedBroker(config={"brokerName": "broker-a", **OLD})
    broker._clock.ahead = -3_600_000
    with broker:
        async with connect(broker.nameserver) as mq:
            await make_topic(mq, "T", 1)
            await fill(mq, "T", b"an hour ago")
            await asyncio.to_thread(broker.advance, timedelta(minutes=31))
            await fill(mq, "T", b"29 minutes ago")
            await asyncio.to_thread(broker.advance, timedelta(minutes=29))
            await fill(mq, "T", b"now")
            got = Received()
            async with mq.push_consumer("CG", {"T": "*"}, got, start_from="timestamp"):
                await got.has(2)
            assert got.bodies == [b"29 minutes ago", b"now"]
