"""A nameserver with one broker, of ours or the real ones, as a thing that tests may kill and start again.

Both brokers get the same settings, so that a test that is right against the real one judges ours. Nothing of cometmq is
imported: the broker is a process that is looked at from outside.
"""

import contextlib
import functools
import importlib.util
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from support.fleet import OwnNameserver
from support.plain_frames import answers, broker_addresses, call, create_topic, register_now, topic_route
from support.real_rocketmq import (
    BROKER_DEFAULTS,
    START_SECONDS,
    V5,
    RealBroker,
    RealNameserver,
    write_properties,
)
from support.server_process import ServerProcess, free_port, wait_for

OURS, REAL = "ours", "real"
BROKER_NAME, CLUSTER_NAME = "broker-a", "DefaultCluster"
STOP_SECONDS = 60
NOT_SUPPORTED = 3
#: Pull, offsets, heartbeat, send back, members, send.
NEEDED = (11, 14, 15, 34, 36, 38, 310)
BOOT_LINE = "The broker[{name}, {address}] boot success. serializeType=JSON and name server is {nameserver}"


class AnyBroker(Protocol):
    """A cluster with one broker, whoever made it: what a test may know of it that runs against all of them."""

    @property
    def nameserver(self) -> str: ...

    @property
    def address(self) -> str:
        """Of the broker."""


def own_broker_missing() -> str | None:
    """Why our broker cannot be started here; None when it can."""
    try:
        found = importlib.util.find_spec("cometmq.broker.__main__")
    except ModuleNotFoundError:
        found = None
    return None if found else "cometmq.broker has no __main__"


class OwnBroker(ServerProcess):
    """Our broker, as `python -m cometmq.broker`."""

    def __init__(self, folder: Path, nameserver: str, config: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nameserver = nameserver
        self.config_file = write_properties(
            folder / "broker.conf",
            {
                **BROKER_DEFAULTS,
                "brokerName": BROKER_NAME,
                "brokerClusterName": CLUSTER_NAME,
                "listenPort": str(self.port),
                "storePathRootDir": str(folder / "store"),
                **(config or {}),
            },
        )
        argv = [sys.executable, "-m", "cometmq.broker", "-c", str(self.config_file), "-n", nameserver]
        super().__init__("our broker", argv, folder)

    @property
    def boot_line(self) -> str:
        return BOOT_LINE.format(name=BROKER_NAME, address=self.address, nameserver=self.nameserver)


class Cluster:
    """A nameserver and a broker, both running. `kind` is OURS or REAL.

    The nameserver is ours, or the real one of the version that is given. `version` is that of a real broker.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        config: Mapping[str, str] | None = None,
        nameserver_version: str | None = None,
        version: str = V5,
    ) -> None:
        self.kind = kind
        self.version = version
        self.folder = folder
        self._nameserver: OwnNameserver | RealNameserver = (
            RealNameserver(folder / "namesrv", version=nameserver_version)
            if nameserver_version
            else OwnNameserver(folder / "namesrv")
        )
        self._config = dict(config or {})
        self.broker = self._made()
        self._boots = 0
        self._nameserver.start()
        try:
            self._nameserver.wait_ready("answers", START_SECONDS, functools.partial(answers, self.nameserver))
            self._first_start()
        except BaseException:
            self.close()
            raise

    def _made(self) -> OwnBroker | RealBroker:
        folder = self.folder / "broker"
        if self.kind == OURS:
            return OwnBroker(folder, self.nameserver, self._config)
        # Without its timers it cannot delete a topic.
        settings = {"timerWheelEnable": "true", **self._config}
        return RealBroker(folder, self.version, BROKER_NAME, CLUSTER_NAME, self.nameserver, settings)

    def _first_start(self) -> None:
        """A port that was free may be another one's by the time a broker binds it: then with other ports."""
        for attempts_left in (3, 2, 1, 0):
            try:
                self.restart_broker()
                return
            except RuntimeError:
                if not attempts_left or "ddress already in use" not in self.broker.tail(60):
                    raise
            self.broker = self._made()
            self._boots = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.broker.kill()
        self._nameserver.kill()

    @property
    def nameserver(self) -> str:
        return self._nameserver.address

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def store(self) -> Path:
        return self.broker.folder / "store"

    def restart_broker(self) -> None:
        """Starts the broker, unless it runs; returns when the nameserver knows it and it has said so."""
        if self.broker.alive:
            return
        self.broker.start()
        self._boots += 1
        if isinstance(self.broker, OwnBroker):
            line = self.broker.boot_line
            self.broker.wait_ready(line, START_SECONDS, lambda: self.broker.stdout.count(line) >= self._boots)
        self.broker.wait_ready("registered", START_SECONDS, self._registered, pause=0.2)

    def _registered(self) -> bool:
        known = broker_addresses(self.nameserver).get(BROKER_NAME) == self.address
        if not known:
            # A real broker of 5.x loses its first registration when it is busy, and tries again after 10 s.
            with contextlib.suppress(OSError, ValueError):
                register_now(self.address)
        return known

    def unfinished(self) -> str | None:
        """Which of the requests that clients need the broker does not know; None when it knows them all."""
        unknown = [code for code in NEEDED if call(self.address, code).code == NOT_SUPPORTED]
        return f"the broker does not serve the requests {unknown}" if unknown else None

    def kill_nameserver(self) -> None:
        """kill -9; it does not come back."""
        self._nameserver.kill()

    def kill_broker(self) -> None:
        """kill -9."""
        self.broker.kill()

    def stop_broker(self) -> None:
        """SIGTERM, and the end of it; the real one takes about 20 s."""
        self.broker.terminate(signal.SIGTERM)
        self.broker.wait(STOP_SECONDS)

    def make_topic(self, topic: str, queues: int = 4) -> str:
        """A topic, known to the nameserver with that many queues; its name."""
        create_topic(self.address, topic, queues)
        wait_for(f"{topic} is known", 20, lambda: self.queues(topic) == queues)
        return topic

    def queues(self, topic: str) -> int:
        """How many queues the nameserver tells to those who write."""
        route = topic_route(self.nameserver, topic)
        return sum(data["writeQueueNums"] for data in route["queueDatas"]) if route else 0

    def max_offset(self, topic: str, queue: int) -> int:
        answer = call(self.address, 30, {"topic": topic, "queueId": str(queue)})
        return int(answer.fields["offset"])

    def committed(self, group: str, topic: str, queue: int) -> int | None:
        """The offset that the broker holds for a group; None without one."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "setZeroIfNotFound": "false"}
        answer = call(self.address, 14, fields)
        return int(answer.fields["offset"]) if answer.code == 0 else None
