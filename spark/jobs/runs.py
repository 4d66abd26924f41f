"""A streaming query from its start to its end: trigger, checkpoint, progress, and how it is stopped.

`once` and `available-now` end by themselves, `continuous` when `stop` is set. What the query is doing is read from
Spark's progress reports; what it wrote is counted by whoever writes.
"""

import json
import threading
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cometmq.spark import offsets
from cometmq.spark.jobs.durations import REMEDY, millis_of
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.metrics import Display, Meter

#: Seconds between two looks at a running query.
_LOOK: Final = 0.25

_MODES: Final = ("once", "available-now", "continuous")


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a query runs: one batch, all there is, or on and on with a pause between the starts of batches."""

    mode: str = "available-now"
    interval: str = "10 seconds"

    @classmethod
    def of(cls, mode: str, interval: str = "10 seconds") -> "Trigger":
        if mode not in _MODES:
            raise JobError(f"there is no trigger {mode!r}", f"give {', '.join(_MODES)}")
        try:
            return cls(mode, f"{millis_of(interval)} milliseconds")
        except ValueError:
            raise JobError(f"{interval!r} is no interval", REMEDY) from None

    def apply(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.mode == "once":
            return writer.trigger(once=True)
        if self.mode == "available-now":
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval)


def run(
    writer: DataStreamWriter,
    trigger: Trigger,
    *,
    checkpoint: str,
    meter: Meter,
    display: Display,
    stop: threading.Event | None = None,
    count_rows: bool = False,
    table: str | None = None,
) -> None:
    """Run a query until it ends or is told to, into a table of the catalogue if one is named.

    With `count_rows` the meter counts what the source read.
    """
    ready = trigger.apply(writer.option("checkpointLocation", checkpoint))
    query = ready.start() if table is None else ready.toTable(table)
    watch = _Watch(query, meter, count_rows)
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # the stub knows whole seconds only
            watch.look()
            display.show(meter)
            if stop is not None and stop.is_set():
                break
        watch.look()
        display.show(meter)
    finally:
        query.stop()


class _Watch:
    """Takes over what the reports of a query say, each batch once."""

    def __init__(self, query: StreamingQuery, meter: Meter, count_rows: bool) -> None:
        self._query = query
        self._meter = meter
        self._count_rows = count_rows
        self._counted = -1

    def look(self) -> None:
        for report in self._query.recentProgress:
            found: dict[str, Any] = json.loads(report.json)
            rows = int(found.get("numInputRows") or 0)
            # Idle reports bear the number of the batch that is still to come.
            if rows and self._count_rows and found["batchId"] > self._counted:
                self._counted = found["batchId"]
                self._meter.add(rows)
            backlog = _backlog(found.get("sources") or [])
            if backlog is not None:
                self._meter.backlog = backlog


def _backlog(sources: list[dict[str, Any]]) -> int | None:
    """How many offsets lie between what was read and what is there; None when a report does not say."""
    total = None
    for source in sources:
        end, latest = (_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
        if end and latest:
            total = (total or 0) + sum(offsets.lag(end, latest).values())
    return total


def _offset(value: Any) -> dict[str, Any] | None:
    """An offset of our source that says something; None for those of others."""
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) and "q" in found else None
