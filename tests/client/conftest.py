"""A broker for the SDK's tests: ours, inside the test process. Every test has names of its own.

The tests of `ON_EACH_LOOP` run on asyncio's loop and on uvloop; the others on uvloop, which most users have, alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import uvloop

from cometmq.client import Client, connect
from cometmq.testing import EmbeddedBroker

#: What has to do with the loop: sockets, timers, tasks.
ON_EACH_LOOP = {"test_producer", "test_producer_attempts", "test_push", "test_accumulate", "test_request_reply"}
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of a test. Versions of pytest-asyncio that do not ask run all tests on asyncio's."""
    return LOOPS if item.path.stem in ON_EACH_LOOP else {"uvloop": LOOPS["uvloop"]}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """One broker for the tests of a module, gone before others count threads and files; who hurts it starts its own."""
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as running:
        yield running


@pytest.fixture
async def mq(broker: EmbeddedBroker) -> AsyncIterator[Client]:
    async with connect(broker.nameserver) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topics and groups that no other test uses: `name("T")`."""
    own = "".join(c if c.isalnum() else "_" for c in request.node.name)[-80:]
    return lambda prefix: f"{prefix}_{own}"
