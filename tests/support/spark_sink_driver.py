"""A Spark driver that copies a topic to another one by the sink, in a process of its own, for tests that kill it.

`SinkDriver` starts and kills it; run as a script it is that driver.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from support.spark_driver import SETTINGS, Driver, Home

#: The query's name in its `Home`.
COPY = "copy"

_TESTS = str(Path(__file__).parents[1])


def start_copy(
    spark: SparkSession, options: Mapping[str, str], home: Home, sink: Mapping[str, str], **trigger: object
) -> StreamingQuery:
    """The query, from where its checkpoint is; `options` are those of the source."""
    rows = spark.readStream.format("rocketmq").options(**options).load().select("body")
    writer = rows.writeStream.format("rocketmq").options(**sink)
    return writer.option("checkpointLocation", str(home.checkpoint(COPY))).trigger(**trigger).start()


class SinkDriver(Driver):
    """A driver process that copies, until it is killed."""

    def __init__(self, home: Home, options: Mapping[str, str], target: str) -> None:
        self._log = home.folder / f"driver-{uuid.uuid4().hex[:8]}.log"
        given = [f"{name}={value}" for name, value in options.items()]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.spark_sink_driver", str(home.folder), target, *given],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )


def main() -> None:
    from cometmq.spark import session

    folder, target, *settings = sys.argv[1:]
    options = dict(setting.split("=", 1) for setting in settings)
    spark = session("killed", "local[2]", SETTINGS)
    print("ready", flush=True)
    if sys.stdin.readline():
        sink = {"nameServer": options["nameServer"], "topic": target}
        start_copy(spark, options, Home(Path(folder)), sink, processingTime="0 seconds").awaitTermination()


if __name__ == "__main__":
    main()
