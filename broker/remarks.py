"""Texts of answers that several handlers give. Clients match them: they are RocketMQ's to the letter."""

from typing import Final

#: What RocketMQ adds to remarks that its FAQ explains.
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def no_topic(topic: str) -> str:
    """The topic does not exist and is not made on demand."""
    return f"topic[{topic}] not exist, apply first please!{FAQ}"


def no_group(group: str) -> str:
    """The consumer group does not exist and is not made on demand."""
    return f"subscription group not exist, {group} {FAQ}"
