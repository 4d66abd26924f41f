"""Ready pipeline jobs over the data source: archive, replay, etl, audit, trace, lag.

    from cometmq.spark import jobs
    jobs.archive(spark, "orders", "/lake/orders", name_server="127.0.0.1:9876")

Each is a function that returns `Metrics`, and a command of `python -m cometmq.spark`. They are loaded when used.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.spark.jobs.archive_files import read_archive
    from cometmq.spark.jobs.archive_job import archive, compact_archive
    from cometmq.spark.jobs.audit_job import audit
    from cometmq.spark.jobs.errors import JobError
    from cometmq.spark.jobs.etl_job import etl
    from cometmq.spark.jobs.lag_job import lag
    from cometmq.spark.jobs.metrics import Metrics
    from cometmq.spark.jobs.replay_job import replay
    from cometmq.spark.jobs.trace_job import trace

__all__ = [
    "JobError",
    "Metrics",
    "archive",
    "audit",
    "compact_archive",
    "etl",
    "lag",
    "read_archive",
    "replay",
    "trace",
]

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    archive_files="read_archive",
    archive_job="archive compact_archive",
    audit_job="audit",
    errors="JobError",
    etl_job="etl",
    lag_job="lag",
    metrics="Metrics",
    replay_job="replay",
    trace_job="trace",
)

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
