"""RocketMQ topics in Apache Spark: the data source `rocketmq` (streams and batches, both ways) and pipeline jobs.

Spark finds the source by itself through the top-level module `pyspark_cometmq`. Nothing heavy is imported here: Spark
imports this package in every worker process. The public names are loaded when they are used.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.spark.local_session import session
    from cometmq.spark.repeats import without_repeats
    from cometmq.spark.shipping import register
    from cometmq.spark.stamps import Stamp

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    local_session="session",
    repeats="without_repeats",
    shipping="register",
    stamps="Stamp",
)

__all__ = ["Stamp", "register", "session", "without_repeats"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
