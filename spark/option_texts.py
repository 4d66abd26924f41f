"""Options as Spark hands them over: texts under names that ignore case; declared by name, read by kind.

What an option means is told where it is declared (`options`, and the sink's own). Here a text becomes a number, a
flag or a duration, or an error that names the option; and a name that nobody declared is refused.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.spark.errors import OptionError

_DURATION: Final = re.compile(r"\s*([0-9]+)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?\s*", re.IGNORECASE)
_SECONDS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "s": 1.0}

#: What Spark, and not the user, puts among the options of a data source.
_OF_SPARK: Final = ("checkpointlocation", "queryname")


class Option(msgspec.Struct, frozen=True):
    """One option: its name, what it does, and what counts when it is not given."""

    name: str
    meaning: str
    default: str = ""
    #: `batch` or `stream` when it belongs to one of them only.
    only: str = ""


def declared(*options: Option) -> dict[str, Option]:
    """A table of options by name."""
    return {option.name: option for option in options}


class OptionTexts:
    """The options of one reader or writer. Every text is checked when it is read; blanks around it do not count."""

    def __init__(self, options: Mapping[str, str], known: Iterable[Option]) -> None:
        self._known = {option.name.lower(): option for option in known}
        self._given = {name.lower(): str(value).strip() for name, value in options.items()}

    def check_names(self) -> None:
        """Refuse an option that nobody knows: a misspelt limit must not be no limit."""
        for name in self._given:
            if name in self._known or name in _OF_SPARK:
                continue
            if name == "path":  # the argument of load(), save() and start()
                topics = "subscribe" if "subscribe" in self._known else "topic"
                raise OptionError(name, "", f"there is none; name topics by the option {topics}")
            import difflib  # only for what is misspelt

            close = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {self._known[close[0]].name}?" if close else f"there are {', '.join(self._names())}"
            raise OptionError(name, "", f"there is no such option; {hint}")

    def _names(self) -> list[str]:
        return [option.name for option in self._known.values()]

    def given(self, *names: str) -> list[str]:
        """Which of these options the user gave."""
        return [name for name in names if self._given.get(name.lower())]

    def text(self, name: str) -> str:
        """The text of an option, or its default."""
        return self._given.get(name.lower()) or self._known[name.lower()].default

    def integer(self, name: str, *, low: int = 1, high: int = 2**63 - 1) -> int:
        number = self.maybe_integer(name, low=low, high=high)
        assert number is not None, f"{name} has no default"
        return number

    def maybe_integer(self, name: str, *, low: int = 1, high: int = 2**63 - 1) -> int | None:
        """A whole number within its bounds; None when there is neither one nor a default."""
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) or not low <= int(text) <= high:
            bounds = f"of at least {low}" if high == 2**63 - 1 else f"from {low} to {high}"
            raise OptionError(name, text, f"give a whole number {bounds}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("true", "false"):
            raise OptionError(name, self.text(name), "give true or false")
        return text == "true"

    def one_of(self, name: str, *choices: str) -> str:
        text = self.text(name)
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise OptionError(name, text, f"give {' or '.join(choices)}")

    def seconds(self, name: str) -> float:
        """A duration such as `500ms`, `30s` or `15m`; a number alone is milliseconds."""
        text = self.text(name)
        match = _DURATION.fullmatch(text)
        if match is None:
            raise OptionError(name, text, "give a duration such as 500ms, 30s, 15m or 2h")
        number, unit = int(match[1]), (match[2] or "ms").lower()
        return number / 1000 if unit == "ms" else number * _SECONDS[unit[0]]
