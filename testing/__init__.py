"""CometMQ in the tests of its users: a real broker inside the test process, and a pytest plugin.

`EmbeddedBroker` is the broker and nameserver that `mqbroker --standalone` runs, on free ports, with a wall clock that a
test may move. Importing this package loads nothing heavy.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.testing.embedded import EmbeddedBroker

#: Name -> the module that it lives in.
_HOMES = lazy.homes(__name__, embedded="EmbeddedBroker")

__all__ = ["EmbeddedBroker"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
