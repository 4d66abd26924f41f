"""A broker for the SDK's tests. Every test has names of its own.

`broker` is ours, inside of the test process; the same tests run against the real RocketMQ as slow ones, but for those
that `support.real_differences` names with a reason. A test that needs more of a broker than its addresses (its clock,
its insides, a restart) takes `own_broker`, or starts one. A choice of what users do every day runs against the real one
by default: tests/interop/test_sdk_real.py.

The tests of `ON_EACH_LOOP` run on asyncio's loop and on uvloop; the others on uvloop, which most users have, alone.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest
import uvloop

from cometmq.client import Client, connect
from cometmq.testing import EmbeddedBroker
from support import real_differences, real_rocketmq
from support.cluster import BROKER_NAME, OURS, REAL, AnyBroker, Cluster
from support.real_rocketmq import V4, V5

#: What has to do with the loop: sockets, timers, tasks.
ON_EACH_LOOP = {
    "test_producer", "test_producer_attempts", "test_accumulate", "test_request_reply", "test_push", "test_pull",
    "test_consumer_races", "test_pull_races", "test_closing", "test_faults",
}  # fmt: skip
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
#: Seconds for a test against a real broker; the first one pays for its start.
REAL_SECONDS = 300


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of a test. Versions of pytest-asyncio that do not ask run all tests on asyncio's."""
    return LOOPS if item.path.stem in ON_EACH_LOOP else {"uvloop": LOOPS["uvloop"]}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Who uses `broker` meets ours, and as slow tests those of RocketMQ."""
    if "broker" not in metafunc.fixturenames:
        return
    brokers = [pytest.param(OURS, id=OURS)]
    for version in (V5, V4):
        marks = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(REAL_SECONDS)]
        test = f"{metafunc.module.__name__.rpartition('.')[2]}::{metafunc.function.__name__}"
        if reason := real_differences.reason(test, version):
            marks.append(pytest.mark.skip(reason=reason))
        brokers.append(pytest.param(version, id=f"real-{version}", marks=marks))
    metafunc.parametrize("broker", brokers, indirect=True, scope="module")


@pytest.fixture(scope="session")
def real_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Gives the running cluster of a version; skips when this machine cannot have it."""
    with ExitStack() as stack:
        running: dict[str, Cluster] = {}

        def get(version: str) -> Cluster:
            if reason := real_rocketmq.available():
                pytest.skip(reason)
            if version not in running:
                folder = tmp_path_factory.mktemp(f"real-{version}")
                settings = {"enablePropertyFilter": "true"}
                made = Cluster(REAL, folder, settings, nameserver_version=version, version=version)
                running[version] = stack.enter_context(made)
            return running[version]

        yield get


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedBroker]:
    """One broker for the tests of a module, gone before others count threads and files; who hurts it starts its own."""
    with EmbeddedBroker(config={"brokerName": BROKER_NAME}) as running:
        yield running


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> AnyBroker:
    """Ours, or a real one: `nameserver` and `address` are what both have."""
    if request.param == OURS:
        own: EmbeddedBroker = request.getfixturevalue("own_broker")
        return own
    cluster: Cluster = request.getfixturevalue("real_brokers")(request.param)
    return cluster


@pytest.fixture
async def mq(broker: AnyBroker) -> AsyncIterator[Client]:
    async with connect(broker.nameserver) as client:
        yield client


_NUMBERS = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topics and groups that no other test uses: `name("T")`."""
    own = "".join(c if c.isalnum() else "_" for c in request.node.name)[-75:]
    number = next(_NUMBERS)
    return lambda prefix: f"{prefix}_{number}_{own}"
