"""Every node of a configuration on one machine: nameservers, and a broker for each file, each a process of its own.

Shows a line for each node, again whenever one of them changes, and ends all of them when it is told to end itself.
Ports and stores are given here; everything else comes from the files.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

#: Seconds that a node may take until it is ready, and until it has ended.
PATIENCE = 30.0
#: Seconds between two looks at the nodes.
LOOK = 0.1
#: Ports between two brokers on one machine: each needs its own, the fast one two below and that of replication above.
STEP = 10

_READY = re.compile(r"^The (?:Name Server|broker\[(?P<name>.+), (?P<address>[^,]+)\]) boot success\..*$", re.M)
_LISTENS = re.compile(r"address \S+:(\d+)$")


class Node:
    """One process and its folder: its output, its files."""

    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we end them in order
            )

    def ready_line(self) -> "re.Match[str] | None":
        return _READY.search(self.log.read_text(errors="replace"))

    @property
    def state(self) -> str:
        if self.process.poll() is not None:
            return f"ended ({self.process.returncode})"
        return "ready" if self.ready_line() else "starting"

    def wait_ready(self) -> "re.Match[str]":
        deadline = time.monotonic() + PATIENCE
        while not (found := self.ready_line()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise click.ClickException(f"{self.name} did not start: {''.join(last) or 'it said nothing'}")
            time.sleep(LOOK)
        return found

    def wait_for_end(self) -> None:
        """It was asked to end, once: a second signal would end it at once."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Cluster:
    """All nodes; the nameservers first."""

    def __init__(self) -> None:
        self.nameservers: list[Node] = []
        self.brokers: list[Node] = []
        self.addresses: list[str] = []

    @property
    def nodes(self) -> list[Node]:
        return [*self.nameservers, *self.brokers]

    def start_nameserver(self, number: int, folder: Path, port: int) -> None:
        name = f"namesrv-{number}"
        place = folder / name
        settings = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": f"{place}/kvConfig.json",
            "configStorePath": f"{place}/namesrv.properties",
        }
        node = Node(name, place, ["cometmq.namesrv", *_definitions(settings)])
        self.nameservers.append(node)
        found = _LISTENS.search(node.wait_ready()[0])
        assert found
        self.addresses.append(f"127.0.0.1:{found[1]}")

    def start_broker(self, file: Path, folder: Path, port: int) -> None:
        place = folder / file.stem
        place.mkdir(parents=True, exist_ok=True)
        # A copy: updates from remote are written back to the file that a broker was started with.
        config = Path(shutil.copy(file, place / "broker.properties"))
        settings = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": f"{place}/store",
        }
        nameservers = ";".join(self.addresses)
        arguments = ["cometmq.broker", "-c", str(config), "-n", nameservers, *_definitions(settings)]
        self.brokers.append(Node(file.stem, place, arguments))

    def end(self) -> None:
        # Brokers first: they take leave of the nameservers.
        for nodes in (self.brokers, self.nameservers):
            for node in nodes:
                if node.process.poll() is None:
                    node.process.terminate()
            for node in nodes:
                node.wait_for_end()

    def table(self) -> str:
        rows = [("node", "address", "pid", "state", "log")]
        for node, address in zip(self.nameservers, self.addresses, strict=False):
            rows.append((node.name, address, str(node.process.pid), node.state, str(node.log)))
        for node in self.brokers:
            found = node.ready_line()
            address = found["address"] if found else ""
            rows.append((node.name, address, str(node.process.pid), node.state, str(node.log)))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join("  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _definitions(settings: dict[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]


class _Ended(Exception):
    """A signal asked for the end."""


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("configuration", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--nameservers", type=click.IntRange(1, 9), default=1, show_default=True, help="How many of them.")
@click.option("--folder", type=click.Path(path_type=Path), help="Stores and logs [default: build/cluster/NAME].")
@click.option("--nameserver-port", default=9876, show_default=True, help="Of the first one; the others follow.")
@click.option("--broker-port", default=10911, show_default=True, help="Of the first broker; the others every 10.")
@click.option("--free-ports", is_flag=True, help="Any free ports instead.")
def main(
    configuration: Path,
    nameservers: int,
    folder: Path | None,
    nameserver_port: int,
    broker_port: int,
    free_ports: bool,
) -> None:
    """Run every node of CONFIGURATION, a directory with a .properties file for each broker, on this machine."""
    files = sorted(configuration.glob("*.properties"))
    if not files:
        raise click.UsageError(f"{configuration} has no .properties file of a broker")
    folder = folder or Path(__file__).parents[1] / "build" / "cluster" / configuration.resolve().name
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    cluster = Cluster()
    try:
        for number in range(nameservers):
            cluster.start_nameserver(number + 1, folder, 0 if free_ports else nameserver_port + number)
        for number, file in enumerate(files):
            cluster.start_broker(file, folder, 0 if free_ports else broker_port + STEP * number)
        for node in cluster.brokers:
            node.wait_ready()
        click.echo(f"The cluster is ready: name server {';'.join(cluster.addresses)}. Ctrl-C ends it.")
        _watch(cluster)
    except _Ended:
        click.echo("ending all nodes")
    finally:
        cluster.end()


def _watch(cluster: Cluster) -> None:
    """Shows the nodes, and again when one has changed; returns when all have ended."""
    shown = ""
    while True:
        table = cluster.table()
        if table != shown:
            click.echo(table)
            shown = table
        if all(node.process.poll() is not None for node in cluster.nodes):
            raise click.ClickException("all nodes have ended; their logs say why")
        time.sleep(LOOK)


if __name__ == "__main__":
    main()
