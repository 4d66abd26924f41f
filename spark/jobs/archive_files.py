"""The archive on disk: its layout, the mark that says whose it is, and how it is read again.

    <archive>/_archive.json                                         the mark: which checkpoint writes here
    <archive>/topic=orders/day=2025-01-31/hour=07/batch-0000000012-00000.snappy.parquet
    <archive>.staging/, <archive>.checkpoint/                       beside it: readers of all files see rows only

Days and hours are those of `storeTimestamp` in UTC. Any reader of Parquet reads it; columns are the source's, with
`topic` in the path.
"""

import json
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from cometmq.spark.jobs.errors import NotAnArchive
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.messages import utc_day, utc_hour, within
from cometmq.spark.jobs.publication import json_of

MARK: Final = "_archive.json"
PARTITIONS: Final = ("topic", "day", "hour")
#: The order of rows in a file: that of their queue.
ROW_ORDER: Final = ("topic", "brokerName", "queueId", "queueOffset")


def laid_out(messages: DataFrame) -> DataFrame:
    """Messages with the columns that name their place in the archive."""
    return messages.withColumn("day", utc_day(F.col("storeTimestamp"))).withColumn(
        "hour", utc_hour(F.col("storeTimestamp"))
    )


def owner_of(lake: Lake) -> str | None:
    """The id of the query that writes an archive; None when there is no archive."""
    found = json_of(lake, f"{lake.root}/{MARK}").get("query")
    return str(found) if found else None


def mark(lake: Lake, query: str) -> None:
    """Say whose archive it is; only the query itself may go on with it."""
    owner = owner_of(lake)
    if owner is None:
        lake.make_directory(lake.root)
        lake.write(f"{lake.root}/{MARK}", json.dumps({"v": 1, "query": query, "partitions": list(PARTITIONS)}))
    elif owner != query:
        raise NotAnArchive(*_not_ours(lake.root))


def check_owner(lake: Lake, checkpoint: str) -> None:
    """Whether a run with this checkpoint may write here: messages must neither come twice nor be left out."""
    owner, query = owner_of(lake), query_of(lake, checkpoint)
    if owner is not None and owner != query:
        raise NotAnArchive(*_not_ours(lake.root))
    if owner is not None:
        return
    if any(not name.startswith(("_", ".")) for name in lake.children(lake.root)):
        raise NotAnArchive(
            f"{lake.root} has files and is no archive (it has no {MARK})", "name a directory that is new or empty"
        )
    if query is not None and lake.children(f"{checkpoint}/commits"):
        raise NotAnArchive(
            f"the checkpoint {checkpoint} has archived messages already, and {lake.root} is not there",
            "bring the archive back to where it was, or begin with a new --checkpoint",
        )


def query_of(lake: Lake, checkpoint: str) -> str | None:
    """The id that Spark gave the query of a checkpoint; None when it has never started."""
    found = json_of(lake, f"{checkpoint}/metadata").get("id")
    return str(found) if found else None


def _not_ours(root: str) -> tuple[str, str]:
    return (
        f"the archive {root} was written with another checkpoint",
        "give that one by --checkpoint, or archive to another directory: messages would be there twice",
    )


def read_archive(
    spark: SparkSession, directory: str, *, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """The messages of an archive, of all of its topics; of a range of time the hours that have it are read."""
    lake = Lake(spark, directory)
    if owner_of(lake) is None:
        raise NotAnArchive(
            f"{lake.root} is no archive (it has no {MARK})", "name the --output of the archive job, not a folder in it"
        )
    if not any(file.name.startswith("topic=") for file in lake.files(lake.root)):
        raise NotAnArchive(f"the archive {lake.root} is empty", "archive something first")
    # Spark guesses the types of what it reads from paths: a topic that is called 007 is a text all the same.
    found = spark.read.parquet(lake.root).schema
    kinds = {"topic": StringType(), "day": DateType(), "hour": StringType()}
    schema = StructType([StructField(each.name, kinds.get(each.name, each.dataType)) for each in found.fields])
    rows = spark.read.schema(schema).parquet(lake.root)
    day = F.col("day")
    if since is not None:
        rows = rows.where(day >= utc_day(F.lit(since)))
    if until is not None:
        rows = rows.where(day <= utc_day(F.lit(until)))
    return rows.where(within(F.col("storeTimestamp"), since, until)).drop("day", "hour")
