"""A RocketMQ client of another language as an object: producers, consumers and admin commands of one driver process.

The names of clients: `java-5.3.3`, `java-5.3.3-bin` (binary headers), `java-4.9.7`, `java-4.9.7-bin`, `go`, `node`.
What is sent and seen are plain values; nothing is judged here but SEND_OK.
"""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.line_driver import DriverError, LineDriver, build_go, build_node, java_argv
from support.real_rocketmq import V4, V5, Unavailable

JAVA = f"java-{V5}"
JAVA_BIN = f"java-{V5}-bin"
OLD_JAVA = f"java-{V4}"
OLD_JAVA_BIN = f"java-{V4}-bin"
GO = "go"
NODE = "node"
ALL_CLIENTS = (JAVA, JAVA_BIN, OLD_JAVA, OLD_JAVA_BIN, GO, NODE)


@dataclass(frozen=True, slots=True)
class Told:
    """A message as its producer was told."""

    body: str
    id: str = ""
    offset_id: str = ""
    broker: str = ""
    queue: int = -1
    offset: int = -1
    status: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a consumer saw it. `reconsumed` counts redeliveries, `seen` is when the listener had it."""

    id: str
    topic: str
    broker: str
    queue: int
    offset: int
    tag: str | None
    keys: str | None
    reconsumed: int
    born: int
    stored: int
    seen: int
    body: str
    properties: dict[str, str] = field(hash=False)


class MqClient(LineDriver):
    """A running client program."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, _argv(name, folder), folder)
        self._handles = itertools.count(1)
        # A test may flood in one thread and look at a consumer in another: the pipe serves one command at a time.
        self._turn = threading.Lock()

    def command(self, verb: str, patience: float = 60, **options: object) -> dict[str, Any]:
        with self._turn:
            return super().command(verb, patience, **options)

    def send(self, ns: str, topic: str, count: int = 1, *, seconds: float = 90, **options: object) -> list[Told]:
        """Sends messages with the bodies PREFIX-0, PREFIX-1, ...; the options are those of Producers.java."""
        answer = self.command("send", seconds, ns=ns, topic=topic, count=count, **options)
        told = [Told(**one) for one in answer.get("sent") or []]
        if not options.get("tolerant"):
            for one in told:
                if one.status != "SEND_OK":
                    raise DriverError(f"{self.name}: not SEND_OK: {one}")
        return told

    def push(self, ns: str, group: str, topic: str, **options: object) -> "PushConsumer":
        handle = f"c{next(self._handles)}"
        answer = self.command("push", ns=ns, group=group, topic=topic, handle=handle, **options)
        return PushConsumer(self, handle, answer["client"])

    def lite(self, ns: str, group: str, topic: str, **options: object) -> "LitePullConsumer":
        handle = f"l{next(self._handles)}"
        self.command("lite", ns=ns, group=group, topic=topic, handle=handle, **options)
        return LitePullConsumer(self, handle, topic)

    def pull(self, ns: str, group: str, topic: str, queue: int, offset: int, **options: object) -> dict[str, Any]:
        """One pull: {status, next, messages} and, from Java, {min, max}."""
        answer = self.command("pull", ns=ns, group=group, topic=topic, queue=queue, offset=offset, **options)
        answer["messages"] = _seen(answer)
        return answer

    def offsets(self, ns: str, group: str, topic: str, queue: int, **options: object) -> dict[str, Any]:
        return self.command("offsets", ns=ns, group=group, topic=topic, queue=queue, **options)

    def request(self, ns: str, topic: str, body: str, **options: object) -> dict[str, Any]:
        return self.command("request", ns=ns, topic=topic, body=body, **options)

    def query(self, ns: str, topic: str, key: str) -> list[Seen]:
        return _seen(self.command("query", ns=ns, topic=topic, key=key))

    def view(self, ns: str, topic: str, id: str) -> Seen:
        (one,) = _seen(self.command("view", ns=ns, topic=topic, id=id))
        return one

    def start_admin(self, *arguments: str) -> str:
        """Starts a command of the real mqadmin inside the Java program; its handle."""
        handle = f"a{next(self._handles)}"
        self.command("admin", start=handle, arguments="\n".join(arguments))
        return handle

    def end_admin(self, handle: str, seconds: int = 60) -> tuple[str, str]:
        """What the command printed: stdout and stderr."""
        answer = self.command("admin", seconds + 30, wait=handle, millis=1000 * seconds)
        if answer["alive"]:
            raise DriverError(f"{self.name}: mqadmin does not end:\n{answer['out']}{answer['err']}")
        return answer["out"], answer["err"]

    def admin(self, *arguments: str) -> tuple[str, str]:
        return self.end_admin(self.start_admin(*arguments))

    def queues(self, ns: str, topic: str) -> set[int]:
        """The queues of the topic that a running producer knows now, by itself."""
        return {one["queue"] for one in self.command("queues", ns=ns, topic=topic)["queues"]}


@dataclass(frozen=True, slots=True)
class PushConsumer:
    """A push consumer inside a client program; it notes every delivery."""

    client: MqClient
    handle: str
    id: str

    def consumed(self, count: int = 0, seconds: int = 40) -> list[Seen]:
        """Every delivery so far, once there are `count` of them or the time is over."""
        return _seen(self.client.command("consumed", seconds + 30, handle=self.handle, count=count, seconds=seconds))

    def assigned(self) -> set[int]:
        return {one["queue"] for one in self.client.command("assigned", handle=self.handle)["queues"]}

    def persist(self) -> None:
        """Tells the broker now how far it is; only from Java."""
        self.client.command("persist", handle=self.handle)

    def stop(self) -> None:
        self.client.command("stop", handle=self.handle)


@dataclass(frozen=True, slots=True)
class LitePullConsumer:
    """A lite pull consumer inside a Java program, with manual commit."""

    client: MqClient
    handle: str
    topic: str

    def poll(self, count: int, seconds: int = 30) -> list[Seen]:
        return _seen(self.client.command("poll", seconds + 30, handle=self.handle, count=count, seconds=seconds))

    def seek(self, queue: int, offset: int) -> None:
        self.client.command("seek", handle=self.handle, topic=self.topic, queue=queue, offset=offset)

    def commit(self) -> None:
        self.client.command("commit", handle=self.handle)

    def committed(self, queue: int) -> int:
        answer = self.client.command("committed", handle=self.handle, topic=self.topic, queue=queue)
        return int(answer["offset"])

    def stop(self) -> None:
        self.client.command("stop-lite", handle=self.handle)


def _seen(answer: dict[str, Any]) -> list[Seen]:
    return [Seen(**one) for one in answer.get("messages") or []]


def _argv(name: str, folder: Path) -> Sequence[str]:
    if name == GO:
        return [str(_built(build_go()))]
    if name == NODE:
        return ["node", str(_built(build_node()) / "driver.js")]
    version = name.removeprefix("java-").removesuffix("-bin")
    return java_argv(version, folder, binary=name.endswith("-bin"))


def _built(program: Path | str) -> Path:
    if isinstance(program, str):
        raise Unavailable(program)
    return program
