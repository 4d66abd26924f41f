"""The archive on disk: its layout, and how it is read again.

    <archive>/_archive.json                                         the mark: which query writes here (`ownership`)
    <archive>/topic=orders/day=2025-01-31/hour=07/batch-0000000012-00000.snappy.parquet
    <archive>.staging/, <archive>.checkpoint/                       beside it: readers of all files see rows only

Days and hours are those of `storeTimestamp` in UTC. Any reader of Parquet reads it; columns are the source's, with
`topic` in the path.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from cometmq.spark.jobs.errors import NotAnArchive
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.messages import utc_day, utc_hour, within
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
    there = [unquote(name).removeprefix("topic=") for name in lake.children(lake.root) if name.startswith("topic=")]
    if not there:
        raise NotAnArchive(f"the archive {lake.root} is empty", "archive something first")
    for topic in topics:
        if topic not in there:
            raise NotAnArchive(f"the archive {lake.root} has no topic {topic}", f"it has {', '.join(there)}")
    # Spark guesses the types of what it reads from paths: a topic that is called 007 is a text all the same.
    found = spark.read.parquet(lake.root).schema
    kinds = {"topic": StringType(), "day": DateType(), "hour": StringType()}
    schema = StructType([StructField(each.name, kinds.get(each.name, each.dataType)) for each in found.fields])
    rows = spark.read.schema(schema).parquet(lake.root)
    if topics:
        rows = rows.where(F.col("topic").isin(*topics))
    day = F.col("day")
    if since is not None:
        rows = rows.where(day >= utc_day(F.lit(since)))
    if until is not None:
        rows = rows.where(day <= utc_day(F.lit(until)))
    return rows.where(within(F.col("storeTimestamp"), since, until)).drop("day", "hour")
