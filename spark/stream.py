"""The stream reader: plans micro-batches on the driver, reads them on the executors.

Spark makes one of these in a long-lived process beside the driver, where all methods but `read` are called, and a
pickled copy of another in every task. `partitions` must give the same for the same offsets, whenever it is asked;
`initialOffset` is a constant, see `offsets`. There is nothing to be tidied up at the end: Spark kills the process.
Kafka's KafkaMicroBatchStream.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cometmq.spark import offsets
from cometmq.spark.columns import Columns
from cometmq.spark.processes import is_main
from cometmq.spark.splits import RangesPartition, partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.planning import Planner
    from cometmq.spark.source_options import Options

Offset = dict[str, Any]

#: What Spark starts beside the driver for a stream of a Python source.
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of a streaming query.

    Options and columns are checked by the first call and not when it is made: what is raised there Spark hides behind
    an error of its own.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._planner: Planner | None = None

    @cached_property
    def _options(self) -> "Options":
        from cometmq.spark.options import parse  # here: an executor gets what comes of it

        options = parse(self._given)
        options.check_for_stream()
        return options

    @cached_property
    def _columns(self) -> Columns:
        return Columns.of(self._schema)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the executors: the driver's connections stay. What cannot be read is told before a task is."""
        return {**self.__dict__, "_planner": None, "_options": self._options, "_columns": self._columns}

    # On the driver

    @property
    def _plan(self) -> "Planner":
        if self._planner is None:
            from cometmq.spark.planning import Planner

            assert self._columns is not None  # checked before the cluster is asked
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> Offset:
        """Where a query without a checkpoint starts; what that means in offsets is found out with the first batch."""
        self._plan.check()
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._options.limits.as_read_limit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.stop_at_the_end_of_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next batch ends; `start` itself when there is nothing to read."""
        return self._plan.end_of_batch(start, limit, time.monotonic)

    def reportLatestOffset(self) -> Offset | None:
        """How far the queues go, for the progress report."""
        return self._plan.latest()

    def partitions(self, start: Offset, end: Offset) -> list[RangesPartition]:
        return partitions(offsets.ranges(start, end), self._options.splitting)

    def commit(self, end: Offset) -> None:
        self._plan.tell_progress(end)

    def stop(self) -> None:
        """Called when an error ends the process, and when Spark has hung up because the query was stopped.

        Then there is nobody to report to, and Spark's runner would print tracebacks about that: end before it does.
        """
        if isinstance(sys.exception(), EOFError | BrokenPipeError) and is_main(_RUNNER):
            logging.shutdown()
            os._exit(0)

    # On the executors

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from cometmq.spark.reading import read_ranges

        assert isinstance(partition, RangesPartition)
        options = self._options
        return read_ranges(partition.ranges, options.access, self._columns, options.read)
