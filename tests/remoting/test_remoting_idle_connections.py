"""10,000 connections that do nothing: they cost little memory, and everybody else is served."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support import idle_connections, plain_frames

COUNT = 10_000
SCRIPT = str(Path(idle_connections.__file__))

#: Memory of the server for a connection, on the average of those that asked once and those that never did (bytes).
#: Without the shared buffer it would be a multiple of it; the figure leaves room for allocators.
PER_CONNECTION = 6 * 1024

#: asyncio's debug mode keeps a traceback for each handle: that memory is not the server's.
PLAIN = {key: value for key, value in os.environ.items() if key != "PYTHONASYNCIODEBUG"}

pytestmark = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] not in range(12_000, 2**63)
    and resource.getrlimit(resource.RLIMIT_NOFILE)[1] != resource.RLIM_INFINITY,
    reason="the hard limit of file descriptors is below 12,000",
)


@contextmanager
def process(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A script that runs until its input ends."""
    with subprocess.Popen(
        [sys.executable, SCRIPT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=PLAIN
    ) as child:
        assert child.stdin is not None
        try:
            yield child
        finally:
            child.stdin.close()
            child.wait(20)
    assert child.returncode == 0


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("loop_name", ["uvloop", "asyncio"])
def test_idle_connections_cost_little_and_disturb_nobody(loop_name: str) -> None:
    with process("serve", loop_name) as server:
        port = int(line_of(server))

        def connections() -> int:
            return int(plain_frames.call(f"127.0.0.1:{port}", 106).body) - 1  # the asking one counts too

        assert connections() == 0
        memory = psutil.Process(server.pid)
        before = memory.memory_info().rss
        with process("open", str(port), str(COUNT)) as client:
            while connections() < COUNT / 2:  # another client is served while they come
                assert client.poll() is None
            assert line_of(client) == "open"
            assert connections() == COUNT
            for _ in range(100):  # each within the time that `call` allows
                assert connections() == COUNT
            growth = memory.memory_info().rss - before
            assert growth / COUNT < PER_CONNECTION, f"{growth / COUNT:.0f} bytes a connection"
        deadline = time.monotonic() + 10
        while connections():
            assert time.monotonic() < deadline
