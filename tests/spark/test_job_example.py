"""The example in cells runs, from its first cell to its last."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.testing import EmbeddedBroker

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline.py"


def test_the_pipeline_example(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with EmbeddedBroker() as broker:  # makes topics on demand, as that of scripts/run does
        monkeypatch.setenv("NAMESRV_ADDR", broker.nameserver)
        runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out.splitlines() == [
        "archived 200 orders",
        "best customers: [('c-3', 29290), ('c-2', 29000), ('c-1', 28710)]",
        "200 orders looked at, 50 big ones sent on",
        "audit: {'lost': 0, 'repeats': 0, 'disorders': 0}",
        "replayed 200 orders",
    ]
