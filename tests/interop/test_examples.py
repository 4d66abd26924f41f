"""The examples that the README shows: RocketMQ's own clients send a first message to our broker and receive it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cometmq.testing import EmbeddedBroker
from support.real_rocketmq import V5, install

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(broker: EmbeddedBroker, folder: Path, *argv: str) -> list[str]:
    environ = {**os.environ, "NAMESRV_ADDR": broker.nameserver}
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("sent", "received"))]


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain")
def test_go(cometmq_broker: EmbeddedBroker) -> None:
    sent, received = run(cometmq_broker, EXAMPLES / "go", "go", "run", ".")
    assert received == f"received {sent.removeprefix('sent ')}: hello from Go"


@pytest.mark.usefixtures("rocketmq")
def test_java(cometmq_broker: EmbeddedBroker) -> None:
    source = "src/main/java/FirstMessage.java"
    sent, received = run(cometmq_broker, EXAMPLES / "java", "java", "-cp", install(V5).classpath, source)
    assert received == f"received {sent.removeprefix('sent ')}: hello from Java"
