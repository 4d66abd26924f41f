"""Puts tests/ on the path, so that shared test code is importable as `support.x`."""

import sys
from pathlib import Path

from hypothesis import settings

TESTS = str(Path(__file__).parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

# A loaded machine must not make a property test fail, and a run must find what the run before it found.
settings.register_profile("cometmq", deadline=None, derandomize=True)
settings.load_profile("cometmq")
