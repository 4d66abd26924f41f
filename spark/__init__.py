"""RocketMQ topics in Apache Spark: the data source `rocketmq` (streams and batches, both ways) and pipeline jobs.

Spark finds the source by itself through the top-level module `pyspark_cometmq`. Nothing heavy is imported here: Spark
imports this package in every worker process.
"""
