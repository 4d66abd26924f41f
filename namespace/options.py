"""Options of a daemon: RocketMQ's keys as fields of a frozen dataclass, with text in and out and updates from remote.

A field says its key, default, range, whether it may change at run time, and whether it does anything here. What the
keys mean is the business of the class that declares them. Reading and writing files is the caller's business. Mirrors
RocketMQ's `Configuration` and `MixAll.properties2Object`.
"""

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from cometmq.protocol import properties_text
from cometmq.protocol.errors import CometMQError

INT_MAX = 2**31 - 1

#: Characters of all keys together that nobody knows here and that came from remote: each reader of the configuration
#: gets them all, and each start reads them.
UNKNOWN_LIMIT = 64 * 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


class ConfigError(CometMQError):
    """Raised when a configuration value cannot be used."""

    remedy = "correct the value, or remove the key to get the default"

    def __init__(self, key: str, value: str, expected: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        super().__init__(f"{key}={value}: expected {expected}")


class ConfigRefused(CometMQError):
    """Raised when a remote update names a key that must not, or cannot, change while the daemon runs."""

    code = 16
    remedy = "change the key in the configuration file and restart the daemon"


def option(
    key: str,
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    low: int = -(2**31),
    high: int = INT_MAX,
    dynamic: bool = False,
    effect: bool = True,
    shown: bool = True,
) -> Any:
    """A field with RocketMQ's key and, for a number, its range.

    `dynamic`: may change at run time. Without `effect` it is only kept and shown. Not `shown`: a key of our own, which
    appears among RocketMQ's only when it is set.
    """
    metadata = {"key": key, "low": low, "high": high, "dynamic": dynamic, "effect": effect, "shown": shown}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_fields: "dict[type[Any], Mapping[str, dataclasses.Field[Any]]]" = {}


def options_of(kind: type[Any]) -> "Mapping[str, dataclasses.Field[Any]]":
    """RocketMQ's key -> the field of a class; the same mapping each time."""
    found = _fields.get(kind)
    if found is None:
        found = {field.metadata["key"]: field for field in dataclasses.fields(kind) if "key" in field.metadata}
        _fields[kind] = found
    return found


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """What an option is when nobody set it."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def parse(field: "dataclasses.Field[Any]", text: str, *, lenient: bool = False) -> Any:
    """The value of an option, or `ConfigError`. `lenient`: Java's parseBoolean, anything but "true" is false."""
    key, stripped, default = field.metadata["key"], text.strip(), default_of(field)
    match default:
        case bool():
            if not lenient and stripped.lower() not in ("true", "false"):
                raise ConfigError(key, text, "true or false")
            return stripped.lower() == "true"
        case int():
            # Java takes neither underscores nor other digits than these.
            if not _INTEGER.fullmatch(stripped):
                raise ConfigError(key, text, "an integer")
            value = int(stripped)
            check_range(field, value)
            return value
        case enum.StrEnum():
            kind = type(default)
            if stripped not in kind.__members__:
                raise ConfigError(key, text, " or ".join(kind.__members__))
            return kind[stripped]
        case _:
            # They would end a property of a message or a line of a file in the midst of it.
            if _CONTROL.search(text):
                raise ConfigError(key, repr(text), "text without control characters")
            return text


def check_range(field: "dataclasses.Field[Any]", value: int) -> None:
    """`ConfigError` when a number is not in the range of its option."""
    low, high = field.metadata["low"], field.metadata["high"]
    if not low <= value <= high:
        raise ConfigError(field.metadata["key"], str(value), f"an integer from {low} to {high}")


def text_of(value: Any) -> str:
    """A value as `.properties` hold it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one daemon; an update makes a new object."""

    #: Keys that nobody may change from remote, whatever the black list in the configuration says.
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = frozenset({"rocketmqHome", "configBlackList"})
    #: Java's way with booleans: anything but "true" is false.
    LENIENT_BOOLEANS: ClassVar[bool] = False

    #: Keys that nobody knows here: kept, shown and written back.
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)

    # What a class with more than its own fields overrides

    def black_list(self) -> str:
        """The keys, separated by `;`, that the configuration itself keeps from remote updates."""
        return ""

    def known(self) -> dict[str, str]:
        """All keys that are known here, with their values as text."""
        return {
            key: text_of(getattr(self, field.name))
            for key, field in options_of(type(self)).items()
            if field.metadata["shown"] or getattr(self, field.name) != default_of(field)
        }

    def is_dynamic(self, key: str) -> bool | None:
        """Whether a key may change at run time; None when it is not known."""
        field = options_of(type(self)).get(key)
        return None if field is None else bool(field.metadata["dynamic"])

    def check(self, key: str, text: str) -> None:
        """`ConfigError` when a value cannot be used for a known key."""
        if (field := options_of(type(self)).get(key)) is not None:
            parse(field, text, lenient=self.LENIENT_BOOLEANS)

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """These settings changed by a configuration file; `ConfigError` names the first value that cannot be used."""
        values: dict[str, Any] = {}
        unknown = dict(self.unknown)
        known = options_of(type(self))
        for key, text in properties.items():
            if (field := known.get(key)) is None:
                unknown[key] = text
            else:
                values[field.name] = parse(field, text, lenient=self.LENIENT_BOOLEANS)
        return dataclasses.replace(self, unknown=unknown, **values)

    def without_effect(self) -> list[str]:
        """The keys that were set to something and do nothing here, for one line in the log."""
        return sorted(
            key
            for key, field in options_of(type(self)).items()
            if not field.metadata["effect"] and key != "rocketmqHome" and getattr(self, field.name) != default_of(field)
        )

    # What follows from these

    def to_properties(self) -> dict[str, str]:
        """All keys as text, sorted by key."""
        return dict(sorted({**self.unknown, **self.known()}.items()))

    def to_text(self) -> str:
        """The form of the answer to a request for the configuration, and of the stored file."""
        return properties_text.dumps(self.to_properties())

    def updated(self, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """These settings changed from remote, and what is wrong with the values that were left alone.

        `ConfigRefused` when a key may not be changed, or unknown ones are too many to be kept: then nothing is. A value
        that does not parse spoils only its own key, as in RocketMQ.
        """
        black_list = self.ALWAYS_BLACK_LISTED.union(part.strip() for part in self.black_list().split(";"))
        if not black_list.isdisjoint(properties):
            raise ConfigRefused("Can not update config in black list.")
        fixed = [key for key in properties if self.is_dynamic(key) is False]
        if fixed:
            raise ConfigRefused(f"Can not update config at run time: {', '.join(sorted(fixed))}")
        accepted: dict[str, str] = {}
        problems = []
        for key, text in properties.items():
            try:
                self.check(key, text)
            except ConfigError as error:
                problems.append(str(error))
            else:
                accepted[key] = text
        updated = self.with_properties(accepted)
        if updated.unknown != self.unknown:
            size = sum(len(key) + len(text) for key, text in updated.unknown.items())
            if size > UNKNOWN_LIMIT:
                raise ConfigRefused(f"Can not keep {size} characters of unknown keys, the limit is {UNKNOWN_LIMIT}")
        return updated, problems
