"""The data source `rocketmq`: what Spark makes of `format("rocketmq")`, and the way to readers and writers.

Spark loads this module in its driver and in every worker, so it imports nothing heavy. RocketMQSourceProvider of
RocketMQ's old connector; Kafka's KafkaSourceProvider.
"""

import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

#: Spark runs this module, and only this one, to hand filters over.
_PUSHING_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class RocketMQSource(DataSource):
    """Topics of RocketMQ as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """The columns of those who choose none. Asked by `load()`: what is wrong with the options is told here."""
        from cometmq.spark.cluster import Cluster
        from cometmq.spark.columns import full_schema
        from cometmq.spark.options import parse

        options = parse(self.options)
        Cluster(options.access, options.topics).check(options.read)
        return full_schema(options.include_properties, options.properties_as_json)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader; one that takes filters only where Spark offers them, for it refuses that one elsewhere."""
        from cometmq.spark.batch import BatchReader, FilteringBatchReader
        from cometmq.spark.processes import is_main

        kind = FilteringBatchReader if _PUSHING_FILTERS in sys.modules or is_main(_PUSHING_FILTERS) else BatchReader
        return kind(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from cometmq.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceArrowWriter":
        from cometmq.spark import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
        from cometmq.spark import sink

        return sink.stream_writer(self.options, schema)
