"""A9: a listener that fails: 16 retries at the table's delays, then the dead letters; resent from there it is consumed.

The clock of the broker is moved: the retries take almost five hours. A broadcasting group has no retries: what fails
there is dropped, and the log says so.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cometmq.client import connect
from cometmq.client.message import ReceivedMessage
from cometmq.protocol.delay import DelayLevels
from cometmq.testing import EmbeddedBroker
from support.standalone import Received, fill
from support.wire import until

LEVELS = DelayLevels.parse()
#: The first retry has this level, each further one the next.
FIRST_LEVEL = 3
RETRIES = 16
EAGER = {"start_from": "first", "rebalance_interval": 0.2}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as running:
        yield running


class Failing(list[ReceivedMessage]):
    """A listener that fails until it is mended."""

    is_mended = False

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)
        if not self.is_mended:
            raise ValueError("not today")


async def test_sixteen_retries_the_dead_letters_and_back(broker: EmbeddedBroker) -> None:
    tries = Failing()
    async with connect(broker.nameserver) as mq:
        await fill(mq, "TopicA9", b"order 7")
        async with mq.push_consumer("CG", {"TopicA9": "*"}, tries, **EAGER) as consumer:
            for number in range(RETRIES + 1):
                # Tried, and back at the broker.
                await until(lambda count=number: len(tries) > count and not consumer._unsettled)  # type: ignore[misc]
                if number == RETRIES:
                    break
                half = timedelta(milliseconds=LEVELS.millis_of(FIRST_LEVEL + number) / 2)
                await asyncio.to_thread(broker.advance, half)
                # Time goes on by itself too: only a gap that is long enough shows that nothing comes before.
                assert half < timedelta(seconds=30) or len(tries) == number + 1
                await asyncio.to_thread(broker.advance, half)
            dead = await take_from(broker, "%DLQ%CG")
            assert (dead.body, dead.message_id) == (b"order 7", tries[0].message_id)
            # An operator sends it again to where it came from.
            tries.is_mended = True
            await fill(mq, dead.properties["RETRY_TOPIC"], dead.body)
            await until(lambda: len(tries) == RETRIES + 2)
    assert [message.reconsume_times for message in tries] == [*range(RETRIES + 1), 0]
    assert {message.topic for message in tries} == {"TopicA9"}
    for number, (before, after) in enumerate(itertools.pairwise(tries[: RETRIES + 1])):
        delay = timedelta(milliseconds=LEVELS.millis_of(FIRST_LEVEL + number))
        assert after.stored_time - before.stored_time >= delay


async def take_from(broker: EmbeddedBroker, topic: str) -> ReceivedMessage:
    """The one message of a topic."""
    got = Received()
    async with connect(broker.nameserver) as mq, mq.push_consumer("CG_dead", {topic: "*"}, got, **EAGER):
        await got.has(1)
    (message,) = got
    return message


async def test_a_failure_under_broadcasting_is_dropped_with_a_log_line(
    broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Failing()
    options = {"model": "broadcasting", "offsets_folder": str(tmp_path), **EAGER}
    with caplog.at_level(logging.WARNING, "cometmq"):
        async with connect(broker.nameserver) as mq:
            await fill(mq, "TopicA9all", b"once")
            async with mq.push_consumer("CG_all", {"TopicA9all": "*"}, tries, **options) as consumer:
                await until(lambda: len(tries) == 1 and not consumer._unsettled)
                await asyncio.to_thread(broker.advance, timedelta(hours=3))
                await fill(mq, "TopicA9all", b"another")
                await until(lambda: len(tries) == 2)
    assert [message.body for message in tries] == [b"once", b"another"]
    assert f"{tries[0]!r} failed and is dropped: a broadcasting group has no retries" in caplog.messages
