"""`mqbroker` as a child process of a test, on free ports of 127.0.0.1 and with a store in its folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import broker_calls
from support.server_process import ServerProcess

COMMAND = (sys.executable, "-m", "cometmq.broker")
#: How long a start or an end may take on a busy machine.
SECONDS = 30.0


def clean_environ(home: Path) -> dict[str, str]:
    """A home of its own, and nothing of RocketMQ in the environment."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROCKETMQ", "NAMESRV"))}
    return {**clean, "HOME": str(home)}


class BrokerProcess(ServerProcess):
    """A broker. `settings` are keys of its configuration; `options` further arguments."""

    def __init__(self, folder: Path, *options: str, environ: Mapping[str, str] | None = None, **settings: str) -> None:
        self.store = folder / "store"
        given = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "broker-a",
            "storePathRootDir": str(self.store),
            "mappedFileSizeCommitLog": str(1 << 20),
            **settings,
        }
        definitions = [part for key, value in given.items() for part in ("-D", f"{key}={value}")]
        super().__init__(
            "mqbroker", (*COMMAND, *definitions, *options), folder, environ or clean_environ(folder / "home")
        )

    def ready(self, times: int = 1) -> str:
        """Its address, once it has said so often that it is ready."""

        def look() -> str | None:
            lines = [line for line in self.stdout.splitlines() if broker_calls.booted(line)]
            return lines[-1] if len(lines) >= times else None

        line = self.wait_ready("the ready line", SECONDS, look)
        found = broker_calls.booted(line)
        assert found
        return found[1]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.terminate(number)
        return self.wait(SECONDS)


def run(environ: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    argv: Sequence[str] = (*COMMAND, *options)
    return subprocess.run(argv, env=dict(environ), capture_output=True, text=True, timeout=SECONDS, check=False)
