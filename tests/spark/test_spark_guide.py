"""The page of the guide about Spark: its examples run as they are printed, and its tables are what the code says."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.testing import EmbeddedBroker
from support.guide import run_page

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
async def test_the_examples_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:  # makes topics on demand
        assert await run_page(ROOT / "docs" / "guide" / "spark.md", broker.nameserver) == 6


def test_the_tables_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, "docs/spark_tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
