"""Time the store: appends with dispatch, client batches, sync flush, reads of ranges.

    python bench/store.py [--seconds 2] [--folder DIR] [--profile NAME]

Everything is one process and one core (sync flush has a thread for its fdatasync, which waits and does not compute).
"per second" is by the wall clock, "CPU us" is the time of this process for one message: a disk that is slow does not
show in it. The first lines say what the machine does by itself, so that figures of two machines can be compared.
"""

import asyncio
import cProfile
import json
import os
import pstats
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.message_id import UniqueKeyGenerator, pack_host
from cometmq.protocol.properties import encode_properties

BODY = bytes(range(256)) * 4
SMALL_BODY = BODY[:100]
BORN = pack_host("192.0.2.2", 51_234)
QUEUES = 4
GATHER = 64
BATCH = 32
WAITING = 256


class Bench:
    """Runs a part for some seconds and prints its figures."""

    def __init__(self, seconds: float, folder: Path, profile: str | None) -> None:
        self.seconds = seconds
        self.folder = folder
        self.profile = profile
        self.keys = UniqueKeyGenerator("192.0.2.2", 4711, 0x18B4AAC2)

    def message(self, number: int, body: bytes = BODY) -> Message:
        """A message as a send handler would hand it in, with what a RocketMQ 5 client and broker add to it."""
        text = encode_properties(
            {
                "MSG_REGION": "DefaultRegion",
                "UNIQ_KEY": self.keys(),
                "CLUSTER": "DefaultCluster",
                "TAGS": "TagA",
                "WAIT": "true",
                "TRACE_ON": "true",
            }
        )
        return Message("BenchTopic", number % QUEUES, body, text, born_timestamp=1_700_000_000_000, born_host=BORN)

    def batch(self, number: int) -> Message:
        items = [
            BatchItem(0, SMALL_BODY, encode_properties({"UNIQ_KEY": self.keys(), "WAIT": "true", "TAGS": "TagA"}))
            for _ in range(BATCH)
        ]
        wrapper = encode_properties(
            {
                "MSG_REGION": "DefaultRegion",
                "UNIQ_KEY": self.keys(),
                "CLUSTER": "DefaultCluster",
                "WAIT": "true",
                "TRACE_ON": "true",
            }
        )
        return Message(
            "BenchBatch",
            number % QUEUES,
            encode_batch(items),
            wrapper,
            born_timestamp=1_700_000_000_000,
            born_host=BORN,
        )

    def store(self, name: str, **properties: str) -> Store:
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        store = Store(path, StoreOptions.from_properties(properties), runner=AsyncioRunner())
        store.open()
        store.start()
        return store

    async def run(self, name: str, part: Callable[[], "asyncio.Future[int] | object"]) -> None:
        """`part` does one round and gives how many messages that were."""
        profiler = cProfile.Profile() if self.profile == name else None
        await part()  # type: ignore[misc]
        count = 0
        slowest: list[float] = []
        if profiler:
            profiler.enable()
        began, cpu = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) - began < self.seconds:
            count += await part()  # type: ignore[misc]
            slowest.append(time.perf_counter() - now)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        if profiler:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        slowest.sort()
        p99 = slowest[int(len(slowest) * 0.99)] * 1000
        click.echo(f"{name:42} {count / seconds:12,.0f} {cpu / count * 1e6:10.2f} {p99:10.2f}")

    # The parts

    async def singles(self) -> None:
        store = self.store("singles")
        messages = [self.message(number) for number in range(20_000)]
        at = 0

        async def part() -> int:
            nonlocal at
            if at + GATHER > len(messages):
                at = 0
            last = None
            for message in messages[at : at + GATHER]:
                last = store.put(message, ignore)
            at += GATHER
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert last is not None
            assert last.status is PutStatus.PUT_OK
            return GATHER

        await self.run(f"append 1 KiB, gathered by {GATHER}", part)
        await self.ranges(store, "read ranges, 1 KiB, 32 a read", "BenchTopic", 32)
        await self.ranges(store, "read ranges, 1 KiB, 1024 a read", "BenchTopic", 1024)
        store.close()

    async def batches(self) -> None:
        store = self.store("batches")
        messages = [self.batch(number) for number in range(1_000)]
        at = 0

        async def part() -> int:
            nonlocal at
            at = (at + 1) % len(messages)
            ticket = store.put_batch(messages[at], ignore)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert ticket.status is PutStatus.PUT_OK
            return BATCH

        await self.run(f"append client batches of {BATCH}, 100 B", part)
        await self.ranges(store, "read ranges, 100 B, 1024 a read", "BenchBatch", 1024)
        store.close()

    async def ranges(self, store: Store, name: str, topic: str, count: int) -> None:
        offsets = [0] * QUEUES
        queue = 0

        async def part() -> int:
            nonlocal queue
            found = 0
            for _ in range(10):
                queue = (queue + 1) % QUEUES
                result = store.get_message("bench", topic, queue, offsets[queue], count)
                assert result is not None
                offsets[queue] = result.next_begin_offset
                if offsets[queue] >= result.max_offset:
                    offsets[queue] = 0
                result.buffers()
                found += result.message_count
                result.release()
            return found

        await self.run(name, part)

    async def sync_flush(self) -> None:
        store = self.store("sync", flushDiskType="SYNC_FLUSH")
        messages = [self.message(number) for number in range(20_000)]
        loop = asyncio.get_running_loop()
        done = 0
        at = 0
        wake: asyncio.Future[None] | None = None

        def settled(ticket: Ticket) -> None:
            nonlocal done, at
            done += 1
            at = (at + 1) % len(messages)
            if running:
                store.put(messages[at], settled)
            if wake is not None and not wake.done():
                wake.set_result(None)

        running = True
        for number in range(WAITING):
            store.put(messages[number], settled)

        async def part() -> int:
            nonlocal wake
            before = done
            wake = loop.create_future()
            await wake
            return done - before

        await self.run(f"append 1 KiB, SYNC_FLUSH, {WAITING} waiting", part)
        running = False
        store.close()


def ignore(ticket: Ticket) -> None:
    """What a reply costs is not measured here."""


def syncs_per_second(folder: Path, seconds: float = 0.5) -> float:
    """fdatasync of 64 KiB appended to a reserved file."""
    path = folder / "syncs"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, 256 << 20)
        data = b"x" * 65536
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, data, count * len(data))
            os.fdatasync(descriptor)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


@click.command()
@click.option("--seconds", default=2.0, help="For each figure.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the stores are made; a temporary directory.")
@click.option("--profile", help="Profile the part with this name.")
def main(seconds: float, folder: Path | None, profile: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        header = json.dumps({"code": 310, "extFields": dict.fromkeys("abcdefghijkl", "x" * 20)})
        began = time.perf_counter()
        for _ in range(20_000):
            json.loads(header)
        click.echo(f"json.loads of a {len(header)}-byte header: {(time.perf_counter() - began) / 20_000 * 1e6:.2f} us")
        click.echo(f"fdatasync of 64 KiB: {syncs_per_second(place):,.0f} per second")
        click.echo(f"\n{'':42} {'per second':>12} {'CPU us':>10} {'p99 ms':>10}")
        bench = Bench(seconds, place, profile)
        asyncio.run(bench.singles())
        asyncio.run(bench.batches())
        asyncio.run(bench.sync_flush())


if __name__ == "__main__":
    main()
