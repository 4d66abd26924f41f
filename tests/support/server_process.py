"""A server as a child process of a test: started, frozen, killed, and always ended.

Also here: waiting for a condition with a deadline, and free ports. Which program runs is told by the caller; nothing
here knows of RocketMQ or of CometMQ.
"""

import atexit
import functools
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

#: How often a condition is looked at. Short beside every deadline here, long beside one look.
POLL_SECONDS = 0.05


def wait_for(what: str, seconds: float, look: Callable[[], T | None], pause: float = POLL_SECONDS) -> T:
    """The first answer of `look` that is true. TimeoutError names `what` and the last answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"after {seconds} s still not: {what}; last seen: {answer!r}")
        time.sleep(pause)


#: A broker's fast port is two below its own, that of replication one above.
BELOW, ABOVE = 2, 1


class _Ports:
    """Ports for this process alone, below those that systems give by themselves (32768 and up, or 49152 and up).

    A port that the system has chosen and that is let go may be anybody's a moment later: that of a connection, or of a
    test in another process. Here each process has a block. The first port of a block is its lock: who has bound it owns
    the block, and the kernel lets go when the owner dies.
    """

    SIZE = 500
    BLOCKS = range(12_000, 32_000, SIZE)

    def __init__(self) -> None:
        self._lock, self._first = self._own_block()
        atexit.register(self._lock.close)
        self._next = self._first + 1

    def _own_block(self) -> tuple[socket.socket, int]:
        for first in random.sample(self.BLOCKS, len(self.BLOCKS)):
            lock = socket.socket()
            try:
                lock.bind(("127.0.0.1", first))
            except OSError:
                lock.close()
            else:
                return lock, first
        raise OSError(f"other processes have all {len(self.BLOCKS)} blocks of ports")

    def take(self) -> int:
        """The next one; the block is gone round before one is given again."""
        for _ in range(self.SIZE):
            if self._next + BELOW + ABOVE >= self._first + self.SIZE:
                self._next = self._first + 1
            begin, port = self._next, self._next + BELOW
            self._next = port + ABOVE + 1
            if all(_can_bind(each) for each in range(begin, self._next)):
                return port
        raise OSError(f"no free port is left in the block of {self._first}")


_ports = functools.cache(_Ports)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses, with unused neighbours for a broker's other ports."""
    return _ports().take()


def _can_bind(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ServerProcess:
    """One program with its folder. stdout and stderr go to files there and outlive a restart.

    The mutable state is `_process`: None before the first start and after a kill.
    """

    def __init__(self, name: str, argv: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.folder = folder
        self._argv = list(argv)
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the program; returns before it is ready."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already")
        with open(self.folder / "stdout", "ab") as out, open(self.folder / "stderr", "ab") as err:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=self._environ,
                start_new_session=True,  # a Ctrl-C for pytest is answered by the fixtures, not by each child
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.pid

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    def _text(self, name: str) -> str:
        file = self.folder / name
        return file.read_text(errors="replace") if file.exists() else ""

    def tail(self, lines: int = 20) -> str:
        """The end of what it printed, for the message of a failure."""
        return "\n".join((self.stdout + self.stderr).splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to its own pid, stopped or not, and reaped. Nothing when it has ended already."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """A signal that it may answer as it likes; `wait` waits for its end."""
        os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP: its connections stay open and nobody answers on them."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT. A running process is not harmed by it."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """The exit code, once it has ended by itself."""
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process.wait(seconds)

    def wait_ready(self, what: str, seconds: float, look: Callable[[], T | None], pause: float = POLL_SECONDS) -> T:
        """As `wait_for`; a program that ends meanwhile, or is too late, is told with the end of its output."""

        def look_alive() -> T | None:
            if not self.alive:
                raise RuntimeError(f"{self.name} ended before: {what}\n{self.tail()}")
            return look()

        try:
            return wait_for(what, seconds, look_alive, pause)
        except TimeoutError as error:
            raise TimeoutError(f"{self.name}: {error}\n{self.tail()}") from None
