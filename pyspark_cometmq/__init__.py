"""Where Spark's discovery finds the data source `rocketmq`: it imports every top-level module called `pyspark_*`.

One such module that cannot be imported disables them all, so only pyspark is needed to load this one.
"""

from cometmq.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
