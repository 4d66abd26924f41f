"""A1: the commands of RocketMQ's documents start a nameserver and a broker from a clone, and stop them.

`nohup sh bin/mqnamesrv &`, the log says boot success; `nohup sh bin/mqbroker -n localhost:9876 &`, the log says
`The broker[...] boot success`; then a message goes in, and `sh bin/mqshutdown` ends both.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cometmq.remoting.client import RemotingClient
from support import broker_calls
from support.broker_process import SECONDS, clean_environ
from support.server_process import free_port, wait_for

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv" / ".cometmq-dev").exists(), reason="the wrappers use .venv, which scripts/test makes"
)


class Shell:
    """An operator's shell: commands in the background, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = clean_environ(folder / "home")
        self.started: list[psutil.Process] = []

    def nohup(self, command: str, log: str) -> None:
        """`nohup COMMAND > LOG &`"""
        line = f"nohup {command} > {self.folder / log} 2>&1 & echo $!"
        done = subprocess.run(
            ["sh", "-c", line], cwd=ROOT, env=self.environ, capture_output=True, text=True, check=True, timeout=SECONDS
        )
        self.started.append(psutil.Process(int(done.stdout)))

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def shut_down(self, part: str, process: psutil.Process) -> str:
        # Only this daemon is shown to the wrapper: another one of the same user is none of a test's business.
        ps = self.folder / "ps"
        ps.write_text(f"#!/bin/sh\nexec /bin/ps -p {process.pid} -o pid= -o comm= -o args=\n")
        ps.chmod(0o755)
        environ = {**self.environ, "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}"}
        command = ["sh", "bin/mqshutdown", part]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=SECONDS
        )
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    for process in opened.started:
        if process.is_running():
            process.kill()


def test_nameserver_and_broker_start_and_stop_as_the_documents_say(shell: Shell) -> None:
    port = free_port()
    shell.nohup(f"sh bin/mqnamesrv -D listenPort={port}", "namesrv.log")
    ready = "The Name Server boot success. serializeType=JSON"
    wait_for("the nameserver", SECONDS, lambda: ready in shell.log("namesrv.log"))
    broker_port = free_port()
    shell.nohup(f"sh bin/mqbroker -n localhost:{port} -D listenPort={broker_port}", "broker.log")
    name, address = wait_for("the broker", SECONDS, lambda: broker_calls.booted(shell.log("broker.log")))
    assert f"boot success. serializeType=JSON and name server is localhost:{port}" in shell.log("broker.log")

    async def use() -> None:
        async with RemotingClient() as client:
            route = await broker_calls.routed(client, f"127.0.0.1:{port}", "TBW102")
            assert [data.broker_addrs for data in route.broker_datas] == [{0: address}]
            await broker_calls.sent(client, f"127.0.0.1:{broker_port}", "TopicTest", b"Hello RocketMQ")
            await broker_calls.routed(client, f"127.0.0.1:{port}", "TopicTest")

    asyncio.run(use())
    nameserver, broker = shell.started
    assert f"Send shutdown request to mqbroker({broker.pid}) OK" in shell.shut_down("broker", broker)
    wait_for("the end of the broker", SECONDS, lambda: not broker.is_running() or broker.status() == "zombie")
    assert not (Path(shell.environ["HOME"]) / "store" / "abort").exists()
    assert f"Send shutdown request to mqnamesrv({nameserver.pid}) OK" in shell.shut_down("namesrv", nameserver)
    wait_for(
        "the end of the nameserver", SECONDS, lambda: not nameserver.is_running() or nameserver.status() == "zombie"
    )
    assert name


def test_one_command_runs_both_and_one_line_says_where(shell: Shell) -> None:
    where = f"127.0.0.1:{free_port()}"
    shell.nohup(f"sh scripts/run -n {where} -D listenPort=0", "run.log")
    wait_for("the line", SECONDS, lambda: broker_calls.booted(shell.log("run.log")))
    (line,) = [line for line in shell.log("run.log").splitlines() if "boot success" in line]
    assert line.endswith(f"and name server is {where}")
    assert (Path(shell.environ["HOME"]) / ".cometmq" / "standalone").is_dir()
    shell.started[0].terminate()
    wait_for("its end", SECONDS, lambda: not shell.started[0].is_running() or shell.started[0].status() == "zombie")


def test_two_masters_on_one_machine(shell: Shell, tmp_path: Path) -> None:
    command = f"sh scripts/cluster conf/2m-noslave --nameservers 2 --free-ports --folder {tmp_path / 'cluster'}"
    shell.nohup(command, "cluster.log")
    wait_for("the cluster", 2 * SECONDS, lambda: "The cluster is ready" in shell.log("cluster.log"))
    wait_for("its table", SECONDS, lambda: "broker-b" in shell.log("cluster.log"))
    rows = [line.split() for line in shell.log("cluster.log").splitlines() if " ready " in line][-4:]
    assert [(row[0], row[3]) for row in rows] == [
        ("namesrv-1", "ready"),
        ("namesrv-2", "ready"),
        ("broker-a", "ready"),
        ("broker-b", "ready"),
    ]
    nameservers, brokers = [row[1] for row in rows[:2]], [row[1] for row in rows[2:]]

    async def use() -> None:
        async with RemotingClient() as client:
            for nameserver in nameservers:
                route = await broker_calls.routed(client, nameserver, "TBW102")
                assert {data.broker_name: data.broker_addrs[0] for data in route.broker_datas} == {
                    "broker-a": brokers[0],
                    "broker-b": brokers[1],
                }
            for broker in brokers:
                await broker_calls.sent(client, broker, "Both", b"x")

    asyncio.run(use())
    nodes = [psutil.Process(int(row[2])) for row in rows]
    nodes[3].kill()
    wait_for("the news", SECONDS, lambda: "ended (-9)" in shell.log("cluster.log"))
    shell.started[0].terminate()
    wait_for("the end of all", 2 * SECONDS, lambda: not any(node.is_running() for node in nodes))
    assert not (tmp_path / "cluster" / "broker-a" / "store" / "abort").exists()
    assert (tmp_path / "cluster" / "broker-b" / "store" / "abort").exists()
