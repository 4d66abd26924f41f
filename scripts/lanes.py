"""The whole suite in two lanes side by side: the tests wait most of their time, so two cores have room for both.

A lane is one run of pytest after another. Progress is shown as it comes, all else that pytest says when both lanes have
ended: runs that failed come last. Ctrl-C interrupts both, and their fixtures end what they have started.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

#: What pytest prints while tests run: a letter for each, and how far it is.
_PROGRESS = re.compile(r"[.sFExX]+( *\[ *\d+%\])?\n")
#: The exit code of a program that was ended by Ctrl-C.
INTERRUPTED = 130


class Run:
    """One run of pytest in a process of its own."""

    def __init__(self, name: str, *arguments: str, options: Sequence[str] = (), **environ: str) -> None:
        self.name = name
        self._argv = [sys.executable, *options, "-m", "pytest", "-q", *arguments]
        self._environ = environ
        self._process: subprocess.Popen[str] | None = None
        self.is_interrupted = False
        self.said: list[str] = []
        self.verdict = "did not run"

    def go(self) -> None:
        """Start it, show how far it is, keep what else it says."""
        begun = time.monotonic()
        self._process = subprocess.Popen(
            self._argv,
            env={**os.environ, **self._environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C reaches it once, through us: the second one would break off its clean-up
        )
        if self.is_interrupted:  # while it started
            self.interrupt()
        with self._process as process:
            assert process.stdout is not None
            for line in process.stdout:
                if _PROGRESS.fullmatch(line):
                    self._show(line.rstrip())
                else:
                    self.said.append(line)
        ending = "passed" if self.passed else f"FAILED with exit code {process.returncode}"
        self.verdict = f"{ending} after {time.monotonic() - begun:.0f} s"
        self._show(self.verdict)

    def _show(self, text: str) -> None:
        print(f"{self.name:>10} | {text}\n", end="", flush=True)  # in one piece: the other lane prints, too

    @property
    def passed(self) -> bool:
        return self._process is not None and self._process.returncode == 0

    def interrupt(self) -> None:
        """End it as Ctrl-C does; it will not begin if it has not."""
        self.is_interrupted = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)


def whole_suite(marks: str) -> list[list[Run]]:
    """Who runs beside whom: about half of the time in each. Spark and the foreign programs are in one, so that each
    starts once; what is done once more in asyncio's debug mode comes at the end of the other."""
    foreign = ("tests/spark", "tests/interop")
    debug = ("-m", "not slow and not interop and not spark", "tests/remoting", "tests/namesrv")
    return [
        [Run("foreign", "-m", marks, *foreign)],
        [
            Run("own", "-m", marks, *(f"--ignore={folder}" for folder in foreign)),
            Run("debug mode", *debug, options=("-X", "dev"), PYTHONASYNCIODEBUG="1"),
        ],
    ]


def run(lanes: Sequence[Sequence[Run]]) -> int:
    """Run the lanes side by side; the exit code."""
    runs = [each for lane in lanes for each in lane]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in runs:
            each.interrupt()

    def go(lane: Sequence[Run]) -> None:
        for each in lane:
            if not each.is_interrupted:
                each.go()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    threads = [threading.Thread(target=go, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in sorted(runs, key=lambda each: not each.passed):
        print(f"\n=== {each.name}\n", *each.said, sep="")
    for each in runs:
        print(f"{each.name:>10} | {each.verdict}")
    if any(each.is_interrupted for each in runs):
        return INTERRUPTED
    return 0 if all(each.passed for each in runs) else 1


if __name__ == "__main__":
    sys.exit(run(whole_suite(sys.argv[1])))
