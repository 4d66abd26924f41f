"""The sink: rows of a DataFrame, from a stream or a batch, become messages. At least once.

Every acknowledgement is awaited before a task reports that it is done, so Spark commits a batch only when brokers have
all of it. A batch that is repeated is sent again, with the same stamps (`stamps`). Kafka's sink gives the same
guarantee; a mode that publishes once will stage here in `write` and publish in `commit`.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cometmq.spark.errors import OptionError
from cometmq.spark.sink_columns import check_columns
from cometmq.spark.sink_options import SinkOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What one task has sent, all of it acknowledged."""

    partition: int
    rows: int
    requests: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq").mode("append")`."""

    def __init__(self, options: SinkOptions) -> None:
        self._sink = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(iterator, self._sink)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_written("the write", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; rows that were sent before stay in their topics")


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`."""

    def __init__(self, options: SinkOptions) -> None:
        self._sink = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return _write(iterator, self._sink)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_written(f"batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("batch %d failed; rows that were sent before stay in their topics, and come again", batchId)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool = False) -> BatchWriter:
    """The writer of `df.write`; whatever is wrong with options or columns is raised here, in the driver."""
    if overwrite:
        raise OptionError("mode", "overwrite", 'a topic cannot be overwritten; say .mode("append")')
    return BatchWriter(_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of `df.writeStream`. In complete mode, every batch writes the whole result again."""
    return StreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    parsed = parse(options)
    check_columns(schema, parsed.topic)
    return parsed


def _write(batches: "Iterator[pa.RecordBatch]", options: SinkOptions) -> Written:
    """Send all rows of a task; returns when brokers have them."""
    # Here, because a driver gets by without pyarrow.
    from cometmq.spark.sink_task import SinkTask

    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    partition = context.partitionId()
    query_id = options.write_id or context.getLocalProperty("sql.streaming.queryId") or options.new_id
    batch_id = context.getLocalProperty("streaming.sql.batchId") or "0"
    with SinkTask(options, query_id, int(batch_id), partition) as task:
        for batch in batches:
            task.send(batch)
        task.finish()
    return Written(partition, task.rows, task.requests)


def _log_written(what: str, messages: list[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, Written)]
    log.info("%s: %d rows in %d requests are stored", what, sum(m.rows for m in done), sum(m.requests for m in done))
