"""Flow control: what waited too long is refused at once, with RocketMQ's words, and afterwards all is well.

The disk is a fake one whose writes wait at a gate; the client is a thread of its own, because a write in the loop stops
the loop.
"""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.handlers import send
from cometmq.broker.overload import IDLE_TICKS, TICK, Overload
from cometmq.broker.store.clock import FakeClock, SystemClock
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.runner import ManualRunner
from cometmq.remoting.dispatch import Response
from support.raw_peer import Frame, request
from support.small_broker import SmallBroker

SECONDS = 30.0
LOG = "commitlog"


def message(opaque: int, topic: str = "TopicTest") -> bytes:
    keys = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    text = f"UNIQ_KEY\x01{opaque:032d}\x02"
    return request(310, keys | {"i": text}, b"body", opaque=opaque, version=479)


class Client:
    """A blocking connection, for a thread beside the loop."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, SECONDS)
        self.stream = self.socket.makefile("rb")

    def send(self, *opaques: int) -> None:
        self.socket.sendall(b"".join(message(opaque) for opaque in opaques))

    def answers(self, count: int) -> dict[int, Frame]:
        found = {}
        for _ in range(count):
            length, size = struct.unpack(">II", self.stream.read(8))
            rest = self.stream.read(length - 4)
            frame = Frame(0, json.loads(rest[:size]), rest[size:])
            found[frame.opaque] = frame
        return found

    def ask(self, opaque: int) -> Frame:
        self.send(opaque)
        return self.answers(1)[opaque]

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Overloaded:
    """A broker on a fake disk, and clients in a thread."""

    def __init__(self, **properties: str) -> None:
        self.disk = FakeDisk(SystemClock())
        self.broker = SmallBroker(
            "/store", [send.rows], disk=self.disk, **{"mappedFileSizeCommitLog": "1048576"} | properties
        )
        self.clients: list[Client] = []

    async def __aenter__(self) -> "Overloaded":
        await self.broker.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for client in self.clients:
            client.close()
        await self.broker.__aexit__(*exception)

    def client(self) -> Client:
        self.clients.append(Client(self.broker.address))
        return self.clients[-1]

    async def run(self, script: Callable[[], None]) -> None:
        await asyncio.to_thread(script)

    def write_in_thread(self) -> None:
        """From now on writes go through a thread, as after one that was slow."""
        self.broker.store.puts._slow_until = float("inf")


async def test_requests_that_waited_while_the_loop_stood_still_are_refused() -> None:
    async with Overloaded(waitTimeMillsInSendQueue="200") as it:

        def script() -> None:
            first, second = it.client(), it.client()
            # The topic exists, and the connections are known.
            while first.ask(1).code or second.ask(2).code:
                pass
            gate = it.disk.gate("write", path=LOG)
            first.send(3)
            assert gate.reached.wait(SECONDS)
            second.send(*range(100, 120))
            threading.Event().wait(0.5)
            gate.open()
            assert first.answers(1)[3].code == 0  # its bytes had been read: it did not wait, it was written slowly
            for frame in second.answers(20).values():
                assert frame.code == 2
                text = frame.remark or ""
                assert text.startswith(
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                )
                waited = int(text.split("period in queue: ")[1].split("ms")[0])
                assert waited > 200
                assert ", size of queue: " in text
            recovered(second)

        await it.run(script)
        assert it.broker.state.overload.refused >= 20


async def test_nothing_is_refused_when_fast_failure_is_off() -> None:
    async with Overloaded(waitTimeMillsInSendQueue="200", brokerFastFailureEnable="false") as it:

        def script() -> None:
            first, second = it.client(), it.client()
            assert first.ask(1).code == second.ask(2).code == 0
            gate = it.disk.gate("write", path=LOG)
            first.send(3)
            assert gate.reached.wait(SECONDS)
            second.send(*range(100, 120))
            threading.Event().wait(0.4)
            gate.open()
            assert {frame.code for frame in second.answers(20).values()} == {0}

        await it.run(script)


async def test_puts_behind_a_slow_write_are_given_up_after_the_wait() -> None:
    async with Overloaded(waitTimeMillsInSendQueue="200") as it:

        def script() -> None:
            client = it.client()
            while client.ask(1).code:
                pass
            it.write_in_thread()
            gate = it.disk.gate("write", path=LOG)
            client.send(2)
            assert gate.reached.wait(SECONDS)
            client.send(*range(10, 20))
            # They are answered while the write still stands at the gate.
            for frame in client.answers(10).values():
                assert frame.code == 2
                assert (frame.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
                assert frame.ext["MSG_REGION"] == "DefaultRegion"
            gate.open()
            assert client.answers(1)[2].code == 0
            recovered(client)

        await it.run(script)
        bodies = it.broker.records("TopicTest")
        assert len({record.properties for record in bodies}) == len(bodies)
        assert it.broker.state.overload.open_sends == 0


async def test_a_write_of_a_second_is_a_busy_page_cache() -> None:
    async with Overloaded(osPageCacheBusyTimeOutMills="300") as it:

        def script() -> None:
            client = it.client()
            assert client.ask(1).code == 0
            it.write_in_thread()
            gate = it.disk.gate("write", path=LOG)
            client.send(2)
            assert gate.reached.wait(SECONDS)
            client.send(3)
            waiting = client.answers(1)[3]
            assert waiting.code == 2
            assert (waiting.remark or "").startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while")
            rejected = client.ask(4)
            assert (rejected.code, rejected.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")
            gate.open()
            assert client.answers(1)[2].code == 0
            recovered(client)

        await it.run(script)


async def test_above_the_capacity_of_the_queue_no_more_are_taken() -> None:
    async with Overloaded(sendThreadPoolQueueCapacity="10") as it:

        def script() -> None:
            client = it.client()
            assert client.ask(1).code == 0
            it.write_in_thread()
            gate = it.disk.gate("write", path=LOG)
            client.send(*range(100, 115))
            refused = client.answers(5)
            assert sorted(refused) == list(range(110, 115))
            assert {(frame.code, frame.remark) for frame in refused.values()} == {
                (2, "[OVERLOAD]system busy, start flow control for a while")
            }
            gate.open()
            assert {frame.code for frame in client.answers(10).values()} == {0}
            recovered(client)

        await it.run(script)
        assert it.broker.state.overload.open_sends == 0


def recovered(client: Client) -> None:
    """It takes messages again: at once on a quiet machine, after a few tries on a busy one."""
    for opaque in range(9000, 9500):
        if client.ask(opaque).code == 0:
            return
    pytest.fail("the broker did not recover")


class Peer:
    """Stands for a connection: something to keep a count of."""

    is_open = True
    waiting = 0

    def waiting_bytes(self) -> int:
        return self.waiting


class Stepped:
    """The watch alone, with a clock that is moved by hand."""

    def __init__(self, **config: Any) -> None:
        self.clock = FakeClock()
        self.runner = ManualRunner(self.clock)
        puts = SimpleNamespace(write_age=0.0, writing_since=None, waiting=0, idle=True)
        store = SimpleNamespace(
            puts=puts,
            watermarks=SimpleNamespace(appended=0),
            options=SimpleNamespace(os_page_cache_busy_time_out_mills=1000),
        )
        state: Any = SimpleNamespace(config=BrokerConfig(**config), on_config=[], runner=self.runner, store=store)
        self.store = store
        self.overload = Overload(state, now=self.clock.monotonic)
        self.connection = Peer()

    def ask(self, lane: str = "pulls") -> Response | None:
        """A request that is read now."""
        its: Any = SimpleNamespace(
            received=self.clock.monotonic(), connection=self.connection, raw_header=b"x" * 92, body=b""
        )
        taken = Response(0)
        answer = self.overload.guard(getattr(self.overload, lane), lambda _: taken)(its)
        return None if answer is taken else answer  # type: ignore[return-value]


def test_pulls_have_a_limit_of_their_own() -> None:
    it = Stepped()
    assert it.ask() is None
    it.clock.advance(1.0)  # the loop stands still: no timer runs
    assert it.ask("pulls") is None
    refused = it.ask("sends")
    assert refused is not None
    assert (refused.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]")
    it.clock.advance(5.0)
    assert it.ask("pulls") is not None
    it.runner.advance(TICK)
    assert it.ask("sends") is None
    assert it.ask("pulls") is None


def test_an_idle_broker_does_not_wake_up() -> None:
    it = Stepped()
    it.ask("sends")
    assert it.runner.timers() == 1
    it.runner.advance(TICK * (IDLE_TICKS + 2))
    assert it.runner.timers() == 0
    it.clock.advance(100)
    assert it.ask("sends") is None  # nobody watched: nothing is known of a stall
    assert it.runner.timers() == 1


def test_where_timers_come_before_sockets_those_that_waited_are_refused_all_the_same() -> None:
    it = Stepped()
    it.ask("sends")
    it.clock.advance(1.0)
    it.overload._tick()
    assert it.ask("sends") is not None
    it.runner.run()
    assert it.ask("sends") is None


def test_a_backlog_is_counted_off_by_bytes() -> None:
    it = Stepped()
    it.ask("sends")
    it.connection.waiting = 250
    it.clock.advance(1.0)
    assert it.ask("sends") is not None
    it.runner.advance(TICK)
    assert [it.ask("sends") is None for _ in range(4)] == [False, False, True, True]


def test_limits_change_on_the_run() -> None:
    it = Stepped(wait_time_mills_in_send_queue=100)
    it.ask("sends")
    it.overload.configure(BrokerConfig(wait_time_mills_in_send_queue=2000))
    it.clock.advance(1.0)
    assert it.ask("sends") is None
    it.clock.advance(2.0)
    assert it.ask("sends") is not None
