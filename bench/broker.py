"""Our broker beside the real RocketMQ: sends, batches, pulls, sync flush, start and idle memory.

Both are started, pinned to the same core, and loaded in turns from the other one, so that a noisy neighbour hits both;
the one that is not measured is stopped meanwhile. The real one is warmed up first: its compiler needs some hundred
thousand messages. Rates, p50, p99 and processor time are medians over the rounds; the ratios are those of the rounds,
ours over the real one's.

    scripts/bench broker [--quick] [--only send,batch,pull,sync,start] [--rounds 5] [--count 100000] [--ours-only]

Targets: single sends 2.5 at 64 in flight and 3.5 at 1,024; pulls 1.8; sync flush 3; batches 1.3; processor time of a
message at most 40 %; p99 at 64 in flight no higher.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from load import create_topic, send_frame

from support.plain_frames import answers
from support.real_rocketmq import V5, RealNameserver, available, install, write_properties
from support.server_process import ServerProcess, free_port, wait_for

BROKER_CORE, LOAD_CORE = 0, 1
QUEUES = 8
#: The JVM as a user runs it, with the collector that fits one core.
JVM = ("-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:+UseSerialGC")
#: Messages before anything is measured: the real broker's code is compiled by then.
WARM_UP = 400_000
#: For both. Cores that are shared with others shall make them slow; nobody shall be refused for it.
CONFIG = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "osPageCacheBusyTimeOutMills": "30000",
    "diskMaxUsedSpaceRatio": "95",
    "autoCreateTopicEnable": "true",
}


class OurBroker(ServerProcess):
    """`python -m cometmq.broker` on one core."""

    label = "ours"

    def __init__(self, folder: Path, config: Mapping[str, str]) -> None:
        port = free_port(-2, 1)
        self.address = f"127.0.0.1:{port}"
        root = {"storePathRootDir": str(folder / "store"), "listenPort": str(port)}
        file = write_properties(folder / "broker.conf", CONFIG | root | dict(config))
        command = ["taskset", "-c", str(BROKER_CORE), sys.executable, "-m", "cometmq.broker", "-c", str(file)]
        super().__init__("our broker", command, folder)


class RealBroker(ServerProcess):
    """RocketMQ 5.3.3 on the same core, with its own defaults for everything that is not in `CONFIG`."""

    label = "real"

    def __init__(self, folder: Path, config: Mapping[str, str], nameserver: str) -> None:
        port = free_port(-2, 1)
        self.address = f"127.0.0.1:{port}"
        root = {
            "storePathRootDir": str(folder / "store"),
            "storePathCommitLog": str(folder / "store" / "commitlog"),
            "listenPort": str(port),
            "namesrvAddr": nameserver,
        }
        file = write_properties(folder / "broker.conf", CONFIG | root | dict(config))
        place = install(V5)
        java = place.java("org.apache.rocketmq.broker.BrokerStartup", folder, "-c", str(file))
        options = [each for each in java[1:] if not each.startswith(("-Xm", "-XX:"))]
        command = ["taskset", "-c", str(BROKER_CORE), "java", *JVM, *options]
        super().__init__("real broker", command, folder, {"ROCKETMQ_HOME": str(place.folder)})


def accepts(broker: OurBroker | RealBroker) -> bool:
    """Whether it takes a message."""
    import socket

    host, port = broker.address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), 2) as connection:
            connection.settimeout(2)
            connection.sendall(send_frame(1, "StartTopic", 1, 64))
            return connection.recv(65536)[8:18] == b'{"code":0,'
    except OSError:
        return False


#: The figures of each broker, round by round.
Runs = dict[str, list[dict[str, float]]]


def load(broker: OurBroker | RealBroker, **options: object) -> dict[str, float]:
    """One run of bench/load.py."""
    command = [sys.executable, str(Path(__file__).with_name("load.py")), "--address", broker.address]
    command += ["--pid", str(broker.pid), "--core", str(LOAD_CORE), "--queues", str(QUEUES)]
    for key, value in options.items():
        command += [f"--{key.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2 or not done.stdout:
        raise RuntimeError(f"the load failed: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout)
    if figures["errors"]:
        print(f"  {broker.label}: errors {figures['errors']} {figures['remark']}", flush=True)
    return figures


class Table:
    """The figures of all sections."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []
        print(
            f"{'section':34}{'broker':>7}{'messages/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'CPU s/million':>15}", flush=True
        )

    def add(self, section: str, runs: Runs) -> None:
        """A section with the rounds of each broker, in the order in which they ran."""
        middle: dict[str, dict[str, float]] = {}
        for label, figures in runs.items():
            keys = ("rate", "p50_ms", "p99_ms", "cpu_s_per_million")
            middle[label] = {key: statistics.median(each[key] for each in figures) for key in keys}
            row = middle[label]
            print(
                f"{section:34}{label:>7}{row['rate']:12,.0f}{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}"
                f"{row['cpu_s_per_million']:15.2f}",
                flush=True,
            )
        if len(runs) == 2:
            pairs = list(zip(runs["ours"], runs["real"], strict=True))
            ratios = {
                key: statistics.median(ours[key] / real[key] for ours, real in pairs if real[key])
                for key in ("rate", "p99_ms", "cpu_s_per_million")
            }
            spread = sorted(ours["rate"] / real["rate"] for ours, real in pairs)
            print(
                f"{section:34}{'ratio':>7}{ratios['rate']:12.2f}{'':9}{ratios['p99_ms']:9.2f}"
                f"{ratios['cpu_s_per_million']:15.2f}   (rates from {spread[0]:.2f} to {spread[-1]:.2f})",
                flush=True,
            )
        self.rows.append({"section": section, **middle})


def interleaved(
    brokers: list[OurBroker | RealBroker], rounds: int, **options: object
) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {broker.label: [] for broker in brokers}
    for _ in range(rounds):
        for broker in brokers:
            with stopped([other for other in brokers if other is not broker]):
                runs[broker.label].append(load(broker, **options))
    return runs


@contextmanager
def stopped(brokers: list[OurBroker | RealBroker]) -> Iterator[None]:
    """The core belongs to the one that is measured: threads of a waiting Java broker would take half of it at times."""
    for broker in brokers:
        os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for broker in brokers:
            os.kill(broker.pid, signal.SIGCONT)


def sends(table: Table, brokers: list[OurBroker | RealBroker], count: int, rounds: int) -> None:
    for body in (128, 1024):
        for in_flight, connections in ((1, 1), (64, 1), (1024, 16)):
            size = max(1000, count // 10) if in_flight == 1 else count
            runs = interleaved(
                brokers, rounds, mode="send", body=body, in_flight=in_flight, connections=connections, count=size
            )
            table.add(f"send {body} B, {in_flight} in flight", runs)


def batches(table: Table, brokers: list[OurBroker | RealBroker], count: int, rounds: int) -> None:
    options = {"mode": "batch", "topic": "BenchBatch", "body": 128, "batch": 32, "in_flight": 8}
    for broker in brokers:
        create_topic(broker.address, "BenchBatch", QUEUES)
        load(broker, **options, count=count)
    table.add("batches of 32, 128 B, 8 in flight", interleaved(brokers, rounds, **options, count=count * 4))


def pulls(table: Table, brokers: list[OurBroker | RealBroker], count: int, rounds: int) -> None:
    for broker in brokers:
        create_topic(broker.address, "BenchPull", QUEUES)
        load(broker, mode="send", topic="BenchPull", body=1024, in_flight=256, connections=4, count=count)
    options = {"mode": "pull", "topic": "BenchPull", "batch": 32, "count": count - 32 * QUEUES}
    for broker in brokers:
        for _ in range(4 if broker.label == "real" else 1):
            load(broker, **options)
    table.add("pulls of 32, 1 KiB, 8 in flight", interleaved(brokers, rounds, **options))


def sync_flush(table: Table, brokers: list[OurBroker | RealBroker], count: int, rounds: int) -> None:
    options = {"mode": "send", "body": 1024, "in_flight": 256, "connections": 4}
    for broker in brokers:
        create_topic(broker.address, "BenchTopic", QUEUES)
        load(broker, **options, count=count if broker.label == "ours" else max(count, WARM_UP // 4))
    table.add("sync flush, 1 KiB, 256 in flight", interleaved(brokers, rounds, **options, count=count // 2))


def started(broker: OurBroker | RealBroker) -> float:
    """Starts it; the seconds until it takes a message."""
    began = time.perf_counter()
    broker.start()
    wait_for(f"{broker.name} takes a message", 120, lambda: accepts(broker) or not broker.alive, pause=0.02)
    if not broker.alive:
        raise RuntimeError(f"{broker.name} ended: {broker.tail()}")
    return time.perf_counter() - began


def report_start(brokers: list[OurBroker | RealBroker], seconds: dict[str, float]) -> None:
    """Start to the first accepted message, and memory when nothing was done yet."""
    for broker in brokers:
        memory = psutil.Process(broker.pid).memory_info().rss / 2**20
        print(f"start to first message: {broker.label} {seconds[broker.label]:.2f} s; memory then {memory:.0f} MiB")


def run(options: argparse.Namespace, folder: Path) -> None:
    only = set(options.only.split(","))
    table = Table()
    nameserver = None
    if not options.ours_only:
        nameserver = RealNameserver(folder / "namesrv", jvm=("-Xms128m", "-Xmx256m"))
        nameserver.start()
        wait_for("the nameserver answers", 60, lambda: answers(nameserver.address))

    def pair(name: str, config: Mapping[str, str]) -> list[OurBroker | RealBroker]:
        pair: list[OurBroker | RealBroker] = [OurBroker(folder / f"ours-{name}", config)]
        if nameserver is not None:
            pair.append(RealBroker(folder / f"real-{name}", config, nameserver.address))
        return pair

    try:
        if only & {"send", "batch", "pull", "start"}:
            measure_async(options, only, table, pair("async", {"flushDiskType": "ASYNC_FLUSH"}))
        if "sync" in only:
            brokers = pair("sync", {"flushDiskType": "SYNC_FLUSH"})
            try:
                for broker in brokers:
                    started(broker)
                sync_flush(table, brokers, options.count, options.rounds)
            finally:
                for broker in brokers:
                    broker.kill()
    finally:
        if nameserver is not None:
            nameserver.kill()
    if options.json:
        Path(options.json).write_text(json.dumps(table.rows, indent=1))


def measure_async(
    options: argparse.Namespace, only: set[str], table: Table, brokers: list[OurBroker | RealBroker]
) -> None:
    try:
        seconds = {broker.label: started(broker) for broker in brokers}
        if "start" in only:
            report_start(brokers, seconds)
        if not only & {"send", "batch", "pull"}:
            return
        for broker in brokers:
            create_topic(broker.address, "BenchTopic", QUEUES)
            warm_up = options.warm_up if broker.label == "real" else min(options.warm_up, 20_000)
            load(broker, mode="send", body=1024, in_flight=256, connections=4, count=warm_up)
        if "send" in only:
            sends(table, brokers, options.count, options.rounds)
        if "batch" in only:
            batches(table, brokers, options.count, options.rounds)
        if "pull" in only:
            pulls(table, brokers, options.count, options.rounds)
    finally:
        for broker in brokers:
            broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="start,send,batch,pull,sync", help="sections, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100_000, help="messages of a round")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="messages for the real broker's compiler")
    parser.add_argument("--quick", action="store_true", help="small counts, for a first look")
    parser.add_argument("--ours-only", action="store_true", help="without the real broker")
    parser.add_argument("--json", help="write the figures to this file too")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.count = 3, 20_000
    if not options.ours_only and (reason := available()) is not None:
        print(f"the real RocketMQ cannot be run here ({reason}): ours only")
        options.ours_only = True
    if os.cpu_count() == 1:
        sys.exit("two cores are needed: one for the broker, one for the load")
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
