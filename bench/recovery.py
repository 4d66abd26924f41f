"""The start of a store after kill -9, and after the loss of its queues and index, beside the real RocketMQ.

    scripts/bench recovery [--size 2048] [--rounds 3] [--folder DIR] [--only ours|queues]

One process of ours writes a log of so many MiB (1 KiB messages of a few queues, some in batches) and is killed. Then
both open copies of the same directory in turns, each in a fresh process, and are timed until they are ready to take
messages; the time that they need for an empty directory, most of it to start a JVM or Python, is shown beside it. All
files have been read before: the figures are about the programs, not about the disk. Last, a store with 10,000 queues.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.message_id import UniqueKeyGenerator, pack_host
from cometmq.protocol.properties import encode_properties
from support.real_rocketmq import BROKER_DEFAULTS, V5, Unavailable, available, install, write_properties
from support.server_process import ServerProcess, free_port

MIB = 1 << 20
BODY = bytes(range(256)) * 4
BORN = pack_host("192.0.2.2", 51_234)
TOPICS, QUEUES = ("Orders", "Payments"), 4
#: Singles of a turn; every eighth turn is a client batch of as many.
GATHER = 64
#: How long the checkpoint may lie behind, and RocketMQ's habit to go back three seconds further.
SETTLE_SECONDS, SLACK_SECONDS = 1.5, 3.5
#: The JVM as a user would run it; the tests' own flags keep it small and its compiler simple.
JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
START_SECONDS = 600
MANY_QUEUES = 10_000


def geometry(size: int) -> dict[str, str]:
    """Two files, as 2 GiB have with the default size; the other files have their defaults."""
    return {"mappedFileSizeCommitLog": str(size // 2)}


# What the children do


class Load:
    """Messages as a broker hands them in, one turn after the other."""

    def __init__(self) -> None:
        self._keys = UniqueKeyGenerator("192.0.2.2", 4711, 0x18B4AAC2)
        self._number = 0

    def _text(self, number: int, **more: str) -> bytes:
        return encode_properties({"UNIQ_KEY": self._keys(), "KEYS": f"order-{number}", "WAIT": "true", **more})

    def turn(self, store: Store, done: Callable[[Ticket], None]) -> None:
        turn = self._number // GATHER
        topic, queue_id = TOPICS[turn % len(TOPICS)], turn % QUEUES
        numbers = range(self._number, self._number + GATHER)
        self._number += GATHER
        added = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster", "TRACE_ON": "true"}
        if turn % 8 == 7:
            items = [BatchItem(0, BODY, self._text(number, TAGS="TagB")) for number in numbers]
            store.put_batch(
                Message(topic, queue_id, encode_batch(items), encode_properties(added), born_host=BORN), done
            )
            return
        for number in numbers:
            text = self._text(number, TAGS="TagA", **added)
            store.put(Message(topic, number % QUEUES, BODY, text, born_timestamp=1, born_host=BORN), done)


async def write(folder: str, size: int) -> None:
    """Fill a log up to a little less than `size` bytes and die."""
    store = Store(folder, StoreOptions.from_properties(geometry(size)), runner=AsyncioRunner())
    store.open()
    store.start()
    load = Load()
    paused = False

    def settled(ticket: Ticket) -> None:
        if ticket.status is not PutStatus.PUT_OK:
            raise SystemExit(f"{ticket.status}: {ticket.remark}")

    while (end := store.commit_log.max_offset) < size - 2 * MIB:
        load.turn(store, settled)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not paused and end > size // 2 + MIB:
            # A broker that has run for a while has its checkpoint in the last file.
            paused = True
            await asyncio.sleep(SLACK_SECONDS)
    for _ in range(2):
        load.turn(store, settled)
        await asyncio.sleep(SETTLE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


async def open_store(folder: str, size: int) -> None:
    """Open a store until it takes messages; tells what that was like."""
    began, cpu = time.perf_counter(), time.process_time()
    store = Store(folder, StoreOptions.from_properties(geometry(size) if size else {}), runner=AsyncioRunner())
    recovered = store.open()
    store.start()
    facts = {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "memory": psutil.Process().memory_info().rss,
        "files": psutil.Process().num_fds(),
        "queues": len(store.queues),
        "clean": recovered.clean,
        "read": recovered.end - recovered.start,
        "dispatched": recovered.dispatched,
    }
    print(json.dumps(facts), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


async def write_queues(folder: str, _: int) -> None:
    """Two messages in each of many queues, and a clean end."""
    store = Store(folder, StoreOptions(), runner=AsyncioRunner())
    store.open()
    store.start()
    for number in range(2 * MANY_QUEUES):
        topic, queue_id = divmod(number % MANY_QUEUES, 100)
        text = encode_properties({"UNIQ_KEY": f"{number:032d}"})
        store.put(Message(f"Topic{topic}", queue_id, b"x" * 100, text, born_host=BORN))
        if number % 1000 == 999:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    store.close()
    print("{}", flush=True)


ROLES = {"write": write, "open": open_store, "write-queues": write_queues}


def child(role: str, folder: Path, size: int) -> tuple[float, dict[str, float]]:
    """Run a role in a process; the seconds until it has told something, and what."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--role", role, "--folder", str(folder), "--size", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    if role != "write" and not line:
        raise SystemExit(f"the child that should {role} has failed")
    return seconds, json.loads(line) if line else {}


# The comparison


def copy(source: Path, target: Path) -> None:
    """A copy with its holes; what is there already stays the file that it is, the lock above all."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in target.iterdir():
        if entry.name not in ("lock", "abort.life"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in source.iterdir():
        if entry.name not in ("lock", "abort.life") or not (target / entry.name).exists():
            subprocess.run(["cp", "-r", "--sparse=always", str(entry), str(target)], check=True)


def lose_everything(folder: Path) -> None:
    """Without a checkpoint RocketMQ too reads from the first record on."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "checkpoint").unlink(missing_ok=True)


def open_ours(folder: Path, size: int) -> tuple[float, dict[str, float]]:
    return child("open", folder, size)


def open_real(folder: Path, size: int) -> tuple[float, dict[str, float]]:
    """RocketMQ's broker with this store: the seconds until it answers on its port."""
    home = folder.with_name(folder.name + "-home")
    port = free_port(-2, +1)
    config = {key: value for key, value in BROKER_DEFAULTS.items() if not key.startswith(("max", "mapped"))}
    config |= geometry(size) | {
        "brokerName": "bench",
        "brokerClusterName": "bench",
        "listenPort": str(port),
        "storePathRootDir": str(folder),
        "storePathCommitLog": str(folder / "commitlog"),
    }
    place = install(V5)
    file = write_properties(home / "broker.conf", config)
    argv = place.java("org.apache.rocketmq.broker.BrokerStartup", home, "-c", str(file), jvm=JVM)
    broker = ServerProcess("real broker", argv, home, {"ROCKETMQ_HOME": str(place.folder)})
    began = time.perf_counter()
    with broker:
        broker.wait_ready("answers", START_SECONDS, lambda: _answers(port), pause=0.005)
        return time.perf_counter() - began, {}


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def compare(place: Path, size: int, rounds: int, real: bool) -> None:
    origin = place / "origin"
    began = time.perf_counter()
    child("write", origin, size)
    print(f"a log of {size // MIB} MiB, written in {time.perf_counter() - began:.1f} s and left by kill -9")
    sound = place / "sound"
    copy(origin, sound)
    print(
        f"\n{'seconds until ready, the median of ' + str(rounds):44} {'ours':>8} {'RocketMQ':>9} {'ratio':>6}   ours:"
    )
    parts: dict[str, Callable[[Path], None] | None] = {
        "an empty directory": None,
        "after kill -9": lambda _: None,
        "after kill -9, a copy (as after a power loss)": lambda folder: (folder / "abort.life").unlink(missing_ok=True),
        "queues and index built anew": lose_everything,
    }
    for name, prepare in parts.items():
        ours: list[float] = []
        theirs: list[float] = []
        facts: dict[str, float] = {}
        for number in range(rounds):
            # The directory in which the process died is told from a copy of it.
            own = origin if name == "after kill -9" else place / "ours"
            _prepare(own, sound, prepare)
            seconds, facts = open_ours(own, size)
            ours.append(seconds)
            if real:
                folder = place / f"real-{number}"
                _prepare(folder, sound, prepare)
                try:
                    theirs.append(open_real(folder, size)[0])
                except RuntimeError as error:
                    # Somebody else has taken its port while it read the log.
                    if "BindException" not in str(error):
                        raise
                    print(f"{name}: a round of RocketMQ's failed, its port was taken", file=sys.stderr)
                shutil.rmtree(folder)
        mine = statistics.median(ours)
        its = statistics.median(theirs) if theirs else float("nan")
        note = f"{facts['read'] / MIB:,.0f} MiB read, {facts['dispatched']:,} dispatched, {facts['cpu']:.2f} s CPU"
        print(f"{name:44} {mine:8.2f} {its:9.2f} {mine / its:6.2f}   {note}", flush=True)


def _prepare(folder: Path, sound: Path, prepare: Callable[[Path], None] | None) -> None:
    if prepare is None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return
    copy(sound, folder)
    prepare(folder)


def many_queues(place: Path) -> None:
    folder = place / "queues"
    child("write-queues", folder, 0)
    _, empty = child("open", place / "none", 0)
    _, facts = child("open", folder, 0)
    print(
        f"\n{facts['queues']:,} queues after a clean end: {facts['seconds']:.2f} s to open (below 5),"
        f" {(facts['memory'] - empty['memory']) / MIB:.0f} MiB more than an empty store (below 200),"
        f" {facts['files'] - empty['files']} more open files (0)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="of the log, in MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the stores are made; a temporary directory")
    parser.add_argument(
        "--only", choices=("ours", "queues"), help="without the real RocketMQ, or the many queues alone"
    )
    parser.add_argument("--role", choices=tuple(ROLES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        asyncio.run(ROLES[options.role](str(options.folder), options.size))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        place = Path(temporary)
        if options.only != "queues":
            reason = available() if options.only is None else "only ours"
            if reason:
                print(f"without the real RocketMQ: {reason}")
            compare(place, options.size * MIB, options.rounds, real=not reason)
        many_queues(place)


if __name__ == "__main__":
    try:
        main()
    except Unavailable as error:
        sys.exit(str(error))
