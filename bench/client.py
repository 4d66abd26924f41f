"""The SDK: awaited sends, batches, accumulation and push consumption on one core, beside other clients of one broker.

The broker runs on one core and the client on another, all clients against the same broker in one run, in turns, so that
a noisy neighbour hits all of them. Rates are medians over the rounds; processor time a message is the client's own and
holds on a busy machine too. Sends of ours are also measured beside a peer that answers at once and stores nothing
("no store"): what the client could do if its broker kept up. Clients that this machine cannot have (Java, Go, the C++
one in a wheel) are left out, with the reason.

    scripts/bench client [--only send,batch,accumulate,push,iterate,import] [--rounds 3] [--count 40000] [--ours-only]
                         [--loop uvloop|asyncio] [--profile send-256]

Targets on one core: 80,000 awaited sends/s with 256 in flight, 250,000/s batched or accumulated, 100,000 consumed/s
through a handler that does nothing, `import cometmq` in 150 ms.
"""

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
sys.path.insert(0, str(HERE))

BROKER_CORE, CLIENT_CORE = 0, 1
TOPIC, QUEUES = "BenchClient", 8
BODY = 1024
SECTIONS = ("send-1", "send-64", "send-256", "batch", "accumulate", "push", "iterate")


# What one client does, in a process of its own: `python bench/client.py --child SECTION ADDRESS COUNT LOOP`.


async def _workers(count: int, workers: int, one: Callable[[], Awaitable[object]]) -> None:
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    await asyncio.gather(*(work() for _ in range(workers)))


async def _measured(count: int, work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    cpu, began = os.times(), time.perf_counter()
    await work()
    took, after = time.perf_counter() - began, os.times()
    user, system = after.user - cpu.user, after.system - cpu.system
    return {"rate": count / took, "cpu_us": (user + system) / count * 1e6, "system_us": system / count * 1e6}


async def _run(section: str, nameserver: str, count: int) -> dict[str, float]:
    from cometmq.client import connect

    body = bytes(BODY)
    kind, _, number = section.partition("-")
    async with connect(nameserver) as mq:
        if kind in ("push", "iterate"):
            return await _consume(mq, kind, count)
        options = {"accumulate": True} if kind == "accumulate" else {}
        async with mq.producer("PG_bench", send_timeout=30, **options) as producer:
            await producer.send(TOPIC, body)
            if kind == "batch":
                messages = [body] * 64
                send: Callable[[], Awaitable[object]] = lambda: producer.send_batch(TOPIC, messages)  # noqa: E731
                await _workers(20, 4, send)
                return await _measured(count, lambda: _workers(count // 64, 4, send))
            in_flight = int(number) if number else 1024
            send = lambda: producer.send(TOPIC, body)  # noqa: E731
            await _workers(in_flight * 4, in_flight, send)
            return await _measured(count, lambda: _workers(count, in_flight, send))


async def _consume(mq: Any, kind: str, count: int) -> dict[str, float]:
    """The rate between the first and the last message: the start of a consumer is not what is measured."""
    seen = 0
    cpu = began = 0.0
    done = asyncio.get_running_loop().create_future()

    def count_one() -> None:
        nonlocal seen, cpu, began
        seen += 1
        if seen == 1:
            cpu, began = time.process_time(), time.perf_counter()
        elif seen == count and not done.done():
            done.set_result((time.process_time() - cpu, time.perf_counter() - began))

    group = f"CG_bench_{os.getpid()}"
    if kind == "push":

        async def handler(message: Any) -> None:
            count_one()

        async with mq.push_consumer(group, {TOPIC: "*"}, handler, start_from="first"):
            used, took = await done
    else:
        async with mq.push_consumer(group, {TOPIC: "*"}, start_from="first", concurrency=64) as consumer:
            async for message in consumer:
                async with message.process():
                    count_one()
                if done.done():
                    break
            used, took = done.result()
    return {"rate": count / took, "cpu_us": used / count * 1e6}


def child(section: str, nameserver: str, count: int, loop: str, profile: bool) -> None:
    os.sched_setaffinity(0, {CLIENT_CORE})
    if loop == "uvloop":
        import uvloop

        factory: Any = uvloop.new_event_loop
    else:
        factory = asyncio.new_event_loop
    profiler = cProfile.Profile() if profile else None
    with asyncio.Runner(loop_factory=factory) as runner:
        if profiler:
            profiler.enable()
        figures = runner.run(_run(section, nameserver, count))
    if profiler:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    print(json.dumps(figures))


# The run


class Ours:
    def __init__(self, loop: str, profile: str = "") -> None:
        self.name = f"ours ({loop})"
        self._loop = loop
        self._profile = profile

    def run(self, section: str, nameserver: str, count: int) -> dict[str, float] | None:
        command = [sys.executable, __file__, "--child", section, nameserver, str(count), self._loop]
        if self._profile == section:
            command.append("--profile-child")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def close(self) -> None: ...


class WithoutStore(Ours):
    """Ours beside a peer that stores nothing: sends only."""

    def __init__(self, loop: str, peer: str) -> None:
        super().__init__(loop)
        self.name = f"ours ({loop}), no store"
        self._peer = peer

    def run(self, section: str, nameserver: str, count: int) -> dict[str, float] | None:
        return None if section in ("push", "iterate") else super().run(section, self._peer, count)


class Foreign:
    """A program that takes `SECTION NAMESERVER TOPIC COUNT` a line and answers with a line of JSON."""

    def __init__(self, name: str, command: list[str], folder: Path, sections: tuple[str, ...]) -> None:
        self.name = name
        self._sections = sections
        self._process = subprocess.Popen(
            ["taskset", "-c", str(CLIENT_CORE), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(folder / f"{name}.stderr", "wb"),  # noqa: SIM115 - the process has it
            text=True,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
        )

    def run(self, section: str, nameserver: str, count: int) -> dict[str, float] | None:
        if section not in self._sections or self._process.poll() is not None:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{section} {nameserver} {TOPIC} {count}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            print(f"  {self.name}: {section} failed: {line.strip()}", flush=True)
            return None
        figures: dict[str, float] = json.loads(line)
        return figures

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def foreign_clients(folder: Path) -> list[Foreign]:
    """Those that can be had here."""
    from client_peers import cpp_client, go_client, java_client

    found: list[Foreign] = []
    for make in (java_client, go_client, cpp_client):
        peer, reason = make(folder)
        if peer is None:
            print(f"left out: {reason}", flush=True)
        else:
            found.append(Foreign(*peer))
    return found


def fill(nameserver: str, count: int) -> None:
    subprocess.run(
        [sys.executable, __file__, "--child", "batch", nameserver, str(count), "asyncio"],
        stdout=subprocess.DEVNULL,
        check=True,
    )


def report_import() -> None:
    code = (
        "import time; a = time.perf_counter(); import cometmq; b = time.perf_counter();"
        "from cometmq.client import connect; print(b - a, time.perf_counter() - a)"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True) for _ in range(5)]
    times = [tuple(map(float, run.stdout.split())) for run in runs]
    bare, sdk = (min(each[i] for each in times) * 1000 for i in (0, 1))
    print(f"import cometmq: {bare:.0f} ms; with the SDK: {sdk:.0f} ms (best of 5)", flush=True)


def run(options: argparse.Namespace, folder: Path) -> None:
    from broker import CONFIG, write_properties
    from support.server_process import ServerProcess, free_port, wait_for

    only = options.only.split(",")
    if "import" in only:
        report_import()
    port = free_port(-2, 1)
    nameserver = f"127.0.0.1:{free_port()}"
    settings = CONFIG | {"listenPort": str(port), "traceTopicEnable": "false"}
    file = write_properties(folder / "broker.conf", settings)
    command = ["taskset", "-c", str(BROKER_CORE), sys.executable, "-m", "cometmq.broker", "--standalone"]
    broker = ServerProcess(
        "broker", [*command, "-n", nameserver, "-c", str(file), "--store", str(folder / "store")], folder
    )
    peer_port = free_port()
    peer_command = ["taskset", "-c", str(BROKER_CORE), sys.executable, str(HERE / "storeless.py")]
    peer = ServerProcess("storeless", [*peer_command, str(peer_port), str(QUEUES)], folder)
    clients: list[Any] = []
    try:
        peer.start()
        broker.start()
        wait_for("the peer without a store is up", 60, lambda: "up" in peer.stdout)
        wait_for("the broker is up", 60, lambda: "boot success" in broker.stdout)
        from load import create_topic

        create_topic(f"127.0.0.1:{port}", TOPIC, QUEUES)
        loops = options.loop.split(",")
        clients = [Ours(loop, options.profile) for loop in loops]
        clients += [WithoutStore(loop, f"127.0.0.1:{peer_port}") for loop in loops]
        if not options.ours_only:
            clients += foreign_clients(folder)
        fill(nameserver, options.count * 2)
        print(f"{'section':14}{'client':>26}{'messages/s':>14}{'CPU us/message':>16}{'rate / ours':>13}", flush=True)
        for section in SECTIONS:
            if section.partition("-")[0] in only or section in only:
                measure(section, clients, nameserver, options)
    finally:
        for client in clients:
            client.close()
        broker.kill()
        peer.kill()


def measure(section: str, clients: list[Any], nameserver: str, options: argparse.Namespace) -> None:
    count = max(1000, options.count // 10) if section == "send-1" else options.count
    runs: dict[str, list[dict[str, float]]] = {client.name: [] for client in clients}
    for _ in range(options.rounds):
        for client in clients:
            figures = client.run(section, nameserver, count)
            if figures is not None:
                runs[client.name].append(figures)
    first = 0.0
    for name, figures_of in runs.items():
        if figures_of:
            rate = statistics.median(each["rate"] for each in figures_of)
            cpu = min(each["cpu_us"] for each in figures_of)
            first = first or rate
            print(f"{section:14}{name:>26}{rate:14,.0f}{cpu:16.1f}{rate / first:13.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="import,send,batch,accumulate,push,iterate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=40_000, help="messages of a round")
    parser.add_argument("--loop", default="uvloop,asyncio", help="loops of ours, separated by commas")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--profile", default="", help="a section whose profile goes to stderr")
    parser.add_argument("--child", nargs=4, metavar=("SECTION", "NAMESERVER", "COUNT", "LOOP"), help=argparse.SUPPRESS)
    parser.add_argument("--profile-child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        section, nameserver, count, loop = options.child
        child(section, nameserver, int(count), loop, options.profile_child)
        return
    if (os.cpu_count() or 1) < 2:
        sys.exit("two cores are needed: one for the broker, one for the client")
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
