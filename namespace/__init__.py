"""CometMQ: a message queue that speaks Apache RocketMQ's remoting protocol.

This package holds the public names. They are loaded when first used, so that a nameserver, a broker or a
Spark worker never imports the client SDK.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.client.app import App
    from cometmq.client.client import Client, connect
    from cometmq.client.consumer.options import StartFrom
    from cometmq.client.consumer.pull import PullConsumer
    from cometmq.client.consumer.push import PushConsumer
    from cometmq.client.consumer.subscriptions import Priorities, Sql, Tags
    from cometmq.client.errors import (
        AccessDenied,
        BrokerBusy,
        BrokerError,
        ClientError,
        Closed,
        GroupInUse,
        InvalidMessage,
        InvalidSubscription,
        MessageRefused,
        NoBroker,
        NoNameserver,
        NoRoute,
        ReplyTimeout,
        RetryFrom,
        RetryLater,
        SendFailed,
        TopicNotFound,
        Unsupported,
    )
    from cometmq.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
    from cometmq.client.producer import Producer
    from cometmq.client.queues import MessageQueue
    from cometmq.client.requests import Credentials
    from cometmq.protocol.errors import CometMQError
    from cometmq.remoting.errors import ConnectFailed, ConnectionLost, Timeout, TransportError

__version__ = "0.1.0"

#: Name -> the module that it lives in.
_HOMES = {
    "App": "cometmq.client.app",
    "Client": "cometmq.client.client",
    "connect": "cometmq.client.client",
    "Producer": "cometmq.client.producer",
    "PushConsumer": "cometmq.client.consumer.push",
    "PullConsumer": "cometmq.client.consumer.pull",
    "StartFrom": "cometmq.client.consumer.options",
    "Credentials": "cometmq.client.requests",
    "CometMQError": "cometmq.protocol.errors",
    **dict.fromkeys(("Priorities", "Sql", "Tags"), "cometmq.client.consumer.subscriptions"),
    **dict.fromkeys(("Message", "ReceivedMessage", "SendReceipt", "SendStatus"), "cometmq.client.message"),
    "MessageQueue": "cometmq.client.queues",
    **dict.fromkeys(("ConnectFailed", "ConnectionLost", "Timeout", "TransportError"), "cometmq.remoting.errors"),
    **dict.fromkeys(
        (
            "AccessDenied",
            "BrokerBusy",
            "BrokerError",
            "ClientError",
            "Closed",
            "GroupInUse",
            "InvalidMessage",
            "InvalidSubscription",
            "MessageRefused",
            "NoBroker",
            "NoNameserver",
            "NoRoute",
            "ReplyTimeout",
            "RetryFrom",
            "RetryLater",
            "SendFailed",
            "TopicNotFound",
            "Unsupported",
        ),
        "cometmq.client.errors",
    ),
}

__all__ = [
    "AccessDenied",
    "App",
    "BrokerBusy",
    "BrokerError",
    "Client",
    "ClientError",
    "Closed",
    "CometMQError",
    "ConnectFailed",
    "ConnectionLost",
    "Credentials",
    "GroupInUse",
    "InvalidMessage",
    "InvalidSubscription",
    "Message",
    "MessageQueue",
    "MessageRefused",
    "NoBroker",
    "NoNameserver",
    "NoRoute",
    "Priorities",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "ReplyTimeout",
    "RetryFrom",
    "RetryLater",
    "SendFailed",
    "SendReceipt",
    "SendStatus",
    "Sql",
    "StartFrom",
    "Tags",
    "Timeout",
    "TopicNotFound",
    "TransportError",
    "Unsupported",
    "__version__",
    "connect",
]

if not TYPE_CHECKING:
    # `cometmq.sync.connect(...)` needs no import of its own
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES | {"sync": "cometmq.sync"})
