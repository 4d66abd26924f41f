"""A6: a small web application with three ways to send, and a decorated listener that prints what it gets."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from cometmq.testing import EmbeddedBroker
from support.server_process import ServerProcess, free_port

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
EXAMPLE = Path(__file__).parents[2] / "examples" / "web_app.py"


def get(port: int, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return answer.status, answer.read().decode()


def answers(port: int) -> bool:
    try:
        get(port, "/nothing-here")
    except URLError as error:
        return getattr(error, "code", None) == 404
    return True


def create_topic(broker: EmbeddedBroker) -> None:
    argv = ["updateTopic", "-n", broker.nameserver, "-c", "DefaultCluster", "-t", "warn"]
    subprocess.run([sys.executable, "-m", "cometmq.admin", *argv], check=True, timeout=60)


async def test_a6_a_web_application_sends_and_listens(tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedBroker(config={"autoCreateTopicEnable": False}) as broker:
        await asyncio.to_thread(create_topic, broker)
        environ = {
            "NAMESRV_ADDR": broker.nameserver,
            "PORT": str(port),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with ServerProcess("web app", [sys.executable, str(EXAMPLE)], tmp_path, environ) as web:
            await asyncio.to_thread(web.wait_ready, "an answer", 60, lambda: answers(port))
            status, text = await asyncio.to_thread(get, port, "/warn/syncSend?msg=one")
            assert status == 200
            assert text.startswith("SEND_OK msgId=")
            assert await asyncio.to_thread(get, port, "/warn/asyncSend?msg=two") == (202, "accepted")
            assert await asyncio.to_thread(get, port, "/warn/sendOnewayMsg?msg=three") == (202, "gone")
            for word in ("one", "two", "three"):
                line = f"Received message: {word}\n"
                await asyncio.to_thread(web.wait_ready, line, 60, lambda line=line: line in web.stdout)
            await asyncio.to_thread(web.wait_ready, "the receipt", 60, lambda: "Sent: SEND_OK" in web.stdout)
            web.terminate(signal.SIGTERM)
            # uvicorn ends itself by the signal that it got, once the lifespan is over.
            assert await asyncio.to_thread(web.wait, 60) in (0, -signal.SIGTERM)
            assert "Application shutdown complete" in web.stderr
            assert "Traceback" not in web.stderr
