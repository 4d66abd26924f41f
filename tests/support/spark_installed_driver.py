"""A driver that uses the data source as somebody does who has just installed it: a write, a table, a stream.

Run as a process, with the nameserver, a topic and the master as arguments (or `connect`, or `submitted` under
spark-submit); prints what it saw.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader


def homes(batches: Iterator[Any]) -> Iterator[Any]:
    """For each task: where CometMQ is imported from there, and in which executor."""
    import os

    import pyarrow as pa

    import cometmq

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"home": [cometmq.__file__], "parent": [str(os.getppid())]})


def session(master: str) -> SparkSession:
    if master == "connect":
        return SparkSession.builder.remote("local[2]").getOrCreate()
    from cometmq.spark import session

    return session("installed", None if master == "submitted" else master, {"spark.ui.enabled": "false"})


def stop_a_running_query(stream: DataStreamReader) -> None:
    """As users do it, while the query waits for messages: nothing is to be printed about that."""
    query = stream.load().writeStream.format("noop").start()
    while not query.recentProgress:
        time.sleep(0.05)
    query.stop()


def main() -> None:
    nameserver, topic, master = sys.argv[1:4]
    spark = session(master)
    access = {"nameServer": nameserver}
    rows = spark.range(0, 200, 1, 4).selectExpr("cast(id as string) body")
    rows.write.format("rocketmq").options(**access, topic=topic).mode("append").save()
    table = spark.read.format("rocketmq").options(**access, subscribe=topic).load()
    stream = spark.readStream.format("rocketmq").options(**access, subscribe=topic, startingOffsets="earliest")
    # Into memory: half a dozen Javas need not load all that Parquet takes.
    query = stream.load().select("body").writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
    query.start().awaitTermination()
    streamed = sorted(int(row.body) for row in spark.table("streamed").collect())
    if master.startswith("local"):
        stop_a_running_query(stream)
    told: dict[str, Any] = {
        "bodies": sorted(int(row.body) for row in table.collect()),
        "streamed": streamed,
        "session": type(spark).__module__,
    }
    if master != "connect":
        import cometmq

        seen = spark.range(0, 8, 1, 8).mapInArrow(homes, "home string, parent string").collect()
        told |= {
            "home": cometmq.__file__,
            "homes": sorted({row.home for row in seen}),
            "executors": len({row.parent for row in seen}),
            "java": spark.sparkContext._jvm.java.lang.System.getProperty("java.home"),  # type: ignore[union-attr]
        }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
