"""The store on a real disk and a real event loop: awaiting, threads, closing, a second process."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import StoreClosed, StoreLocked
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.reading import GetStatus
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.batch import BatchItem, encode_batch
from support.store_kit import SMALL, StoreKit, bodies, message, read_queue


def options(**properties: str) -> StoreOptions:
    return StoreOptions.from_properties(SMALL | properties)


def store_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("store-")]


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


class Running:
    """A store with its runner, on the running loop."""

    def __init__(self, folder: Path, **properties: str) -> None:
        self.runner = AsyncioRunner()
        self.store = Store(folder, options(**properties), runner=self.runner)

    async def __aenter__(self) -> Store:
        self.store.open()
        self.store.start()
        return self.store

    async def __aexit__(self, *_: object) -> None:
        self.store.close()
        self.runner.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_puts_can_be_awaited(flush: str, tmp_path: Path) -> None:
    async with Running(tmp_path, flushDiskType=flush) as store:
        tickets = await asyncio.gather(*[store.put(message("T", n % 3, b"%d" % n)).future() for n in range(300)])
        assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK}
        assert bodies(store, "T", 0) == [b"%d" % n for n in range(0, 300, 3)]
        batch = encode_batch([BatchItem(0, b"x", b""), BatchItem(0, b"y", b"")])
        ticket = await store.put_batch(Message("T", 0, batch)).future()
        assert (ticket.queue_offset, ticket.count) == (100, 2)
        refused = await store.put(message("x" * 300, 0, b"")).future()
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
    async with Running(tmp_path) as store:
        assert len(bodies(store, "T", 0)) == 102
        assert (await store.put(message("T", 0, b"on")).future()).queue_offset == 102


async def test_group_commit_with_many_producers(tmp_path: Path) -> None:
    async with Running(tmp_path, flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog="1048576") as store:
        seen: list[int] = []

        async def producer(number: int) -> None:
            for turn in range(8):
                ticket = await store.put(message("T", number % 4, b"%d/%d" % (number, turn))).future()
                assert ticket.status is PutStatus.PUT_OK
                assert store.watermarks.flushed >= ticket.end_offset
                seen.append(ticket.physical_offset)

        await asyncio.gather(*[producer(number) for number in range(100)])
        assert len(set(seen)) == 800
        assert sum(store.max_offset("T", queue) for queue in range(4)) == 800
        for queue in range(4):
            records = read_queue(store, "T", queue)
            assert [record.queue_offset for record in records] == list(range(200))


async def test_growth_can_be_awaited(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        grown = store.commit_log.grown(0)
        assert not grown.done()
        await store.put(message("T", 0, b"a")).future()
        await asyncio.wait_for(grown, 5)
        await asyncio.wait_for(store.commit_log.grown(0), 5)
        gone = store.commit_log.grown(1 << 40)
        gone.cancel()


async def test_cold_ranges_can_be_read_in_a_thread(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        for n in range(50):
            store.put(message("T", 0, b"%d" % n))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        result = store.get_message("g", "T", 0, 0, 50)
        assert result is not None
        assert result.status is GetStatus.FOUND
        data = await asyncio.get_running_loop().run_in_executor(None, result.read)
        assert data == b"".join(result.buffers())
        result.release()


async def test_a_close_ends_threads_and_closes_files(tmp_path: Path) -> None:
    before = len(store_threads())
    async with Running(tmp_path, flushDiskType="SYNC_FLUSH") as store:
        await asyncio.gather(*[store.put(message("T", n, bytes(200), KEYS=f"k{n}")).future() for n in range(200)])
        store.query("T", "k3", 9).release()
        assert any(str(tmp_path) in path for path in open_files())
    assert len(store_threads()) == before
    assert [path for path in open_files() if str(tmp_path) in path] == []
    assert not (tmp_path / "abort").exists()
    assert (
        sorted(path.name for path in (tmp_path / "commitlog").iterdir())[-1]
        == f"{store.watermarks.appended // 16384 * 16384:020d}"
    )


async def test_a_close_under_load_settles_everyone(tmp_path: Path) -> None:
    running = Running(tmp_path, flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog="1048576")
    store = await running.__aenter__()
    settled: list[Ticket] = []
    tickets = []
    for number in range(500):
        tickets.append(store.put(message("T", 0, b"%d" % number), settled.append))
        if number % 50 == 0:
            await asyncio.sleep(0)
    await running.__aexit__()
    assert len(settled) == 500
    assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK}
    async with Running(tmp_path, mappedFileSizeCommitLog="1048576") as again:
        assert again.max_offset("T", 0) == 500


OWNER = """
import asyncio, sys
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store

async def main():
    store = Store(sys.argv[1], StoreOptions(), runner=AsyncioRunner())
    store.open()
    store.start()
    print("open", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "open\n"
            kit = StoreKit(RealDisk(), tmp_path)
            with pytest.raises(StoreLocked) as caught:
                kit.store().open()
            assert caught.value.pid == owner.pid
            assert str(owner.pid) in str(caught.value)
        finally:
            owner.kill()
    # A dead owner holds nothing, and left the mark of an unclean end.
    kit = StoreKit(RealDisk(), tmp_path, mappedFileSizeCommitLog=str(1 << 30))
    assert (tmp_path / "abort").read_text() == str(owner.pid)
    store = kit.store()
    assert not store.open().clean
    store.close()


def test_a_store_must_be_open_before_it_starts(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path)
    with pytest.raises(StoreClosed):
        kit.store().start()
    kit.store().close()


def test_an_idle_store_takes_little_disk(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path)
    kit.properties = {}
    store = kit.opened()
    kit.put(store, message("T", 0, b"x", KEYS="k"))
    kit.runner.advance(10)
    sizes = [(path.stat().st_size, path.stat().st_blocks * 512) for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(size for size, _ in sizes) > 1_400_000_000, "the full length of RocketMQ's files"
    assert sum(blocks for _, blocks in sizes) < 3_000_000, "but few blocks"
    store.close()


def test_the_same_on_a_real_disk(tmp_path: Path) -> None:
    """The manual runner on real files: rolls, reopening, keys, times."""
    kit = StoreKit(RealDisk(), tmp_path)
    store = kit.opened()
    tickets = kit.fill(store, 300)
    assert len(list((tmp_path / "commitlog").iterdir())) >= 4
    for queue_id in (0, 1):
        assert [record.physical_offset for record in read_queue(store, "T", queue_id)] == [
            ticket.physical_offset for ticket in tickets[queue_id::2]
        ]
    assert store.query("T", "k123", 9).ranges[0].start == tickets[123].physical_offset
    assert store.offset_by_time("T", 0, tickets[100].store_timestamp) == 50
    store.close()
    again = kit.opened()
    assert again.query("T", "k7", 9).ranges[0].start == tickets[7].physical_offset
    again.close()


def test_options_may_change_on_the_run() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 30, queues=1)
    result = store.get_message("g", "T", 0, 0, 32)
    assert result is not None
    assert result.message_count == 20
    store.configure(store.options.updated({"maxTransferCountOnMessageInMemory": "3", "maxMessageSize": "50"}))
    result = store.get_message("g", "T", 0, 0, 32)
    assert result is not None
    assert result.message_count == 3
    assert kit.put(store, message("T", 0, bytes(51))).status is PutStatus.MESSAGE_ILLEGAL


def test_offsets_that_were_given_out_but_not_dispatched() -> None:
    kit = StoreKit(flushDiskType="SYNC_FLUSH")
    store = kit.opened()
    kit.runner.hold("flush")
    kit.put(store, message("T", 0, b"a"))
    assert store.max_offset("T", 0) == 0
    assert store.max_offset("T", 0, committed=False) == 1
    assert store.max_offset("Other", 0, committed=False) == 0
