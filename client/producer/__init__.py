"""Sending: `Producer`, and what it is made of."""

from cometmq.client.producer.producer import Producer

__all__ = ["Producer"]
