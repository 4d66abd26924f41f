"""The asyncio SDK: producers and consumers for RocketMQ 4.x and 5.x clusters, and for CometMQ's own.

`cometmq.connect` is the way in; the names that users need are those of the package `cometmq`. What producers and
consumers are made of is loaded when a client makes the first one.
"""

from typing import TYPE_CHECKING

from cometmq.client.client import Client, connect
from cometmq.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from cometmq.client.queues import MessageQueue
from cometmq.client.requests import Credentials

if TYPE_CHECKING:
    from cometmq.client.producer import Producer

__all__ = [
    "Client",
    "Credentials",
    "Message",
    "MessageQueue",
    "Producer",
    "ReceivedMessage",
    "SendReceipt",
    "SendStatus",
    "connect",
]


def __getattr__(name: str) -> object:
    if name != "Producer":
        raise AttributeError(f"module 'cometmq.client' has no attribute {name!r}")
    from cometmq.client.producer import Producer

    return Producer
