"""The nameserver beside the real one: route queries, registrations of many topics, start and idle memory.

Both servers run at the same time and are loaded in turns, so that a noisy neighbour hits both. The figure to look at is
CPU time per request of the server's process; requests per second also measure this client.

    scripts/bench namesrv [--seconds 2] [--rounds 3] [--only routes|registration|idle]
"""

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cometmq.protocol.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from cometmq.protocol.codec import encode_request
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.frame import frame_length
from cometmq.protocol.requests.namesrv import GetRouteInfo, RegisterBroker
from support.fleet import OwnNameserver
from support.plain_frames import answers, topic_list
from support.real_rocketmq import V5, RealNameserver, Unavailable, available
from support.server_process import ServerProcess

SMALL, WIDE = "small", "wide"
#: The JVM as a user would run it: the tests' own flags keep it small and its compiler simple.
JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms512m", "-Xmx512m")


class Peer:
    """A raw connection that counts frames and looks into none of them."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def receive(self) -> int:
        """Waits for bytes; the number of whole frames that came."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        data = self.rest + chunk if self.rest else chunk
        count = position = 0
        end = len(data)
        while end - position >= 4 and (stop := position + frame_length(data, position)) <= end:
            count += 1
            position = stop
        self.rest = data[position:]
        return count

    def call(self, frame: bytes) -> None:
        self.socket.sendall(frame)
        while not self.receive():
            pass

    def keep_in_flight(self, frame: bytes, in_flight: int, seconds: float) -> int:
        """Answers received in so many seconds with that many requests always under way."""
        self.socket.sendall(frame * in_flight)
        done = 0
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            count = self.receive()
            done += count
            if count:
                self.socket.sendall(frame * count)
        left = in_flight
        while left:
            left -= self.receive()
        return done + in_flight


def route_query(topic: str) -> bytes:
    return encode_request(SerializeType.JSON, RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, GetRouteInfo(topic=topic))


def registration(number: int, topics: dict[str, int]) -> bytes:
    """What broker `number` sends; topic -> count of its queues."""
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        for name, queues in topics.items()
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(
        topic_config_table=table, data_version=DataVersion(counter=1, timestamp=1_700_000_000_000)
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[]).encode()
    header = RegisterBroker(
        broker_name=f"broker-{number:03}",
        broker_addr=f"10.0.{number}.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr=f"10.0.{number}.1:10912",
        broker_id=0,
    )
    return encode_request(SerializeType.JSON, RequestCode.REGISTER_BROKER, 1, header, len(body)) + body


def cpu_seconds(server: ServerProcess) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


def resident_mib(server: ServerProcess) -> float:
    return psutil.Process(server.pid).memory_info().rss / 2**20


def routes(servers: dict[str, ServerProcess], seconds: float, rounds: int) -> None:
    """Route queries: a small route and one of 100 brokers with 16 queues each, 1 and 64 requests in flight."""
    registrar = {name: Peer(server.address) for name, server in servers.items()}

    def register() -> None:
        for peer in registrar.values():
            for number in range(100):
                peer.call(registration(number, {WIDE: 16, "TBW102": 8} | ({SMALL: 4} if number == 0 else {})))

    register()
    peers = {name: Peer(server.address) for name, server in servers.items()}
    print("warming up", flush=True)
    for name in servers:
        for topic in (SMALL, WIDE):
            peers[name].keep_in_flight(route_query(topic), 64, 6.0)  # the JIT compiler needs some ten thousand calls
    print(f"\n{'route':8}{'in flight':>10}  {'server':8}{'requests/s':>12}{'CPU s per million':>20}")
    for topic in (SMALL, WIDE):
        for in_flight in (1, 64):
            register()  # keeps the brokers alive
            rates: dict[str, list[float]] = {name: [] for name in servers}
            costs: dict[str, list[float]] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, server in servers.items():
                    cpu, start = cpu_seconds(server), time.perf_counter()
                    count = peers[name].keep_in_flight(route_query(topic), in_flight, seconds)
                    rates[name].append(count / (time.perf_counter() - start))
                    costs[name].append((cpu_seconds(server) - cpu) / count * 1e6)
            for name in servers:
                rate, cost = statistics.median(rates[name]), statistics.median(costs[name])
                print(f"{topic:8}{in_flight:>10}  {name:8}{rate:>12,.0f}{cost:>20.1f}")
            if "real" in costs:
                ratio = statistics.median(costs["ours"]) / statistics.median(costs["real"])
                print(f"{'':20}CPU time, ours / real: {ratio:.2f}", flush=True)


def registrations(servers: dict[str, ServerProcess], brokers: int = 50, topics: int = 10_000) -> None:
    """50 brokers register 10,000 topics each, then register again unchanged."""
    table = {f"topic-{i:05}": 8 for i in range(topics)}
    frames = [registration(number, table) for number in range(brokers)]
    megabytes = sum(map(len, frames)) / 2**20
    print(f"\n{brokers} brokers register {topics:,} topics each ({megabytes:.0f} MiB)")
    print(f"{'server':8}{'first, s':>10}{'CPU, s':>9}{'again, s':>10}{'CPU, s':>9}{'RSS before':>12}{'after, MiB':>12}")
    for name, server in servers.items():
        peer = Peer(server.address)
        before = resident_mib(server)
        figures = []
        for _ in range(2):
            cpu, start = cpu_seconds(server), time.perf_counter()
            for frame in frames:
                peer.call(frame)
            figures += [time.perf_counter() - start, cpu_seconds(server) - cpu]
        known = len(topic_list(server.address))
        assert known >= topics, f"{name} knows {known} topics"
        print(
            f"{name:8}{figures[0]:>10.2f}{figures[1]:>9.2f}{figures[2]:>10.2f}{figures[3]:>9.2f}"
            f"{before:>12.0f}{resident_mib(server):>12.0f}",
            flush=True,
        )


def start_all(folder: Path, which: str) -> dict[str, ServerProcess]:
    servers: dict[str, ServerProcess] = {"ours": OwnNameserver(folder / "ours")}
    reason = available()
    if reason is None:
        servers["real"] = RealNameserver(folder / "real", version=V5, jvm=JVM)
    else:
        print(f"the real nameserver is left out: {reason}")
    for server in servers.values():
        server.start()
        server.wait_ready(f"{server.name} answers", 60, lambda at=server.address: answers(at))
    print(f"{which}: {', '.join(f'{name} {server.pid}' for name, server in servers.items())}", flush=True)
    return servers


def idle(folder: Path, runs: int = 10) -> None:
    """Start to the first answer, and memory once it has come, of our nameserver."""
    times, memories = [], []
    for run in range(runs):
        server = OwnNameserver(folder / f"idle-{run}")
        start = time.perf_counter()
        with server:
            server.wait_ready("the boot line", 30, lambda server=server: "boot success" in server.stdout, pause=0.002)
            times.append(time.perf_counter() - start)
            memories.append(resident_mib(server))
    print(
        f"\nstart to ready: median {statistics.median(times):.3f} s, best {min(times):.3f} s; "
        f"resident memory: {max(memories):.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one round (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each server, taken in turns (default 3)")
    parser.add_argument("--only", choices=["routes", "registration", "idle"], help="one part instead of all")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[dict[str, ServerProcess]], None]] = {
        "routes": lambda servers: routes(servers, arguments.seconds, arguments.rounds),
        "registration": registrations,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.only in (None, "idle"):
            idle(folder)
        for part, run in parts.items():
            if arguments.only not in (None, part):
                continue
            servers = start_all(folder / part, part)
            try:
                run(servers)
            finally:
                for server in servers.values():
                    server.kill()


if __name__ == "__main__":
    try:
        main()
    except Unavailable as reason:
        sys.exit(str(reason))
