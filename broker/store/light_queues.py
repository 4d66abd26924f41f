"""Light message queues: further queues that a message names itself, in which it gets an offset each.

A message carries their names in INNER_MULTI_DISPATCH; the put writes the offsets beside them, into
INNER_MULTI_QUEUE_OFFSET, and dispatch reads both. RocketMQ's LMQ: MultiDispatch and LmqDispatch.
"""

from collections.abc import Callable

from cometmq.broker.store.message import Message
from cometmq.protocol import names
from cometmq.protocol import properties as props


def is_light(name: str) -> bool:
    """Whether a queue named in INNER_MULTI_DISPATCH is a light one, which gets an offset of its own."""
    return name.startswith(names.LMQ_PREFIX)


def light_queues(message: Message) -> list[str]:
    """The queues that a message also goes to, as INNER_MULTI_DISPATCH names them."""
    topic = message.topic
    if topic.startswith((names.RETRY_PREFIX, names.SYSTEM_TOPIC_PREFIX)) or topic == names.SCHEDULE_TOPIC:
        return []
    value = props.find(message.properties, b"INNER_MULTI_DISPATCH")
    return value.decode("utf-8", "replace").split(",") if value else []


def with_offsets(text: bytes, queues: list[str], next_offset: Callable[[str], int]) -> bytes:
    """Property text with the offset of the message in each of the queues; those that are not light have none."""
    offsets = ",".join(str(next_offset(name)) if is_light(name) else "" for name in queues)
    text = props.remove(text, b"INNER_MULTI_QUEUE_OFFSET")
    return props.append(text, b"INNER_MULTI_QUEUE_OFFSET\x01%s\x02" % offsets.encode())


def light_targets(text: bytes) -> list[tuple[str, int]]:
    """Name and offset of each light message queue that a record is in."""
    targets = props.find(text, b"INNER_MULTI_DISPATCH")
    offsets = props.find(text, b"INNER_MULTI_QUEUE_OFFSET")
    if targets is None or offsets is None:
        return []
    found = []
    for raw, number in zip(targets.split(b","), offsets.split(b","), strict=False):
        name = raw.decode("utf-8", "replace")
        if name not in ("", ".", "..") and "/" not in name and "\0" not in name and number.isdigit():
            found.append((name, int(number)))
    return found
