"""A broker in the loop of a test: whatever it did, and however its start ended, nothing of it is left."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.broker import Broker, _Progress
from cometmq.broker.config import BrokerConfig, from_sources
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import StoreLocked
from cometmq.daemon import StartError
from cometmq.namesrv.server import NameServer
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.pull import PullMessage
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.errors import ListenFailed
from support import broker_calls
from support.server_process import free_port
from support.wire import until


def config(folder: Path, **settings: str) -> BrokerConfig:
    keys = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "storePathRootDir": str(folder),
        "mappedFileSizeCommitLog": str(1 << 20),
    }
    return from_sources({**keys, **settings}, {})


def _descriptors() -> set[tuple[str, str]]:
    """Numbers of open files with what they are; nothing where the system does not tell."""
    found = set()
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def _threads() -> set[str]:
    """All but those that the loop keeps, to look up names."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Tasks, threads and descriptors are as they were."""
    gc.collect()
    tasks, threads, descriptors = asyncio.all_tasks(), _threads(), _descriptors()
    yield
    await asyncio.sleep(0)
    gc.collect()
    assert asyncio.all_tasks() == tasks
    assert _threads() == threads
    assert _descriptors() - descriptors == set()


async def pull(client: RemotingClient, address: str, topic: str, offset: int, hold: int = 20_000) -> int:
    header = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=hold,
        sub_version=0,
        subscription="*",
    )
    return (await client.request(address, RequestCode.PULL_MESSAGE, header, timeout=30)).code


async def test_after_work_and_close_nothing_is_left(tmp_path: Path) -> None:
    async with NameServer() as nameserver, nothing_left():
        async with Broker(config(tmp_path, namesrvAddr=nameserver.address)) as broker, RemotingClient() as client:
            for number in range(50):
                await broker_calls.sent(client, broker.address, f"T{number % 3}", b"x" * 100, DELAY=str(number % 4))
            held = [asyncio.create_task(pull(client, broker.address, "T0", 1000)) for _ in range(20)]
            await asyncio.wait(held, timeout=0.05)
        codes = await asyncio.gather(*held, return_exceptions=True)
        assert len(codes) == 20


async def test_pulls_that_wait_are_answered_at_the_end_and_do_not_hold_it_up(tmp_path: Path) -> None:
    async with RemotingClient() as client:
        broker = Broker(config(tmp_path))
        await broker.start()
        await broker_calls.sent(client, broker.address, "T", b"x")
        held = [asyncio.create_task(pull(client, broker.address, "T", 1)) for _ in range(100)]
        await until(lambda: broker.state.held_pulls.count == 100)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await broker.close()
        assert loop.time() - begun < 2.5, "not even the time that requests in flight would get"
        codes = await asyncio.gather(*held)
        assert set(codes) == {ResponseCode.PULL_NOT_FOUND}


async def test_closing_twice_and_closing_what_never_started(tmp_path: Path) -> None:
    async with nothing_left():
        broker = Broker(config(tmp_path))
        await broker.close()
        await broker.start()
        await broker.close()
        await broker.close()


class TestFailedStarts:
    async def test_port_is_taken(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            async with nothing_left():
                with pytest.raises(ListenFailed, match="listenPort"):
                    await Broker(config(tmp_path, listenPort=str(taken.getsockname()[1]))).start()
        assert not (tmp_path / "abort").exists()

    async def test_fast_port_is_taken(self, tmp_path: Path) -> None:
        port = free_port()
        with socket.create_server(("127.0.0.1", port - 2)):
            async with nothing_left():
                with pytest.raises(ListenFailed, match="the fast port"):
                    await Broker(config(tmp_path, listenPort=str(port))).start()

    async def test_store_is_in_use(self, tmp_path: Path) -> None:
        async with Broker(config(tmp_path)) as first, RemotingClient() as client:
            async with nothing_left():
                with pytest.raises(StoreLocked):
                    await Broker(config(tmp_path)).start()
            await broker_calls.sent(client, first.address, "T", b"x")

    async def test_disk_is_full(self, tmp_path: Path) -> None:
        class Full(RealDisk):
            def write_file(self, path: str, data: bytes, *, backup: bool = True) -> None:
                raise OSError(28, "No space left on device", path)

        async with nothing_left():
            with pytest.raises(StartError, match="no space left on device") as caught:
                await Broker(config(tmp_path), disk=Full()).start()
        assert "make room" in caught.value.remedy

    async def test_start_can_be_tried_again(self, tmp_path: Path) -> None:
        port = free_port()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(ListenFailed):
            await Broker(config(tmp_path, listenPort=str(port))).start()
        async with Broker(config(tmp_path, listenPort=str(port))) as broker, RemotingClient() as client:
            await broker_calls.sent(client, broker.address, "T", b"x")

    async def test_it_is_cancelled_while_it_waits_for_a_nameserver(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with nothing_left():
                start = asyncio.create_task(
                    Broker(config(tmp_path, namesrvAddr=f"127.0.0.1:{silent.getsockname()[1]}")).start()
                )
                await until(lambda: (tmp_path / "abort").exists())
                start.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await start
        assert not (tmp_path / "abort").exists()


class TestRoles:
    async def test_a_slave_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StartError, match="brokerRole=SLAVE: this version does not replicate yet"):
            await Broker(config(tmp_path, brokerRole="SLAVE", brokerId="1")).start()

    async def test_a_master_that_waits_for_slaves_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StartError, match="SYNC_MASTER with inSyncReplicas=2"):
            await Broker(config(tmp_path, brokerRole="SYNC_MASTER", inSyncReplicas="2")).start()

    async def test_one_that_waits_for_nobody_says_what_that_means(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Broker(config(tmp_path, brokerRole="SYNC_MASTER")):
            told = [r.getMessage() for r in caplog.records if "SYNC_MASTER" in r.getMessage()]
        assert told == ["brokerRole=SYNC_MASTER with inSyncReplicas=1: messages are acknowledged without any slave"]


class TestSettingsThatDoNotDoWhatTheirOwnerWants:
    async def test_keys_that_nobody_knows_are_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        async with Broker(config(tmp_path, flushDisktype="SYNC_FLUSH", zzz="1")):
            pass
        assert "nobody knows these keys here: flushDisktype, zzz" in caplog.messages

    @pytest.mark.parametrize("key", ["aclEnable", "authenticationEnabled", "authorizationEnabled"])
    async def test_access_control_that_is_not_there_is_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
    ) -> None:
        async with Broker(config(tmp_path / "a", **{key: "false"})):
            assert "accounts" not in caplog.text
        async with Broker(config(tmp_path / "b", **{key: "true"})):
            pass
        assert f"{key}: this version checks no accounts, every client may do everything" in caplog.messages


def test_progress_of_a_long_recovery_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    progress = _Progress(clock)
    for done in range(0, 101, 10):
        progress(done << 20, 100 << 20)
        clock.advance(1.0)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [f"recovering the store: {at} of 100 MiB ({at} %)" for at in (30, 60, 90)]


class TestEnd:
    async def test_offsets_and_tables_are_on_disk(self, tmp_path: Path) -> None:
        async with Broker(config(tmp_path)) as broker:
            broker.state.offsets.commit("g", "T", 0, 7)
        async with Broker(config(tmp_path)) as broker:
            assert broker.state.offsets.query("g", "T", 0) == 7

    async def test_offsets_are_saved_by_time_too(self, tmp_path: Path) -> None:
        async with Broker(config(tmp_path, flushConsumerOffsetInterval="20")) as broker:
            broker.state.offsets.commit("g", "T", 0, 7)
            path = tmp_path / "config" / "consumerOffset.json"
            await until(lambda: path.exists() and '"T@g"' in path.read_text())

    async def test_fast_port_has_no_pulls(self, tmp_path: Path) -> None:
        port = free_port()
        async with Broker(config(tmp_path, listenPort=str(port))), RemotingClient() as client:
            await broker_calls.sent(client, f"127.0.0.1:{port - 2}", "T", b"x")
            assert await pull(client, f"127.0.0.1:{port}", "T", 0) == 0
            refused = await pull(client, f"127.0.0.1:{port - 2}", "T", 0)
            assert refused == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
