"""The real Apache RocketMQ beside ours: jars from Maven, a nameserver or a broker as a process, and its mqadmin.

Two versions are installed once into a cache (`$COMETMQ_INTEROP_CACHE`, by default `~/.cache/cometmq/interop`) and used
by every test run. The Java and Go programs that drive the real clients are in `line_driver`. A machine without the
toolchain, or without a way to the Maven repository, is no failure: `available()` says why, and the tests are skipped.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.plain_frames import broker_addresses
from support.server_process import ServerProcess, free_port, wait_for

if sys.platform != "win32":
    import fcntl

V5 = "5.3.3"
V4 = "4.9.7"
#: What a version is made of; Maven adds what these need.
ARTIFACTS = ("broker", "namesrv", "tools", "client")
VERSIONS = (V5, V4)
#: 4.9 does not start without one for each part. 5.x would take the broker's from its jar, for every program: 700 lines
#: that cost each JVM a second and are reported on stdout.
LOGBACK_FILES = {V5: ("rmq.logback.xml",), V4: ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml")}

#: A first install loads about 100 MB.
INSTALL_SECONDS = 600
#: A broker is up in 3 to 5 s alone; three at once on two busy cores take longer.
START_SECONDS = 90

#: RocketMQ was written for Java 8; these doors are shut since Java 16.
OPENS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
#: One address family, the smallest collector, and no second compiler: a test process lives for seconds.
SMALL_JVM = (
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Milliseconds; RocketMQ's 3,000 are not enough for a machine that stands still for seconds.
    "-Dcom.rocketmq.remoting.client.connect.timeout=20000",
)
SERVER_HEAP = ("-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
TOOL_HEAP = ("-Xms64m", "-Xmx256m")

#: Small files, and no timer wheel, so that a store costs a few MB and starts at once.
BROKER_DEFAULTS = {
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "timerWheelEnable": "false",
    "diskMaxUsedSpaceRatio": "95",
    "registerNameServerPeriod": "10000",  # the shortest that a broker takes
    "registerBrokerTimeoutMills": "3000",
    "waitTimeMillsInSendQueue": "5000",  # busy cores shall be slow, not refused
}


class Unavailable(Exception):
    """Is raised when this machine cannot run a foreign part; the text is the reason for skipping."""


def cache() -> Path:
    """Where everything that is downloaded or built is kept."""
    chosen = os.environ.get("COMETMQ_INTEROP_CACHE")
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "cometmq" / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time does the work of that name in the cache. The kernel lets go when the holder dies."""
    with open(cache() / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Installation:
    """An installed version."""

    version: str
    folder: Path

    @property
    def lib(self) -> Path:
        return self.folder / "lib"

    @property
    def classpath(self) -> str:
        return f"{self.folder}/conf{os.pathsep}{self.lib}/*"

    def java(self, main: str, home: Path, *arguments: str, jvm: tuple[str, ...] = TOOL_HEAP) -> list[str]:
        """The command that runs a main class; logs and other habits of it end under `home`."""
        return [
            "java",
            *SMALL_JVM,
            *jvm,
            *OPENS,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={self.folder}",
            f"-Drocketmq.client.logRoot={home}",
            "-cp",
            self.classpath,
            main,
            *arguments,
        ]


@functools.cache
def available() -> str | None:
    """None when both versions can be run here; otherwise the reason why not. Asked once in a session."""
    if sys.platform == "win32":
        return "RocketMQ's servers are run on POSIX systems only"
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        for version in VERSIONS:
            install(version)
    except Unavailable as reason:
        return str(reason)
    return None


def install(version: str) -> Installation:
    """The jars of a version, loaded by Maven unless the cache has them. A broken-off install goes on by itself."""
    place = Installation(version, cache() / f"rocketmq-{version}")
    if place.lib.is_dir():
        return place
    with locked(f"rocketmq-{version}"):
        if not place.lib.is_dir():  # another process may have been first
            _load(place)
    return place


def _load(place: Installation) -> None:
    if shutil.which("mvn") is None:
        raise Unavailable("mvn is not installed, and the cache has no RocketMQ " + place.version)
    (place.folder / "conf").mkdir(parents=True, exist_ok=True)
    (place.folder / "pom.xml").write_text(_pom(place.version))
    for name in LOGBACK_FILES[place.version]:
        (place.folder / "conf" / name).write_text(_logback(place.version))
    # What Maven has downloaded is kept in its own repository. The copies of a run that was killed are not trusted: the
    # last one may be cut short, and Maven passes over a file that is there.
    partial = place.folder / "lib.partial"
    shutil.rmtree(partial, ignore_errors=True)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, cwd=place.folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not load RocketMQ {place.version} in {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        errors = re.findall(r"\[ERROR\] (\S.*)", done.stdout) or [done.stdout + done.stderr]
        raise Unavailable(f"Maven cannot load RocketMQ {place.version}: {errors[0][:300]}")
    partial.rename(place.lib)


def _pom(version: str) -> str:
    wanted = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for artifact in ARTIFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>cometmq.interop</groupId><artifactId>rocketmq</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{wanted}</dependencies></project>\n"
    )


def _logback(version: str) -> str:
    """The log configuration of every process: one file, warnings only. 5.x has logback under a name of its own."""
    package = "org.apache.rocketmq.logging.ch.qos.logback" if version == V5 else "ch.qos.logback"
    return (
        f'<configuration><appender name="file" class="{package}.core.FileAppender">'
        "<file>${user.home}/rocketmq.log</file>"
        "<encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>"
        '<root level="WARN"><appender-ref ref="file"/></root></configuration>\n'
    )


def write_properties(file: Path, values: Mapping[str, str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


class RealNameserver(ServerProcess):
    """RocketMQ's own nameserver: what ours is measured by."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, str] | None = None,
        version: str = V5,
        jvm: tuple[str, ...] = SERVER_HEAP,
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.config_file = write_properties(
            folder / "namesrv.properties",
            {"listenPort": str(self.port), "kvConfigPath": str(folder / "kvConfig.json"), **(config or {})},
        )
        place = install(version)
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        super().__init__(
            "real nameserver",
            place.java(main, folder, "-c", str(self.config_file), jvm=jvm),
            folder,
            {"ROCKETMQ_HOME": str(place.folder)},
        )


class RealBroker(ServerProcess):
    """RocketMQ's own broker, a master with a store in its folder. It uses its port, port - 2 and port + 1."""

    def __init__(
        self,
        folder: Path,
        version: str,
        broker_name: str,
        cluster: str,
        nameservers: str,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.broker_name = broker_name
        self.cluster = cluster
        self.version = version
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.config_file = write_properties(
            folder / "broker.conf",
            {
                **BROKER_DEFAULTS,
                "brokerName": broker_name,
                "brokerClusterName": cluster,
                "listenPort": str(self.port),
                "namesrvAddr": nameservers,
                "storePathRootDir": str(folder / "store"),
                "storePathCommitLog": str(folder / "store" / "commitlog"),
                **(config or {}),
            },
        )
        place = install(version)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        super().__init__(
            f"real broker {broker_name} {version}",
            place.java(main, folder, "-c", str(self.config_file), jvm=SERVER_HEAP),
            folder,
            {"ROCKETMQ_HOME": str(place.folder)},
        )

    def registered(self, nameserver: str) -> bool:
        """Does the nameserver at that address know this broker by its address?"""
        return broker_addresses(nameserver).get(self.broker_name) == self.address

    def wait_registered(self, *nameservers: str, seconds: float = START_SECONDS) -> None:
        for nameserver in nameservers:
            self.wait_ready(f"registered with {nameserver}", seconds, functools.partial(self.registered, nameserver))


class MqAdmin(ServerProcess):
    """One command of the real mqadmin, started by the constructor. Several may run side by side."""

    def __init__(self, folder: Path, *arguments: str, version: str = V5) -> None:
        place = install(version)
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        super().__init__(
            "mqadmin " + " ".join(arguments),
            place.java(main, folder, *arguments),
            folder,
            {"ROCKETMQ_HOME": str(place.folder)},
        )
        self.start()

    def printed(self, *texts: str, times: int = 1, seconds: float = 60) -> str:
        """stdout, once it holds each of the texts that often. The end of the process would come 3 to 6 s later."""
        return self._has("stdout", texts, times, seconds)

    def complained(self, *texts: str, seconds: float = 60) -> str:
        """stderr, once it holds all the texts."""
        return self._has("stderr", texts, 1, seconds)

    def _has(self, stream: str, texts: tuple[str, ...], times: int, seconds: float) -> str:
        def look() -> str | None:
            alive = self.alive  # before reading: what it printed last must be seen
            printed = self._text(stream)
            if all(printed.count(text) >= times for text in texts):
                return printed
            if not alive:
                raise RuntimeError(f"{self.name} ended without {texts} on {stream}:\n{self.tail()}")
            return None

        return wait_for(f"{self.name} prints {texts}", seconds, look)
