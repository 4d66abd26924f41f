"""What a query tells brokers of its progress: all of it arrives, also of a group that is new there."""

import asyncio

from cometmq.spark.access import Access
from cometmq.spark.progress import Progress
from cometmq.spark.queue_range import QueueId
from support.fake_cluster import FakeCluster


async def test_the_offsets_of_a_new_group_are_all_kept() -> None:
    queues = [QueueId(topic, broker, number) for topic in "TU" for broker in ("a", "b") for number in range(4)]
    async with FakeCluster("a", "b") as cluster:
        progress = Progress(Access(name_servers=(cluster.nameserver,), group="CG_new"))

        def tell_and_settle() -> None:
            progress.tell({queue: 100 + queue.queue_id for queue in queues})
            progress.settle()

        await asyncio.to_thread(tell_and_settle)
        kept = {("CG_new", topic): {number: 100 + number for number in range(4)} for topic in "TU"}
        assert cluster["a"].offsets == cluster["b"].offsets == kept
