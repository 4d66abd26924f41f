"""The broker inside of tests: `EmbeddedBroker`, its clock, and the fixture of the pytest plugin."""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from cometmq.remoting.client import RemotingClient
from cometmq.testing import EmbeddedBroker
from support import broker_calls
from support.server_process import wait_for


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Threads and file descriptors are as they were."""
    with EmbeddedBroker():
        pass  # uvloop keeps a pipe for signals from the first loop on
    gc.collect()
    threads, descriptors = threading.active_count(), _descriptors()
    yield
    gc.collect()
    assert threading.active_count() == threads
    assert _descriptors() == descriptors


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def ask(work):  # type: ignore[no-untyped-def]
    """Runs `work(client)` on a loop of its own, as a test without one would."""

    async def main():  # type: ignore[no-untyped-def]
        async with RemotingClient() as client:
            return await work(client)

    return asyncio.run(main())


@pytest.mark.usefixtures("nothing_left")
def test_with_gives_a_broker_that_takes_messages_and_leaves_nothing() -> None:
    with EmbeddedBroker() as broker:
        folder = broker.store
        answer = ask(lambda client: broker_calls.sent(client, broker.address, "T", b"hello"))
        assert (answer.queue_id, answer.queue_offset) == (0, 0)
        assert (folder / "commitlog").is_dir()
    assert not folder.exists()


async def test_async_with_does_the_same_beside_the_loop_of_the_test() -> None:
    async with EmbeddedBroker() as broker, RemotingClient() as client:
        await broker_calls.sent(client, broker.address, "T", b"hello")
        route = await broker_calls.route(client, broker.nameserver, "T")
        assert route is not None
        assert [data.broker_addrs for data in route.broker_datas] == [{0: broker.address}]


def test_fixture_of_the_plugin_is_a_running_broker(cometmq_broker: EmbeddedBroker) -> None:
    answer = ask(lambda client: broker_calls.sent(client, cometmq_broker.address, "T", b"x"))
    assert answer.msg_id


def test_port_zero_means_no_fast_port(cometmq_broker: EmbeddedBroker) -> None:
    port = int(cometmq_broker.address.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) == 0
    assert cometmq_broker.inspect(lambda broker: len(broker._servers)) == 1


def test_settings_are_rocketmq_s_keys() -> None:
    with EmbeddedBroker(config={"autoCreateTopicEnable": False, "brokerName": "mine", "defaultTopicQueueNums": 3}) as b:
        answer = ask(lambda client: broker_calls.send(client, b.address, "Unknown", b"x"))
        assert answer.code == 17
        assert b.inspect(lambda broker: broker.state.config.broker_name) == "mine"


def test_wrong_settings_are_told_where_it_is_started() -> None:
    broker = EmbeddedBroker(config={"brokerPermission": "all"})
    with pytest.raises(Exception, match="brokerPermission=all: expected an integer"):
        broker.start()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = broker.nameserver


def test_directory_of_the_test_keeps_the_messages(tmp_path: Path) -> None:
    for number in range(2):
        with EmbeddedBroker(store=tmp_path / "store", config={"mappedFileSizeCommitLog": 1 << 20}) as broker:
            answer = ask(lambda client: broker_calls.sent(client, broker.address, "T", b"x"))
            assert answer.queue_offset == number
    assert not (tmp_path / "store" / "abort").exists()


def test_restart_keeps_ports_and_messages(cometmq_broker: EmbeddedBroker) -> None:
    before = (cometmq_broker.nameserver, cometmq_broker.address)
    ask(lambda client: broker_calls.sent(client, cometmq_broker.address, "T", b"x"))
    cometmq_broker.restart()
    assert (cometmq_broker.nameserver, cometmq_broker.address) == before
    answer = ask(lambda client: broker_calls.sent(client, cometmq_broker.address, "T", b"y"))
    assert answer.queue_offset == 1


class TestClock:
    def test_delayed_messages_arrive_when_the_clock_is_moved(self, cometmq_broker: EmbeddedBroker) -> None:
        def stored() -> int:
            return cometmq_broker.inspect(lambda broker: broker.state.store.max_offset("T", 0))

        ask(lambda client: broker_calls.sent(client, cometmq_broker.address, "T", b"2h", DELAY="18"))
        ask(lambda client: broker_calls.sent(client, cometmq_broker.address, "T", b"30m", DELAY="16"))
        assert stored() == 0
        cometmq_broker.advance(timedelta(minutes=29))
        assert stored() == 0
        cometmq_broker.advance(timedelta(minutes=2))
        assert stored() == 1
        cometmq_broker.advance(timedelta(hours=2))
        assert stored() == 2

    def test_moving_it_concerns_the_wall_clock_only(self, cometmq_broker: EmbeddedBroker) -> None:
        clocks = lambda: cometmq_broker.inspect(  # noqa: E731
            lambda broker: (broker.state.clock.wall(), broker.state.clock.monotonic())
        )
        wall, monotonic = clocks()
        cometmq_broker.advance(timedelta(days=3))
        later_wall, later_monotonic = clocks()
        assert later_wall - wall >= 3 * 24 * 3600 * 1000
        assert later_monotonic - monotonic < 3600

    def test_many_threads_may_move_it(self, cometmq_broker: EmbeddedBroker) -> None:
        wall = cometmq_broker.inspect(lambda broker: broker.state.clock.wall())
        threads = [threading.Thread(target=cometmq_broker.advance, args=(timedelta(hours=1),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cometmq_broker.inspect(lambda broker: broker.state.clock.wall()) - wall >= 8 * 3600 * 1000

    def test_it_does_not_go_back(self, cometmq_broker: EmbeddedBroker) -> None:
        with pytest.raises(ValueError, match="does not go back"):
            cometmq_broker.advance(timedelta(seconds=-1))

    def test_own_thread_is_not_made_to_wait_for_itself(self, cometmq_broker: EmbeddedBroker) -> None:
        def move(_: object) -> None:
            cometmq_broker.advance(timedelta(seconds=1))

        with pytest.raises(RuntimeError, match="own thread"):
            cometmq_broker.inspect(move)


@pytest.mark.usefixtures("nothing_left")
def test_twenty_brokers_one_after_the_other_leave_nothing() -> None:
    for _ in range(20):
        with EmbeddedBroker() as broker:
            assert broker.address


def test_two_brokers_are_two(tmp_path: Path) -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as two:
        assert one.address != two.address
        assert one.nameserver != two.nameserver
    with EmbeddedBroker(store=tmp_path), pytest.raises(Exception, match="in use by process"):
        EmbeddedBroker(store=tmp_path).start()


def test_held_connections_do_not_keep_it_from_ending() -> None:
    with EmbeddedBroker() as broker:
        host, port = broker.address.split(":")
        sockets = [socket.create_connection((host, int(port))) for _ in range(50)]
        wait_for("all connections", 10, lambda: broker.inspect(lambda b: b.connection_count) >= 50)
    for sock in sockets:
        sock.close()
