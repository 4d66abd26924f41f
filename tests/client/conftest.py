"""A broker for the SDK's tests: ours, inside the test process. Every test has names of its own."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from cometmq.client import Client, connect
from cometmq.testing import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """One broker for all tests; those that hurt it start their own."""
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
