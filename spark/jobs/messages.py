"""Where a job's messages come from: topics through the data source `rocketmq`, or an archive.

A job is told by values (nameservers, topics, times); here they become options of the source, and what can be found
out before Spark does any work is found out: whether a nameserver answers and whether the topics exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cometmq.spark import options as source_options
from cometmq.spark.cluster import Cluster
from cometmq.spark.columns import TYPES
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.errors import JobError

FORMAT: Final = "rocketmq"

#: The name that SQL and functions of users see.
VIEW: Final = "messages"

_HOUR: Final = 3_600_000_000
#: The beginning of 2001, before any message: less are seconds, or a date without dashes.
_FIRST_MILLIS: Final = 978_307_200_000
_STARTS: Final = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}


@dataclass(frozen=True, slots=True)
class Messages:
    """Topics of a cluster, and from when to when."""

    topics: tuple[str, ...]
    name_server: str | None = None
    #: Times of storing: from, and before. Only batches have an end.
    since: datetime | None = None
    until: datetime | None = None
    #: Further options of the data source, by their own names.
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        topics: str | Iterable[str],
        name_server: str | None,
        options: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> "Messages":
        """As a caller names them: `"orders,payments"` or a list."""
        names = names_in(topics)
        if not names:
            raise JobError("no topic is named", "give at least one topic")
        if since is not None and until is not None and millis(since) >= millis(until):
            raise JobError(f"the time from {since.isoformat()} to {until.isoformat()} is empty", "swap the two times")
        return cls(tuple(names), name_server, since, until, dict(options or {}))

    @property
    def source_options(self) -> dict[str, str]:
        """All options of the data source, those of the caller over ours."""
        chosen = {"subscribe": ",".join(self.topics)}
        if self.name_server:
            chosen["nameServer"] = self.name_server
        if self.since is not None:
            # What has nothing since then is read from its end, and not an error.
            chosen |= {"startingTimestamp": str(millis(self.since)), "startingOffsetsByTimestampStrategy": "latest"}
        elif not _STARTS & set(map(str.lower, self.options)):
            chosen["startingOffsets"] = "earliest"
        if self.until is not None:
            chosen["endingTimestamp"] = str(millis(self.until))
        return chosen | dict(self.options)

    def with_options(self, **options: str) -> "Messages":
        return replace(self, options={**self.options, **options})

    def check(self) -> None:
        """Raise what is wrong with the options, the nameservers or the topics, before Spark does anything."""
        parsed = source_options.parse(self.source_options)
        Cluster(parsed.access, parsed.topics).check(parsed.read)

    def stream(self, spark: SparkSession, schema: StructType | None = None) -> DataFrame:
        if self.until is not None:
            raise OptionError("until", self.until.isoformat(), "a stream has no end; leave it away, or read a batch")
        reader = spark.readStream.format(FORMAT).options(**self.source_options)
        return (reader if schema is None else reader.schema(schema)).load()

    def batch(self, spark: SparkSession, schema: StructType | None = None) -> DataFrame:
        reader = spark.read.format(FORMAT).options(**self.source_options)
        return (reader if schema is None else reader.schema(schema)).load()


def names_in(names: str | Iterable[str]) -> list[str]:
    """Topics or groups as a caller names them: texts of one or several, separated by commas."""
    texts = [names] if isinstance(names, str) else names
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def schema_of(*columns: str) -> StructType:
    """Some columns of the source: it reads and builds no others."""
    schema = StructType()
    for name in columns:
        schema = schema.add(name, TYPES[name])
    return schema


def utc_day(time: Column) -> Column:
    """The date of a time in UTC, whatever the session's time zone is."""
    days = F.floor(F.unix_micros(time) / (24 * _HOUR)).cast("int")
    return F.date_add(F.lit("1970-01-01").cast("date"), days)


def utc_hour(time: Column) -> Column:
    """The hour of a time in UTC as two digits."""
    return F.lpad(F.pmod(F.floor(F.unix_micros(time) / _HOUR), F.lit(24)).cast("int").cast("string"), 2, "0")


def within(time: Column, since: datetime | None, until: datetime | None) -> Column:
    """Whether a time is in a range."""
    condition = F.lit(True)
    if since is not None:
        condition = condition & (time >= F.timestamp_millis(F.lit(millis(since))))
    if until is not None:
        condition = condition & (time < F.timestamp_millis(F.lit(millis(until))))
    return condition


def time_of(text: str) -> datetime:
    """A time as people and scripts write it: ISO 8601, UTC without a zone, or milliseconds since 1970.

    Other numbers are refused: seconds or a date would be taken for a time when there was nothing to read.
    """
    if text.isascii() and text.isdigit():
        if int(text) < _FIRST_MILLIS:
            raise ValueError(f"{text} milliseconds since 1970 are before 2001: give no seconds, and dates with dashes")
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def millis(time: datetime) -> int:
    """Milliseconds since 1970; a time without a zone is one of UTC, whatever the zone of this machine is."""
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)
