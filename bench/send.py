"""What one send costs the broker: from the bytes of a request to the bytes of its answer, store and all, no socket.

Requests are fed to a connection as a read of the kernel would bring them, a window at a time; the answers go to a
transport that drops them. So the figure is processor time of our own code and of the writes to the log, and it holds on
a busy machine too: the best of many rounds counts.

    python bench/send.py [--rounds 200] [--window 64] [--body 1024] [--binary] [--batch 32] [--profile]

Budget: 8 us for a message with 1 KiB.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import tempfile
import time
from typing import Any

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupTable
from cometmq.broker.handlers import handler_table, send
from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.state import BrokerState
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store.clock import SystemClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.topics import TopicTable
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.codec import encode_request
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.requests.send import SendMessageV2
from cometmq.remoting.connection import Connection
from cometmq.remoting.limits import Limits
from cometmq.remoting.roster import Roster
from cometmq.remoting.serving import Dispatcher

TOPIC, QUEUES = "BenchTopic", 8


class Drain(asyncio.Transport):
    """A transport that takes everything and keeps its length."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 10_911)})
        self.taken = 0

    def write(self, data: Any) -> None:
        self.taken += len(data)

    def writelines(self, list_of_data: Any) -> None:
        self.taken += sum(map(len, list_of_data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def broker_state(folder: str, runner: AsyncioRunner) -> BrokerState:
    config, clock = BrokerConfig(broker_ip1="127.0.0.1", wait_time_mills_in_send_queue=600_000), SystemClock()
    state = BrokerState(config, clock, runner)
    state.files = files = ConfigFiles(RealDisk(), folder)
    state.topics = TopicTable(config, files.topics, clock)
    state.topics.load()
    state.topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES))
    state.groups = GroupTable(config, files.subscription_groups, clock)
    state.locks = QueueLocks(clock)
    state.stats = BrokerStats(config.broker_cluster_name, clock)
    state.store = Store(folder, config.store, runner=runner, topics=state.topics, store_host=state.store_host)
    state.store.open()
    state.store.start()
    return state


def request(number: int, kind: SerializeType, body: int, batch: int) -> bytes:
    unique = f"C0000202{number:024X}"
    text = f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02"
    header = SendMessageV2(
        producer_group="bench",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=text if batch else text + "TAGS\x01TagA\x02",
        unit_mode=False,
        batch=bool(batch),
        broker_name="broker-a",
    )
    content = bytes(body)
    if batch:
        content = encode_batch(
            BatchItem(
                0,
                content,
                f"UNIQ_KEY\x01{unique[:8]}{unique[10:]}{item:02X}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode(),
            )
            for item in range(batch)
        )
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return encode_request(kind, code, number, header, len(content)) + content


async def measure(options: argparse.Namespace, folder: str) -> None:
    loop = asyncio.get_running_loop()
    runner = AsyncioRunner()
    state = broker_state(folder, runner)
    table = handler_table(send.rows(state))
    table.lane = state.send_lane
    dispatcher = Dispatcher(table)
    roster = Roster(loop, loop.time, Limits())
    connection = Connection(roster, dispatcher, is_accepted=True)
    drain = Drain()
    connection.connection_made(drain)
    kind = SerializeType.ROCKETMQ if options.binary else SerializeType.JSON
    messages = options.window * (options.batch or 1)
    # Requests that differ, as those of clients do; all of them come again and again.
    windows = [
        b"".join(
            request(16_384 + i * options.window + n, kind, options.body, options.batch) for n in range(options.window)
        )
        for i in range(max(1, 4096 // messages))
    ]
    profiler = cProfile.Profile() if options.profile else None
    took: list[tuple[float, float]] = []
    if profiler:
        profiler.enable()
    for number in range(options.rounds):
        # A part of a second at a time: short enough to be left alone by others now and then.
        began, system = time.process_time(), os.times().system
        for window in windows:
            view = memoryview(window)
            while view:
                size = min(len(view), len(connection.get_buffer(-1)))
                connection.get_buffer(-1)[:size] = view[:size]
                connection.buffer_updated(size)
                view = view[size:]
            await asyncio.sleep(0)
            while dispatcher.open_replies:  # noqa: ASYNC110 - each pass is a turn of the loop
                await asyncio.sleep(0)
        if number:
            scale = 1e6 / (messages * len(windows))
            took.append(((time.process_time() - began) * scale, (os.times().system - system) * scale))
    if profiler:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    took.sort()
    form = f"{kind.name} {options.body} B, {options.window} in flight" + (
        f", batches of {options.batch}" if options.batch else ""
    )
    best, middle = took[0][0], took[len(took) // 2][0]
    kernel = sum(system for _, system in took) / len(took)
    print(f"{form}: {best:.2f} us a message at best, {middle:.2f} in the middle, {kernel:.2f} of it in the kernel")
    state.overload.close()
    state.store.close()
    runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--binary", action="store_true")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    options = parser.parse_args()
    if options.loop == "uvloop":
        from uvloop import new_event_loop
    else:
        from asyncio import new_event_loop
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(measure(options, folder))


if __name__ == "__main__":
    main()
