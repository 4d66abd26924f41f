"""What a consumer wants of a topic: tags or an SQL expression, and the check of tags that the broker leaves to us.

A broker compares hash codes of tags, so that messages with another tag may come; they are dropped here by their text.
RocketMQ's FilterAPI and SubscriptionData.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from cometmq.client.errors import InvalidSubscription
from cometmq.protocol import names
from cometmq.protocol import properties as props
from cometmq.protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from cometmq.protocol.hashing import tags_code

ALL = "*"


class Tags:
    """Messages with one of these tags: `Tags("paid", "refunded")`."""

    def __init__(self, *tags: str) -> None:
        self.tags = tags

    def __str__(self) -> str:
        return " || ".join(self.tags)


class Sql(msgspec.Struct, frozen=True):
    """Messages whose properties fit: `Sql("price > 10")`. The broker has to allow it (`enablePropertyFilter`)."""

    expression: str


class Priorities(dict[str, "str | Tags | Sql"]):
    """Subscriptions in order of preference: a topic is preferred while it has messages, and none is starved."""


Subscription = str | Tags | Sql


def subscription_data(topic: str, wanted: Subscription, version: int) -> SubscriptionData:
    """The subscription as brokers get it. `version` grows with each change, in milliseconds."""
    if isinstance(wanted, Sql):
        if not wanted.expression.strip():
            raise InvalidSubscription(f"the SQL expression for {topic} is empty")
        return SubscriptionData(
            topic=topic,
            sub_string=wanted.expression,
            expression_type=ExpressionType.SQL92.value,
            sub_version=version,
        )
    text = str(wanted).strip()
    if not text or text == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tags = list(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags:
        raise InvalidSubscription(f"the subscription {text!r} for {topic} names no tag: write 'a || b', or '*' for all")
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=[tags_code(tag) for tag in tags],
        sub_version=version,
    )


def retry_subscription(group: str, version: int) -> SubscriptionData:
    """The retry topic of a group: every member takes all of it."""
    return subscription_data(names.retry_topic(group), ALL, version)


class TagCheck:
    """Whether a message has one of the tags, by their text. None of this for `*` and SQL."""

    def __init__(self, data: SubscriptionData) -> None:
        self._tags = frozenset(tag.encode() for tag in data.tags_set)

    @property
    def is_needed(self) -> bool:
        return bool(self._tags)

    def __call__(self, properties: bytes) -> bool:
        return props.find(properties, b"TAGS") in self._tags


def check_subscriptions(given: Mapping[str, Any]) -> dict[str, Subscription]:
    """The user's table, looked at: topics by their names, subscriptions of a known kind."""
    if not given:
        raise InvalidSubscription('subscribe to something: {"topic": "*"}')
    for topic, wanted in given.items():
        names.validate_topic(topic)
        if not isinstance(wanted, str | Tags | Sql):
            raise InvalidSubscription(f"the subscription for {topic} is a text, Tags(...) or Sql(...), not {wanted!r}")
    return dict(given)
