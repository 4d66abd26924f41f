"""What a broker adds to the properties of a message that is sent to it: region, trace switch, cluster, unique key.

The text is stored byte for byte as a RocketMQ 5 broker stores it, in the order of Java's HashMap. Building that from a
dict costs more than laying out the record, and most messages of a topic differ in their keys only; so the shapes of
texts are remembered: everything but the values of UNIQ_KEY and KEYS. Mirrors `buildMsgContext`,
`clearReservedProperties` and what `sendMessage` puts into the map.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from cometmq.broker.store.text_shape import Facts
from cometmq.protocol import properties as props
from cometmq.protocol.hashing import tags_code

#: Shapes that are remembered for a topic: a few producers with a few tags each.
MAX_SHAPES: Final = 8

_UNIQUE: Final = f"{props.UNIQ_KEY}\x01"
_KEYS: Final = f"{props.KEYS}\x01"
#: Names that ask the broker for more than storing; messages with one of them are looked at one by one.
_SPECIAL: Final = frozenset(
    {
        props.TRAN_MSG,
        props.DELAY,
        props.TIMER_DELAY_SEC,
        props.TIMER_DELAY_MS,
        props.TIMER_DELIVER_MS,
        props.TIMER_DEL_UNIQKEY,
        props.INNER_NUM,
        props.INNER_MULTI_DISPATCH,
    }
)


class Stamped(NamedTuple):
    """Property text as it is stored."""

    text: bytes
    #: The client's message id, or the one that was made for it; empty when there is none.
    unique: str
    #: The pairs, when something in them wants to be looked at.
    pairs: dict[str, str] | None = None


class StampShape:
    """One shape: what to compare a text with, and what to write around its keys."""

    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_end",
        "_head",
        "_keys_first",
        "_length",
        "_middle",
        "_middle_end",
        "_start",
        "_tail",
        "code",
    )

    def __init__(self, text: str, unique: str, keys: str, stored: str) -> None:
        """A text with one UNIQ_KEY and at most one KEYS, and what was made of it."""
        spans = [_span(text, _UNIQUE, unique)]
        if keys:
            spans.append(_span(text, _KEYS, keys))
        self._keys_first = spans[-1] < spans[0]
        spans.sort()
        self._length = len(text)
        self._start, self._end = spans[0]
        self._head = text[: self._start]
        self._middle = text[self._end : spans[1][0]] if keys else None
        self._middle_end = spans[-1][0]
        self._tail = text[spans[-1][1] :]
        # The unique key comes before the keys there: see `learn`.
        start, end = _span(stored, _UNIQUE, unique)
        self._before = stored[:start]
        self._between = ""
        if keys:
            keys_start, keys_end = _span(stored, _KEYS, keys)
            self._between = stored[end:keys_start]
            end = keys_end
        self._after = stored[end:]
        #: The code of the tags.
        self.code = tags_code(props.parse_properties(stored).get(props.TAGS, ""))

    def stamp(self, text: str) -> tuple[bytes, str, Facts] | None:
        """The stored text, the unique key and what the text says, of a text of this shape; None for others.

        Budget: 0.6 us.
        """
        if not text.startswith(self._head) or not text.endswith(self._tail):
            return None
        middle = self._middle
        if middle is None:
            if len(text) != self._length:
                return None
            unique = text[self._start : self._end]
            # A value with a separator in it would be two properties.
            if "\x02" in unique:
                return None
            stored = f"{self._before}{unique}{self._after}".encode("utf-8", "replace")
            raw = unique.encode("utf-8", "replace")
            return stored, unique, (self.code, None, raw)
        if self._keys_first:
            shift = len(text) - self._length
            end = self._end + shift
            if text[end : self._middle_end + shift] != middle:
                return None
            keys = text[self._start : end]
            unique = text[self._middle_end + shift : len(text) - len(self._tail)]
        else:
            if text[self._end : self._middle_end] != middle:
                return None
            unique = text[self._start : self._end]
            keys = text[self._middle_end : len(text) - len(self._tail)]
        if not keys or "\x02" in keys or "\x02" in unique:
            return None
        stored = f"{self._before}{unique}{self._between}{keys}{self._after}".encode("utf-8", "replace")
        raw = unique.encode("utf-8", "replace")
        return stored, unique, (self.code, keys.encode("utf-8", "replace"), raw)


def learn(text: str, unique: str, keys: str, stored: str) -> StampShape | None:
    """The shape of a text, where it has one worth remembering: duplicates are rare, and so are texts without a key."""
    if not unique or text.count(_UNIQUE) != 1 or text.count(_KEYS) != (1 if keys else 0) or unique not in text:
        return None
    # With more than 96 properties Java's order may be another one.
    if keys and stored.index(_KEYS) < stored.index(_UNIQUE):
        return None
    return StampShape(text, unique, keys, stored)


def _span(text: str, name: str, value: str) -> tuple[int, int]:
    start = text.index(name) + len(name)
    return start, start + len(value)


class Stamps:
    """The stamps of one broker. Immutable; a new configuration makes new ones."""

    def __init__(self, region: str, trace_on: bool, cluster: str, new_key: Callable[[], str]) -> None:
        self._region = region
        self._trace = "true" if trace_on else "false"
        self._cluster = cluster
        self._new_key = new_key

    def stamp(
        self, text: str, shapes: list[StampShape], *, need_key: bool = True, needles: tuple[bytes, ...] = ()
    ) -> Stamped:
        """The text as it is stored, by a shape that is known or by its pairs; a shape that is new joins the list.

        Texts with a needle in them have no shape: the store wants to look at each of them.
        """
        for shape in shapes:
            known = shape.stamp(text)
            if known is not None:
                return Stamped(known[0], known[1])
        pairs = props.parse_properties(text)
        pairs.pop(props.POP_CK, None)
        unique = self.add(pairs, need_key=need_key)
        stored = props.format_properties(props.in_java_order(pairs))
        if not _SPECIAL.isdisjoint(pairs):
            return Stamped(stored.encode("utf-8", "replace"), unique, pairs)
        raw = stored.encode("utf-8", "replace")
        new = learn(text, unique, pairs.get(props.KEYS, ""), stored)
        if new is not None and not any(needle in raw for needle in needles):
            if len(shapes) >= MAX_SHAPES:
                del shapes[0]
            shapes.append(new)
        return Stamped(raw, unique)

    def add(self, pairs: dict[str, str], *, need_key: bool = True) -> str:
        """Put what the broker adds into a map; gives the unique key."""
        pairs[props.MSG_REGION] = self._region
        pairs[props.TRACE_ON] = self._trace
        unique = pairs.get(props.UNIQ_KEY, "")
        if not unique and need_key:
            unique = pairs[props.UNIQ_KEY] = self._new_key()
        pairs[props.CLUSTER] = self._cluster
        return unique
