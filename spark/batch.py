"""The batch reader: what `spark.read` gives, from where to where, in which tasks.

The offsets are decided when Spark first plans a query of a DataFrame; it keeps them for the later ones. Filters of the
query narrow what is read where Spark hands them over and the user wants it; see `pruning`. Kafka's KafkaBatch.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cometmq.spark.columns import Columns
from cometmq.spark.pruning import EVERYTHING, Pruning, pruning_by
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.splits import RangesPartition, partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.source_options import Options


class BatchReader(DataSourceReader):
    """One scan of a batch query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        from cometmq.spark.options import parse  # here: an executor gets what comes of it

        self._options: Options = parse(options)
        self._options.check_for_batch()
        self._columns = Columns.of(schema)
        self._pruning: Pruning = EVERYTHING

    def partitions(self) -> list[RangesPartition]:
        return partitions(self._ranges(), self._options.splitting)

    def _ranges(self) -> list[QueueRange]:
        from cometmq.spark.cluster import Cluster
        from cometmq.spark.resolving import check_order, resolve

        options = self._options
        cluster = Cluster(options.access, options.topics)
        chosen = cluster.queues()
        queues = [queue for queue in chosen if self._pruning.takes(queue)]
        if not queues:
            return []
        check_order(options.batch_start, options.ending, queues)
        patience, fails = options.batch_patience, options.read.fail_on_data_loss
        cluster.check_filter(queues, options.read, patience)
        begins, ends = (
            resolve(place, queues, cluster, patience=patience, fail_on_data_loss=fails, chosen=chosen)
            for place in (options.batch_start, options.ending)
        )
        whole = [QueueRange(*queue, begins[queue], ends[queue]) for queue in queues]
        return self._pruning.narrowed(whole, cluster, patience)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        from cometmq.spark.reading import read_ranges

        if not isinstance(partition, RangesPartition):  # Spark's own, when there is nothing to read
            return iter(())
        options = self._options
        return read_ranges(partition.ranges, options.access, self._columns, self._pruning.read_options(options.read))


class FilteringBatchReader(BatchReader):
    """A batch reader that is told the filters. Spark refuses one when its filter push-down is off.

    Spark 4.3 keeps what was planned for the first filter of a DataFrame, and gives it to other queries of the same
    DataFrame that push no filter: they would miss rows. Hence the option, and that it is off unless asked for.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember what narrows the ranges. All filters stay with Spark, which checks every row again."""
        if self._options.filter_push_down:
            self._pruning = pruning_by(filters)
        return filters
