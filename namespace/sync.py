"""The SDK without `await`: `cometmq.sync.connect(...)`. Same objects and names; see `cometmq.client.sync`."""

from cometmq.client.sync import Client, Producer, PullConsumer, PushConsumer, WrongThread, connect

__all__ = ["Client", "Producer", "PullConsumer", "PushConsumer", "WrongThread", "connect"]
