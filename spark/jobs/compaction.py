"""Compaction of an archive: an hour's many small files become a few big ones, in the order of the queues.

A stream leaves a file for each batch, task and hour. An hour that is over is rewritten once; `compact` does it for all
hours. The new files take the place of the old ones as `publication` does it: a kill at any moment loses and doubles
nothing. A reader that has listed the old files before and opens them afterwards does not find them: it fails and can
be started again, it does not read wrong.
"""

import logging
import math
import secrets
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs.archive_files import ROW_ORDER, merged
from cometmq.spark.jobs.errors import JobError, ManyTypes
from cometmq.spark.jobs.lake import LakeFile, literal
from cometmq.spark.jobs.metrics import Meter
from cometmq.spark.jobs.publication import Publication

log = logging.getLogger(__name__)

#: Bytes of a file that is big enough: what Spark and DuckDB read in one piece.
FILE_SIZE: Final = 128 * 1024**2
#: How long after its end an hour counts as over: brokers' clocks differ, and a stream is behind.
GRACE: Final = timedelta(minutes=10)


class Hour(NamedTuple):
    """The files of one hour of one topic."""

    folder: str
    files: tuple[LakeFile, ...]

    def wants(self, file_size: int) -> bool:
        """Whether there are files to be joined."""
        return sum(1 for file in self.files if file.size < file_size // 2) > 1

    def is_over(self, now: datetime, grace: timedelta = GRACE) -> bool:
        values = dict(part.partition("=")[::2] for part in self.folder.split("/"))
        start = datetime.fromisoformat(values["day"]).replace(hour=int(values["hour"]), tzinfo=UTC)
        return start + timedelta(hours=1) + grace <= now


def hours_of(publication: Publication) -> list[Hour]:
    """The hours that an archive has."""
    folders: defaultdict[str, list[LakeFile]] = defaultdict(list)
    for file in publication.lake.files(publication.directory):
        folder = file.name.rpartition("/")[0]
        if folder.count("/") == 2 and file.name.endswith(".parquet"):
            folders[folder].append(file)
    return [Hour(folder, tuple(files)) for folder, files in sorted(folders.items())]


class Closing:
    """The hours that are to be joined when they are over.

    An archive of a year has more files than can be listed between two batches. So all of them are listed once a run;
    then those of the hours that have got files since, or were not over. Mutable state: which ones.
    """

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._folders: set[str] | None = None

    def add(self, files: Iterable[LakeFile]) -> None:
        """Files were published."""
        if self._folders is not None:
            self._folders |= {file.name.rpartition("/")[0] for file in files}

    def over(self, now: datetime) -> list[Hour]:
        """The hours that are over and have news."""
        hours = hours_of(self._publication) if self._folders is None else [self._hour(each) for each in self._folders]
        self._folders = {hour.folder for hour in hours if not hour.is_over(now)}
        return sorted(hour for hour in hours if hour.is_over(now))

    def _hour(self, folder: str) -> Hour:
        files = self._publication.lake.files(f"{self._publication.directory}/{folder}")
        return Hour(folder, tuple(LakeFile(f"{folder}/{file.name}", file.size) for file in files))


def compact(
    spark: SparkSession,
    publication: Publication,
    hours: Iterable[Hour],
    *,
    file_size: int = FILE_SIZE,
    meter: Meter,
) -> None:
    """Join the small files of these hours. The publication is opened by the caller."""
    for hour in hours:
        if not hour.wants(file_size):
            continue
        place = f"{publication.directory}/{hour.folder}"
        files = max(1, math.ceil(sum(file.size for file in hour.files) / file_size))
        try:
            rows = merged(spark.read, literal(place))
        except ManyTypes as error:  # they can be read one by one, and what archives must go on
            log.warning("the files of an hour stay as they are: %s", error)
            meter.count("unjoinedHours")
            continue
        order = [F.col(name) for name in ROW_ORDER if name in rows.columns]
        shaped = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)
        batch = f"compact-{secrets.token_hex(6)}"
        publication.replace(hour.folder, shaped.sortWithinPartitions(*order), batch, rows=rows.count())
        meter.count("compactedHours")
        meter.count("compactedFiles", len(hour.files))


def check_file_size(size: int) -> int:
    if size < 1024**2:
        raise JobError(f"files of {size} bytes are no big ones", "give at least 1 MiB (1048576)")
    return size
