"""The progress of a batch: rows are known at its end only, and tasks of Spark's stages meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cometmq.spark.jobs.metrics import Display, Meter

#: Seconds between two looks at what runs.
_LOOK = 0.25


@contextmanager
def watched(spark: SparkSession, meter: Meter, display: Display) -> Iterator[None]:
    """Show what Spark is at while the block runs: that blocks this thread, and another one looks."""
    ended = threading.Event()
    meter.doing = "planning"
    # Spark Connect has no context to ask: then the job says what it is doing, and no more.
    context: SparkContext | None = None if getattr(spark, "_jvm", None) is None else spark.sparkContext

    def look() -> None:
        while True:
            if context is not None:
                try:
                    meter.tasks = _tasks(context)
                except Py4JError:  # Java is away: the block gets to know that by itself
                    return
            display.show(meter)
            if ended.wait(_LOOK):
                return

    thread = threading.Thread(target=look, name="cometmq-stages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        meter.doing, meter.tasks = "", None


def _tasks(context: SparkContext) -> tuple[int, int] | None:
    """How many tasks of the stages that run are done, and how many there are; None while Spark plans."""
    tracker = context.statusTracker()
    running = [stage for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()) if stage is not None]
    if not running:
        return None
    return sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)
