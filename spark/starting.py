"""Where reading starts, and where a batch read ends: by name, by offset, or by time; as the options say it.

Only what the user wrote, and what follows from it for a queue once the cluster has been asked. Several ways to write
the JSON are understood: topic -> broker -> queue as RocketMQ's old connector had it, topic -> queue as Kafka's source
has it (the queue of that number on every broker), `topic.broker.queue`, a number for a whole topic or broker, and the
offset that a query's progress shows. Kafka's KafkaOffsetRangeLimit.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import Any, Final

import msgspec

from cometmq.spark.errors import OptionError
from cometmq.spark.queue_range import QueueId

#: What stands for any broker, or any queue, in a rule.
ANY: Final = None

Rule = tuple[str, str | None, int | None]


class End(IntEnum):
    """The two ends of a queue, with the numbers that stand for them in JSON."""

    EARLIEST = -2
    LATEST = -1


class Numbers(msgspec.Struct, frozen=True):
    """Numbers for queues as the JSON of an option gives them: offsets or times."""

    option: str
    rules: Mapping[Rule, int]

    def of(self, queue: QueueId) -> int:
        """The number of a queue: the closest rule counts. OptionError when none says anything about it."""
        topic, broker, queue_id = queue
        for rule in ((topic, broker, queue_id), (topic, broker, ANY), (topic, ANY, queue_id), (topic, ANY, ANY)):
            if rule in self.rules:
                return self.rules[rule]
        raise OptionError(
            self.option,
            "",
            f"it says nothing about {queue}: name every queue, or give one number for the whole topic",
        )

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _, _ in self.rules}


class AtEnd(msgspec.Struct, frozen=True):
    """All queues from their first message on, or from after their last one."""

    end: End


class AtOffsets(msgspec.Struct, frozen=True):
    """Each queue at an offset of its own; -2 and -1 stand for its ends."""

    numbers: Numbers


class AtTime(msgspec.Struct, frozen=True):
    """Each queue at the first message that was stored at a time or later (milliseconds)."""

    option: str
    #: For all queues; else `numbers` has them.
    time: int | None = None
    numbers: Numbers = msgspec.field(default_factory=lambda: Numbers("", {}))
    #: Whether a queue that has no such message is taken from its end; otherwise it is an error.
    or_latest: bool = False

    def of(self, queue: QueueId) -> int:
        return self.time if self.time is not None else self.numbers.of(queue)


Place = AtEnd | AtOffsets | AtTime

EARLIEST: Final = AtEnd(End.EARLIEST)
LATEST: Final = AtEnd(End.LATEST)


def place_of_text(option: str, text: str, *, earliest: bool = True) -> Place:
    """The place that `startingOffsets` or `endingOffsets` names."""
    word = text.strip().lower()
    if word == "latest":
        return LATEST
    if word == "earliest" and earliest:
        return EARLIEST
    if not text.strip().startswith("{"):
        words = "earliest, latest" if earliest else "latest"
        raise OptionError(option, text, f'give {words}, or JSON such as {{"topic":{{"broker-a":{{"0":17,"1":-2}}}}}}')
    numbers = numbers_of_json(option, text)
    lowest = End.EARLIEST if earliest else End.LATEST
    for number in numbers.rules.values():
        if number < lowest:
            meaning = "-2 is earliest, -1 is latest" if earliest else "-1 is latest, and nothing ends at the earliest"
            raise OptionError(option, text, f"{number} is no offset: {meaning}")
    return AtOffsets(numbers)


def numbers_of_json(option: str, text: str) -> Numbers:
    """The numbers that a JSON text gives to queues."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(option, text, f"it is not JSON ({error})") from None
    if isinstance(tree, dict) and "v" in tree and isinstance(tree.get("q"), dict):
        tree = tree["q"]  # an offset of a query's progress
    if not isinstance(tree, dict) or not tree:
        raise OptionError(option, text, 'give an object such as {"topic":{"broker-a":{"0":17}}}')
    rules: dict[Rule, int] = {}
    for key, value in tree.items():
        _collect(option, text, key, value, rules)
    return Numbers(option, rules)


def _collect(option: str, text: str, key: str, value: Any, rules: dict[Rule, int]) -> None:
    """The rules of one entry of the outermost object."""
    topic, dot, rest = key.partition(".")
    if dot:  # topic.broker.queue: topics have no dots
        broker, dot, number = rest.rpartition(".")
        if dot and number.isdecimal():
            rules[topic, broker, int(number)] = _number(option, text, value)
            return
        raise OptionError(option, text, f"{key!r} is neither a topic nor topic.broker.queue")
    if not isinstance(value, dict):
        rules[topic, ANY, ANY] = _number(option, text, value)
        return
    for inner, below in value.items():
        if isinstance(below, dict):
            for queue_id, number in below.items():
                rules[topic, inner, _queue_id(option, text, queue_id)] = _number(option, text, number)
        elif inner.isdecimal():  # Kafka's form
            rules[topic, ANY, int(inner)] = _number(option, text, below)
        else:
            rules[topic, inner, ANY] = _number(option, text, below)


def _queue_id(option: str, text: str, key: str) -> int:
    if not key.isdecimal():
        raise OptionError(option, text, f"{key!r} is no number of a queue")
    return int(key)


def _number(option: str, text: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(option, text, f"{json.dumps(value)[:80]} stands where a whole number is expected")
    return value


def time_of_text(option: str, text: str) -> int:
    """A time in milliseconds since 1970: as such, or as ISO 8601 with its offset from UTC."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise OptionError(option, text, "give milliseconds since 1970, or a time such as 2026-01-31T08:00:00Z")
    return round(moment.timestamp() * 1000)
