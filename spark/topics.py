"""Which topics and queues a query reads: a list, a pattern, or queues one by one.

Only the choice as the user made it; which topics there are, `cluster` asks. Kafka's ConsumerStrategy.
"""

import json
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.protocol import names
from cometmq.spark.errors import OptionError
from cometmq.spark.queue_range import QueueId

_EXAMPLE: Final = '{"topic":{"broker-a":[0,1]}}'


class Topics(msgspec.Struct, frozen=True):
    """A choice of topics. `names`, `pattern` or `queues` says it; `option` is where the user did."""

    option: str
    names: tuple[str, ...] = ()
    pattern: str | None = None
    #: All that is read of the topics in `names`, when the user assigned them.
    queues: frozenset[QueueId] | None = None

    @property
    def text(self) -> str:
        """The choice, as an error shows it; the JSON of queues is left out."""
        return self.pattern or ("" if self.queues is not None else ",".join(self.names))

    def takes(self, queue: QueueId) -> bool:
        """Whether a queue is one of those chosen, if it exists."""
        if self.queues is not None:
            return queue in self.queues
        return queue.topic in self.names if self.pattern is None else bool(re.fullmatch(self.pattern, queue.topic))

    def matching(self, existing: Iterable[str]) -> list[str]:
        """The topics that match the pattern, of those that exist. What the system keeps for itself never does."""
        assert self.pattern is not None, "only for patterns"
        expression = re.compile(self.pattern)
        return sorted(
            topic
            for topic in existing
            if expression.fullmatch(topic)
            and not names.is_system_topic(topic)
            and not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        )


def topics_of_list(option: str, text: str) -> Topics:
    """The topics of `subscribe`: names with commas between them."""
    topics = [name.strip() for name in text.split(",") if name.strip()]
    if not topics:
        raise OptionError(option, text, "no topic is named")
    for topic in topics:
        _check(option, text, topic)
    return Topics(option, tuple(dict.fromkeys(topics)))


def topics_of_pattern(text: str) -> Topics:
    """The topics of `subscribePattern`."""
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError("subscribePattern", text, f"it is no regular expression ({error})") from None
    return Topics("subscribePattern", pattern=text)


def topics_of_assign(text: str) -> Topics:
    """The queues of `assign`: topic -> broker -> numbers of queues."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError("assign", text, f"it is not JSON ({error}); give e.g. {_EXAMPLE}") from None
    if not isinstance(tree, dict) or not tree:
        raise OptionError("assign", text, f"give an object such as {_EXAMPLE}")
    queues: set[QueueId] = set()
    for topic, brokers in tree.items():
        _check("assign", text, topic)
        if not isinstance(brokers, dict) or not brokers:
            raise OptionError("assign", text, f"under {topic} the brokers are missing: give e.g. {_EXAMPLE}")
        for broker, numbers in brokers.items():
            if not isinstance(numbers, list) or not numbers or not all(_is_number(number) for number in numbers):
                raise OptionError("assign", text, f"under {broker} a list of queues is expected, e.g. {_EXAMPLE}")
            queues.update(QueueId(topic, broker, number) for number in numbers)
    return Topics("assign", tuple(sorted(tree)), queues=frozenset(queues))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check(option: str, text: str, topic: str) -> None:
    try:
        names.validate_topic(topic)
    except names.InvalidName as error:
        raise OptionError(option, text, str(error)) from None
