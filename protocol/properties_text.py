"""Java's `.properties` text: configuration files of the daemons, and the bodies of config requests.

Reading follows `java.util.Properties`: comments, continued lines, three kinds of separators, escapes. Writing gives a
line `key=value` for each entry and escapes only what would be read back as something else. What a key means is not
known here.
"""

import re
from collections.abc import Iterator, Mapping

from cometmq.protocol.errors import BodyError

#: A key reaches to the first separator that is not escaped; blanks around one `=` or `:` belong to the separator.
_ENTRY = re.compile(r"([^\\=: \t\f]*(?:\\.[^\\=: \t\f]*)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.S)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile(r"\r\n|\n|\r")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"

_IN_KEY = re.compile(r"[\\=:# !\t\n\r\f]|[^\x00-\x7f]")
_IN_VALUE = re.compile(r"\A |[\\\t\n\r\f]|[^\x00-\x7f]")
_ESCAPED = {value: "\\" + letter for letter, value in _LETTERS.items()}


def loads(data: str | bytes | bytearray | memoryview) -> dict[str, str]:
    """The entries in the order of their lines; of a key that occurs twice, the last value. Raises `BodyError`."""
    if isinstance(data, str):
        text = data
    else:
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"properties are not UTF-8 at byte {error.start}") from None
    entries: dict[str, str] = {}
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        match = _ENTRY.fullmatch(line)
        assert match is not None  # every part may be empty, and no line ends in an escape
        entries[_unescape(match[1], number)] = _unescape(match[2], number)
    return entries


def dumps(entries: Mapping[str, str]) -> str:
    """A line for each entry, in the order of the mapping. What is not ASCII is escaped: Java reads Latin-1."""
    return "".join(f"{_IN_KEY.sub(_escape, key)}={_IN_VALUE.sub(_escape, value)}\n" for key, value in entries.items())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are no comments, put together where one continues on the next, with their numbers."""
    parts: list[str] = []
    start = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            start = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        yield start, "".join([*parts, line])
        parts = []
    if parts:
        yield start, "".join(parts)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) == 5:
            return chr(int(code[1:], 16))
        if code == "u":
            raise BodyError(f"properties have a malformed \\uxxxx in line {number}")
        return _LETTERS.get(code, code)

    text = _ESCAPE.sub(plain, text)
    if _SURROGATE.search(text):
        try:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise BodyError(f"properties have half of a surrogate pair in line {number}") from None
    return text


def _escape(match: re.Match[str]) -> str:
    ch = match[0]
    if ch in _ESCAPED:
        return _ESCAPED[ch]
    if ch.isascii():
        return "\\" + ch
    units = ch.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
