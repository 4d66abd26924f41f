"""Puts tests/ on the path, so that shared test code is importable as `support.x`; what holds for the whole run."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

TESTS = str(Path(__file__).parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

from support.server_process import free_port  # noqa: E402 - from the path above

# Hundreds of Python processes are started here, most of them by Spark: none shall compile the same sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A loaded machine must not make a property test fail, and a run must find what the run before it found.
settings.register_profile("cometmq", deadline=None, derandomize=True)
settings.load_profile("cometmq")


def pytest_sessionstart() -> None:
    free_port()  # takes this process's ports now: a test that counts descriptors must not see that happen
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background by a shell. The processes under test would ignore Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
