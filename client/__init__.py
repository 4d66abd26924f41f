"""The asyncio SDK: producers and consumers for RocketMQ 4.x and 5.x clusters, and for CometMQ's own.

`cometmq.connect` is the way in; the names that users need are those of the package `cometmq`. They are loaded when they
are used, and what producers and consumers are made of when a client makes the first one.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.client.client import Client, connect
    from cometmq.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
    from cometmq.client.producer import Producer
    from cometmq.client.queues import MessageQueue
    from cometmq.client.requests import Credentials

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    client="Client connect",
    message="Message ReceivedMessage SendReceipt SendStatus",
    producer="Producer",
    queues="MessageQueue",
    requests="Credentials",
)

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
