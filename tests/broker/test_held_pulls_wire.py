"""Long polling over real sockets with a real store."""

import asyncio
import time
from pathlib import Path

import pytest

from cometmq.protocol.record import decode_records
from support.pull_kit import COMMIT, SUBSCRIPTION, SUSPEND, PullBroker, broker_with_topic, pull
from support.raw_peer import RawPeer, request
from support.wire import Wire, connect, frame, until

PULL = 11
WAIT = SUBSCRIPTION | SUSPEND


async def waiting(broker: PullBroker, wire: Wire, keys: dict[str, object], count: int = 1) -> None:
    """Send a pull and return when it is held."""
    wire.send(frame(PULL, keys))
    await until(lambda: broker.held.count == count)


async def test_a_held_pull_is_answered_when_its_message_comes(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT))
        broker.put("T", 1, b"elsewhere")
        broker.put("T", 0, b"here", b"and here")
        reply = await wire.receive()
        assert [record.body for record in decode_records(reply.body)] == [b"here", b"and here"]
        assert (reply.code, reply.ext["nextBeginOffset"]) == (0, "2")
        assert broker.held.count == 0
        assert broker.server.open_replies == 0


async def test_an_arrival_wakes_exactly_the_matching_ones(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as one, connect(broker.port) as two:
        await waiting(broker, one, pull("G", "T", 0, 0, WAIT, subscription="Aa"), 1)
        await waiting(broker, two, pull("H", "T", 0, 0, WAIT, subscription="CC"), 2)
        await broker.filled("T", 0, b"x", TAGS="BB")
        reply = await one.receive()
        assert len(list(decode_records(reply.body))) == 1
        assert broker.held.count == 1
        await broker.filled("T", 0, b"y", TAGS="CC")
        reply = await two.receive()
        assert [record.body for record in decode_records(reply.body)] == [b"y"]
        assert reply.ext["nextBeginOffset"] == "2"


async def test_patience_ends_with_not_found(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"x")
        began = time.monotonic()
        reply = await wire.call(PULL, pull("G", "T", 0, 1, WAIT, suspendTimeoutMillis=300))
        assert time.monotonic() - began >= 0.3
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (19, "OFFSET_OVERFLOW_ONE", "1")


async def test_without_long_polling_the_time_of_the_settings_counts(tmp_path: Path) -> None:
    settings = {"longPollingEnable": "false", "shortPollingTimeMills": "200"}
    async with broker_with_topic(tmp_path, **settings) as broker, connect(broker.port) as wire:
        began = time.monotonic()
        reply = await wire.call(PULL, pull("G", "T", 0, 0, WAIT, suspendTimeoutMillis=600_000))
        assert time.monotonic() - began >= 0.2
        assert (reply.code, reply.remark) == (19, "NO_MESSAGE_IN_QUEUE")


async def test_a_held_pull_commits_once(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"x")
        await waiting(broker, wire, pull("G", "T", 0, 1, WAIT | COMMIT, commitOffset=1))
        assert broker.state.offsets.query("G", "T", 0) == 1
        broker.state.offsets.commit("G", "T", 0, 5)
        broker.put("T", 0, b"y")
        assert (await wire.receive()).code == 0
        assert broker.state.offsets.query("G", "T", 0) == 5


async def test_a_woken_pull_that_finds_nothing_is_not_held_again(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT))
        broker.held.wake_all()
        assert (await wire.receive()).code == 19
        assert broker.held.count == 0


async def test_unwanted_messages_move_a_filtered_consumer_on(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT, subscription="a"))
        await broker.filled("T", 0, b"x", b"y", TAGS="b")
        assert broker.held.count == 1
        broker.held.check()
        reply = await wire.receive()
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "2")


async def test_a_topic_that_is_deleted_meanwhile_is_gone(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT, suspendTimeoutMillis=200))
        broker.state.topics.delete("T")
        assert (await wire.receive()).code == 17


async def test_permissions_that_change_meanwhile_count(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT))
        broker.topic("T", perm=2)
        broker.put("T", 0, b"x")
        reply = await wire.receive()
        assert (reply.code, reply.ext) == (16, {"forbiddenType": "3"})


async def test_a_reset_that_comes_meanwhile_counts(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"x"] * 5)
        await waiting(broker, wire, pull("G", "T", 0, 5, WAIT))
        broker.state.offsets.set_reset("G", "T", 0, 2)
        broker.put("T", 0, b"y")
        reply = await wire.receive()
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")


async def test_a_client_that_leaves_is_forgotten_at_once(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        async with connect(broker.port) as wire:
            for number in range(4):
                await waiting(broker, wire, pull("G", "T", number, 0, WAIT), number + 1)
        await until(lambda: broker.server.connection_count == 0)
        assert broker.held.count == 0
        assert broker.server.open_replies == 0
        await broker.filled("T", 0, b"x")


async def test_a_client_that_is_cut_off_is_forgotten_at_once(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        peer = await RawPeer.open(("127.0.0.1", broker.port))
        await peer.send(request(PULL, {key: str(value) for key, value in pull("G", "T", 0, 0, WAIT).items()}))
        await until(lambda: broker.held.count == 1)
        await peer.reset()
        await until(lambda: broker.held.count == 0)
        await until(lambda: broker.server.open_replies == 0)


async def test_a_graceful_end_does_not_wait_for_held_pulls(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        for number in range(4):
            await waiting(broker, wire, pull("G", "T", number, 0, WAIT), number + 1)
        broker.held.close()
        closing = asyncio.ensure_future(broker.server.close(grace=60))
        assert [(await wire.receive()).code for _ in range(4)] == [19] * 4
        await wire.closed()
        await closing


async def test_pulls_that_come_during_the_end_are_not_sent_round_in_circles(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 1, b"x")
        broker.held.close()
        wire.send(frame(PULL, pull("G", "T", 0, 0, WAIT), opaque=1, version=400))
        wire.send(frame(PULL, pull("G", "T", 1, 0, WAIT), opaque=2, version=400))
        assert (await wire.receive()).opaque == 2
        assert broker.server.open_replies == 0


async def test_more_held_pulls_than_allowed_are_refused_and_others_are_served(tmp_path: Path) -> None:
    limits = {"held_limit": 3, "open_reply_limit": 4}
    async with broker_with_topic(tmp_path, **limits) as broker, connect(broker.port) as wire:
        for number in range(3):
            await waiting(broker, wire, pull("G", "T", number, 0, WAIT), number + 1)
        reply = await wire.call(PULL, pull("G", "T", 3, 0, WAIT))
        assert reply.code == 2
        assert (reply.remark or "").startswith("[OVERLOAD]")
        # The limit of open replies lies above that of held pulls: what does not wait is served.
        assert (await wire.call(PULL, pull("G", "T", 3, 0))).code == 19


async def test_an_oneway_pull_is_held_and_never_answered(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        wire.send(frame(PULL, pull("G", "T", 0, 0, WAIT), flag=2))
        await until(lambda: broker.held.count == 1)
        await broker.filled("T", 0, b"x")
        await until(lambda: broker.server.open_replies == 0)
        reply = await wire.call(PULL, pull("G", "T", 0, 1))
        assert (reply.code, reply.opaque) == (19, 77)


async def test_a_failure_while_a_pull_is_executed_again_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await waiting(broker, wire, pull("G", "T", 0, 0, WAIT))
        broker.state.groups.find = None
        broker.held.wake_all()
        reply = await wire.receive()
        assert reply.code == 1
        assert "TypeError" in (reply.remark or "")
        assert "PULL_MESSAGE" in caplog.text


async def test_idle_held_pulls_take_no_time(tmp_path: Path) -> None:
    """The CPU time of a second with held pulls is like that of a second without; a busy machine gets several tries."""
    count = 20_000
    async with PullBroker(tmp_path) as broker, connect(broker.port) as wire:
        broker.topic("T", queues=count)
        await wire.call(PULL, pull("G", "T", 0, 0))
        idle = await _cpu_of_a_second()
        for number in range(count):
            wire.send(frame(PULL, pull("G", "T", number, 0, WAIT, suspendTimeoutMillis=600_000)))
            if number % 500 == 0:
                await wire.flush()
        async with asyncio.timeout(60):
            while broker.held.count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        spent = []
        while len(spent) < 5 and (not spent or min(spent) >= idle + 0.01):
            spent.append(await _cpu_of_a_second())
        # A timer for each of them, or a look at each of them a second, would be 20 ms or more.
        assert min(spent) < idle + 0.01


async def _cpu_of_a_second() -> float:
    began = time.process_time()
    await asyncio.sleep(1.0)
    return time.process_time() - began
