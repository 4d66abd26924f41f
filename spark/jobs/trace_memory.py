"""What a stream of traces remembers between its batches: windows that are open, and sends that may be asked for.

In the query's checkpoint, since it is as old as that one's offsets:

    <checkpoint>/trace/batch-12.json       after batch 12: the watermark, and the parts that it left
    <checkpoint>/trace/part-12/            what happened by the messages of batch 12, or all that is still needed

A batch reads what the one before it left and changes none of it: when it is run again after a kill, it finds the same.
Spark's join of streams would do with less disk; but there both sides wait for the slower one, and sends for nobody.
"""

import json
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import Lake, literal
from cometmq.spark.jobs.publication import json_of
from cometmq.spark.jobs.trace_rows import HAPPENED, steps, window_end, windows

#: Parts that are read one by one; then they are joined. A batch that reads more is slow, and so is one that joins.
MAX_PARTS: Final = 16
#: Before the first trace everything is open.
_NEVER: Final = -1


class Times(NamedTuple):
    """Milliseconds: of a window, that traces may be late, and that sends are remembered."""

    window: int
    watermark: int
    horizon: int


class Memory:
    """Mutable state is on disk, and whose batch it is."""

    def __init__(self, spark: SparkSession, checkpoint: str, times: Times) -> None:
        self._spark = spark
        self._lake = Lake(spark, f"{checkpoint}/trace")
        self._times = times

    def closed(self, new: DataFrame, number: int) -> tuple[DataFrame, int]:
        """The windows that batch `number` closes by what happened newly, and how much of it was too late for its own.

        A window is closed when something was seen that is newer than its end by the watermark, whoever traced it.
        """
        before = self._before(number)
        self._forget(before, number)
        ends = window_end(self._times.window)
        figures = new.agg(
            F.max(F.unix_millis("seen")).alias("newest"), F.count(F.when(ends <= before.watermark, 1)).alias("late")
        ).first()
        assert figures is not None
        newest = before.watermark if figures["newest"] is None else figures["newest"] - self._times.watermark
        after = max(before.watermark, newest)
        rows = new.unionByName(self._read(before.parts).where(self._is_needed(before.watermark)))
        is_full = len(before.parts) >= MAX_PARTS
        part = f"part-{number}"
        kept = rows.where(self._is_needed(after)) if is_full else new
        kept.coalesce(1).write.mode("overwrite").parquet(f"{self._lake.root}/{part}")
        self._note(number, _Left(after, (part,) if is_full else (*before.parts, part)))
        is_closed = (ends > before.watermark) & (ends <= after)
        if before.watermark // self._times.window == after // self._times.window:
            is_closed = F.lit(False)  # no window ends in between: what is remembered need not be read
        return windows(steps(rows).where(is_closed), self._times.window), figures["late"]

    def _is_needed(self, watermark: int) -> Column:
        """Whether a row's window is open, or it is a send whose message may still be processed."""
        oldest = watermark - self._times.horizon
        is_recent = (F.col("kind") == "send") & (F.unix_millis("time") >= oldest)
        return (window_end(self._times.window) > watermark) | is_recent

    def _read(self, parts: tuple[str, ...]) -> DataFrame:
        if not parts:
            return self._spark.createDataFrame([], HAPPENED)
        return self._spark.read.schema(HAPPENED).parquet(*(literal(f"{self._lake.root}/{part}") for part in parts))

    # What a batch left

    def _before(self, number: int) -> "_Left":
        if number == 0:
            return _Left(_NEVER, ())
        place = f"{self._lake.root}/{_name(number - 1)}"
        found: dict[str, Any] = json_of(self._lake, place)
        if not found:
            raise JobError(
                f"{place} is missing: what batch {number - 1} left is not known",
                "bring it back from a copy, or begin anew, with another --checkpoint and another --output",
            )
        if found["window"] != self._times.window:
            raise JobError(
                f"the windows of this stream have {found['window']} ms until now, and not {self._times.window}",
                "give the same --window, or another --checkpoint and another --output",
            )
        return _Left(found["watermark"], tuple(found["parts"]))

    def _note(self, number: int, left: "_Left") -> None:
        content = {"v": 1, "window": self._times.window, "watermark": left.watermark, "parts": left.parts}
        self._lake.write(f"{self._lake.root}/{_name(number)}", json.dumps(content))

    def _forget(self, before: "_Left", number: int) -> None:
        """Delete what only batches before the last one needed, and what this one wrote before it was killed."""
        kept = {*before.parts, _name(number - 1)}
        for name in self._lake.children(self._lake.root):
            if name not in kept:
                self._lake.delete(f"{self._lake.root}/{name}")


class _Left(NamedTuple):
    #: Milliseconds since 1970: windows that end then or before are closed.
    watermark: int
    parts: tuple[str, ...]


def _name(number: int) -> str:
    return f"batch-{number}.json"
