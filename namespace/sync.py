"""The SDK without `await`: `cometmq.sync.connect(...)`. Same objects and names; see `cometmq.client.sync`."""

from cometmq.client.sync import (
    Admin,
    Client,
    Producer,
    PullConsumer,
    PushConsumer,
    SettledMessage,
    WrongThread,
    connect,
)

__all__ = [
    "Admin",
    "Client",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SettledMessage",
    "WrongThread",
    "connect",
]
