"""`mqadmin` as processes: exit codes, pipes, a terminal, signals, and how soon it answers."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.testing import EmbeddedBroker

ROOT = Path(__file__).parents[2]
MQADMIN = [sys.executable, "-m", "cometmq.admin"]


def run(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    environ = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    return subprocess.run([*MQADMIN, *arguments], capture_output=True, text=True, timeout=100, env=environ)


def test_exit_codes_are_0_1_and_2(broker: EmbeddedBroker) -> None:
    fine = run("topicClusterList", "-t", "TBW102", "-n", broker.nameserver)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "DefaultCluster\n", "")
    failed = run("topicRoute", "-t", "NoTopic", "-n", broker.nameserver)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("mqadmin topicRoute: CODE: 17  DESC: ")
    wrong = run("topicRoute", "-n", broker.nameserver)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "mqadmin topicRoute: Missing option '-t' / '--topic'; see mqadmin topicRoute -h\n"


def test_help_needs_no_client_and_no_terminal_library() -> None:
    """Loading them would make every mistake on the command line a second slower."""
    code = (
        "import sys; from cometmq.admin.__main__ import main\n"
        "try: main(['-h'])\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name in ('rich', 'cometmq.client', 'cometmq.remoting')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_wrapper_in_bin_is_the_same_command() -> None:
    done = subprocess.run(["sh", str(ROOT / "bin" / "mqadmin"), "nosuch"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "The sub command nosuch not exist." in done.stderr


def test_reader_that_goes_away_is_no_error_with_a_traceback(broker: EmbeddedBroker) -> None:
    command = f"{shlex.quote(sys.executable)} -m cometmq.admin getBrokerConfig -b {broker.address} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("============")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are POSIX")
def test_terminal_gets_tables_drawn_for_people(broker: EmbeddedBroker) -> None:
    def shown(*arguments: str) -> str:
        import pty

        ours, theirs = pty.openpty()
        environ = {**os.environ, "COLUMNS": "160", "TERM": "xterm"}
        process = subprocess.Popen([*MQADMIN, *arguments, "-n", broker.nameserver], stdout=theirs, env=environ)
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
        os.close(ours)
        assert process.wait(100) == 0
        return text.decode()

    drawn = shown("topicStatus", "-t", "TBW102")
    assert "╭" in drawn
    assert "Broker Name" in drawn
    assert "#Broker Name" not in drawn
    assert "╭" in shown("topicRoute", "-t", "TBW102")
    assert "╭" in shown("allocateMQ", "-t", "TBW102", "-i", "a,b")
    plain = shown("topicStatus", "-t", "TBW102", "--plain")
    assert "╭" not in plain
    assert "#Broker Name  " in plain
    assert shown("topicList", "--json").lstrip().startswith("[")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_list_ends_cleanly_by_a_signal(broker: EmbeddedBroker, number: signal.Signals) -> None:
    command = [*MQADMIN, "clusterList", "-i", "0.1", "-n", broker.nameserver]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            seen = 0
            deadline = time.monotonic() + 60
            while seen < 2 and time.monotonic() < deadline:
                seen += process.stdout.readline().startswith("#Cluster Name")
            assert seen == 2
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
