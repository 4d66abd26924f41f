"""What happens to a message before it is put: an ordered list of checks and diversions.

Each transform gives the message back, changed or not, or says why it is refused. Here are those that every store has:
limits of the topic, inner batches, delay levels. Timers and half messages become further entries of the list when the
broker has them. RocketMQ's PutMessageHooks, in their order.

Nearly every message asks for nothing: a transform therefore names the properties that wake it, and the put looks for
those names only.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from cometmq.broker.store.message import Message, PutStatus, Refusal, integer_property
from cometmq.protocol import names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.delay import DelayLevels

#: In bytes of UTF-8. A V1 record counts the topic in a signed byte; only retry topics may need a V2 record.
MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_QUEUE_ID: Final = (1 << 31) - 1

_TIMERS: Final = (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS")


class Transform(Protocol):
    """One entry of the list."""

    #: Names of properties, or beginnings of names, without which it has nothing to do; empty: it sees every message.
    wakes_on: tuple[bytes, ...]

    def __call__(self, message: Message) -> Message | Refusal: ...


class TopicKinds(Protocol):
    """What the store asks the broker's topic table."""

    def is_batch(self, topic: str) -> bool:
        """Whether the topic has the attribute `queue.type=BatchCQ`."""

    def exists(self, topic: str) -> bool | None:
        """Whether the topic exists; None when nobody knows. Recovery does not bring back queues of deleted topics."""


class SimpleTopics:
    """A topic table in which no topic has attributes, or only the named ones are BatchCQ. It forgets what it saw."""

    def __init__(self, batch: frozenset[str] = frozenset()) -> None:
        self._batch = batch

    def is_batch(self, topic: str) -> bool:
        return topic in self._batch

    def exists(self, topic: str) -> bool | None:
        return None


def check_topic(topic: str, queue_id: int) -> Refusal | None:
    """Refuse a topic that a record cannot hold or a directory cannot be named by."""
    length = len(topic.encode("utf-8", "replace"))
    longest = MAX_RETRY_TOPIC_BYTES if topic.startswith(names.RETRY_PREFIX) else MAX_TOPIC_BYTES
    if length > longest:
        return _illegal(f"the topic takes {length} bytes, at most {longest} are allowed")
    # The name becomes a directory as it is.
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or not topic.isprintable():
        return _illegal(f"{topic!r} cannot be the name of a topic")
    if not 0 <= queue_id <= MAX_QUEUE_ID:
        return _illegal(f"queue {queue_id} cannot exist")
    return None


def _illegal(remark: str) -> Refusal:
    return Refusal(PutStatus.MESSAGE_ILLEGAL, remark)


class CheckInnerBatch:
    """An inner batch goes to a BatchCQ topic, marked and counted, or not at all."""

    wakes_on: tuple[bytes, ...] = (b"INNER_NUM\x01",)

    def __init__(self, topics: TopicKinds) -> None:
        self._topics = topics

    def __call__(self, message: Message) -> Message | Refusal:
        marked = message.sys_flag & sysflag.INNER_BATCH
        if not marked:
            if props.find(message.properties, b"INNER_NUM") is not None:
                return _illegal("INNER_NUM stands on a message that is no inner batch")
            return message
        if not self._topics.is_batch(message.topic):
            return _illegal(f"an inner batch needs a topic with queue.type=BatchCQ, {message.topic} has another type")
        if not 0 < integer_property(message.properties, b"INNER_NUM") <= 0x7FFF:
            return _illegal("an inner batch needs INNER_NUM, the number of its messages, from 1 to 32767")
        return message


def asks_for_delivery_time(message: Message) -> bool:
    """Whether delay and timer properties have a meaning: not on half and rollback records, not on history."""
    state = message.sys_flag & sysflag.TRANSACTION_MASK
    return not message.verbatim and state in (sysflag.TRANSACTION_NOT, sysflag.TRANSACTION_COMMIT)


class RefuseTimers:
    """Timers of any length are not built yet: a message that asks for one is refused, never stored without it."""

    wakes_on: tuple[bytes, ...] = (b"TIMER_DEL",)

    def __call__(self, message: Message) -> Message | Refusal:
        raw = message.properties
        if not asks_for_delivery_time(message) or message.topic == names.TIMER_TOPIC:
            return message
        if integer_property(raw, b"DELAY") > 0 or props.find(raw, b"TIMER_OUT_MS") is not None:
            return message
        for name in _TIMERS:
            if props.find(raw, name) is not None:
                return Refusal(
                    PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
                    f"{name.decode()} asks for a timer, which this version does not have; use a delay level (DELAY)",
                )
        return message


def timer_of(texts: Iterable[bytes]) -> str | None:
    """The timer that one of these property texts asks for."""
    found = (name for text in texts for name in _TIMERS if props.find(text, name) is not None)
    return next((name.decode() for name in found), None)


class DivertDelayed:
    """A message with a delay level waits in the schedule topic, in the queue of its level."""

    wakes_on: tuple[bytes, ...] = (b"DELAY\x01",)

    def __init__(self, levels: DelayLevels) -> None:
        self.levels = levels

    def __call__(self, message: Message) -> Message | Refusal:
        if not asks_for_delivery_time(message):
            return message
        raw = message.properties
        level = self.levels.clamp(integer_property(raw, b"DELAY"))
        if level <= 0:
            return message
        # The text is built anew from its values, as RocketMQ does: duplicates go, and so do the timers that lose
        # against the level.
        pairs = props.decode_properties(raw)
        for name in _TIMERS:
            pairs.pop(name.decode(), None)
        pairs[props.DELAY] = str(level)
        pairs[props.REAL_TOPIC] = message.topic
        pairs[props.REAL_QID] = str(message.queue_id)
        text = props.format_properties(pairs).encode("utf-8", "replace")
        return msgspec.structs.replace(message, topic=names.SCHEDULE_TOPIC, queue_id=level - 1, properties=text)


def default_transforms(topics: TopicKinds, levels: DelayLevels) -> list[Transform]:
    """The list that a store begins with. The check of the topic comes before it, at the put itself."""
    return [CheckInnerBatch(topics), RefuseTimers(), DivertDelayed(levels)]


class TransformList:
    """The transforms of a store, run over a message. The list may be changed while the store runs."""

    def __init__(self, transforms: list[Transform]) -> None:
        self._transforms = list(transforms)
        #: Called when the list has changed: somebody may remember which texts wake it.
        self.changed: Callable[[], None] | None = None
        self.prepare()

    @property
    def transforms(self) -> list[Transform]:
        return list(self._transforms)

    def insert(self, index: int, transform: Transform) -> None:
        self._transforms.insert(index, transform)
        self.prepare()

    def append(self, transform: Transform) -> None:
        self.insert(len(self._transforms), transform)

    def prepare(self) -> None:
        """Gather what wakes the list as a whole."""
        #: A message with none of these in its text, and no inner batch, is passed on as it is.
        self.needles: tuple[bytes, ...] = tuple({name for each in self._transforms for name in each.wakes_on})
        self.always = any(not each.wakes_on for each in self._transforms)
        if self.changed is not None:
            self.changed()

    def run(self, message: Message) -> Message | Refusal:
        """The message as it shall be stored."""
        for transform in self._transforms:
            result = transform(message)
            if isinstance(result, Refusal):
                return result
            message = result
        return message


#: For the type of an argument: builds the list of a store.
TransformFactory = Callable[[TopicKinds, DelayLevels], list[Transform]]
