"""The foreign parts for the tests of this folder: real brokers, real clients, the real mqadmin.

They are built and started once a session, and every test here bears the marker `interop`. A part that this machine
cannot have skips the tests that need it, with the reason. `COMETMQ_INTEROP_NAMESRV=real` puts RocketMQ's own nameserver
in the place of ours: that is how the tests themselves are tested. The tests of a broker run against ours, and as `slow`
ones against the real one for the same reason.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import line_driver, real_rocketmq
from support.cluster import OURS, REAL, Cluster, own_broker_missing
from support.fleet import Fleet, OwnNameserver
from support.line_driver import LineDriver
from support.mq_client import MqClient
from support.real_rocketmq import V4, V5, MqAdmin, RealNameserver, Unavailable

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)
            # The first test of a session pays for the starts, and on a fresh machine for the downloads.
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def rocketmq() -> None:
    """Skips unless the real RocketMQ can be run here."""
    reason = real_rocketmq.available()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _fleet(rocketmq: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    real = os.environ.get("COMETMQ_INTEROP_NAMESRV") == "real"
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), RealNameserver if real else OwnNameserver)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet of the session, whole again whatever the test before did to it. No nameserver may stumble meanwhile."""
    _fleet.heal()
    yield _fleet
    for server in _fleet.nameservers:
        assert "Traceback" not in server.stdout + server.stderr


@pytest.fixture(scope="session")
def client(rocketmq: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LineDriver]]:
    """Gives the running client of a name: `java-5.3.3`, `java-4.9.7` or `go`."""
    with ExitStack() as stack:
        running: dict[str, LineDriver] = {}

        def get(name: str) -> LineDriver:
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                kind, _, version = name.partition("-")
                try:
                    driver = (
                        line_driver.java_driver(version, folder) if kind == "java" else line_driver.go_driver(folder)
                    )
                except Unavailable as reason:
                    pytest.skip(str(reason))
                running[name] = stack.enter_context(driver)
            return running[name]

        yield get


@pytest.fixture(scope="session")
def java(client: Callable[[str], LineDriver]) -> LineDriver:
    return client(f"java-{V5}")


@pytest.fixture(scope="session")
def old_java(client: Callable[[str], LineDriver]) -> LineDriver:
    return client(f"java-{V4}")


@pytest.fixture
def mqadmin(rocketmq: None, tmp_path: Path) -> Iterator[Callable[..., MqAdmin]]:
    """Starts a command of the real mqadmin; what still runs at the end of the test is ended."""
    with ExitStack() as stack:
        started = 0

        def start(*arguments: str) -> MqAdmin:
            nonlocal started
            started += 1
            command = MqAdmin(tmp_path / f"mqadmin-{started}", *arguments)
            stack.callback(command.kill)
            return command

        yield start


#: Retries come at the levels 3, 4, ...: short ones. Level 2 is the one that a test can tell from level 1.
BROKER_SETTINGS = {"messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s"}


@pytest.fixture(scope="session", params=[OURS, pytest.param(REAL, marks=pytest.mark.slow)])
def _cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.param == OURS and (reason := own_broker_missing()):
        pytest.skip(reason)
    if reason := real_rocketmq.available():
        pytest.skip(reason)
    with Cluster(request.param, tmp_path_factory.mktemp(f"cluster-{request.param}"), BROKER_SETTINGS) as running:
        if reason := running.unfinished():
            pytest.skip(reason)
        yield running


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster of the session, running whatever the test before did to it. It may not stumble meanwhile."""
    _cluster.restart_broker()
    yield _cluster
    if _cluster.kind == OURS:
        assert "Traceback" not in _cluster.broker.stdout + _cluster.broker.stderr


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], MqClient]]:
    """Gives the running client of a name of `mq_client`; skips when this machine cannot have it."""
    with ExitStack() as stack:
        running: dict[str, MqClient] = {}

        def get(name: str) -> MqClient:
            if name not in running:
                try:
                    client = MqClient(name, tmp_path_factory.mktemp(name))
                except Unavailable as reason:
                    pytest.skip(str(reason))
                running[name] = stack.enter_context(client)
            return running[name]

        yield get


_NUMBERS = itertools.count(1)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Makes a name that no other test of this session has."""
    return lambda text: f"{text}_{next(_NUMBERS)}"
