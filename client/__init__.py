"""The asyncio SDK: producers and consumers for RocketMQ 4.x and 5.x clusters, and for CometMQ's own.

`cometmq.connect` is the way in; the names that users need are those of the package `cometmq`.
"""

from cometmq.client.client import Client, connect
from cometmq.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from cometmq.client.producer import Producer
from cometmq.client.queues import MessageQueue
from cometmq.client.requests import Credentials

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
