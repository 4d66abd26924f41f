"""A Spark driver in a process of its own, for tests that kill it: a stream into files, into `foreachBatch`, or both.

`Driver` starts and kills it; run as a script it is that driver: it starts Spark, says `ready`, and begins when it is
told to. Both sinks are exactly once: the file sink by its own log, the other because a batch replaces itself.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: For JVMs that live for seconds: without the optimising compiler they start in half the time. Small plans for small
#: data; and Spark's logs stay, for tests look into them.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.minBatchesToRetain": "1000",
    "spark.task.maxFailures": "1",
}


FILES, REPLACING = "files", "replacing"
SINKS = (FILES, REPLACING)


class Home:
    """The directory of both queries: output and checkpoint of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def output(self, sink: str) -> Path:
        return self.folder / sink / "output"

    def checkpoint(self, sink: str) -> Path:
        return self.folder / sink / "checkpoint"

    def planned(self, sink: str) -> int:
        """The last batch whose offsets are in the log; -1 without one."""
        return _last(self.checkpoint(sink) / "offsets")

    def committed(self, sink: str) -> int:
        """The last batch that is done."""
        return _last(self.checkpoint(sink) / "commits")

    def in_the_middle(self) -> list[str]:
        """The sinks that have planned a batch and not finished it."""
        return [sink for sink in SINKS if self.planned(sink) > self.committed(sink)]

    def has_data_of(self, sink: str, batch: int) -> bool:
        """Whether tasks of a batch have begun to write."""
        if sink == REPLACING:
            return (self.output(sink) / f"batch={batch}").exists()
        return len(list(self.output(sink).glob("*.parquet"))) > self._files_of_done_batches()

    def _files_of_done_batches(self) -> int:
        log = self.output(FILES) / "_spark_metadata"
        newest = [path for path in log.iterdir() if path.name[0].isdigit()] if log.exists() else []
        return sum(path.read_text().count('"action":"add"') for path in newest if not path.name.endswith(".compact"))


def _last(log: Path) -> int:
    """The last entry of one of Spark's logs."""
    names = os.listdir(log) if log.exists() else []  # cheap: it is asked hundreds of times a second
    return max((int(name) for name in names if name.isdigit()), default=-1)


def start_queries(
    spark: SparkSession, options: Mapping[str, str], home: Home, sinks: Iterable[str] = SINKS, **trigger: object
) -> list[StreamingQuery]:
    """The queries of these sinks, from where their checkpoints are.

    One after the other: when streams of Python sources start, Spark adds to one map of the session from the thread of
    each, without a lock. Two at once break the map, and with it every task to come ("Illegal size 5 of collection,
    expected 6").
    """

    def replace(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(str(home.output(REPLACING) / f"batch={batch_id}"))

    stream = spark.readStream.format("rocketmq").options(**options).load()
    rows = stream.select("topic", "queueId", "queueOffset", "body")
    writers = {
        FILES: rows.writeStream.format("parquet").option("path", str(home.output(FILES))),
        REPLACING: rows.writeStream.foreachBatch(replace),
    }
    started: list[StreamingQuery] = []
    for sink in sinks:
        query = writers[sink].option("checkpointLocation", str(home.checkpoint(sink))).trigger(**trigger).start()
        started.append(query)
        while query.isActive and query.lastProgress is None:
            time.sleep(0.01)
    return started


class Driver:
    """A driver process, with Spark's JVM and workers in its process group."""

    def __init__(self, home: Home, options: Mapping[str, str], sinks: Iterable[str]) -> None:
        arguments = [str(home.folder), ",".join(sinks), *(f"{name}={value}" for name, value in options.items())]
        self._log = home.folder / f"driver-{uuid.uuid4().hex[:8]}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def begin(self) -> None:
        """Wait until Spark is up, and have it start the queries."""
        assert self._pipe(self._process.stdout).readline() == "ready\n", "Spark did not start"
        self._pipe(self._process.stdin).write("begin\n")
        self._pipe(self._process.stdin).flush()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """What it said at last, for tests that did not expect its end."""
        return f"exit code {self._process.poll()}: {self._log.read_text(errors='replace')[-4000:]}"

    def stop(self) -> None:
        """SIGSTOP: nothing of it goes on until `cont`, or `kill`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 of the driver and of everything that it started."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            self._pipe(pipe).close()


def main() -> None:
    from cometmq.spark import session

    folder, sinks, *settings = sys.argv[1:]
    options = dict(setting.split("=", 1) for setting in settings)
    spark = session("killed", "local[2]", SETTINGS)
    print("ready", flush=True)
    if sys.stdin.readline():
        start_queries(spark, options, Home(Path(folder)), sinks.split(","), processingTime="0 seconds")
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
