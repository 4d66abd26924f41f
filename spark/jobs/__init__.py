"""Ready pipeline jobs over the data source: archive, replay, etl, audit, trace, lag.

    from cometmq.spark import jobs
    jobs.archive(spark, "orders", "/lake/orders", name_server="127.0.0.1:9876")

Each is a function that returns `Metrics`, and a command of `python -m cometmq.spark`. They are loaded when used.
"""

import importlib
from typing import TYPE_CHECKING

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

_HOMES = {
    "JobError": "errors",
    "Metrics": "metrics",
    "archive": "archive_job",
    "audit": "audit_job",
    "compact_archive": "archive_job",
    "etl": "etl_job",
    "lag": "lag_job",
    "read_archive": "archive_files",
    "replay": "replay_job",
    "trace": "trace_job",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"cometmq.spark.jobs.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
