"""What a job did: rows, bytes, time and what is left to do; counted while it runs, shown while it runs and at its end.

`Meter` is the only mutable value of a running job that two threads touch: Spark's callback adds, the job's own thread
shows. How it is shown: a bar on a terminal, lines elsewhere, nothing when a program calls.
"""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: Seconds between two lines of progress where nobody watches a bar.
LINE_INTERVAL: Final = 5.0


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows that a job found out, few enough to be looked at."""

    titles: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def objects(self) -> list[dict[str, Any]]:
        return [dict(zip(self.titles, row, strict=True)) for row in self.rows]

    @classmethod
    def of(cls, frame: "DataFrame", limit: int) -> "ResultTable":
        """The first rows of a DataFrame, which has an order."""
        rows = frame.limit(limit).collect()
        return cls(tuple(frame.columns), tuple(tuple(_zoned(value) for value in row) for row in rows))


def _zoned(value: Any) -> Any:
    """Spark gives times without their zone, in this process's own."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures at the end of a job."""

    job: str
    rows: int
    #: Of what was written or sent; None where nobody counts them.
    bytes: int | None
    seconds: float
    #: Messages that were in the topics and not yet read; None where that is no question.
    backlog: int | None = None
    #: What else the job has to say, by name.
    details: Mapping[str, Any] = field(default_factory=dict)
    #: What it found out, by name.
    tables: Mapping[str, ResultTable] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For machines; the names are those of the table's titles in camel case."""
        return {
            "job": self.job,
            "rows": self.rows,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "rowsPerSecond": round(self.rows_per_second, 1),
            "backlog": self.backlog,
            **self.details,
            **{name: table.objects() for name, table in self.tables.items()},
        }


class Meter:
    """Counts what a job has done so far."""

    def __init__(self, job: str, *, counts_bytes: bool = False) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self.rows = 0
        self.bytes: int | None = 0 if counts_bytes else None
        self.backlog: int | None = None
        self.details: dict[str, Any] = {}
        self.tables: dict[str, ResultTable] = {}
        #: For the display, where rows are known at the end only: what the job is at, and tasks done of how many.
        self.doing = ""
        self.tasks: tuple[int, int] | None = None

    def add(self, rows: int, size: int = 0) -> None:
        with self._lock:
            self.rows += rows
            if self.bytes is not None:
                self.bytes += size

    def count(self, name: str, number: int = 1) -> None:
        """Add to a figure of the job's own."""
        with self._lock:
            self.details[name] = self.details.get(name, 0) + number

    def note(self, text: str | None) -> None:
        """Something that whoever started the job should know: said now, a run may have no end, and in its result."""
        if text is not None:
            log.warning("%s", text)
            self.details["note"] = text

    def metrics(self) -> Metrics:
        with self._lock:
            seconds = time.monotonic() - self._started
            return Metrics(
                self.job, self.rows, self.bytes, seconds, self.backlog, dict(self.details), dict(self.tables)
            )


class Display(Protocol):
    """Where progress is shown; entered for as long as a job runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, meter: Meter) -> None: ...


class Silence:
    """Shows nothing: what a program that calls a job gets."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def show(self, meter: Meter) -> None:
        return


class Lines(Silence):
    """A line on stderr every few seconds, when something has changed."""

    def __init__(self, interval: float = LINE_INTERVAL) -> None:
        self._interval = interval
        self._next = time.monotonic() + interval
        self._last = ""

    def show(self, meter: Meter) -> None:
        text = progress_line(meter)
        if time.monotonic() >= self._next and text != self._last:
            print(text, file=sys.stderr, flush=True)
            self._next, self._last = time.monotonic() + self._interval, text


class Bar(Silence):
    """A bar on the terminal: how much of what is known to be there has been done."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, meter: Meter) -> None:
        now = meter.metrics()
        done, total = now.rows, None if now.backlog is None else now.rows + now.backlog
        if meter.doing:
            done, total = meter.tasks or (0, None)
        figures = _figures(meter)
        self._progress.update(self._task, description=now.job, completed=done, total=total, figures=figures)


def progress_line(meter: Meter) -> str:
    """`archive: 12,000 rows, 3,000 rows/s, 500 to go`, or `audit: reading and judging, 3 of 8 tasks`."""
    return f"{meter.job}: {_figures(meter)}"


def _figures(meter: Meter) -> str:
    if meter.doing:
        tasks = meter.tasks
        return meter.doing if tasks is None else f"{meter.doing}, {tasks[0]:,} of {tasks[1]:,} tasks"
    now = meter.metrics()
    left = "" if now.backlog is None else f", {now.backlog:,} to go"
    return f"{now.rows:,} rows, {now.rows_per_second:,.0f} rows/s{left}"
