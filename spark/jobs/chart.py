"""Charts of figures over time: lines in panels, one above the other, with a common axis of time.

Written as SVG by hand, alone or inside a page of HTML that needs nothing else; as PNG by matplotlib where that is
installed. Only drawing: what is drawn is the caller's.
"""

import html
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final

from cometmq.spark.jobs.errors import JobError

#: Colours that people tell apart, those with a weakness for red and green too (Okabe and Ito).
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#555555")

#: Who looks at a chart may be anywhere, and so may who drew it.
_ZONE: Final = "times are UTC"

#: Seconds between two drawings while a job runs: each of them reads what it shows.
_REDRAW: Final = 300.0

_WIDTH: Final = 960
_PLOT: Final = 180
_LEFT, _RIGHT, _TOP, _LINE = 80, 24, 34, 16
_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Redraw:
    """When a chart is drawn while its job runs. Mutable state: when that was."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._due = -math.inf

    def is_due(self) -> bool:
        """Whether to draw it now; then it is not due for a while."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + _REDRAW
        return True


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, and times with values, in order of time."""

    name: str
    points: tuple[tuple[datetime, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one axis."""

    title: str
    unit: str
    series: tuple[Series, ...]

    @property
    def highest(self) -> float:
        return max((value for each in self.series for _, value in each.points), default=0.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]

    def save(self, path: str) -> None:
        """Write it in the form that the name's ending says. A reader never sees half of it."""
        form = Path(path).suffix.lower()
        draft = f"{path}.draft"
        if form == ".png":
            _save_png(self, draft)
        elif form in (".html", ".svg"):
            text = self.svg() if form == ".svg" else self.page()
            Path(draft).write_text(text, encoding="utf-8")
        else:
            raise JobError(f"a chart cannot be written to {path}", "name a file that ends with .html, .svg or .png")
        os.replace(draft, path)

    def page(self) -> str:
        """A page that needs no other file."""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(self.title)}</title></head>"
            f'\n<body style="margin:24px;background:#fff">\n{self.svg()}\n</body></html>\n'
        )

    def svg(self) -> str:
        span = self._span()
        parts, top = [_text(_LEFT, 26, self.title, size=18, weight="bold")], 44
        parts.append(_text(_WIDTH - _RIGHT, 26, _ZONE, anchor="end"))
        for panel in self.panels:
            drawn, height = _draw_panel(panel, span, top)
            parts += drawn
            top += height
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
            f'font-family="system-ui, sans-serif"><rect width="{_WIDTH}" height="{top}" fill="#fff"/>'
            + "\n".join(parts)
            + "</svg>"
        )

    def _span(self) -> tuple[datetime, datetime]:
        times = [time for panel in self.panels for each in panel.series for time, _ in each.points]
        if not times:
            now = datetime.now(UTC).replace(microsecond=0)
            return now - timedelta(minutes=1), now
        first, last = min(times), max(times)
        return (first, last) if first < last else (first - timedelta(seconds=30), last + timedelta(seconds=30))


def check_form(path: str) -> None:
    """Refuse before any work what could not be written after it."""
    if Path(path).suffix.lower() not in (".html", ".svg", ".png"):
        raise JobError(f"a chart cannot be written to {path}", "name a file that ends with .html, .svg or .png")
    if not Path(path).absolute().parent.is_dir():
        raise JobError(f"a chart cannot be written to {path}", "its directory does not exist; make it")
    if Path(path).suffix.lower() == ".png":
        _matplotlib()


# SVG


def _draw_panel(panel: Panel, span: tuple[datetime, datetime], top: int) -> tuple[list[str], int]:
    """The elements of a panel, and its height: title, plot, times, and a line of legend for each series."""
    plot_top, width = top + _TOP, _WIDTH - _LEFT - _RIGHT
    bottom = plot_top + _PLOT
    step, highest = _scale(panel.highest)
    parts = [_text(_LEFT, top + 20, f"{panel.title} ({panel.unit})", size=14, weight="bold")]
    for number in range(round(highest / step) + 1):
        y = bottom - _PLOT * number * step / highest
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{"#888" if not number else "#e2e2e2"}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{number * step:,g}", anchor="end"))
    seconds = (span[1] - span[0]).total_seconds()
    for time in _ticks(*span):
        x = _LEFT + width * (time - span[0]).total_seconds() / seconds
        parts.append(f'<path d="M{x:.1f} {bottom}v5" stroke="#888"/>')
        parts.append(_text(x, bottom + 18, _clock(time, seconds), anchor="middle"))
    for number, series in enumerate(panel.series):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (_LEFT + width * (time - span[0]).total_seconds() / seconds, bottom - _PLOT * value / highest)
            for time, value in series.points
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        if len(places) <= 60:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in places]
        y_legend = bottom + 38 + number * _LINE
        parts.append(f'<rect x="{_LEFT}" y="{y_legend - 8}" width="12" height="4" fill="{colour}"/>')
        parts.append(_text(_LEFT + 18, y_legend - 1, series.name))
    if not panel.series:
        parts.append(_text(_LEFT + width / 2, plot_top + _PLOT / 2, "nothing in this time", anchor="middle"))
    return parts, _TOP + _PLOT + 34 + _LINE * len(panel.series) + 14


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="#333"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'


def _scale(highest: float) -> tuple[float, float]:
    """A round step, and the end of an axis that has about five of them; above zero also for nothing."""
    if highest <= 0:
        return 1.0, 1.0
    raw = highest / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return step, step * math.ceil(highest / step)


def _ticks(first: datetime, last: datetime) -> list[datetime]:
    """Round times between two times, at most eight."""
    seconds = (last - first).total_seconds()
    step = next((each for each in _STEPS if seconds / each <= 8), 86400 * math.ceil(seconds / 86400 / 8))
    at = math.ceil(first.timestamp() / step) * step
    count = int((last.timestamp() - at) // step) + 1
    return [datetime.fromtimestamp(at + number * step, UTC) for number in range(count)]


def _clock(time: datetime, seconds: float) -> str:
    if seconds >= 3 * 86400:
        return time.strftime("%m-%d")
    return time.strftime("%H:%M:%S" if seconds < 600 else "%H:%M" if seconds < 86400 else "%m-%d %H:%M")


# PNG


def _matplotlib() -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise JobError(
            "a chart as PNG is drawn by matplotlib, which is not installed",
            "pip install 'cometmq[chart]', or name a file that ends with .html or .svg",
        ) from error
    matplotlib.use("Agg")


def _save_png(chart: Chart, path: str) -> None:
    _matplotlib()
    from matplotlib import dates
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH / 100, 2.9 * len(chart.panels) + 0.6), layout="constrained")
    figure.suptitle(chart.title, fontweight="bold")
    axes: Any = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
    first, last = chart._span()
    for axis, panel in zip(axes, chart.panels, strict=True):
        _plot(axis, panel)
    bottom = axes[-1]
    bottom.set_xlim(first, last)
    bottom.set_xlabel(_ZONE)
    locator = dates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    bottom.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    figure.savefig(path, format="png", dpi=100)


def _plot(axis: Any, panel: Panel) -> None:
    for number, series in enumerate(panel.series):
        times, values = [time for time, _ in series.points], [value for _, value in series.points]
        colour = COLOURS[number % len(COLOURS)]
        # The axes end where the values do: what is drawn at an edge reaches over it.
        axis.plot(times, values, color=colour, label=series.name, marker=".", clip_on=False)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.set_ylabel(panel.unit)
    axis.set_ylim(0, _scale(panel.highest)[1])
    axis.grid(axis="y", alpha=0.3)
    if panel.series:
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        axis.text(0.5, 0.5, "nothing in this time", transform=axis.transAxes, ha="center")
