"""`session()`: what it tells Java, beside what the user says. That it starts is shown by every test with a session."""

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
