"""A thousand connections, half of them sending and half waiting for messages: nothing is lost, doubled or kept.

The clients are a process of their own (`support/load_client.py`), and so is the broker. The rate is low: what is looked
at is not speed, and a loaded machine passes too.
"""

import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from support.cluster import OwnBroker
from support.server_process import wait_for
from support.wire import until

CLIENT = Path(__file__).parent.parent / "support" / "load_client.py"
PAIRS = 500
RATE = 1500
#: Bytes by which the broker may grow once all are connected: buffers of files and windows of figures.
GROWTH = 24 << 20


class Memory(threading.Thread):
    """Looks at the anonymous memory of a process each half second: maps of files are the kernel's to keep."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self.seen = []

    def run(self):
        while not self._over.wait(0.5):
            found = re.search(r"RssAnon:\s+(\d+) kB", self._status.read_text())
            self.seen.append(int(found[1]) << 10)

    def close(self):
        self._over.set()
        self.join()

    @property
    def growth(self):
        """From the first third, while everything is new, to the end."""
        third = len(self.seen) // 3
        return max(self.seen[2 * third :]) - max(self.seen[: third + 1])


def descriptors(pid):
    """What the open descriptors of a process lead to."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed while we look
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def sockets(pid):
    return sum(1 for place in descriptors(pid) if place.startswith("socket:"))


def load(address, seconds, pairs=PAIRS, rate=RATE):
    """What the clients report. They wait for as long as it takes; pytest's own limit ends what hangs."""
    argv = [sys.executable, str(CLIENT), address, f"--seconds={seconds}", f"--pairs={pairs}", f"--rate={rate}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def broker(tmp_path):
    process = OwnBroker(tmp_path, "127.0.0.1:1", {"mappedFileSizeCommitLog": str(64 << 20)})
    try:
        process.start()
        process.wait_ready("boot", 60, lambda: process.boot_line in process.stdout)
        yield process
    finally:
        process.kill()


def run(broker, seconds):
    before = sockets(broker.pid)
    memory = Memory(broker.pid)
    memory.start()
    try:
        report = load(broker.address, seconds)
    finally:
        memory.close()
    print(report, f"grew by {memory.growth >> 10} KiB to {memory.seen[-1] >> 20} MiB")
    assert report["problems"] == []
    assert report["received"] == report["acknowledged"] > PAIRS
    assert report["notices"] > 0
    assert memory.growth < GROWTH, [seen >> 20 for seen in memory.seen]
    # The clients have gone: so have their sockets. Files stay: those of the queues are kept for the next message.
    wait_for("sockets closed", 30, lambda: sockets(broker.pid) <= before)
    broker.terminate(signal.SIGTERM)
    assert broker.wait(60) == 0
    said = broker.stdout + broker.stderr
    for word in ("Traceback", "never retrieved", "was destroyed", "ResourceWarning", "never awaited"):
        assert word not in said, broker.tail(60)


@pytest.mark.timeout(300)
def test_a_thousand_connections_lose_nothing_and_leave_nothing(broker):
    run(broker, 20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_connections_for_minutes(broker):
    run(broker, 300)


@pytest.mark.timeout(120)
async def test_no_task_and_no_descriptor_is_left_after_shutdown(tmp_path):
    config = BrokerConfig().with_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(tmp_path / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
        }
    )
    await asyncio.to_thread(int)  # the loop's own thread pool is not the broker's
    gc.collect()
    tasks, files, threads = asyncio.all_tasks(), len(descriptors(os.getpid())), threading.active_count()
    broker = Broker(config)
    await broker.start()
    work = asyncio.create_task(asyncio.to_thread(load, broker.address, 3, pairs=50, rate=300))
    await until(lambda: broker.connection_count >= 100 or work.done())
    report = await work
    assert report["problems"] == []
    assert report["received"] == report["acknowledged"] > 0
    # One that is still there at the end, with a pull that waits.
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    await until(lambda: broker.connection_count == 1)
    await broker.close()
    writer.close()
    assert await reader.read() == b""
    del reader, writer
    gc.collect()
    assert asyncio.all_tasks() == tasks
    await until(lambda: len(descriptors(os.getpid())) <= files)
    await until(lambda: threading.active_count() <= threads)
