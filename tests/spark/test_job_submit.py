"""A job by spark-submit, as the guide says it: its figures, its files and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def script() -> str:
    """The file that spark-submit is given."""
    shown = subprocess.run(
        [sys.executable, "-m", "cometmq.spark", "--script"], capture_output=True, text=True, check=True, timeout=60
    )
    return shown.stdout.strip()


def submit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*command, script(), *arguments], capture_output=True, text=True, check=False, timeout=300, env=environ
    )


def test_the_script_is_a_file_that_runs() -> None:
    command = [sys.executable, script(), "--help"]
    assert "archive" in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
@pytest.mark.timeout(900)  # Java starts three times
def test_a_job_by_spark_submit(broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path) -> None:
    topic, output = topics.made("SUBMITTED", [7, 5]), tmp_path / "archive"
    done = submit("archive", "-n", broker.nameserver, "-t", topic, "-o", str(output), "--json", "--quiet")
    assert done.returncode == 0, done.stderr[-2000:]
    # spark-submit lets stdout and stderr of Python out as one.
    assert json.loads(done.stdout[done.stdout.index("{\n") :])["rows"] == 12
    assert pyarrow.dataset.dataset(output, partitioning="hive").count_rows() == 12
    failed = submit("archive", "-n", broker.nameserver, "-t", "NOWHERE", "-o", str(output))
    assert failed.returncode == 1
    assert "no nameserver knows this topic" in failed.stdout
    assert submit("archive", "-t", topic).returncode == 2
