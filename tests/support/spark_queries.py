"""Queries of the tests: read a topic as a stream or a table, and see what came, batch by batch."""

import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

#: Seconds that a test waits for a query on a machine that does many things at once.
PATIENCE = 90.0


class Batches:
    """What a query delivered: rows by the number of their batch."""

    def __init__(self) -> None:
        self.by_id: dict[int, list[Row]] = {}

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """The function of `foreachBatch`: one that comes again replaces itself."""
        self.by_id[batch_id] = batch.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in self.by_id.values() for row in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for _, rows in sorted(self.by_id.items())]


def stream_of(spark: SparkSession, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """A stream of the source."""
    reader = spark.readStream.format("rocketmq").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def table_of(spark: SparkSession, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """A batch read of the source."""
    reader = spark.read.format("rocketmq").options(**options)
    return (reader.schema(schema) if schema else reader).load()


def run_now(frame: DataFrame, checkpoint: str | Path) -> Batches:
    """Read a stream up to what there is now."""
    batches = Batches()
    query = started(frame, checkpoint, batches, availableNow=True)
    assert query.awaitTermination(PATIENCE), "the query did not end"
    return batches


def started(frame: DataFrame, checkpoint: str | Path, batches: Batches, **trigger: Any) -> StreamingQuery:
    """A running query."""
    writer = frame.writeStream.foreachBatch(batches.take).option("checkpointLocation", str(checkpoint))
    return writer.queryName(f"q{uuid.uuid4().hex[:8]}").trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def wait_until(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Wait for a condition; a query that fails meanwhile is told."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if query is not None and (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        time.sleep(0.02)
