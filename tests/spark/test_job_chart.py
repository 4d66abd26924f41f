"""Charts: what is in the drawing, and the file in each form. No Spark runs here."""

import importlib.util
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from cometmq.spark.jobs.chart import Chart, Panel, Series, check_form
from cometmq.spark.jobs.errors import JobError

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, 8, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def chart(*values: float, name: str = "orders → billing") -> Chart:
    points = tuple((START + timedelta(minutes=number), value) for number, value in enumerate(values))
    return Chart("Latencies", (Panel("All the way", "ms", (Series(name, points),)), Panel("Failures", "messages", ())))


def test_every_value_has_its_place() -> None:
    drawing = ElementTree.fromstring(chart(0.0, 50.0, 100.0).svg())
    [line] = drawing.iter(f"{SVG}polyline")
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 > y1 > y2
    assert y0 - y1 == pytest.approx(y1 - y2)
    texts = [each.text for each in drawing.iter(f"{SVG}text")]
    assert {"Latencies", "All the way (ms)", "orders → billing", "08:00:00", "100", "nothing in this time"} <= set(
        texts
    )


@pytest.mark.parametrize("values", [(), (7.0,), (0.0, 0.0), (1e9, 1e-9)])
def test_odd_figures_are_drawn(values: tuple[float, ...]) -> None:
    drawing = ElementTree.fromstring(chart(*values).svg())
    assert "NaN" not in ElementTree.tostring(drawing, encoding="unicode")


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    chart(1.0, name='<script>alert("1")</script>').save(str(tmp_path / "c.html"))
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", ""), "the page needs something from elsewhere"
    assert [each.name for each in tmp_path.iterdir()] == ["c.html"]


def test_a_form_that_nobody_knows_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"\.html, \.svg or \.png"):
        check_form(str(tmp_path / "c.pdf"))
    with pytest.raises(JobError, match="does not exist"):
        check_form(str(tmp_path / "missing" / "c.svg"))


def test_times_are_utc_and_say_so() -> None:
    zone = timezone(timedelta(hours=-3))
    points = tuple((time.astimezone(zone), value) for time, value in chart(1.0, 2.0).panels[0].series[0].points)
    drawing = ElementTree.fromstring(Chart("C", (Panel("P", "ms", (Series("s", points),)),)).svg())
    texts = [each.text for each in drawing.iter(f"{SVG}text")]
    assert {"times are UTC", "08:00:00"} <= set(texts)


def test_png_needs_the_extra_or_is_one(tmp_path: Path) -> None:
    path = tmp_path / "c.png"
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(JobError, match=r"cometmq\[chart\]"):
            chart(1.0).save(str(path))
        return
    chart(1.0, 2.0).save(str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
