"""`session()`: what it tells Java, beside what the user says. That it starts is shown by every test with a session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark import local_session

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_options_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_java_is_made_fast_for_driver_and_executors(spark: SparkSession) -> None:
    options = dict(spark.sparkContext.getConf().getAll())
    assert "-XX:+UseParallelGC" in options["spark.executor.extraJavaOptions"]
    assert "-XX:+UseParallelGC" not in options["spark.driver.extraJavaOptions"], "the tests have chosen another one"
    seen = spark.sparkContext._jvm.java.lang.System.getProperty("arrow.enable_unsafe_memory_access")  # type: ignore[union-attr]
    assert seen == "true"


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_a_collector_that_somebody_chose_stays_alone(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert local_session._java_options("-XX:+UseZGC -Dx=y").endswith(" -XX:+UseZGC -Dx=y")
    assert "ParallelGC" not in local_session._java_options("-XX:+UseZGC -Dx=y")
    assert "ParallelGC" in local_session._java_options("-Dx=y")
    monkeypatch.setenv(variable, "-XX:+UseG1GC")
    assert "ParallelGC" not in local_session._java_options("-Dx=y")


@pytest.mark.skipif(os.name != "posix", reason="the wrapper is a shell script")
def test_a_python_whose_path_has_a_blank_goes_by_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "a 'quoted' name" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert local_session.this_python() == sys.executable
    monkeypatch.setattr(sys, "executable", str(python))
    named = local_session.this_python()
    assert " " not in named
    done = subprocess.run([named, "-c", "import sys; print(sys.executable, sys.argv[1])", "a b"], capture_output=True)
    assert done.stdout.decode().strip() == f"{python} a b"
    assert local_session.this_python() == named
