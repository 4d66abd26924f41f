"""A tolerant reader of fastjson's dialect: what Java and Go peers send that strict JSON is not.

Unquoted integer keys, unquoted names, single quotes, objects as keys of maps, and raw control characters are read;
anything else raises `BodyError`. The reader keeps its own stack, so that nesting costs no Python frames, and looks at
each character a bounded number of times. References (`$ref`) are left in place: see `fastjson_references`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from cometmq.protocol.errors import BodyError

#: Deepest nesting that is read or written. RocketMQ's bodies stay below 10.
MAX_DEPTH = 128
#: Longest number in characters. The longest that Java writes, a double, has 24.
MAX_NUMBER = 128
#: Integer keys are Java's Integer and Long. The bound also keeps crafted keys from sharing one hash.
MIN_KEY, MAX_KEY = -(2**63), 2**63 - 1

_BLANK = " \t\r\n\f\b"
_BLANKS = re.compile(r"[ \t\r\n\f\b]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_QUOTED = {'"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.S), "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*", re.S)}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.S)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
#: A whole entry of an object in its usual form: a key, a text or an integer, and what comes after it.
_USUAL = re.compile(r'[ \t\r\n]*"([^"\\]*)"[ \t]*:[ \t]*(?:"([^"\\]*)"|(-?[0-9]{1,18}))[ \t]*([,}])')
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}
_ESCAPED = {
    **{letter: letter for letter in "\"'/\\"},
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
}


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A map's key that is itself an object, such as a message queue: its sorted pairs, hashable."""

    __slots__ = ()

    @classmethod
    def of(cls, fields: Mapping[Any, Any]) -> Self:
        pairs = ((str(name), _frozen(value)) for name, value in fields.items())
        return cls(sorted(pairs, key=lambda pair: pair[0]))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return ObjectKey.of(value)
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, int) and not MIN_KEY <= value <= MAX_KEY:
        raise BodyError(f"JSON has a number in a key that is no 64-bit integer: {value}")
    return value


class _Open(NamedTuple):
    """A container whose end was not seen yet."""

    container: Any
    #: Whether the container is a key of the one below it.
    is_key: bool


def parse(text: str) -> Any:
    """The value that the whole text stands for."""
    return _Reader(text).read()


class _Reader:
    __slots__ = ("in_key", "keys", "pos", "stack", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 1 if text.startswith("\ufeff") else 0
        self.stack: list[_Open] = []
        #: The key that waits for its value, for every open object.
        self.keys: list[Any] = []
        self.in_key = False

    def read(self) -> Any:
        value = self._value()
        while self.stack:
            value = self._value() if value is _OPENED else self._close_or_next(value)
        if self._peek():
            raise self._error("has text after its end")
        return value

    def _value(self) -> Any:
        """Reads a scalar, or opens a container and reads up to its first value; `_OPENED` means: go on reading."""
        ch = self._peek()
        if ch == "{":
            self._open({}, is_key=False)
            return self._next_in_object()
        if ch == "[":
            self._open([], is_key=False)
            if self._peek() == "]":
                return self._pop()
            return _OPENED
        return self._scalar(ch)

    def _close_or_next(self, value: Any) -> Any:
        """Puts a finished value into the innermost container, and reads the comma or the end after it."""
        container = self.stack[-1].container
        if type(container) is list:
            container.append(value)
            ch = self._peek()
            if ch == ",":
                self.pos += 1
                return _OPENED if self._peek() != "]" else self._pop()
            if ch == "]":
                return self._pop()
            raise self._error("wants , or ] here")
        container[self.keys[-1]] = value
        return self._after_entry()

    def _after_entry(self) -> Any:
        ch = self._peek()
        if ch == ",":
            self.pos += 1
            return self._next_in_object()
        if ch == "}":
            return self._pop()
        raise self._error("wants , or } here")

    def _next_in_object(self) -> Any:
        """Reads a key and its colon, or the end of the object (also after a comma, as fastjson does)."""
        while True:
            container = self.stack[-1].container
            while entry := _USUAL.match(self.text, self.pos):
                key, text, number, after = entry.groups()
                container[key] = text if number is None else int(number)
                self.pos = entry.end()
                if after == "}":
                    self.pos -= 1
                    break
            ch = self._peek()
            if ch == "}":
                return self._pop()
            if ch == "{":
                if self.in_key:
                    raise self._error("has an object key inside an object key")
                self._open({}, is_key=True)
                continue
            self.keys[-1] = self._key(ch)
            self._colon()
            return _OPENED

    def _open(self, container: Any, *, is_key: bool) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self._error(f"is nested deeper than {MAX_DEPTH}")
        self.stack.append(_Open(container, is_key))
        self.keys.append(None)
        self.in_key = self.in_key or is_key
        self.pos += 1

    def _pop(self) -> Any:
        """Closes the innermost container. When it was a key, its value is next."""
        self.pos += 1
        closed = self.stack.pop()
        self.keys.pop()
        if not closed.is_key:
            return closed.container
        self.in_key = False
        self.keys[-1] = self._object_key(closed.container)
        self._colon()
        return _OPENED

    def _object_key(self, fields: dict[Any, Any]) -> ObjectKey:
        if "$ref" in fields:
            raise self._error("has a reference as a key")
        return ObjectKey.of(fields)

    def _colon(self) -> None:
        if self._peek() != ":":
            raise self._error("wants : after a key")
        self.pos += 1

    def _key(self, ch: str) -> str | int:
        if ch in ('"', "'"):
            return self._string(ch)
        if match := _NUMBER.match(self.text, self.pos):
            if match[1] or match[2] or match.end() - self.pos > 20 or not MIN_KEY <= int(match[0]) <= MAX_KEY:
                raise self._error("has a number as a key that is no 64-bit integer")
            self.pos = match.end()
            return int(match[0])
        if match := _NAME.match(self.text, self.pos):
            self.pos = match.end()
            return match[0]
        raise self._error("wants a key here")

    def _scalar(self, ch: str) -> Any:
        if ch in ('"', "'"):
            return self._string(ch)
        if match := _NUMBER.match(self.text, self.pos):
            if match.end() - self.pos > MAX_NUMBER:
                raise self._error(f"has a number of more than {MAX_NUMBER} characters")
            self.pos = match.end()
            return float(match[0]) if match[1] or match[2] else int(match[0])
        match = _NAME.match(self.text, self.pos)
        if match and match[0] in _WORDS:
            self.pos = match.end()
            return _WORDS[match[0]]
        raise self._error("wants a value here")

    def _string(self, quote: str) -> str:
        start = self.pos + 1
        end = _PLAIN[quote].match(self.text, start).end()  # type: ignore[union-attr]  # matches the empty text too
        if self.text[end : end + 1] == quote:
            self.pos = end + 1
            return self.text[start:end]
        end = _QUOTED[quote].match(self.text, start).end()  # type: ignore[union-attr]
        if self.text[end : end + 1] != quote:
            raise self._error("has a string without end")
        self.pos = end + 1
        text = _ESCAPE.sub(self._unescape, self.text[start:end])
        if _SURROGATE.search(text):
            try:
                text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                raise self._error("has half of a surrogate pair") from None
        return text

    def _unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in _ESCAPED:
            raise self._error(f"has an unknown escape \\{code}")
        return _ESCAPED[code]

    def _peek(self) -> str:
        """The next character that is no blank; empty at the end of the text."""
        ch = self.text[self.pos : self.pos + 1]
        if ch and ch in _BLANK:
            self.pos = _BLANKS.match(self.text, self.pos).end()  # type: ignore[union-attr]
            ch = self.text[self.pos : self.pos + 1]
        return ch

    def _error(self, reason: str) -> BodyError:
        return BodyError(f"JSON {reason} (at character {self.pos} of {len(self.text)})")


#: Stands for "a container is open and its next value comes now".
_OPENED: Any = object()
