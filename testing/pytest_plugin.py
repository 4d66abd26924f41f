"""The pytest plugin: the fixture `cometmq_broker`, a broker of its own for a test.

It is a plain fixture, so it serves pytest-asyncio, anyio and tests without a loop alike.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cometmq.testing.embedded import EmbeddedBroker


@pytest.fixture
def cometmq_broker() -> "Iterator[EmbeddedBroker]":
    """A real broker with a nameserver on free ports; `cometmq_broker.nameserver` is what a client connects to."""
    from cometmq.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker
