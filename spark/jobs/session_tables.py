"""Tables of a catalogue that ends with its session, as Spark's own does: their files stay, and are found again.

The name of such a table is that of a directory. Rows are published there as into any other, and the session is told of
it; Spark itself would refuse a directory that an earlier session has filled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.ownership import TABLE, owner_of


def location_of(spark: SparkSession, table: str) -> str | None:
    """The directory of a table; None where a catalogue that lasts has it, or where somebody else has made it."""
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None or spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
        return None
    state = session.sessionState()
    try:
        name = state.sqlParser().parseTableIdentifier(table)
    except ParseException:
        return None  # of three parts: the first one is a catalogue
    first = name.database().get() if name.database().isDefined() else spark.catalog.currentCatalog()
    if spark.conf.get(f"spark.sql.catalog.{first}", None) is not None:
        return None
    known = state.catalog().tableExists(name)
    uri = state.catalog().getTableMetadata(name).location() if known else state.catalog().defaultTablePath(name)
    lake = Lake(spark, str(spark._jvm.org.apache.hadoop.fs.Path(uri).toString()))  # type: ignore[union-attr]
    return None if known and owner_of(lake, TABLE) is None else lake.root


def register(
    spark: SparkSession,
    table: str,
    location: str,
    schema: StructType,
    format: str,
    options: Mapping[str, str],
    partition_by: Sequence[str],
) -> None:
    """Tell the session of a table, if it does not know it."""
    parts = [f"create table if not exists {table} ({schema.toDDL()}) using {format}"]
    if options:
        parts.append(f"options ({', '.join(f'{_text(key)} {_text(value)}' for key, value in options.items())})")
    if partition_by:
        parts.append(f"partitioned by ({', '.join(map(_column, partition_by))})")
    lake = Lake(spark, location)
    lake.make_directory(lake.root)  # where there is none, Spark looks for no partitions
    spark.sql(f"{' '.join(parts)} location {_text(location)}")
    look_again(spark, table, partition_by)


def look_again(spark: SparkSession, table: str, partition_by: Sequence[str]) -> None:
    """Have the session see files that have come into a table."""
    if partition_by:
        spark.catalog.recoverPartitions(table)
    spark.catalog.refreshTable(table)


def _column(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
