"""Message traces as rows: RocketMQ's texts of `RMQ_SYS_TRACE_TOPIC` taken apart, and latencies in windows of time.

A trace message holds records ended by 0x02, with fields joined by 0x01, in the forms of all clients since 4.4; the SDK
writes the same (`cometmq.client.trace.records`). `Pub` is a send, `SubAfter` the end of processing; a message's way is
the two joined by its id. RocketMQ's TraceDataEncoder is what reads them in Java.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from cometmq.client.trace.records import END, FIELD

TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

#: What is read of a trace message.
COLUMNS: Final = ("body", "storeTimestamp")

#: What happened to messages: sends (of no request), and ends of processing (of no topic); `seen` is when the broker
#: had been told at the latest. Clocks of clients may be wrong.
HAPPENED: Final = (
    "kind string, time timestamp, seen timestamp, topic string, `group` string, msgId string, requestId string, "
    "cost bigint, success boolean"
)

#: What a latency is in the tables: milliseconds at these parts of all.
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Latencies of a window. `cost_p95` is the time of processing, or of sending, alone.
FIGURES: Final = (*PERCENTILES, "max", "cost_p95")
#: The table of windows.
SCHEMA: Final = "time timestamp, kind string, topic string, `group` string, count bigint, failures bigint" + "".join(
    f", {name} bigint" for name in FIGURES
)

#: Milliseconds that a client's clock may be ahead of the broker's: what is beyond is damaged, or forged.
_AHEAD: Final = 86_400_000


def happened(traces: DataFrame) -> DataFrame:
    """Sends and ends of processing in trace messages (`COLUMNS`); what is no such record is passed over.

    Clients before 4.6 do not say when processing ended and for which group: that is left out.
    """
    texts = F.explode(F.split(F.make_valid_utf8(F.col("body").cast("string")), END))
    found = traces.select(texts.alias("text"), F.col("storeTimestamp").alias("stored")).where(F.col("text") != "")
    fields = found.select(F.split(F.col("text"), FIELD).alias("f"), "stored")
    is_send = (_text(0) == "Pub") & (F.size("f") >= 12)
    is_end = (_text(0) == "SubAfter") & (F.size("f") >= 9)
    # 12 fields: no outcome; 13: the outcome last; from 14 on an id before it and the client's address behind.
    outcome = F.when(F.size("f") == 13, _text(12)).when(F.size("f") >= 14, _text(13)).otherwise("true")

    def field(of_send: int, of_end: int) -> Column:
        return F.when(is_send, _text(of_send)).otherwise(_text(of_end))

    latest = F.unix_millis("stored") + _AHEAD
    at = field(1, 7).try_cast("long")
    cost = field(10, 3).try_cast("int").cast("long")  # as in Java; below 0 when a clock was set back meanwhile
    rows = fields.where(is_send | is_end).select(
        F.when(is_send, "send").otherwise("consume").alias("kind"),
        F.timestamp_millis(F.when(at.between(0, latest), at)).alias("time"),
        "stored",
        F.when(is_send, _text(4)).alias("topic"),
        field(3, 8).alias("group"),
        field(5, 2).alias("msgId"),
        F.when(is_end, _text(1)).alias("requestId"),
        F.when(cost < 0, F.lit(0)).otherwise(cost).alias("cost"),
        (F.when(is_send, outcome).otherwise(_text(4)) == "true").alias("success"),
    )
    sound = rows.where(F.col("time").isNotNull() & F.col("cost").isNotNull())
    return sound.withColumn("seen", F.least("time", "stored")).drop("stored")


def _text(index: int) -> Column:
    return F.get(F.col("f"), F.lit(index))


def steps(rows: DataFrame) -> DataFrame:
    """What happened (`HAPPENED`), each once, with its latency: a send's cost, or the time from the send to that end.

    Where nobody traced the send, processing has the topic `?` and no latency. Trace messages are sent at least once,
    and a producer traces each of its attempts: the way of a message begins with the first one.
    """
    is_send = F.col("kind") == "send"
    # One shuffle for all: records that are the same, and those of one message, come together.
    once = rows.repartition("msgId").dropDuplicates(["msgId", "kind", "time", "group", "requestId", "cost", "success"])
    begin = F.when(is_send & (F.col("msgId") != ""), F.struct("time", "topic"))
    known = once.withColumn("sent", F.min(begin).over(Window.partitionBy("msgId")))
    # Clocks of producers and consumers differ: an end may seem to be before its beginning.
    took = F.greatest(F.unix_millis("time") - F.unix_millis("sent.time"), F.lit(0))
    return known.select(
        "kind",
        "time",
        F.coalesce("topic", "sent.topic", F.lit("?")).alias("topic"),
        "group",
        F.when(is_send, F.col("cost")).when(F.col("sent").isNotNull(), took).alias("latency"),
        "cost",
        "success",
    )


def windows(taken: DataFrame, window: int) -> DataFrame:
    """Counts, failures and percentiles of steps for each window of so many milliseconds, kind, topic and group.

    Latencies are of successes.
    """
    latency = F.when(F.col("success"), F.col("latency"))
    return (
        taken.groupBy(_window(window), "kind", "topic", "group")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.count(F.when(~F.col("success"), 1)).alias("failures"),
            *(F.percentile_approx(latency, part, 1000).alias(name) for name, part in PERCENTILES.items()),
            F.max(latency).alias("max"),
            F.percentile_approx("cost", 0.95, 1000).alias("cost_p95"),
        )
        .select(F.col("window.start").alias("time"), "kind", "topic", "group", "count", "failures", *FIGURES)
    )


def window_end(window: int) -> Column:
    """When the window of a row ends: milliseconds since 1970."""
    return F.unix_millis("time") - F.pmod(F.unix_millis("time"), F.lit(window)) + window


def _window(window: int) -> Column:
    return F.window("time", f"{window} milliseconds").alias("window")
