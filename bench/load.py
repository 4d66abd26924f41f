"""A load for brokers: ready-made frames over raw sockets, a window of them in flight on each connection. One process.

Works against our broker and against a real RocketMQ: it knows the protocol by its frames only. Requests differ in
opaque, queue and unique key and have one length, so that a window is a slice of a ring of them; answers are told apart
by their opaque. Latency runs from the moment when a request was handed to the socket. One line of JSON comes out; error
codes are counted, and make the exit status 1.

    python bench/load.py --address 127.0.0.1:10911 --mode send|batch|pull [--count N] [--in-flight N] [--connections N]
"""

import argparse
import contextlib
import json
import os
import re
import select
import socket
import struct
import sys
import time
from collections import Counter
from typing import NamedTuple

BASE = 1_000_000
SEND, BATCH, PULL, CREATE_TOPIC = 310, 320, 11, 17
#: Requests of a ring. More than can be in flight; few enough to stay below 32 MiB with 1 KiB each.
RING = 8192
_LENGTH = struct.Struct(">I")
_OPAQUE = b'"opaque":'
#: Of the requests of a ring.
_OPAQUES = re.compile(rb'"opaque":([0-9]{7})[,}]')
_NEXT = b'"nextBeginOffset":"'
_GOOD = b'{"code":0,'
_AT_END = b'{"code":19,'


def frame(code: int, opaque: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """A request with a JSON header in the order in which Java writes it."""
    fields = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque}
    header = json.dumps(fields | {"serializeTypeCurrentRPC": "JSON", "version": 401}, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def send_ext(topic: str, queue_id: int, properties: str, batch: bool) -> dict[str, str]:
    keys = [
        "bench",
        topic,
        "TBW102",
        "4",
        str(queue_id),
        "0",
        f"{time.time() * 1000:.0f}",
        "0",
        properties,
        "0",
        "false",
    ]
    return dict(zip("abcdefghijk", keys, strict=True)) | {"m": "true" if batch else "false", "n": "broker-a"}


def send_frame(number: int, topic: str, queues: int, body: int) -> bytes:
    text = f"UNIQ_KEY\x017F000001{number:024X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    return frame(SEND, BASE + number, send_ext(topic, number % queues, text, False), os.urandom(8) * (body // 8))


def batch_frame(number: int, topic: str, queues: int, body: int, count: int) -> bytes:
    items = []
    content = os.urandom(8) * (body // 8)
    for item in range(count):
        text = f"UNIQ_KEY\x017F000001{number:016X}{item:08X}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode()
        items.append(struct.pack(">iiiii", 22 + len(content) + len(text), 0, 0, 0, len(content)) + content)
        items.append(struct.pack(">h", len(text)) + text)
    text = f"UNIQ_KEY\x017F000002{number:024X}\x02WAIT\x01true\x02"
    return frame(BATCH, BASE + number, send_ext(topic, number % queues, text, True), b"".join(items))


def pull_frame(opaque: int, topic: str, queue_id: int, offset: int, count: int) -> bytes:
    ext = {
        "consumerGroup": "bench",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": "4",  # the subscription is in the request; neither commit nor wait
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return frame(PULL, opaque, ext)


class Ring(NamedTuple):
    """Requests in a row, all of one length."""

    data: memoryview
    size: int
    count: int

    @classmethod
    def of(cls, frames: list[bytes]) -> "Ring":
        if len({len(each) for each in frames}) != 1:
            raise ValueError("the requests of a ring must have one length")
        return cls(memoryview(b"".join(frames)), len(frames[0]), len(frames))


class Line:
    """One connection with its window."""

    def __init__(self, load: "Load", address: tuple[str, int], window: int) -> None:
        self.load = load
        self.window = window
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.buffer = bytearray(4 << 20)
        self.view = memoryview(self.buffer)
        self.end = 0
        self.in_flight = 0
        self.unsent: memoryview | None = None

    def receive(self) -> None:
        try:
            self.end += self.socket.recv_into(self.view[self.end :])
        except BlockingIOError:
            return
        if not self.end:
            raise ConnectionError("the broker closed the connection")
        now = time.perf_counter()
        data, end, position = self.buffer, self.end, 0
        unpack = _LENGTH.unpack_from
        frames = []
        while end - position >= 4:
            stop = position + 4 + unpack(data, position)[0]
            if stop > end:
                break
            frames.append((position, stop))
            position = stop
        if position:
            self.in_flight -= len(frames)
            self.answered(data, frames, now)
            self.view[: end - position] = bytes(self.view[position:end])
            self.end = end - position

    def answered(self, data: bytearray, frames: list[tuple[int, int]], now: float) -> None:
        """Whole answers, one behind the other from the beginning of `data`: from and to."""
        raise NotImplementedError

    def refill(self) -> None:
        raise NotImplementedError

    def write(self, data: memoryview) -> None:
        with contextlib.suppress(BlockingIOError):
            data = data[self.socket.send(data) :]
        waits = bool(data)
        if waits != (self.unsent is not None):
            events = select.EPOLLIN | select.EPOLLOUT if waits else select.EPOLLIN
            self.load.poll.modify(self.socket.fileno(), events)
        self.unsent = data if waits else None


class SendLine(Line):
    """Sends the requests of a ring, one window after the other."""

    def __init__(self, load: "Load", address: tuple[str, int], window: int, ring: Ring, first: int) -> None:
        super().__init__(load, address, window)
        self.ring = ring
        self.at = first
        self.began = [0.0] * ring.count

    def refill(self) -> None:
        if self.unsent is not None:
            self.write(self.unsent)
            if self.unsent is not None:
                return
        ring, at = self.ring, self.at
        count = min(self.window - self.in_flight, ring.count - at, self.load.left)
        if count <= 0:
            return
        self.load.left -= count
        self.in_flight += count
        self.began[at : at + count] = [time.perf_counter()] * count
        self.at = (at + count) % ring.count
        self.write(ring.data[at * ring.size : (at + count) * ring.size])

    def answered(self, data: bytearray, frames: list[tuple[int, int]], now: float) -> None:
        # All of them together: the broker shall be the slower one.
        load, began = self.load, self.began
        text = data[: frames[-1][1]]
        opaques = _OPAQUES.findall(text)
        if len(opaques) != len(frames):
            raise ConnectionError(f"{len(frames)} answers with {len(opaques)} opaques")
        load.latencies += [now - began[number - BASE] for number in map(int, opaques)]
        if text.count(_GOOD) != len(frames):
            for position, stop in frames:
                if data[position + 8 : position + 18] != _GOOD:
                    load.failed(data, position, stop)


class PullLine(Line):
    """Reads queues from their beginning, one pull of each under way."""

    def __init__(self, load: "Load", address: tuple[str, int], topic: str, queues: list[int], count: int) -> None:
        super().__init__(load, address, len(queues))
        self.topic = topic
        self.count = count
        self.offsets = dict.fromkeys(queues, 0)
        self.idle = list(queues)
        self.began: dict[int, float] = {}

    def refill(self) -> None:
        if self.unsent is not None:
            self.write(self.unsent)
            return
        parts = []
        now = time.perf_counter()
        while self.idle and self.load.left > 0:
            queue = self.idle.pop()
            self.in_flight += 1
            self.load.left -= self.count
            self.began[queue] = now
            parts.append(pull_frame(BASE + queue, self.topic, queue, self.offsets[queue], self.count))
        if parts:
            self.write(memoryview(b"".join(parts)))

    def answered(self, data: bytearray, frames: list[tuple[int, int]], now: float) -> None:
        for position, stop in frames:
            self.one_answered(data, position, stop, now)

    def one_answered(self, data: bytearray, position: int, stop: int, now: float) -> None:
        load = self.load
        at = data.find(_OPAQUE, position, stop) + 9
        queue = int(data[at : at + 7]) - BASE
        load.latencies.append(now - self.began[queue])
        if data[position + 8 : position + 18] != _GOOD:
            load.left += self.count
            if data[position + 8 : position + 19] != _AT_END:
                load.failed(data, position, stop)
            return  # the queue has no more: it is not asked again
        at = data.find(_NEXT, position, stop) + len(_NEXT)
        following = int(data[at : data.index(b'"', at)])
        # What a broker gives less than was asked for is asked for again.
        load.left += self.count - (following - self.offsets[queue])
        self.offsets[queue] = following
        self.idle.append(queue)


class Load:
    """The loop over all lines."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        host, port = options.address.rsplit(":", 1)
        self.address = host, int(port)
        self.poll = select.epoll()
        self.left = 0
        self.latencies: list[float] = []
        self.codes: Counter[int] = Counter()
        self.remark = ""
        self.lines: dict[int, Line] = {}
        for line in self.make_lines():
            self.lines[line.socket.fileno()] = line
            self.poll.register(line.socket.fileno(), select.EPOLLIN)

    def make_lines(self) -> list[Line]:
        options = self.options
        count = options.connections
        if options.mode == "pull":
            queues = [[queue for queue in range(options.queues) if queue % count == n] for n in range(count)]
            return [PullLine(self, self.address, options.topic, each, options.batch) for each in queues]
        numbers = range(RING if options.mode == "send" else RING // options.batch)
        if options.mode == "send":
            frames = [send_frame(n, options.topic, options.queues, options.body) for n in numbers]
        else:
            frames = [batch_frame(n, options.topic, options.queues, options.body, options.batch) for n in numbers]
        ring = Ring.of(frames)
        window = max(1, options.in_flight // count)
        return [SendLine(self, self.address, window, ring, n * ring.count // count) for n in range(count)]

    def failed(self, data: bytearray, position: int, stop: int) -> None:
        header = json.loads(data[position + 8 : position + 8 + (_LENGTH.unpack_from(data, position + 4)[0] & 0xFFFFFF)])
        self.codes[header["code"]] += 1
        self.remark = self.remark or header.get("remark") or ""

    def run(self, requests: int) -> float:
        """Requests until so many (pulls: messages) are answered; the seconds that took."""
        self.left = requests
        self.latencies = []
        began = time.perf_counter()
        lines = self.lines
        for line in lines.values():
            line.refill()
        while any(line.in_flight for line in lines.values()):
            for descriptor, events in self.poll.poll(10):
                line = lines[descriptor]
                if events & (select.EPOLLIN | select.EPOLLHUP):
                    line.receive()
                line.refill()
        return time.perf_counter() - began


def create_topic(address: str, topic: str, queues: int) -> None:
    """Make a topic; raises when the broker refuses."""
    host, port = address.rsplit(":", 1)
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(frame(CREATE_TOPIC, 1, ext))
        answer = connection.recv(65536)
        if answer[8:18] != _GOOD:
            raise ConnectionError(f"topic {topic} was refused: {answer[8:]!r}")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, its threads included."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:10911")
    parser.add_argument("--mode", choices=["send", "batch", "pull"], default="send")
    parser.add_argument("--topic", default="BenchTopic")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--create-topic", action="store_true", help="make the topic first")
    parser.add_argument("--count", type=int, default=100_000, help="messages")
    parser.add_argument("--warmup", type=int, default=0, help="messages before those, not measured")
    parser.add_argument("--in-flight", type=int, default=64, help="requests under way, on all connections together")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--batch", type=int, default=32, help="messages of a batch or a pull")
    parser.add_argument("--core", type=int, help="the core to run on")
    parser.add_argument("--pid", type=int, help="the broker's process, for its processor time")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if options.create_topic:
        create_topic(options.address, options.topic, options.queues)
    load = Load(options)
    each = options.batch if options.mode == "batch" else 1
    if options.warmup:
        load.run(max(1, options.warmup // each))
    cpu = cpu_seconds(options.pid) if options.pid else 0.0
    own = time.process_time()
    seconds = load.run(max(1, options.count // each))
    own = time.process_time() - own
    cpu = cpu_seconds(options.pid) - cpu if options.pid else 0.0
    times = sorted(load.latencies)
    figures = {
        "messages": options.count,
        "seconds": seconds,
        "rate": options.count / seconds,
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[int(len(times) * 0.99)] * 1000,
        "cpu_s_per_million": cpu / options.count * 1e6,
        "load_cpu_s_per_million": own / options.count * 1e6,
        "errors": dict(load.codes),
        "remark": load.remark,
    }
    print(json.dumps(figures))
    return 1 if load.codes else 0


if __name__ == "__main__":
    sys.exit(main())
