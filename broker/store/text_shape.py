"""The shape of property text: most messages of a queue differ from each other in their keys only.

Looking for tags, keys, unique key and for names that wake a transform costs more than laying out the record. So a queue
remembers the shapes of the texts that it saw: everything but the values of UNIQ_KEY and KEYS. A text of a known shape
is compared with it, which takes a quarter of the time, and has the same answers. A text of no known shape is searched.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from struct import pack
from typing import Final, TypeAlias

from cometmq.broker.store.message import index_properties
from cometmq.protocol.hashing import tags_code_bytes
from cometmq.protocol.properties import MAX_PROPERTIES_LENGTH

#: Tags code, keys and unique key.
Facts: TypeAlias = tuple[int, bytes | None, bytes | None]

#: Shapes that a queue remembers: a few producers with a few tags each.
MAX_SHAPES: Final = 6
#: Lengths that a shape remembers.
_MAX_LENGTHS: Final = 64

# As a number: `in` with bytes takes five times as long.
_SEPARATOR: Final = 2
_UNIQUE: Final = b"UNIQ_KEY\x01"
_KEYS: Final = b"KEYS\x01"


class TextShape:
    """One shape. Between fixed parts stand one or two values; the one of KEYS may have any length."""

    __slots__ = (
        "_end",
        "_head",
        "_keys_first",
        "_keys_length",
        "_length",
        "_middle",
        "_middle_end",
        "_pattern",
        "_start",
        "_tail",
        "code",
        "given",
        "lengths",
        "wakes",
    )

    def __init__(self, text: bytes, spans: list[tuple[int, int]], keys_first: bool, code: int, wakes: bool) -> None:
        self._length = len(text)
        #: Of the first value; where there is a second one, `_middle` is what stands between them.
        self._start, self._end = spans[0]
        self._head = text[: self._start]
        self._middle: bytes | None = None
        self._middle_end = 0
        if len(spans) == 2:
            self._middle = text[self._end : spans[1][0]]
            self._middle_end = spans[1][0]
        self._tail = text[spans[-1][1] :]
        keys_span = spans[0] if keys_first else spans[-1]
        self._keys_length = keys_span[1] - keys_span[0]
        self._keys_first = keys_first
        self._pattern: re.Pattern[bytes] | None = None
        #: For batches: what wrappers add to such a text, and the tags code and keys of both together.
        self.given: dict[bytes, tuple[bytes, int, bytes | None]] = {}
        #: For batches: lengths of bodies and texts that came with such a text.
        self.lengths: set[tuple[int, int]] = set()
        self.code = code
        #: Whether a transform has to look at such texts.
        self.wakes = wakes

    def match(self, text: bytes) -> Facts | None:
        """What a text of this shape says; None when it has another one. Budget: 0.4 us."""
        if not text.startswith(self._head) or not text.endswith(self._tail):
            return None
        middle = self._middle
        if middle is None:
            if len(text) != self._length:
                return None
            unique = text[self._start : self._end]
            # A value with a separator in it would be two properties.
            return (self.code, None, unique) if _SEPARATOR not in unique else None
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
        if not keys or _SEPARATOR in keys or _SEPARATOR in unique:
            return None
        return self.code, keys, unique

    def parts(self, length: int) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
        """The fixed parts, and of a text of this shape that has `length` bytes the lengths of the values between them.

        Values of KEYS may have any length: what a text is longer than this shape, its keys are.
        """
        first = self._end - self._start
        if self._middle is None:
            return (self._head, self._tail), (first,)
        second = self._length - len(self._tail) - self._middle_end
        longer = length - self._length
        lengths = (first + longer, second) if self._keys_first else (first, second + longer)
        return (self._head, self._middle, self._tail), lengths

    def is_known_length(self, body: int, text: int) -> bool:
        """Whether a body and a text of these lengths came before; from now on they did."""
        if (body, text) in self.lengths:
            return True
        if len(self.lengths) >= _MAX_LENGTHS:
            self.lengths.clear()
        self.lengths.add((body, text))
        return False

    @property
    def keys_first(self) -> bool:
        """Whether KEYS stands before UNIQ_KEY."""
        return self._keys_first

    def match_all(self, framed: list[bytes]) -> tuple[list[bytes] | None, list[bytes]] | None:
        """Keys, if there are any, and unique keys of many texts of this shape; None when one has another shape.

        They stand as in a batch: an i16 with the length before each. One search over all of them. Budget: 0.15 us each.
        """
        pattern = self._pattern
        if pattern is None:
            pattern = self._pattern = _compiled(self._regular_expression())
        found = pattern.findall(b"".join(framed))
        if len(found) != len(framed):
            return None
        if self._middle is None:
            # As many as there are texts, and all as long as these: then there is nothing between them.
            return (None, found) if {*map(len, framed)} == {self._length + 2} else None
        lengths, first, second = map(list, zip(*found, strict=True))
        keys, uniques = (first, second) if self._keys_first else (second, first)
        fixed = self._length - self._keys_length
        expected = [fixed + len(each) for each in keys]
        if [len(each) - 2 for each in framed] != expected or max(expected) > MAX_PROPERTIES_LENGTH:
            return None
        return (keys, uniques) if b"".join(lengths) == pack(f">{len(expected)}h", *expected) else None

    def _regular_expression(self) -> bytes:
        unique = b"([^\x02]{%d})"
        if self._middle is None:
            head = self._length.to_bytes(2, "big") + self._head
            return b"(?s)" + re.escape(head) + unique % (self._end - self._start) + re.escape(self._tail)
        if self._keys_first:
            first, second = b"([^\x02]+)", unique % (self._length - len(self._tail) - self._middle_end)
        else:
            first, second = unique % (self._end - self._start), b"([^\x02]+)"
        parts = re.escape(self._head), first, re.escape(self._middle), second, re.escape(self._tail)
        return b"(?s)(..)" + b"".join(parts)


@lru_cache(maxsize=256)
def _compiled(expression: bytes) -> re.Pattern[bytes]:
    # Compiling takes longer than searching ten batches; queues of one topic have the same shapes.
    return re.compile(expression)


def learn(text: bytes, needles: Sequence[bytes]) -> tuple[Facts, TextShape | None, bool]:
    """Search a text: what it says, its shape where it has one worth remembering, and whether a needle is in it."""
    tags, keys, unique = index_properties(text)
    code = 0 if tags is None else tags_code_bytes(tags)
    facts = (code, keys, unique)
    wakes = any(text.rfind(needle) >= 0 for needle in needles)
    # Duplicates are rare, and then the last one counts: not worth a shape.
    if unique is None or text.count(_UNIQUE) != 1 or text.count(_KEYS) != (0 if keys is None else 1):
        return facts, None, wakes
    spans = [_span(text, _UNIQUE, unique)]
    keys_first = False
    if keys is not None:
        spans.append(_span(text, _KEYS, keys))
        keys_first = spans[1] < spans[0]
        spans.sort()
    return facts, TextShape(text, spans, keys_first, code, wakes), wakes


def _span(text: bytes, name: bytes, value: bytes) -> tuple[int, int]:
    start = text.index(name) + len(name)
    return start, start + len(value)


def look(shapes: list[TextShape], text: bytes, needles: Sequence[bytes]) -> tuple[Facts, bool]:
    """What a text says, and whether a needle is in it. A new shape joins the list; the oldest one leaves it."""
    for shape in shapes:
        facts = shape.match(text)
        if facts is not None:
            return facts, shape.wakes
    facts, new, wakes = learn(text, needles)
    _remember(shapes, new)
    return facts, wakes


def find_shape(shapes: list[TextShape], text: bytes) -> tuple[Facts, TextShape | None]:
    """What a text says, and its shape where it has one worth remembering. A new shape joins the list."""
    for shape in shapes:
        facts = shape.match(text)
        if facts is not None:
            return facts, shape
    facts, new, _ = learn(text, ())
    _remember(shapes, new)
    return facts, new


def _remember(shapes: list[TextShape], new: TextShape | None) -> None:
    if new is not None:
        if len(shapes) >= MAX_SHAPES:
            del shapes[0]
        shapes.append(new)
