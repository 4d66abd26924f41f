"""RocketMQ's own Java, Go and Node clients behind pipes: a command a line in, an answer in JSON a line out.

The programs are in tests/interop/java, go and node. They are built once into the cache of `real_rocketmq`, under a name
that holds the hash of their sources. Commands and answers are described at the top of Driver.java; `mq_client` has the
ones with options as methods.
"""

import contextlib
import functools
import hashlib
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from support.real_rocketmq import Unavailable, cache, install, locked

SOURCES = Path(__file__).parent.parent / "interop"
#: The first build of the Go program loads and compiles about twenty modules.
BUILD_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as its producer was told."""

    id: str
    broker: str
    queue: int
    offset: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message as a consumer saw it."""

    id: str
    broker: str
    queue: int
    offset: int
    tag: str
    body: str


class DriverError(Exception):
    """Is raised when the foreign client failed; the text is the client's."""


class LineDriver:
    """A running driver. One command at a time; several drivers may work side by side."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "stderr", "ab") as err:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                cwd=folder,
                env={**os.environ, "HOME": str(folder)},
                start_new_session=True,
            )
        # A reader of its own, because a pipe has no reading with a deadline. None is the end of stdout.
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"answers of {name}")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def produce(self, nameservers: str, topic: str, count: int, tag: str, seconds: float = 60) -> list[Sent]:
        """Sends `count` messages with the bodies TAG-0, TAG-1, ...; every one was answered SEND_OK."""
        answer = self._ask(f"produce {nameservers} {topic} {count} {tag}", seconds)
        sent: list[Sent] = []
        for one in answer.get("sent", []):
            if one.pop("status") != "SEND_OK":
                raise DriverError(f"{self.name}: not SEND_OK: {one}")
            sent.append(Sent(**one))
        return sent

    def consume(self, nameservers: str, group: str, topic: str, count: int, seconds: int = 30) -> list[Received]:
        """The first `count` messages that a push consumer of a group gets, or fewer when the time is over."""
        answer = self._ask(f"consume {nameservers} {group} {topic} {count} {seconds}", seconds + 30)
        return [Received(**one) for one in answer.get("messages", [])]

    def route(self, nameservers: str, topic: str, seconds: float = 30) -> set[tuple[str, int]]:
        """The queues (broker name, queue id) that a producer may write to."""
        answer = self._ask(f"route {nameservers} {topic}", seconds)
        return {(one["broker"], one["queue"]) for one in answer.get("queues", [])}

    def command(self, verb: str, patience: float = 60, **options: object) -> dict[str, Any]:
        """A command with options; None leaves one out."""
        words = [f"{key}={_plain(value)}" for key, value in options.items() if value is not None]
        return self._ask(" ".join((verb, *words)), patience)

    def _ask(self, command: str, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"{self.name} did not answer in {seconds} s: {command}\n{self._tail()}") from None
        if line is None:
            raise DriverError(f"{self.name} has ended: {command}\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise DriverError(f"{self.name}: {command}: {answer['error']}")
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _tail(self) -> str:
        return "\n".join((self.folder / "stderr").read_text(errors="replace").splitlines()[-20:])

    def close(self) -> None:
        """SIGKILL to its own pid; the clients' goodbyes are not waited for."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # a command that was never read
            self._process.stdin.close()
        self._process.stdout.close()


def _plain(value: object) -> str:
    return quote(str(value).lower() if isinstance(value, bool) else str(value), safe="")


#: The Java client looks for a new share of the queues every 20 s; a test does not wait that long.
IMPATIENT = ("-Drocketmq.client.rebalance.waitInterval=1000", "-Drocketmq.client.rebalance.minInterval=500")
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"


def java_argv(version: str, folder: Path, *, binary: bool = False) -> list[str]:
    """The command that runs the Java driver of a RocketMQ version, with JSON or binary headers."""
    place = install(version)
    classes = _build_java(version)
    argv = place.java("Driver", folder)
    argv[argv.index(place.classpath)] = f"{classes}{os.pathsep}{place.classpath}"
    argv[1:1] = [*IMPATIENT, *([BINARY] if binary else [])]
    return argv


def java_driver(version: str, folder: Path) -> LineDriver:
    """The Java client of a RocketMQ version."""
    return LineDriver(f"Java client {version}", java_argv(version, folder), folder)


def _build_java(version: str) -> Path:
    sources = sorted(file for file in (SOURCES / "java").glob("*.java") if file.name != "StoreClient.java")
    classes = cache() / f"java-driver-{version}-{_hash(*sources)}"
    with locked(f"java-driver-{version}"):
        if not classes.is_dir():
            partial = classes.with_name(classes.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = ["javac", "-nowarn", "-d", str(partial), "-cp", install(version).classpath, *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
            if done.returncode != 0:
                raise RuntimeError(f"the Java driver does not compile against {version}:\n{done.stderr}")
            partial.rename(classes)
    return classes


def go_driver(folder: Path) -> LineDriver:
    """The Go client. Unavailable says why there is none."""
    program = build_go()
    if isinstance(program, str):
        raise Unavailable(program)
    return LineDriver("Go client", [str(program)], folder)


@functools.cache
def build_go() -> Path | str:
    """The program, or the reason why it cannot be built. Tried once in a session, for it may take minutes to fail."""
    source = SOURCES / "go"
    files = sorted(source.glob("*.go"))
    program = cache() / f"go-driver-{_hash(*files, source / 'go.mod', source / 'go.sum')}"
    with locked("go-driver"):
        if program.exists():
            return program
        if shutil.which("go") is None:
            return "go is not installed, and the cache has no built driver"
        partial = program.with_name(program.name + ".partial")
        environ = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
        command = ["go", "build", "-buildvcs=false", "-o", str(partial), "."]
        try:
            done = subprocess.run(
                command, cwd=source, env=environ, capture_output=True, text=True, timeout=BUILD_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"go build took more than {BUILD_SECONDS} s"
        if done.returncode != 0:
            return "go build failed: " + " ".join(done.stderr.split()[-60:])
        partial.rename(program)
    return program


@functools.cache
def build_node() -> Path | str:
    """The folder with the Node driver and its client, or the reason why there is none."""
    source = SOURCES / "node"
    files = (source / "driver.js", source / "package.json")
    folder = cache() / f"node-driver-{_hash(*files)}"
    with locked("node-driver"):
        if folder.is_dir():
            return folder
        for tool in ("node", "npm"):
            if shutil.which(tool) is None:
                return f"{tool} is not installed, and the cache has no Node driver"
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for file in files:
            shutil.copy(file, partial)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(command, cwd=partial, capture_output=True, text=True, timeout=BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            return f"npm install took more than {BUILD_SECONDS} s"
        if done.returncode != 0:
            return "npm install failed: " + " ".join(done.stderr.split()[-60:])
        partial.rename(folder)
    return folder


def _hash(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
