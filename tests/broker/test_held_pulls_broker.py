"""Held pulls inside a whole broker: its limits, its end, and the sends that go on beside them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cometmq.broker.broker import CLOSE_GRACE, OPEN_SENDS, Broker
from cometmq.broker.config import BrokerConfig
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.record import decode_records
from support.pull_kit import SUBSCRIPTION, SUSPEND, pull
from support.wire import connect, frame, until

PULL, SEND = 11, 310
WAIT = SUBSCRIPTION | SUSPEND
MESSAGE = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "k": "false"}


@asynccontextmanager
async def running(folder: Path, **settings: str) -> AsyncIterator[Broker]:
    small = {"mappedFileSizeCommitLog": "1048576", "brokerIP1": "127.0.0.1", "listenPort": "0"}
    config = BrokerConfig().with_properties({**small, "storePathRootDir": str(folder), **settings})
    async with Broker(config) as broker:
        broker.state.topics.update(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8))
        yield broker


async def test_a_send_wakes_the_pull_that_waits_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connect(broker.port) as consumer, connect(broker.port) as producer:
        consumer.send(frame(PULL, pull("G", "T", 0, 0, WAIT)))
        await until(lambda: broker.state.held_pulls.count == 1)
        assert (await producer.call(SEND, MESSAGE, b"hello")).code == 0
        reply = await consumer.receive()
        assert [record.body for record in decode_records(reply.body)] == [b"hello"]


async def test_the_end_of_a_broker_answers_held_pulls_and_does_not_wait_for_them(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connect(broker.port) as wire:
        for number in range(8):
            wire.send(frame(PULL, pull("G", "T", number, 0, WAIT)))
        await until(lambda: broker.state.held_pulls.count == 8)
        began = time.monotonic()
        closing = asyncio.ensure_future(broker.close())
        assert [(await wire.receive()).code for _ in range(8)] == [19] * 8
        await wire.closed()
        await closing
        assert time.monotonic() - began < CLOSE_GRACE
    async with running(tmp_path) as broker:
        assert broker.state.store.max_offset("T", 0) == 0


async def test_waiting_consumers_do_not_keep_producers_out(tmp_path: Path) -> None:
    async with running(tmp_path, pullThreadPoolQueueCapacity="3") as broker, connect(broker.port) as wire:
        server = broker._servers[0]
        assert server.dispatcher.open_reply_limit == OPEN_SENDS + 3
        server.dispatcher.open_reply_limit = 4  # as if the sends had used up what they may
        for number in range(3):
            wire.send(frame(PULL, pull("G", "T", number, 0, WAIT)))
        await until(lambda: broker.state.held_pulls.count == 3)
        assert (await wire.call(PULL, pull("G", "T", 3, 0, WAIT))).code == 2
        assert (await wire.call(SEND, {**MESSAGE, "e": 7}, b"x")).code == 0
        broker.state.apply(broker.state.config.with_properties({"pullThreadPoolQueueCapacity": "5"}))
        assert server.dispatcher.open_reply_limit == OPEN_SENDS + 5
        wire.send(frame(PULL, pull("G", "T", 4, 0, WAIT)))
        await until(lambda: broker.state.held_pulls.count == 4)


async def test_a_deleted_topic_is_told_to_who_waits_for_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connect(broker.port) as wire, connect(broker.port) as operator:
        wire.send(frame(PULL, pull("G", "T", 0, 0, WAIT)))
        await until(lambda: broker.state.held_pulls.count == 1)
        assert (await operator.call(215, {"topic": "T"})).code == 0
        assert (await wire.receive()).code == 17


async def test_a_client_that_goes_takes_its_pulls_with_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        async with connect(broker.port) as wire:
            wire.send(frame(PULL, pull("G", "T", 0, 0, WAIT)))
            await until(lambda: broker.state.held_pulls.count == 1)
        await until(lambda: broker.state.held_pulls.count == 0)


async def test_expired_offsets_are_forgotten_where_that_is_wanted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        broker.state.offsets.commit("G", "T", 0, 0)
        broker._expire_offsets()
        assert broker.state.offsets.query("G", "T", 0) == 0
        broker.state.apply(broker.state.config.with_properties({"enableCleanExpiredOffset": "true"}))
        broker._expire_offsets()
        assert broker.state.offsets.query("G", "T", 0) == -1
