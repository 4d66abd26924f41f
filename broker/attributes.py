"""Attributes of topics and groups: which there are, which values they take, and how a request changes them.

A request writes them as `+key=value,-other`. RocketMQ's TopicAttributes,
SubscriptionGroupAttributes and AttributeUtil, with their remarks.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.protocol.errors import ProtocolError

QUEUE_TYPE: Final = "queue.type"
BATCH_CQ: Final = "BatchCQ"
CLEANUP_POLICY: Final = "cleanup.policy"
MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
RESERVE_TIME: Final = "reserve.time"


class AttributeRefused(ProtocolError):
    """Raised when attributes are not written as they must be, or may not become what is asked for."""

    code = 1
    remedy = "write attributes as +key=value,-key, with the keys and values that the topic may have"


class Attribute(NamedTuple):
    """What is known of an attribute. It takes one of the values."""

    values: tuple[str, ...]
    #: Whether it may change once the topic exists.
    is_changeable: bool


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute((BATCH_CQ, "SimpleCQ"), False),
    CLEANUP_POLICY: Attribute(("DELETE", "COMPACTION"), False),
    MESSAGE_TYPE: Attribute(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED), True),
}

#: What RocketMQ's groups have of them (a priority among consumers) has no meaning here.
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {}


def parse(text: str | None) -> dict[str, str]:
    """The changes that a text asks for: `{"+key": "value", "-other": ""}`."""
    changes: dict[str, str] = {}
    for item in (text or "").split(","):
        if not item:
            continue
        key, equals, value = item.partition("=")
        if equals and not key.startswith("+"):
            raise AttributeRefused(f"add/alter attribute format is wrong: {key[:100]}")
        if not equals and not key.startswith("-"):
            raise AttributeRefused(f"delete attribute format is wrong: {key[:100]}")
        if key in changes:
            raise AttributeRefused(f"key duplication: {key[:100]}")
        changes[key] = value
    return changes


def alter(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute] = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """The attributes after the changes; `current` is None for a topic or group that is created."""
    result = dict(current or {})
    seen: set[str] = set()
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if not name:
            raise AttributeRefused("kv string format wrong.")
        if name in seen:
            raise AttributeRefused(f"alter duplication key. key: {name[:100]}")
        seen.add(name)
        if current is None and sign != "+":
            raise AttributeRefused(f"only add attribute is supported while creating topic. key: {name[:100]}")
        if sign == "+":
            _check(known, name, value, is_new=current is None)
            result[name] = value
        elif sign == "-":
            if name not in result:
                raise AttributeRefused(f"attempt to delete a nonexistent key: {name[:100]}")
            _check(known, name, None, is_new=False)
            del result[name]
        else:
            raise AttributeRefused(f"wrong format key: {name[:100]}")
    return result


def _check(known: Mapping[str, Attribute], name: str, value: str | None, *, is_new: bool) -> None:
    if name == RESERVE_TIME:
        raise AttributeRefused("reserve.time needs tiered storage, which this broker does not have")
    attribute = known.get(name)
    if attribute is None:
        raise AttributeRefused(f"unsupported key: {name[:100]}")
    if not is_new and not attribute.is_changeable:
        raise AttributeRefused(f"attempt to update an unchangeable attribute. key: {name}")
    if value is not None and value not in attribute.values:
        raise AttributeRefused(f"value is not in set: [{', '.join(attribute.values)}]")
