"""What is told while a batch runs: what it is at, and how many of its tasks are done."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import trace
from cometmq.spark.jobs.metrics import Lines, Meter, Silence, progress_line
from cometmq.spark.jobs.stages import watched
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


class Told(Silence):
    """Keeps what it is to show, and lets tasks go on once it was told about them."""

    def __init__(self, seen: Path | None = None) -> None:
        self.lines: list[str] = []
        self._seen = seen

    def show(self, meter: Meter) -> None:
        self.lines.append(progress_line(meter))
        if self._seen is not None and self.lines[-1] == "any: counting, 0 of 2 tasks":
            self._seen.touch()


def test_tasks_are_told_while_they_run(spark: SparkSession, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    told, meter, place = Told(seen), Meter("any"), str(seen)

    def wait(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        end = time.monotonic() + 60
        while not Path(place).exists():
            assert time.monotonic() < end, "nobody was told about the tasks"
            time.sleep(0.01)
        yield from batches

    with watched(spark, meter, told):
        meter.doing = "counting"
        assert len(spark.range(2, numPartitions=2).mapInArrow(wait, "id long").collect()) == 2
    meter.add(2)
    assert progress_line(meter).startswith("any: 2 rows, ")


def test_a_batch_says_what_it_is_at(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topics: TopicKit,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = topics.made("PROGRESS", [20])
    told = Told()
    trace(spark, topic=topic, name_server=broker.nameserver, display=told)
    # One look at least; what is short may be over before the next one.
    assert any(line.startswith(("trace: planning", "trace: reading and matching")) for line in told.lines)
    meter = Meter("audit")
    meter.doing, meter.tasks = "writing", (3, 8)
    Lines(interval=0).show(meter)
    assert capsys.readouterr().err == "audit: writing, 3 of 8 tasks\n"
