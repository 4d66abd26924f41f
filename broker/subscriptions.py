"""What a group wants of a topic: from the text of a subscription to the filter that the store asks.

Tags are told apart by Java's hash of their text, computed here from the tags themselves: Go clients hash other bytes,
and no client is trusted with it. None as a filter stands for all messages. Expressions in another language than tags
come in through `Subscriptions.languages`, where SQL92 will be; until then it is refused (rulings 6, 24 and 32).
RocketMQ's FilterAPI and ExpressionMessageFilter.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from cometmq.broker.store.reading import MessageFilter, TagFilter
from cometmq.protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.hashing import tags_code

#: The text that stands for all messages; so does the empty one.
ALL: Final = "*"
#: Filters that are kept made. Beyond this all are made anew: a bound, not a working set (a filter takes 1 KiB or so).
MAX_KEPT: Final = 20_000

#: Longest text whose filter is kept (characters): real ones are shorter, and a bound in pieces needs one on the piece.
MAX_KEPT_TEXT: Final = 1024

#: What Java's `trim` takes off: everything up to the blank.
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
_TAG_TYPES: Final = frozenset({None, "", ExpressionType.TAG.value})


class SubscriptionRefused(ProtocolError):
    """Raised when a subscription cannot be served; the text is the remark of the answer."""

    code = int(ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    remedy = "subscribe with * or with tags, as in `TagA || TagB`"


class LanguageUnknown(SubscriptionRefused):
    """Raised when nobody knows the language of an expression."""

    code = int(ResponseCode.SYSTEM_ERROR)


class Subscription(NamedTuple):
    """A subscription that can be served."""

    data: SubscriptionData
    #: None: every message.
    wanted: MessageFilter | None


_K = TypeVar("_K")


def _keep(table: dict[_K, Subscription], key: _K, subscription: Subscription) -> None:
    if len(table) >= MAX_KEPT:
        table.clear()
    table[key] = subscription


#: Makes a filter from the text of an expression. Raises `SubscriptionRefused`.
Language = Callable[[SubscriptionData], MessageFilter | None]


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the expression is one of tags; Go may leave the type empty."""
    return expression_type in _TAG_TYPES


def parse_tags(text: str | None) -> list[str]:
    """The tags of a text like `a || b`; none for all messages. Raises when the text has no tag in it."""
    if not text or text == ALL:
        return []
    tags = _split(text)
    if not tags:
        raise SubscriptionRefused("parse the consumer's subscription failed")
    return tags


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip(_JAVA_BLANKS))))


def build(topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
    """The subscription that a pull request carries itself."""
    if not is_tag_type(expression_type):
        return SubscriptionData(topic=topic, sub_string=text or "", expression_type=expression_type or "")
    tags = parse_tags(text)
    return SubscriptionData(
        topic=topic, sub_string=text or ALL, tags_set=tags, code_set=[tags_code(tag) for tag in tags]
    )


def tag_filter(data: SubscriptionData) -> MessageFilter | None:
    """The filter of a subscription by tags. One without any tag, that does not ask for all either, gets nothing."""
    if data.class_filter_mode or data.sub_string == ALL:
        return None
    tags = data.tags_set or _split(data.sub_string)
    if not tags and not data.sub_string:
        return None
    return TagFilter([tags_code(tag) for tag in tags])


def refuse_sql92(data: SubscriptionData) -> MessageFilter | None:
    """Stands where SQL92 will be."""
    raise SubscriptionRefused("this version filters by tag only")


class Subscriptions:
    """Subscriptions with their filters, kept made while they do not change."""

    def __init__(self) -> None:
        #: The language of expressions that are not tags -> how to make a filter of them.
        self.languages: dict[str, Language] = {ExpressionType.SQL92.value: refuse_sql92}
        self._of_pulls: dict[tuple[str, str | None, str | None], Subscription] = {}
        self._of_groups: dict[tuple[str, str], Subscription] = {}

    def of_pull(self, topic: str, text: str | None, expression_type: str | None) -> Subscription:
        """By what a pull request says. Hot: a lookup. Raises `SubscriptionRefused`."""
        key = (topic, text, expression_type)
        kept = self._of_pulls.get(key)
        if kept is None:
            data = build(topic, text, expression_type)
            kept = Subscription(data, self.make_filter(data))
            if len(text or "") <= MAX_KEPT_TEXT:
                _keep(self._of_pulls, key, kept)
        return kept

    def of_group(self, group: str, data: SubscriptionData) -> MessageFilter | None:
        """By what the group's heartbeat said. Hot: a lookup. Raises `SubscriptionRefused`."""
        key = (group, data.topic)
        kept = self._of_groups.get(key)
        # Values do not change: another subscription, or version of one, is another object.
        if kept is None or kept.data is not data:
            kept = Subscription(data, self.make_filter(data))
            _keep(self._of_groups, key, kept)
        return kept.wanted

    def make_filter(self, data: SubscriptionData) -> MessageFilter | None:
        """The filter of a subscription. Raises `SubscriptionRefused`."""
        if is_tag_type(data.expression_type):
            return tag_filter(data)
        language = self.languages.get(data.expression_type)
        if language is None:
            raise LanguageUnknown(f"The broker does not support consumer to filter message by {data.expression_type}")
        return language(data)
