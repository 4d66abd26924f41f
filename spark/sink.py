"""The sink: rows of a DataFrame, from a stream or a batch, become messages. At least once.

Every acknowledgement is awaited before a task reports that it is done, so Spark commits a batch only when brokers have
all of it. A batch that is repeated is sent again, with the same stamps (`stamps`). Kafka's sink gives the same
guarantee; a mode that publishes once will stage here in `write` and publish in `commit`.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from cometmq.spark.errors import OptionError
from cometmq.spark.processes import is_main
from cometmq.spark.sink_columns import check_columns
from cometmq.spark.sink_options import SinkOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: What Spark runs to commit a micro-batch: it makes a writer, too.
_COMMITTING: Final = "pyspark.sql.worker.python_streaming_sink_runner"


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
    """The writer of `df.write`; what is wrong with options, columns or the topic is raised here, in the driver."""
    from cometmq.spark.sink_target import check_target  # here: workers do not ask

    if overwrite:
        raise OptionError("mode", "overwrite", 'a topic cannot be overwritten; say .mode("append")')
    parsed = _checked(options, schema)
    check_target(parsed)
    return BatchWriter(parsed)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer of `df.writeStream`. In complete mode, every batch writes the whole result again.

    A stream that has run before is not ended by a cluster that is away.
    """
    from cometmq.spark.sink_target import check_target, has_run

    parsed = _checked(options, schema)
    if _COMMITTING not in sys.modules and not is_main(_COMMITTING):
        check_target(parsed, may_be_away=has_run(options))
    return StreamWriter(parsed)


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
