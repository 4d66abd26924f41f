"""The archive on disk: its layout, and how it is read again.

    <archive>/_archive.json                                         the mark: which query writes here (`ownership`)
    <archive>/topic=orders/day=2025-01-31/hour=07/batch-0000000012-00000.snappy.parquet
    <archive>.staging/, <archive>.checkpoint/                       beside it: readers of all files see rows only

Days and hours are those of `storeTimestamp` in UTC. Any reader of Parquet reads it; columns are the source's, with
`topic` in the path.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from cometmq.spark.jobs.errors import ManyTypes, NotAnArchive
from cometmq.spark.jobs.lake import Lake, literal
from cometmq.spark.jobs.messages import millis, utc_day, utc_hour, within
from cometmq.spark.jobs.ownership import Kind, owner_of

MARK: Final = "_archive.json"
PARTITIONS: Final = ("topic", "day", "hour")
#: The order of rows in a file: that of their queue.
ROW_ORDER: Final = ("topic", "brokerName", "queueId", "queueOffset")

ARCHIVE: Final = Kind("archive", MARK, PARTITIONS)


def laid_out(messages: DataFrame) -> DataFrame:
    """Messages with the columns that name their place in the archive."""
    return messages.withColumn("day", utc_day(F.col("storeTimestamp"))).withColumn(
        "hour", utc_hour(F.col("storeTimestamp"))
    )


def read_archive(
    spark: SparkSession,
    directory: str,
    topics: Sequence[str] = (),
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The messages of an archive, of all or some of its topics; of a range of time the days that have it are read."""
    lake = Lake(spark, directory)
    if owner_of(lake, ARCHIVE) is None:
        raise NotAnArchive(
            f"{lake.root} is no archive (it has no {MARK})",
            "name the --output of the archive job, not a folder in it",
        )
    names = (name for name in lake.children(lake.root) if name.startswith("topic="))
    there = {unquote(name).removeprefix("topic="): name for name in names}
    if not there:
        raise NotAnArchive(f"the archive {lake.root} is empty", "archive something first")
    for topic in topics:
        if topic not in there:
            raise NotAnArchive(f"the archive {lake.root} has no topic {topic}", f"it has {', '.join(there)}")
    folders = [f"{lake.root}/{there[topic]}" for topic in topics or there]
    places = [literal(place) for place in _days(lake, folders, since, until) or folders]
    # Spark guesses the types of what it reads from paths: a topic that is called 007 is a text all the same.
    found = merged(spark.read.option("basePath", lake.root), *places).schema
    kinds = {"topic": StringType(), "day": DateType(), "hour": StringType()}
    schema = StructType([StructField(each.name, kinds.get(each.name, each.dataType)) for each in found.fields])
    rows = spark.read.option("basePath", lake.root).schema(schema).parquet(*places)
    return rows.where(within(F.col("storeTimestamp"), since, until)).drop("day", "hour")


def merged(reader: DataFrameReader, *places: str) -> DataFrame:
    """Files with the columns of all of them: a run with another `includeProperties` wrote others."""
    try:
        return reader.option("mergeSchema", "true").parquet(*places)
    except (PySparkException, Py4JError) as error:
        if "[CANNOT_MERGE_SCHEMAS]" not in str(error):
            raise
        raise ManyTypes(
            f"a column has several types in the files of {', '.join(places[:3])}",
            "they were written with other options (propertiesAsJson?): read them one range of time after the other",
        ) from error


def _days(lake: Lake, folders: Sequence[str], since: datetime | None, until: datetime | None) -> list[str]:
    """The folders of the days that may have something of a range of time; none where there is no range, too."""
    if since is None and until is None:
        return []
    first = "" if since is None else _day_folder(since)
    last = "day=~" if until is None else _day_folder(until)
    return [f"{place}/{day}" for place in folders for day in lake.children(place) if first <= day <= last]


def _day_folder(time: datetime) -> str:
    return f"day={datetime.fromtimestamp(millis(time) / 1000, UTC).date().isoformat()}"
