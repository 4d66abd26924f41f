"""The broker of bench/spark.py: a process with topics full of messages, until its standard input ends."""

import asyncio
import sys
import time

from cometmq.broker.standalone import Standalone, standalone_config
from cometmq.broker.store.message import Message
from cometmq.daemon import calm_collector, loop_factory
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.message_id import pack_host

QUEUES = 4
#: Messages between two turns of the loop, in which they are written.
BURST = 500
#: Five properties: what a Java producer sets, and two of the user.
PROPERTIES = b"KEYS\x01order-%07d\x02UNIQ_KEY\x017F000001162A18B4AAC2A8A5B5%06X\x02TAGS\x01TagA\x02%s"
USER = (b"region\x01eu-1\x02source\x01web\x02", b"region\x01us-west-12\x02source\x01mobile\x02")


def topic_of(size: int) -> str:
    return f"bench{size}"


async def fill(both: Standalone, size: int, count: int) -> None:
    """Messages in turns over the queues."""
    state, topic = both.broker.state, topic_of(size)
    state.topics.update(TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES))
    host, now = pack_host("192.0.2.7", 51_234), time.time_ns() // 1_000_000
    body = bytes(32 + i % 90 for i in range(size))
    for number in range(count):
        text = PROPERTIES % (number, number & 0xFFFFFF, USER[number % 16 == 0])
        state.store.put(Message(topic, number % QUEUES, body, text, born_timestamp=now, born_host=host, wait=False))
        if number % BURST == 0:
            await asyncio.sleep(0)
    while state.store.max_offset(topic, (count - 1) % QUEUES) < count // QUEUES:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def serve(folder: str, sizes: dict[int, int]) -> None:
    settings = {"mappedFileSizeCommitLog": str(1 << 30), "brokerName": "broker-a", "diskMaxUsedSpaceRatio": "98"}
    settings |= {"waitTimeMillsInPullQueue": "60000", "listenPort": "0"}
    config = standalone_config(settings, {}, nameserver="127.0.0.1:0", store=folder)
    async with Standalone(config, nameserver="127.0.0.1:0", fast_port=False) as both:
        for size, count in sizes.items():
            await fill(both, size, count)
        calm_collector()  # as `mqbroker` does
        print(both.nameserver_address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    wanted = {int(size): int(count) for size, _, count in (text.partition("=") for text in sys.argv[2:])}
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(sys.argv[1], wanted))
