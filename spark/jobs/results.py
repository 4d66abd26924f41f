"""Directories of results: what a run of a job found out, which the next run of that job replaces or adds to.

They belong to no checkpoint, so that the mark in the directory names the job alone. Whoever has other files there did
not mean them to be replaced.
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.jobs.archive_files import ARCHIVE
from cometmq.spark.jobs.errors import NotOurs
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.ownership import TABLE, Kind, refuse_files, write_mark
from cometmq.spark.jobs.publication import is_hidden

AUDIT: Final = Kind("result of an audit", "_audit.json")
LATENCIES: Final = Kind("table of latencies", "_latencies.json")
SAMPLES: Final = Kind("table of samples", "_samples.json", ("day",))


def claim(spark: SparkSession, output: str, kind: Kind) -> bool:
    """Have a directory that is new, empty, or one of this job's; whether it is new."""
    lake = Lake(spark, output)
    for place in lake.above():
        # Readers of an archive read all that is below it: a table of another form makes it unreadable.
        if lake.exists(f"{place}/{ARCHIVE.mark}"):
            raise NotOurs(f"{lake.root} is in the archive {place}", "name a directory outside of it")
    if lake.is_file(lake.root):
        raise NotOurs(f"{lake.root} is a file", "name a directory that is new or empty")
    if lake.exists(f"{lake.root}/{kind.mark}"):
        return False
    refuse_files(lake, kind)
    for mark in (each.mark for each in (TABLE, AUDIT, LATENCIES, SAMPLES)):
        if lake.exists(f"{lake.root}/{mark}"):
            raise NotOurs(f"{lake.root} is another job's (it has {mark})", "name a directory that is new or empty")
    write_mark(lake, kind)
    return True


def replace(rows: DataFrame, output: str) -> None:
    """Put rows in the place of all files of a directory that was claimed; its mark stays."""
    lake = Lake(rows.sparkSession, output)
    for name in lake.children(lake.root):
        if not is_hidden(name):
            lake.delete(f"{lake.root}/{name}")
    rows.write.mode("append").parquet(lake.root)
