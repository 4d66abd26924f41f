"""Time the store: appends with dispatch, client batches, sync flush, reads of ranges, opening many queues.

    python bench/store.py [--seconds 2] [--folder DIR] [--profile NAME]

Everything is one process and one core (sync flush has a thread for its fdatasync, which waits and does not compute).

| column | what it says |
|---|---|
| per second | messages by the wall clock, with everything else that the machine does |
| quiet | the same, by the rounds (a turn, a batch, ten reads) that were disturbed least: the 20th percentile |
| CPU us | the time of this process for one message: a disk that is slow does not show in it |
| bare | CPU us divided by that of the bare loop, measured in turns with the part itself |
| p99 ms | of a round |

The bare loops do what nobody can do without: the bytes of a record, its checksum and one write for 64 of them; or for
reads the slices of a map that units point to.
"""

import asyncio
import cProfile
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.reading import TagFilter
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.message_id import UniqueKeyGenerator, pack_host
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import encode_record, record_size

BODY = bytes(range(256)) * 4
SMALL_BODY = BODY[:100]
BORN = pack_host("192.0.2.2", 51_234)
QUEUES = 4
GATHER = 64
BATCH = 32
WAITING = 256
MANY = 10_000
TAG = tags_code("TagA")
#: Seconds that a part runs before the bare loop has its turn.
SLICE = 0.1


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

    async def run(self, name: str, part: Callable[[], "asyncio.Future[int] | object"], bare: "Bare") -> None:
        """`part` does one round and gives how many messages that were."""
        profiler = cProfile.Profile() if self.profile == name else None
        await part()  # type: ignore[misc]
        count = 0
        rounds: list[float] = []
        each: list[float] = []
        seconds = cpu = bare_cpu = 0.0
        bare_count = 0
        while seconds < self.seconds:
            # A slice of the part, and a shorter one of the bare loop: both meet the same machine.
            if profiler:
                profiler.enable()
            began, cpu_began = time.perf_counter(), time.process_time()
            while (now := time.perf_counter()) - began < SLICE:
                done = await part()  # type: ignore[misc]
                count += done
                rounds.append(time.perf_counter() - now)
                each.append(rounds[-1] / max(done, 1))
            seconds += time.perf_counter() - began
            cpu += time.process_time() - cpu_began
            if profiler:
                profiler.disable()
            began, cpu_began = time.perf_counter(), time.process_time()
            while time.perf_counter() - began < SLICE / 4:
                bare_count += bare()
            bare_cpu += time.process_time() - cpu_began
        if profiler:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        rounds.sort()
        each.sort()
        p99 = rounds[int(len(rounds) * 0.99)] * 1000
        quiet = 1 / each[len(each) // 5]
        ratio = cpu / count / (bare_cpu / bare_count)
        click.echo(
            f"{name:42} {count / seconds:12,.0f} {quiet:12,.0f} {cpu / count * 1e6:10.2f} {ratio:8.2f} {p99:10.2f}"
        )

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
            assert last is not None
            await settled(last)
            return GATHER

        with BareAppend(self.folder / "bare", BODY, messages[0].properties) as bare:
            await self.run(f"append 1 KiB, gathered by {GATHER}", part, bare)
        await self.ranges(store, "read ranges, 1 KiB, 32 a read", "BenchTopic", 32)
        await self.ranges(store, "read ranges, 1 KiB, 32 a read, by tag", "BenchTopic", 32, TagFilter([TAG]))
        await self.ranges(store, "read ranges, 1 KiB, 1024 a read", "BenchTopic", 1024)
        store.close()

    async def batches(self) -> None:
        store = self.store("batches")
        messages = [self.batch(number) for number in range(1_000)]
        at = 0
        together = 1

        async def part() -> int:
            nonlocal at
            for _ in range(together):
                at = (at + 1) % len(messages)
                ticket = store.put_batch(messages[at], ignore)
            await settled(ticket)
            return BATCH * together

        text = messages[0].properties + encode_properties({"TAGS": "TagA"})
        with BareAppend(self.folder / "bare", SMALL_BODY, text) as bare:
            await self.run(f"append client batches of {BATCH}, 100 B", part, bare)
            together = 8
            await self.run(f"append batches of {BATCH}, 8 a turn", part, bare)
        await self.ranges(store, "read ranges, 100 B, 32 a read", "BenchBatch", 32)
        await self.ranges(store, "read ranges, 100 B, 1024 a read", "BenchBatch", 1024)
        store.close()

    async def ranges(self, store: Store, name: str, topic: str, count: int, wanted: TagFilter | None = None) -> None:
        offsets = [0] * QUEUES
        queue = 0

        async def part() -> int:
            nonlocal queue
            found = 0
            for _ in range(10):
                queue = (queue + 1) % QUEUES
                result = store.get_message("bench", topic, queue, offsets[queue], count, None, wanted)
                assert result is not None
                offsets[queue] = result.next_begin_offset
                if offsets[queue] >= result.max_offset:
                    offsets[queue] = 0
                result.buffers()
                found += result.message_count
                result.release()
            return found

        await self.run(name, part, BareRead(store, topic, count))

    async def sync_flush(self) -> None:
        store = self.store("sync", flushDiskType="SYNC_FLUSH")
        messages = [self.message(number) for number in range(20_000)]
        loop = asyncio.get_running_loop()
        done = 0
        at = 0
        wake: asyncio.Future[None] | None = None

        def again(ticket: Ticket) -> None:
            nonlocal done, at
            done += 1
            at = (at + 1) % len(messages)
            if running:
                store.put(messages[at], again)
            if wake is not None and not wake.done():
                wake.set_result(None)

        running = True
        for number in range(WAITING):
            store.put(messages[number], again)

        async def part() -> int:
            nonlocal wake
            before = done
            wake = loop.create_future()
            await wake
            return done - before

        syncs = 0
        begin = store.flush.begin

        def counted() -> bool:
            nonlocal syncs
            idle = store.flush._errand is None
            begun = begin()
            syncs += idle and begun
            return begun

        store.flush.begin = counted  # type: ignore[method-assign]
        before = done
        with BareAppend(self.folder / "bare", BODY, messages[0].properties) as bare:
            await self.run(f"append 1 KiB, SYNC_FLUSH, {WAITING} waiting", part, bare)
        click.echo(f"{'':42} {(done - before) / max(syncs, 1):,.0f} puts for an fdatasync")
        running = False
        store.close()

    # Many queues

    def many_queues(self) -> None:
        async def fill() -> None:
            store = self.store("many")
            for number in range(MANY):
                ticket = store.put(Message(f"Topic{number // 10}", number % 10, b"x", born_host=BORN))
                if number % 500 == 499:
                    await settled(ticket)
            store.close()

        asyncio.run(fill())
        # In a process of its own: only there memory says something.
        subprocess.run([sys.executable, __file__, "--open", str(self.folder / "many")], check=True)


class BareAppend:
    """The bytes of records, their checksums, and one write for 64 of them."""

    def __init__(self, path: Path, body: bytes, text: bytes) -> None:
        self._path = path
        self._body, self._text = body, text
        self._size = record_size(len(body), 10, len(text))
        self._buffer = bytearray(GATHER * self._size)
        self._number = 0

    def __enter__(self) -> "BareAppend":
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._descriptor, 0, 64 << 20)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._path.unlink()

    def __call__(self) -> int:
        buffer, body, text, size = self._buffer, self._body, self._text, self._size
        at = 0
        for number in range(self._number, self._number + GATHER):
            encode_record(buffer, at, 1, 0, number, number * size, 0, 1, BORN, 2, BORN, 0, 0, body, b"BenchTopic", text)
            at += size
        self._number += GATHER
        os.pwrite(self._descriptor, buffer, self._number * size % (48 << 20))
        return GATHER


class BareRead:
    """Slices of the log that units point to, one for each message."""

    def __init__(self, store: Store, topic: str, count: int) -> None:
        queue = store.queues.queue(topic, 0)
        assert isinstance(queue, ConsumeQueue)
        self._units = queue.units(0, count)
        file = store.commit_log.files.files[0]
        self._view = file.view()

    def __call__(self) -> int:
        view = self._view
        return len([view[physical : physical + size] for physical, size, _ in UNIT.iter_unpack(self._units)])


Bare = BareAppend | BareRead


def open_many(path: Path) -> None:
    """Open a store and say what that took."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def look() -> None:
        memory = resident()
        files = len(os.listdir("/proc/self/fd"))
        began, cpu = time.perf_counter(), time.process_time()
        store = Store(path, StoreOptions.from_properties({}), runner=AsyncioRunner())
        store.open()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        opened = len(os.listdir("/proc/self/fd")) - files
        click.echo(
            f"opening {len(store.queues):,} queues: {seconds:.2f} s, {cpu:.2f} s of them CPU, "
            f"{(resident() - memory) / 1e6:.0f} MB more ({resident() / 1e6:.0f} in all), {opened} more open files"
        )
        store.close()

    asyncio.run(look())


async def settled(ticket: Ticket) -> None:
    """Wait for the turn, or for more of them while writes are slow and go through a thread."""
    await ticket.future()
    assert ticket.status is PutStatus.PUT_OK


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
@click.option("--open", "opened", type=click.Path(path_type=Path), help="Only open the store in this directory.")
def main(seconds: float, folder: Path | None, profile: str | None, opened: Path | None) -> None:
    if opened is not None:
        open_many(opened)
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        header = json.dumps({"code": 310, "extFields": dict.fromkeys("abcdefghijkl", "x" * 20)})
        began = time.perf_counter()
        for _ in range(20_000):
            json.loads(header)
        click.echo(f"json.loads of a {len(header)}-byte header: {(time.perf_counter() - began) / 20_000 * 1e6:.2f} us")
        click.echo(f"fdatasync of 64 KiB: {syncs_per_second(place):,.0f} per second")
        click.echo(f"\n{'':42} {'per second':>12} {'quiet':>12} {'CPU us':>10} {'bare':>8} {'p99 ms':>10}")
        bench = Bench(seconds, place, profile)
        asyncio.run(bench.singles())
        asyncio.run(bench.batches())
        asyncio.run(bench.sync_flush())
        bench.many_queues()


if __name__ == "__main__":
    main()
