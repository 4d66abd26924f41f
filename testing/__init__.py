"""CometMQ in the tests of its users: a real broker inside the test process, and a pytest plugin.

`EmbeddedBroker` is the broker and nameserver that `mqbroker --standalone` runs, on free ports, with a wall clock that a
test may move. Importing this package loads nothing heavy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.testing.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]


def __getattr__(name: str) -> object:
    if name == "EmbeddedBroker":
        from cometmq.testing.embedded import EmbeddedBroker

        return EmbeddedBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
