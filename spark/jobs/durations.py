"""Lengths of time as people write them: `500ms`, `1 minute`, `1 hour 30 minutes`. Nothing slow is loaded here."""

import re
from typing import Final

_MILLIS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(
    r"(\d{1,15})\s*(ms|millis\w*|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)(?![a-z])", re.I
)
_WHOLE: Final = re.compile(rf"\s*(?:{_PART.pattern}\s*)+", re.I)
#: Ten years: beyond that nobody means it, and times overflow.
_MOST: Final = 3650 * _MILLIS["d"]

#: What to write instead of something else.
REMEDY: Final = "give a length of time such as 30s, 1 minute or 2 hours"


def millis_of(text: str, *, least: int = 0) -> int:
    """Milliseconds of a text; ValueError for what is none, or beyond its bounds."""
    found = sum(int(number) * _MILLIS[_unit(word.lower())] for number, word in _PART.findall(text))
    if _WHOLE.fullmatch(text) is None or not least <= found <= _MOST:
        raise ValueError(text)
    return found


def _unit(word: str) -> str:
    return "ms" if word == "ms" or word.startswith("millis") else word[0]
