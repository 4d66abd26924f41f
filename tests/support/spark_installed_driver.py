"""A driver that uses the data source as somebody does who has just installed it: a write, a table, a stream.

Run as a process, with the nameserver, a topic and the master as arguments; prints what it saw. In the place of a master
under spark-submit, `submitted` makes a session that knows nothing of CometMQ, `submitted with session()` one by that;
the `sc://` address of a Connect server, a client of it. With a master of this process alone, it is a Connect server
too: a client of it, which is this file once more, does the same with a topic of its own.
"""

import json
import subprocess
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


#: A port that is free.
CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def session(master: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    if master == "submitted":
        return SparkSession.builder.getOrCreate()
    from cometmq.spark import session

    serving = CONNECT_SERVER if master.startswith("local[") else {}
    given = None if master.startswith("submitted") else master
    return session("installed", given, {"spark.ui.enabled": "false", **serving})


def connected(spark: SparkSession, nameserver: str, topic: str) -> dict[str, Any]:
    """What a client saw that is connected to this session's server."""
    services: Any = spark.sparkContext._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
    port = getattr(getattr(services, "SparkConnectService$"), "MODULE$").localPort()  # how a Scala object is reached
    argv = [sys.executable, __file__, nameserver, topic, f"sc://127.0.0.1:{port}"]
    told: dict[str, Any] = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    return told


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
        stop_a_running_query(stream)  # through Connect nobody sees what is printed
    told: dict[str, Any] = {
        "bodies": sorted(int(row.body) for row in table.collect()),
        "streamed": streamed,
        "session": type(spark).__module__,
    }
    if master.startswith("local["):
        told["connected"] = connected(spark, nameserver, f"{topic}_CONNECTED")
    if not master.startswith("sc://"):
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
