"""Audit: what was lost, repeated or out of order, from the numbers that `cometmq.client.audit.SendAudit` stamps.

Over a range of time of topics, or of an archive. The verdicts are those of the SDK's checker (`audit_findings` says how
they are found); the work is Spark's, and only counts and the first findings come to the driver.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from cometmq.spark.jobs.archive_files import read_archive
from cometmq.spark.jobs.audit_findings import STREAM, findings, lost, placed, stamped
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.messages import Messages, names_in, schema_of
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, ResultTable, Silence
from cometmq.spark.jobs.results import AUDIT, claim
from cometmq.spark.jobs.stages import watched

#: All that is read of a message.
COLUMNS: Final = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "properties",
    "msgId",
    "storeTimestamp",
    "reconsumeTimes",
)


def audit(
    spark: SparkSession,
    topics: str | Iterable[str] = (),
    *,
    archive: str | None = None,
    name_server: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    from_the_first: bool = False,
    output: str | None = None,
    options: Mapping[str, str] | None = None,
    limit: int = 20,
    display: Display | None = None,
) -> Metrics:
    """Look at the stamps of topics, or of an archive (of some of its topics).

    With `from_the_first` every producer is expected to begin with number 0: for ranges that have all of it. `output`
    gets all findings and lost numbers as Parquet, in the place of those of an earlier audit; `limit` of each are in
    the report.
    """
    if limit < 0:
        raise JobError(f"limit={limit}", "give how many findings are to be in the report: 0 or more, such as 20")
    meter = Meter("audit")
    with display or Silence() as shown:
        if archive is not None:
            wanted = names_in(topics)
            messages = read_archive(spark, archive, wanted, since=since, until=until)
        else:
            source = Messages.of(topics, name_server, options, since, until)
            source.check()
            messages = source.batch(spark, schema_of(*COLUMNS))
        if output is not None:
            claim(spark, output, AUDIT)
        with watched(spark, meter, shown):
            audit_messages(messages, meter, from_the_first=from_the_first, output=output, limit=limit)
    return meter.metrics()


def audit_messages(
    messages: DataFrame, meter: Meter, *, from_the_first: bool = False, output: str | None = None, limit: int = 20
) -> None:
    """Look at the stamps of messages that have the source's columns; the report goes to the meter."""
    missing = [name for name in COLUMNS if name not in messages.columns]
    if missing:
        raise JobError(f"the messages have no column {missing[0]}", "keep all columns of the source")
    if not isinstance(messages.schema["properties"].dataType, MapType):
        raise JobError("the column properties is no map", "leave the option propertiesAsJson away")
    stamps = stamped(messages).persist(StorageLevel.MEMORY_AND_DISK)
    rows = placed(stamps, from_the_first=from_the_first).persist(StorageLevel.MEMORY_AND_DISK)
    found = findings(rows).persist(StorageLevel.MEMORY_AND_DISK)
    gone = lost(rows, found).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _report(stamps, found, gone, meter, limit)
        if output is not None:
            meter.doing = "writing"
            found.write.mode("overwrite").parquet(f"{output}/findings")
            gone.write.mode("overwrite").parquet(f"{output}/lost")
    finally:
        for frame in (gone, found, rows, stamps):
            frame.unpersist()


def _report(stamps: DataFrame, found: DataFrame, gone: DataFrame, meter: Meter, limit: int) -> None:
    meter.doing = "reading and counting"
    is_stamped = F.col("producer").isNotNull()
    seen = stamps.groupBy("topic").agg(
        F.count(F.lit(1)).alias("messages"),
        F.count(F.when(~is_stamped, 1)).alias("unstamped"),
        F.countDistinct("producer").alias("producers"),
    )
    problems = found.groupBy("topic").agg(
        *(F.count(F.when(F.col("problem") == each, 1)).alias(f"{each}s") for each in ("gap", "repeat", "disorder"))
    )
    # Forged numbers lose as many messages as they like: a sum of those is not of this world, and no reason to fail.
    total = F.least(F.sum(F.col("messages").cast("decimal(20,0)")), F.lit(_MOST)).cast("long")
    missing = gone.groupBy("topic").agg(total.alias("lost"))
    summary = seen.join(problems, "topic", "left").join(missing, "topic", "left").na.fill(0).orderBy("topic")
    table = ResultTable.of(summary.select("topic", "messages", "unstamped", "producers", "lost", *_COUNTS), 10_000)
    meter.tables["topics"] = table
    totals = {
        title: min(sum(row[number] for row in table.rows), _MOST) for number, title in enumerate(table.titles) if number
    }
    meter.add(totals["messages"])
    meter.details |= {name: totals[name] for name in ("unstamped", "lost", *_COUNTS)}
    meter.doing = "listing findings"
    order = (*STREAM, "queueOffset")
    meter.tables["findings"] = ResultTable.of(found.orderBy(*order, "problem", "firstMissing"), limit)
    meter.tables["lostNumbers"] = ResultTable.of(gone.orderBy(*STREAM, "firstMissing"), limit)


_COUNTS: Final = ("gaps", "repeats", "disorders")
#: Messages that are counted at most.
_MOST: Final = 2**63 - 1
