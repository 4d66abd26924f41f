"""Writers in processes of their own (see `crash_writer`), and their violent deaths."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import crash_writer

#: So many acknowledgements a writer lives for, at least and at most; what it says within MOMENT seconds comes on top.
#: By count and not by time: a fast machine would write more than the checks can look at, a busy one nothing at all.
ACKNOWLEDGED = (1, 60)
MOMENT = 0.003
#: Longest time for a step of a writer, in seconds. A recovery syncs many files: on a disk that others keep busy each of
#: them may take a second. This is for a writer that hangs, not for a slow one.
PATIENCE = 300


class Nursery:
    """The process that makes writers, and the end of the pipe that it writes to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(crash_writer.__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._rest = b""
        #: Lines that came with those that were asked for.
        self._coming: list[bytes] = []

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0
        self._process.stdout.close()

    def kill_one(
        self,
        folder: Path,
        first: int,
        properties: dict[str, str],
        dice: random.Random,
        *,
        load: tuple[float, float] | None = None,
    ) -> list[bytes]:
        """A writer from its birth to its death at some moment; gives what it said.

        `load`: it is under load for so many seconds, from and to; else for a few acknowledgements, or it dies while it
        opens the store.
        """
        assert self._process.stdin is not None
        order = [str(folder), str(first), *(f"{key}={value}" for key, value in properties.items())]
        self._process.stdin.write(" ".join(order).encode() + b"\n")
        self._process.stdin.flush()
        pid = int(self._lines(until=b"pid ")[-1].split()[1])
        said: list[bytes] = []
        try:
            if load is not None or dice.random() < 0.85:
                said += self._lines(until=b"ready")
                self._await_acknowledgements(said, dice.randint(*ACKNOWLEDGED))
                self._listen(said, dice.uniform(*(load or (0, MOMENT))))
            else:
                # While it opens the store.
                self._listen(said, dice.uniform(0, 0.02))
        finally:
            if not any(line.startswith(b"dead") for line in said):
                os.kill(pid, signal.SIGKILL)
                said += self._lines(until=b"dead")
        assert said[-1] == b"dead -9", said[-1]
        return said

    def _await_acknowledgements(self, said: list[bytes], count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while sum(line[:1].isdigit() for line in said) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"no {count} acknowledgements within {PATIENCE} s"
            said += self._read(left)

    def _listen(self, said: list[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            said += self._read(left)

    def _lines(self, until: bytes) -> list[bytes]:
        """The lines to the first one that begins so, or to the end of the writer."""
        lines: list[bytes] = []
        deadline = time.monotonic() + PATIENCE
        while True:
            left = deadline - time.monotonic()
            assert left > 0, f"no line {until!r} within {PATIENCE} s"
            came = self._read(left)
            for number, line in enumerate(came, 1):
                if line.startswith((until, b"dead")):
                    self._coming = came[number:]
                    return lines + came[:number]
            lines += came

    def _read(self, seconds: float) -> list[bytes]:
        if self._coming:
            came, self._coming = self._coming, []
            return came
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return []
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        assert data, "the nursery has died"
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
