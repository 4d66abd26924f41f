"""The Spark source from broker to sink: rows a second, micro-batches, what a waiting query costs, where time goes.

A broker in a process of its own on the same cores; `local[2]`, AvailableNow, all columns, five properties as a map.
Rates are medians of rows by the time of the whole trigger, planning and checkpoint included; two rounds, in which
workers start and Java compiles most of what it runs, are left out. Beside them stands the processor time of a row, by
processes: two cores that others use too give a lower rate, and about the same processor time.

    scripts/bench spark [--only decode,read,noop,parquet,tiny,idle] [--rounds 3] [--rows 1000000] [--profile]

Targets, on two cores with the broker beside (what Spark's Kafka source does there with its defaults): noop 455,000
rows/s at 100 B and 255,000 at 1 KiB; Parquet 268,000 and 120,000; a tiny micro-batch below 400 ms; a waiting query
below 5 % of a core.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from spark_broker import QUEUES, topic_of

from cometmq.spark.access import Access
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.link import close_links
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.read_options import ReadOptions

SIZES = (100, 1024)
PARTS = ("decode", "read", "noop", "parquet", "tiny", "idle")
TARGETS = {("noop", 100): 455_000, ("noop", 1024): 255_000, ("parquet", 100): 268_000, ("parquet", 1024): 120_000}
#: The processes that Spark consists of.
SPARK = ("JVM", "Python")
TINY_MS, IDLE_PERCENT = 400, 5
#: Rounds that are left out: a query that runs for hours has them once.
WARM_UP = 2
#: Batches that the micro-batch figures are taken from, and seconds that a waiting query is watched.
TINY_BATCHES, IDLE_SECONDS = 20, 10


def messages_of(size: int, rows: int) -> int:
    """As many as asked for of the small ones, half as many of the large, the same number in each queue."""
    return (rows if size < 1000 else rows // 2) // QUEUES * QUEUES


class Cluster:
    """The broker, and the processor time of everybody."""

    def __init__(self, process: subprocess.Popen[str], rows: int) -> None:
        assert process.stdout is not None
        self.nameserver = process.stdout.readline().strip()
        self._rows = rows
        self.access = Access(name_servers=(self.nameserver,))
        self._broker = psutil.Process(process.pid)

    def broker_cpu(self) -> float:
        times = self._broker.cpu_times()
        return float(times.user + times.system)

    def count(self, size: int) -> int:
        return messages_of(size, self._rows)

    def ranges(self, size: int) -> list[QueueRange]:
        each = self.count(size) // QUEUES
        return [QueueRange(topic_of(size), "broker-a", queue, 0, each) for queue in range(QUEUES)]


@contextmanager
def running_cluster(rows: int) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).parent / "spark_broker.py"), folder]
        command += [f"{size}={messages_of(size, rows)}" for size in SIZES]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Cluster(process, rows)
            finally:
                assert process.stdin is not None
                process.stdin.close()


def show(what: str, rate: float, rest: str = "", target: int | None = None) -> None:
    aim = f"   target {target:,}: {rate / target:.2f}" if target else ""
    print(f"{what:<22}{rate:>12,.0f} rows/s {rest}{aim}", flush=True)


# Without Spark


def decode_alone(cluster: Cluster, rounds: int) -> None:
    """Bytes to Arrow on one core."""
    from cometmq.spark.decode import Decoder
    from cometmq.spark.link import link_to
    from cometmq.spark.native import IS_BUILT
    from cometmq.spark.pulls import LossWatch, SpanReader

    for size in SIZES:
        link = link_to(cluster.access)
        span = cluster.ranges(size)[0]
        span = span._replace(stop=min(span.stop, 1024 * 1024 // (size + 190)))
        pieces = link.run(SpanReader(link, ReadOptions(), LossWatch(True)).read(span), 60)
        ways = [(", numpy", False), (", native", True)] if IS_BUILT else [(", numpy", False)]
        for label, native in ways:
            decoder = Decoder(Columns.of(full_schema()), native=native)
            rates = []
            for _ in range(rounds * 10):
                began = time.perf_counter()
                rows = decoder.decode(pieces).num_rows
                rates.append(rows / (time.perf_counter() - began))
            show(f"decode {size} B{label}", statistics.median(rates))


def read_alone(cluster: Cluster, rounds: int) -> None:
    """Pull and decode in one process, as a task does; and the processor time of a row on either side."""
    from cometmq.spark.reading import read_ranges

    columns = Columns.of(full_schema())
    for size in SIZES:
        rates, own, brokers = [], [], []
        for _ in range(rounds):
            began, used, broker = time.perf_counter(), time.process_time(), cluster.broker_cpu()
            rows = sum(
                each.num_rows for each in read_ranges(cluster.ranges(size), cluster.access, columns, ReadOptions())
            )
            assert rows == cluster.count(size)
            rates.append(rows / (time.perf_counter() - began))
            own.append((time.process_time() - used) / rows * 1e9)
            brokers.append((cluster.broker_cpu() - broker) / rows * 1e9)
        cost = f"(CPU: reader {statistics.median(own):,.0f}, broker {statistics.median(brokers):,.0f} ns a row)"
        show(f"pull + decode {size} B", statistics.median(rates), cost)


# With Spark


def running_session() -> Any:
    from cometmq.spark import session

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.memory": "2g",
    }
    spark = session("cometmq bench", "local[2]", settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: Any, cluster: Cluster, topic: str, **options: Any) -> Any:
    chosen = {"nameServer": cluster.nameserver, "subscribe": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("rocketmq").options(**chosen).load()


def throughput(spark: Any, cluster: Cluster, part: str, rounds: int) -> None:
    """A whole topic in one batch. The first rounds start workers and compile code; they do not count."""
    for size in SIZES:
        runs = [one_run(spark, cluster, part, size) for _ in range(WARM_UP + rounds)][WARM_UP:]
        rate = statistics.median(run.rate for run in runs)
        costs = [statistics.median(part) for part in zip(*(run.costs for run in runs), strict=True)]
        told = ", ".join(f"{name} {cost:,.0f}" for name, cost in zip(("broker", *SPARK), costs, strict=True))
        show(f"{part} {size} B", rate, f"(ns CPU a row: {told}; all {sum(costs):,.0f})", TARGETS[part, size])


class Run(NamedTuple):
    #: Rows a second over the whole trigger.
    rate: float
    #: Nanoseconds of processor time for a row: the broker's, and those of SPARK.
    costs: tuple[float, ...]


def one_run(spark: Any, cluster: Cluster, part: str, size: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        writer = stream(spark, cluster, topic_of(size)).writeStream.format(part)
        if part == "parquet":
            writer = writer.option("path", f"{folder}/out")
        before = (cluster.broker_cpu(), *spark_cpu())
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        after = (cluster.broker_cpu(), *spark_cpu())
        batches = [each for each in query.recentProgress if each.numInputRows]
        rows = sum(each.numInputRows for each in batches)
        assert rows == cluster.count(size), f"the query read {rows} rows"
        seconds = sum(each.durationMs["triggerExecution"] for each in batches) / 1000
        return Run(
            rows / seconds, tuple((late - early) / rows * 1e9 for early, late in zip(before, after, strict=True))
        )


def tiny_batches(spark: Any, cluster: Cluster) -> None:
    """One message a queue in each batch: what a micro-batch costs by itself; and one with nothing in it."""
    with tempfile.TemporaryDirectory() as folder:
        frame = stream(spark, cluster, topic_of(SIZES[0]), maxOffsetsPerTrigger=QUEUES)
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        wait_for(query, lambda: len(query.recentProgress) > TINY_BATCHES + 3)
        query.stop()
    times = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows][3:]
    median, worst = statistics.median(times), max(times)
    print(f"tiny micro-batch      {median:>9.0f} ms, at most {worst} ms   target {TINY_MS} ms: {median / TINY_MS:.2f}")


def idle_query(spark: Any, cluster: Cluster) -> None:
    """The processor time of Spark's JVM, its Python processes and the broker while nothing comes."""
    with tempfile.TemporaryDirectory() as folder:
        frame = stream(spark, cluster, topic_of(SIZES[0]), startingOffsets="latest")
        before = sum(spark_cpu())
        time.sleep(IDLE_SECONDS)
        base = sum(spark_cpu()) - before
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        wait_for(query, lambda: bool(query.recentProgress))
        time.sleep(IDLE_SECONDS)  # the JVM goes on compiling what the start used
        before, broker = sum(spark_cpu()), cluster.broker_cpu()
        time.sleep(IDLE_SECONDS)
        used, broker = sum(spark_cpu()) - before, cluster.broker_cpu() - broker
        looks = query.lastProgress.durationMs if query.lastProgress else {}
        query.stop()
    percent = used / IDLE_SECONDS * 100
    print(
        f"waiting query         {percent:>9.1f} % of a core (broker {broker / IDLE_SECONDS * 100:.1f} %, Spark without"
        f" a query {base / IDLE_SECONDS * 100:.1f} %)   target {IDLE_PERCENT} %: {percent / IDLE_PERCENT:.2f}"
    )
    empty = looks.get("triggerExecution")
    print(f"empty micro-batch     {empty} ms, of which {looks.get('latestOffset')} ms wait for messages")


def spark_cpu() -> tuple[float, float]:
    """Processor seconds of Spark's JVM and of its Python processes: whatever runs below this one but the broker."""
    java = python = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        if "spark_broker.py" in command:
            continue
        # A worker that has ended meanwhile counts for the daemon that waited for it.
        used = times.user + times.system
        if "java" in command.partition(" ")[0]:
            java += used
        else:
            python += used + times.children_user + times.children_system
    return java, python


def wait_for(query: Any, condition: Callable[[], bool]) -> None:
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def where_time_goes(cluster: Cluster) -> None:
    """The functions of a task that take most, by Python's profiler; the loop's thread is not in it."""
    import cProfile
    import pstats

    from cometmq.spark.reading import read_ranges

    for size in SIZES:
        profiler = cProfile.Profile()
        batches = read_ranges(cluster.ranges(size), cluster.access, Columns.of(full_schema()), ReadOptions())
        profiler.runcall(lambda batches=batches: sum(each.num_rows for each in batches))
        print(f"-- a task's thread, {size} B")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages of 100 B; of 1 KiB half as many")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    with running_cluster(options.rows) as cluster:
        if "decode" in parts:
            decode_alone(cluster, options.rounds)
        if "read" in parts:
            read_alone(cluster, options.rounds)
        if options.profile:
            where_time_goes(cluster)
        close_links()
        if not set(parts) & {"noop", "parquet", "tiny", "idle"}:
            return
        spark = running_session()
        for part in ("noop", "parquet"):
            if part in parts:
                throughput(spark, cluster, part, options.rounds)
        if "tiny" in parts:
            tiny_batches(spark, cluster)
        if "idle" in parts:
            idle_query(spark, cluster)
        spark.stop()


if __name__ == "__main__":
    main()
