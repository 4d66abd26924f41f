"""What pulls cost a broker: 32 messages of 1 KiB, a pull that is held and woken, and 50,000 that wait.

A whole broker runs in a process of its own; the load comes from plain sockets with ready-made frames. What counts is
the processor time of the broker's process, its system calls included.

    scripts/bench pull [--seconds 2] [--loop uvloop|asyncio] [--held 50000]

Budget: 40 us a pull of 32 x 1 KiB.
"""

import argparse
import asyncio
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.message import Message
from cometmq.daemon import loop_factory
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.codec import encode_request
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.requests.pull import PullMessage
from cometmq.protocol.requests.send import SendMessageV2

MESSAGES = 20_000
SIZE = 1024
BATCH = 32
#: Topics: all messages in a row; four queues and four tags by turns.
ROW, MIXED, EMPTY = "row", "mixed", "empty"
SUSPEND, SUBSCRIPTION = 2, 4


def serve(kind: str, folder: str) -> None:
    """A broker with messages in it, until its standard input ends."""

    async def run() -> None:
        settings = {"listenPort": "0", "brokerIP1": "127.0.0.1", "storePathRootDir": folder}
        settings |= {"mappedFileSizeCommitLog": str(256 << 20)}
        async with Broker(BrokerConfig().with_properties(settings)) as broker:
            for topic, queues in ((ROW, 1), (MIXED, 4), (EMPTY, 60_000)):
                broker.state.topics.update(
                    TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                )
            host = pack_host("127.0.0.1", 1)
            for topic, queues in ((ROW, 1), (MIXED, 4)):
                for number in range(MESSAGES):
                    tag = b"TAGS\x01t%d\x02" % (number // 4 % 2)
                    broker.state.store.put(
                        Message(topic, number % queues, bytes(SIZE), tag, born_timestamp=1, born_host=host)
                    )
                    if number % 500 == 0:
                        await asyncio.sleep(0)
            while broker.state.store.max_offset(MIXED, 0) < MESSAGES // 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            print(broker.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    with asyncio.Runner(loop_factory=loop_factory() if kind == "uvloop" else asyncio.new_event_loop) as runner:
        runner.run(run())


class Peer:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb", 1 << 20)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> int:
        """The length of the next frame."""
        (length,) = struct.unpack(">I", self._file.read(4))
        self._file.read(length)
        return int(length)

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def pull(topic: str, queue_id: int, offset: int, flags: int = SUBSCRIPTION, subscription: str = "*") -> bytes:
    header = PullMessage(
        consumer_group="bench",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=BATCH,
        sys_flag=flags,
        commit_offset=0,
        suspend_timeout_millis=600_000,
        sub_version=0,
        subscription=subscription,
        expression_type="TAG",
    )
    return encode_request(SerializeType.JSON, RequestCode.PULL_MESSAGE, 100_000 + queue_id, header)


def send(queue_id: int) -> bytes:
    header = SendMessageV2(
        producer_group="bench", topic=EMPTY, default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id,
        sys_flag=0, born_timestamp=1, flag=0, properties="", reconsume_times=0, unit_mode=False,
    )  # fmt: skip
    return encode_request(SerializeType.JSON, RequestCode.SEND_MESSAGE_V2, 7, header, SIZE) + bytes(SIZE)


class Measured:
    """Processor time of the broker."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)

    def cpu(self) -> float:
        return float(sum(self.process.cpu_times()[:2]))

    def memory(self) -> int:
        return int(self.process.memory_info().rss)


def pulls(broker: Measured, port: int, topic: str, in_flight: int, seconds: float, subscription: str = "*") -> None:
    queues = 1 if topic == ROW else 4
    end = MESSAGES // queues - 2 * BATCH
    peer = Peer(port)
    frames = [pull(topic, number % queues, number * BATCH % end, subscription=subscription) for number in range(500)]
    stop = time.perf_counter() + seconds
    for number in range(in_flight):
        peer.send(frames[number])
    done, size, before, began = 0, 0, broker.cpu(), time.perf_counter()
    while time.perf_counter() < stop:
        size += peer.receive()
        done += 1
        peer.send(frames[(done + in_flight) % 500])
    took, cpu = time.perf_counter() - began, broker.cpu() - before
    peer.close()
    print(
        f"{topic:6} {subscription:3} {in_flight:3} in flight: {done / took:9,.0f} pulls/s"
        f" {cpu / done * 1e6:6.1f} us CPU a pull of {size / done / 1024:.0f} KiB,"
        f" {done * BATCH / cpu:10,.0f} messages/s/core"
    )


def woken(broker: Measured, port: int, seconds: float) -> None:
    """A pull is held, its message comes, it is answered; the cost of the send alone is taken off."""
    consumer, producer = Peer(port), Peer(port)
    costs: dict[bool, list[float]] = {False: [], True: []}
    offset = 0
    for number in range(8):
        with_pull = number % 2 == 1
        stop = time.perf_counter() + seconds / 2
        before, done = broker.cpu(), 0
        while time.perf_counter() < stop:
            if with_pull:
                consumer.send(pull(EMPTY, 0, offset, SUBSCRIPTION | SUSPEND))
            producer.send(send(0))
            producer.receive()
            if with_pull:
                consumer.receive()
            offset += 1
            done += 1
        costs[with_pull].append((broker.cpu() - before) / done * 1e6)
    consumer.close()
    producer.close()
    alone, both = min(costs[False]), min(costs[True])
    print(f"held and woken: {both - alone:6.1f} us CPU a pull (its send alone {alone:.1f}), one at a time")


def waiting(broker: Measured, port: int, count: int, seconds: float) -> None:
    """Many held pulls: what one takes, and what all of them take while nothing happens."""
    peers = [Peer(port) for _ in range(100)]
    each = count // len(peers)
    memory, before = broker.memory(), broker.cpu()
    for index, peer in enumerate(peers):
        for start in range(0, each, 100):
            ids = range(1 + index * each + start, 1 + index * each + min(start + 100, each))
            peer.send(b"".join(pull(EMPTY, queue_id, 0, SUBSCRIPTION | SUSPEND) for queue_id in ids))
    last = -1.0
    while broker.cpu() != last:
        last = broker.cpu()
        time.sleep(0.5)
    grown, spent = broker.memory() - memory, broker.cpu() - before
    before = broker.cpu()
    time.sleep(seconds)
    idle = (broker.cpu() - before) / seconds
    print(
        f"{count:,} held pulls: {spent / count * 1e6:.1f} us CPU and {grown / count / 1024:.2f} KiB each,"
        f" then {idle * 100:.2f} % of a core"
    )
    for peer in peers:
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--held", type=int, default=50_000)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--serve", options.loop, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        broker = Measured(process.pid)
        for in_flight in (1, 16):
            pulls(broker, port, ROW, in_flight, options.seconds)
            pulls(broker, port, MIXED, in_flight, options.seconds)
            pulls(broker, port, MIXED, in_flight, options.seconds, "t1")
        woken(broker, port, options.seconds)
        waiting(broker, port, options.held, max(options.seconds, 5.0))
        process.stdin.close()


if __name__ == "__main__":
    main()
