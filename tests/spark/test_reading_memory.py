"""How much a task holds at once, whatever messages weigh: pulls of a real client, answered by a broker that counts."""

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
from pyspark.sql.types import StructType

from cometmq.spark.access import Access
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.link import close_links
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.read_options import ReadOptions
from cometmq.spark.reading import LEAST_ROOM, MOST_SPANS, PREFETCH, SPAN_BYTES, read_ranges
from support.spark_readable_cluster import ReadableCluster
from support.spark_records import Given, encode

pytestmark = pytest.mark.spark

KIB, MIB = 1024, 1024 * 1024
#: Bytes of a record beside its body.
HEAD: Final = len(encode([Given(b"")]))
USUAL: Final = ReadOptions()
#: What spans of messages as large as those before may bring together.
MOST_AS_BEFORE: Final = 2 * (PREFETCH + SPAN_BYTES)


class Held:
    """Reads two queues to their end: offsets in their order, and the most bytes that were given and not taken yet."""

    def __init__(self, cluster: ReadableCluster, how: ReadOptions) -> None:
        self.most = 0
        self.offsets: list[int] = []
        stop = cluster.master.stop
        ranges = [QueueRange("T", "broker-a", queue, 0, stop) for queue in (0, 1)]
        columns = Columns.of(StructType([full_schema()[name] for name in ("queueOffset", "body")]))
        access = Access(name_servers=(cluster.address("names"),))
        taken = 0
        for batch in read_ranges(ranges, access, columns, how):
            self.most = max(self.most, cluster.master.given - taken)
            taken += sum(len(body) + HEAD for body in batch["body"].to_pylist())
            self.offsets += batch["queueOffset"].to_pylist()
        #: Bytes that the broker gave for nothing.
        self.again = cluster.master.given - taken


async def read(size: Callable[[int], int], stop: int, how: ReadOptions = USUAL) -> Held:
    async with ReadableCluster() as cluster:
        cluster.master.stop, cluster.master.size = stop, size
        try:
            held = await asyncio.to_thread(Held, cluster, how)
        finally:
            await asyncio.to_thread(close_links)
    assert held.offsets == [*range(stop), *range(stop)]
    return held


@pytest.mark.parametrize(("size", "stop"), [(MIB, 40), (4 * MIB, 10)])
async def test_large_messages_from_the_first_on(size: int, stop: int) -> None:
    held = await read(lambda offset: size, stop)
    assert held.most <= MOST_AS_BEFORE + 5 * size
    assert held.again <= MOST_AS_BEFORE


async def test_messages_that_become_large() -> None:
    held = await read(lambda offset: 100 if offset < 12_000 else MIB, 12_060)
    assert held.most <= MOST_AS_BEFORE + 5 * MIB + held.again


async def test_messages_that_become_large_where_a_pull_brings_little() -> None:
    held = await read(lambda offset: KIB if offset < 3000 else MIB, 3060, ReadOptions(pull_count=32))
    assert held.most <= MOST_AS_BEFORE + MOST_SPANS * (LEAST_ROOM + MIB) + held.again


async def test_large_messages_here_and_there() -> None:
    """Hardly anything is asked for twice where sizes vary as they always do."""
    held = await read(lambda offset: MIB if offset % 97 == 5 else KIB, 5000)
    assert held.again <= MOST_AS_BEFORE
