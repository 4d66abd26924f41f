"""Findings about stamped messages by window functions: gaps, repeats, disorder, and what was lost in the end.

The same verdicts as those of `cometmq.client.audit.ConsumeAudit`, for any number of messages: that one keeps the latest
10,000 ids and missing numbers in memory, here nothing is forgotten. A stream is what one producer sent to one queue, in
the order of the queue. In a stream a message is *ahead* when its number is above all before it, else *behind*:

    ahead    numbers between the highest one before it and its own are a GAP, save those that its stamp calls void;
             it is a REPEAT as well when its id was seen before (an attempt that seemed to have failed was stored)
    behind   DISORDER when its number was missing, or void and its id is new; else REPEAT

Almost all messages are ahead by one: those cost one shuffle by stream and one by id; what follows is for the others.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cometmq.client.audit import MAX_VOID
from cometmq.client.audit_stamp import MAX_DIGITS, PRODUCER, SEQUENCE, VOID
from cometmq.protocol import names

#: What identifies a stream.
STREAM: Final = ("topic", "brokerName", "queueId", "producer")

#: Numbers as the checker reads them. A stamp comes from outside: sums and differences of these overflow nowhere.
_NUMBER: Final = rf"[0-9]{{1,{MAX_DIGITS}}}"


def stamped(messages: DataFrame) -> DataFrame:
    """The messages that are looked at, with what their stamps say; `producer` is null where there is none.

    Retries are passed over: a consumer asked for them.
    """
    properties = F.col("properties")
    sequence = properties[SEQUENCE]
    has_stamp = properties[PRODUCER].isNotNull() & sequence.rlike(rf"\A{_NUMBER}\z")
    return (
        messages.where((F.col("reconsumeTimes") == 0) & ~F.col("topic").startswith(names.RETRY_PREFIX))
        .withColumn("producer", F.when(has_stamp, properties[PRODUCER]))
        .withColumn("sequence", F.when(has_stamp, sequence.try_cast("long")))
        .withColumn("void", F.when(has_stamp, _ranges(properties[VOID])))
        .select(*STREAM, "queueOffset", "storeTimestamp", "msgId", "sequence", "void")
    )


def _ranges(text: Column) -> Column:
    """`3-5,9-9` as an array of structs, sorted; what is no such text counts as nothing."""
    parts = F.slice(F.split(F.coalesce(text, F.lit("")), ","), 1, MAX_VOID)
    sound = F.filter(parts, lambda part: part.rlike(rf"\A{_NUMBER}-{_NUMBER}\z"))
    pairs = F.transform(
        sound,
        lambda part: F.struct(
            F.substring_index(part, "-", 1).try_cast("long").alias("first"),
            F.substring_index(part, "-", -1).try_cast("long").alias("last"),
        ),
    )
    return F.array_sort(F.filter(pairs, lambda pair: pair["first"] <= pair["last"]))


def uncovered(start: Column, stop: Column, covered: Column) -> Column:
    """The numbers from `start` to before `stop` that no range of a sorted array covers, as ranges."""
    nothing = F.array().cast("array<struct<first:bigint,last:bigint>>")
    begin = F.struct(start.cast("long").alias("at"), nothing.alias("found"))

    def step(state: Column, pair: Column) -> Column:
        end = F.least(pair["first"], stop) - 1
        gap = F.array(F.struct(state["at"].alias("first"), end.cast("long").alias("last")))
        found = F.when(state["at"] <= end, F.concat(state["found"], gap)).otherwise(state["found"])
        return F.struct(F.greatest(state["at"], pair["last"] + 1).cast("long").alias("at"), found.alias("found"))

    def finish(state: Column) -> Column:
        rest = F.array(F.struct(state["at"].alias("first"), (stop - 1).cast("long").alias("last")))
        return F.when(state["at"] < stop, F.concat(state["found"], rest)).otherwise(state["found"])

    return F.aggregate(covered, begin, step, finish)


def placed(stamps: DataFrame, *, from_the_first: bool) -> DataFrame:
    """Stamped messages with their place in their stream: what was expected, and whether the id was seen before."""
    stream = Window.partitionBy(*STREAM).orderBy("queueOffset")
    same_id = Window.partitionBy("msgId").orderBy("storeTimestamp", "topic", "brokerName", "queueId", "queueOffset")
    highest = F.max("sequence").over(stream.rowsBetween(Window.unboundedPreceding, -1))
    first = F.lit(0).cast("long") if from_the_first else F.first("sequence").over(stream)
    return (
        stamps.where(F.col("producer").isNotNull())
        .withColumn("start", first)
        .withColumn("expected", F.coalesce(highest + 1, F.col("start")))
        .withColumn("previousId", _last_ahead_id(stream))
        .withColumn("isKnown", F.row_number().over(same_id) > 1)
    )


def _last_ahead_id(stream: object) -> Column:
    """The id of the message with the highest number so far: the one that a gap comes after."""
    before = stream.rowsBetween(Window.unboundedPreceding, -1)  # type: ignore[attr-defined]
    return F.max(F.struct("sequence", -F.col("queueOffset"), "msgId")).over(before)["msgId"]


def findings(rows: DataFrame) -> DataFrame:
    """What is wrong, one row each: the problem, where, and for a gap its first and last number."""
    return _gaps(rows).unionByName(_ahead_repeats(rows)).unionByName(_behind(rows))


_FINDING: Final = (*STREAM, "queueOffset", "msgId", "sequence")


def _gaps(rows: DataFrame) -> DataFrame:
    jumps = rows.where(F.col("sequence") > F.col("expected"))
    gap = F.explode(uncovered(F.col("expected"), F.col("sequence"), F.col("void")))
    return jumps.withColumn("gap", gap).select(
        F.lit("gap").alias("problem"),
        *_FINDING,
        F.col("gap.first").alias("firstMissing"),
        F.col("gap.last").alias("lastMissing"),
        "previousId",
    )


def _ahead_repeats(rows: DataFrame) -> DataFrame:
    return _plain(rows.where((F.col("sequence") >= F.col("expected")) & F.col("isKnown")), F.lit("repeat"))


def _plain(rows: DataFrame, problem: Column) -> DataFrame:
    return rows.select(
        problem.alias("problem"),
        *_FINDING,
        F.lit(None).cast("long").alias("firstMissing"),
        F.lit(None).cast("long").alias("lastMissing"),
        F.lit(None).cast("string").alias("previousId"),
    )


def _behind(rows: DataFrame) -> DataFrame:
    """The verdict on messages whose number is below one that came before.

    A number that came before, or that lies before the start, was not missing: it is late only when somebody called it
    void. Another one was skipped by exactly one message ahead; it is still missing unless that one or a later one
    called it void.
    """
    same = Window.partitionBy(*STREAM, "sequence").orderBy("queueOffset")
    behind = (
        rows.withColumn("isAgain", F.row_number().over(same) > 1)
        .where(F.col("sequence") < F.col("expected"))
        .select(*_FINDING, "start", "isKnown", "isAgain")
    )
    told = rows.where(F.size("void") > 0).select(
        *(F.col(name).alias(f"told_{name}") for name in STREAM),
        F.col("queueOffset").alias("toldAt"),
        F.explode("void").alias("told"),
    )
    jumps = rows.where(F.col("sequence") > F.col("expected")).select(
        *(F.col(name).alias(f"jump_{name}") for name in STREAM),
        F.col("queueOffset").alias("skippedAt"),
        F.col("expected").alias("skippedFrom"),
        F.col("sequence").alias("skippedTo"),
    )
    is_told = _same_stream("told_") & (F.col("toldAt") <= F.col("queueOffset"))
    is_told = is_told & F.col("sequence").between(F.col("told.first"), F.col("told.last"))
    is_skipped = _same_stream("jump_") & (F.col("sequence") >= F.col("skippedFrom"))
    is_skipped = is_skipped & (F.col("sequence") < F.col("skippedTo"))
    judged = (
        behind.join(told, is_told, "left")
        .groupBy(*_FINDING, "start", "isKnown", "isAgain")
        .agg(F.max("toldAt").alias("toldAt"))
        .join(jumps, is_skipped, "left")
    )
    was_missing = ~F.col("isAgain") & (F.col("sequence") >= F.col("start"))
    still_missing = was_missing & (F.col("toldAt").isNull() | (F.col("toldAt") < F.col("skippedAt")))
    is_late = still_missing | (F.col("toldAt").isNotNull() & ~F.col("isKnown"))
    return _plain(judged, F.when(is_late, "disorder").otherwise("repeat"))


def _same_stream(prefix: str) -> Column:
    condition = F.lit(True)
    for name in STREAM:
        condition = condition & (F.col(name) == F.col(f"{prefix}{name}"))
    return condition


def lost(rows: DataFrame, found: DataFrame) -> DataFrame:
    """The numbers of the gaps that never came and that nobody called void afterwards, as ranges."""
    gaps = found.where(F.col("problem") == "gap").select(*STREAM, "queueOffset", "firstMissing", "lastMissing")
    late = rows.where(F.col("sequence") < F.col("expected")).select(
        *(F.col(name).alias(f"cover_{name}") for name in STREAM),
        F.col("queueOffset").alias("coveredAt"),
        F.struct(F.col("sequence").alias("first"), F.col("sequence").alias("last")).alias("cover"),
    )
    told = rows.where(F.size("void") > 0).select(
        *(F.col(name).alias(f"cover_{name}") for name in STREAM),
        F.col("queueOffset").alias("coveredAt"),
        F.explode("void").alias("cover"),
    )
    overlaps = _same_stream("cover_") & (F.col("coveredAt") > F.col("queueOffset"))
    overlaps = (
        overlaps & (F.col("cover.first") <= F.col("lastMissing")) & (F.col("cover.last") >= F.col("firstMissing"))
    )
    covered = (
        gaps.join(late.unionByName(told), overlaps, "left")
        .groupBy(*STREAM, "queueOffset", "firstMissing", "lastMissing")
        .agg(F.array_sort(F.collect_list("cover")).alias("covered"))
    )
    left = F.explode(uncovered(F.col("firstMissing"), F.col("lastMissing") + 1, F.col("covered")))
    return covered.withColumn("left", left).select(
        *STREAM,
        F.col("queueOffset").alias("beforeOffset"),
        F.col("left.first").alias("firstMissing"),
        F.col("left.last").alias("lastMissing"),
        (F.col("left.last") - F.col("left.first") + 1).alias("messages"),
    )
