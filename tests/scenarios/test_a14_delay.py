"""A14: delay levels 1 to 18, 0 and 20 (which is 18), a table of one's own, and a restart in the middle of a delay."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from cometmq.client import Client, connect
from cometmq.client.message import ReceivedMessage
from cometmq.protocol.delay import DelayLevels
from cometmq.testing import EmbeddedBroker
from support.broker_process import BrokerProcess
from support.server_process import free_port
from support.wire import until

LEVELS = DelayLevels.parse()


class Arrivals(dict[int, ReceivedMessage]):
    """What came, by the level that it was sent with."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self[int(message.body)] = message


async def send(mq: Client, *levels: int) -> None:
    async with mq.producer("PG") as producer:
        for level in levels:
            await producer.send("T", b"%d" % level, delay_level=level)


async def test_all_levels_on_a_clock_that_is_moved() -> None:
    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq:
            arrived = Arrivals()
            await send(mq, *range(19), 20)
            passed = 0.0
            async with mq.push_consumer("CG", {"T": "*"}, arrived, start_from="first", rebalance_interval=0.2):
                await until(lambda: 0 in arrived)
                for level in range(1, 19):
                    due = LEVELS.millis_of(level) / 1000
                    half = (due - passed) / 2
                    await asyncio.to_thread(broker.advance, timedelta(seconds=half))
                    # Time goes on by itself too: only a gap that is long enough shows that nothing comes before.
                    assert half < 10 or level not in arrived
                    await asyncio.to_thread(broker.advance, timedelta(seconds=half))
                    passed = due
                    await until(lambda wanted=level: wanted in arrived)  # type: ignore[misc]
                await until(lambda: 20 in arrived)
    assert sorted(arrived) == [*range(19), 20]
    for level in (18, 20):
        assert arrived[level].properties["DELAY"] == "18"
    for level in range(1, 19):
        # From the producer's clock, which was not moved, to the broker's, which was.
        waited = (arrived[level].stored_time - arrived[level].born_time).total_seconds()
        assert waited >= LEVELS.millis_of(level) / 1000


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_restart_in_the_middle_of_a_delay(tmp_path: Path, how: signal.Signals) -> None:
    nameserver, port = f"127.0.0.1:{free_port()}", str(free_port())
    arrived = Arrivals()

    def made() -> BrokerProcess:
        return BrokerProcess(
            tmp_path,
            *("--standalone", "-n", nameserver, "--store", str(tmp_path / "store")),
            listenPort=port,
            messageDelayLevel="1s 3s 4s",
        )

    with made() as broker:
        broker.ready()
        async with connect(nameserver) as mq:
            await send(mq, 1, 2, 3)
        broker.end(how)
    with made() as broker:
        broker.ready(times=2)  # its output goes on where that of the first one ended
        async with (
            connect(nameserver) as mq,
            mq.push_consumer("CG", {"T": "*"}, arrived, start_from="first", rebalance_interval=0.2),
        ):
            await until(lambda: len(arrived) == 3)
    for level, delay in ((1, 1.0), (2, 3.0), (3, 4.0)):
        message = arrived[level]
        assert (message.stored_time - message.born_time).total_seconds() >= delay
        assert message.properties["REAL_TOPIC"] == "T"
