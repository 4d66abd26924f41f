"""What Spark's Python processes have loaded when their work is done: each query starts a handful of them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.spark import native
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).parents[1] / "support" / "spark_process.py"

#: What none of them needs.
NOBODY = """
cometmq.daemon cometmq.remoting.server cometmq.remoting.tls cometmq.client.producer cometmq.client.server_requests
cometmq.client.consumer.push cometmq.client.consumer.pull cometmq.client.admin.admin cometmq.client.message
cometmq.protocol.requests.operations cometmq.protocol.bodies.by_code cometmq.protocol.bodies.registration
cometmq.protocol.binary_header cometmq.protocol.msgpack_header cometmq.protocol.fastjson_reader pandas difflib
"""
OF_ROLES = {
    "schema": "numpy pyarrow cometmq.spark.stream cometmq.client.consumer.pulling",
    "reader": "numpy pyarrow asyncio cometmq.client.client cometmq.remoting.client cometmq.spark.cluster",
    "runner": "cometmq.spark.decode cometmq.client.consumer.pulling cometmq.protocol.record",
    "worker": "cometmq.spark.options cometmq.spark.cluster cometmq.client.admin"
    + (" cometmq.spark.numpy_decoder cometmq.spark.irregular" if native.IS_BUILT else ""),
}


def loaded(role: str, folder: Path) -> set[str]:
    command = [sys.executable, str(SCRIPT), role, str(folder)]
    return set(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split())


def test_each_process_loads_what_it_needs(
    broker: EmbeddedBroker, topics: TopicKit, name: Callable[[str], str], tmp_path: Path
) -> None:
    topic = topics.made(name("T"), [20, 20])
    topics.fill(topic, {0: 5, 1: 5})  # by another client: hosts of producers differ
    options = {"nameServer": broker.nameserver, "subscribe": topic, "startingOffsets": "earliest"}
    (tmp_path / "options").write_text(json.dumps(options), encoding="utf-8")
    for role, unwanted in OF_ROLES.items():
        assert not loaded(role, tmp_path) & {*NOBODY.split(), *unwanted.split()}, role
    assert (tmp_path / "rows").read_text() == "50"
