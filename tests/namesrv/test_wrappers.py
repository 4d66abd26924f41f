"""The shell wrappers of bin/, as operators use them from a clone."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv" / ".cometmq-dev").exists(), reason="the wrappers use .venv, which scripts/test makes"
)


@pytest.fixture
def daemon(tmp_path):
    argv = ["sh", str(ROOT / "bin" / "mqnamesrv"), "-D", "listenPort=0", "-D", f"kvConfigPath={tmp_path}/kv.json"]
    with ServerProcess("mqnamesrv", argv, tmp_path) as process:
        process.wait_ready("its ready line", 30, lambda: "The Name Server boot success." in process.stdout)
        yield process


def test_mqnamesrv_is_the_process_itself(daemon):
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait(10) == 0


def test_mqshutdown_stops_it(daemon, tmp_path):
    # Only this daemon is shown to the wrapper: another one of the same user is none of a test's business.
    ps = tmp_path / "ps"
    ps.write_text(f"#!/bin/sh\nexec /bin/ps -p {daemon.pid} -o pid= -o comm= -o args=\n")
    ps.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", str(ROOT / "bin" / "mqshutdown"), "namesrv"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Send shutdown request to mqnamesrv({daemon.pid}) OK" in done.stdout
    assert daemon.wait(10) == 0
    again = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=20)
    assert (again.returncode, again.stderr) == (1, "mqshutdown: no mqnamesrv is running\n")


def test_mqshutdown_spares_what_only_names_the_daemon(tmp_path):
    """An editor, a grep, a shell that waits, a Python of another part: none of them is a nameserver."""
    others = [
        "11 vim vim notes about -m cometmq.namesrv today",
        "12 sh sh -c exec python -m cometmq.namesrv -c x",
        "13 grep grep /mqnamesrv",
        "14 python3 python3 -m cometmq.namesrv.other",
        "15 python3 python3 -m cometmq.broker",
        "16 python3 python3 /usr/bin/mqnamesrvx",
    ]
    ps = tmp_path / "ps"
    ps.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(others) + "\nEND\n")
    ps.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", str(ROOT / "bin" / "mqshutdown"), "namesrv"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stderr) == (1, "mqshutdown: no mqnamesrv is running\n")


def test_mqshutdown_wants_to_know_what_to_stop():
    command = ["sh", str(ROOT / "bin" / "mqshutdown"), "everything"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert "usage: mqshutdown namesrv | broker" in done.stderr
