"""`session()`: what it tells Java, beside what the user says. That it starts is shown by every test with a session."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from cometmq.spark import checkpoints, java_options, local_session, set_elsewhere
from cometmq.spark.java_options import with_fast_ones

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_options_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


def test_java_is_made_fast_for_driver_and_executors(spark: SparkSession) -> None:
    options = dict(spark.sparkContext.getConf().getAll())
    assert "-XX:+UseParallelGC" in options["spark.executor.extraJavaOptions"]
    assert "-XX:+UseParallelGC" not in options["spark.driver.extraJavaOptions"], "the tests have chosen another one"
    seen = spark.sparkContext._jvm.java.lang.System.getProperty("arrow.enable_unsafe_memory_access")  # type: ignore[union-attr]
    assert seen == "true"


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_a_collector_that_somebody_chose_stays_alone(variable: str) -> None:
    assert with_fast_ones("-XX:+UseZGC -Dx=y", "", {}, is_here=True).endswith(" -XX:+UseZGC -Dx=y")
    assert "ParallelGC" not in with_fast_ones("-XX:+UseZGC -Dx=y", "", {}, is_here=True)
    assert "ParallelGC" in with_fast_ones("-Dx=y", "", {}, is_here=True)
    assert "ParallelGC" not in with_fast_ones("-Dx=y", "-XX:+UseG1GC", {}, is_here=True)
    assert "ParallelGC" not in with_fast_ones("-Dx=y", "", {variable: "-XX:+UseG1GC"}, is_here=True)


@pytest.mark.parametrize(
    ("said", "are_used"),
    [
        ("always [madvise] never\n", True),
        ("[always] madvise never\n", True),
        ("always madvise [never]\n", False),
        ("", False),
        (None, False),
    ],
)
def test_huge_pages_are_for_a_java_here_where_linux_gives_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None, are_used: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(java_options, "HUGE_PAGES_FILE", tmp_path / "enabled")
    if said is not None:
        (tmp_path / "enabled").write_text(said)
    assert ("-XX:+UseTransparentHugePages" in with_fast_ones("", "", {}, is_here=True)) is are_used
    assert "HugePages" not in with_fast_ones("", "", {}, is_here=False)
    chosen = "-XX:-UseTransparentHugePages"
    assert with_fast_ones(chosen, "", {}, is_here=True).count("HugePages") == 1
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "HugePages" not in with_fast_ones("", "", {}, is_here=True)


@pytest.mark.parametrize("line", ["{}\t{}", "{} {}", "{}={}", "{}: {}", "  {} = {}  "])
def test_what_the_defaults_of_spark_say_is_known(tmp_path: Path, line: str) -> None:
    pairs = {"spark.master": "spark://host:7077", "spark.driver.extraJavaOptions": "-Dmy=1 -XX:+UseG1GC"}
    lines = ["# a comment", "", *(line.format(*pair) for pair in pairs.items())]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    assert set_elsewhere.settings({"SPARK_CONF_DIR": str(tmp_path)}) == pairs
    (tmp_path / "conf").mkdir()
    (tmp_path / "spark-defaults.conf").rename(tmp_path / "conf" / "spark-defaults.conf")
    assert set_elsewhere.settings({"SPARK_HOME": str(tmp_path)}) == pairs
    assert set_elsewhere.settings({}) == {}


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ("--master local[3] pyspark-shell", {"spark.master": "local[3]"}),
        ("--master=local[3] --packages a:b:1 pyspark-shell", {"spark.master": "local[3]"}),
        (
            '--conf "spark.driver.extraJavaOptions=-Dmy=1 -Dother=2" -c spark.x=y pyspark-shell',
            {"spark.driver.extraJavaOptions": "-Dmy=1 -Dother=2", "spark.x": "y"},
        ),
        ("--driver-java-options '-Da=1 -Db=2'", {"spark.driver.extraJavaOptions": "-Da=1 -Db=2"}),
        ("--name 'an unfinished quote", {}),
        ("--conf", {}),
    ],
)
def test_what_the_arguments_of_spark_submit_say_is_known(arguments: str, known: dict[str, str]) -> None:
    assert set_elsewhere.settings({"PYSPARK_SUBMIT_ARGS": arguments}) == known


def test_a_file_of_properties_that_the_arguments_name_goes_before_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.x 1\nspark.y 1\n")
    (tmp_path / "mine.conf").write_text("spark.x 2\nspark.z 2\n")
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {tmp_path / 'mine.conf'} --conf spark.z=3 pyspark-shell"
    assert set_elsewhere.settings(environ) == {"spark.x": "2", "spark.z": "3"}


def test_timestamps_in_parquet_have_statistics(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("select timestamp'2026-01-02 03:04:05' at").coalesce(1).write.parquet(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert column.physical_type == "INT64"
    assert column.statistics.has_min_max


def test_checkpoints_of_this_machine_need_no_helpers(spark: SparkSession) -> None:
    assert "FileSystemBased" in spark.conf.get(checkpoints.MANAGER, "")
    before = spark.conf.get(checkpoints.MANAGER)
    spark.conf.unset(checkpoints.MANAGER)
    try:
        assert local_session.session() is spark
        assert spark.conf.get(checkpoints.MANAGER, None) is None, "a session that runs is left as it is"
    finally:
        spark.conf.set(checkpoints.MANAGER, before)


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        ({checkpoints.MANAGER: "com.example.Manager"}, {}),
        ({"spark.hadoop.fs.defaultFS": "hdfs://nameservice1"}, {}),
        ({"spark.sql.streaming.checkpointLocation": "s3a://bucket/checkpoints"}, {}),
        ({}, {"HADOOP_CONF_DIR": "/etc/hadoop/conf"}),
        ({}, {"YARN_CONF_DIR": "/etc/hadoop/conf"}),
    ],
)
def test_checkpoints_that_may_be_elsewhere_are_written_as_spark_does(
    settings: dict[str, str], environ: dict[str, str]
) -> None:
    home = Path(pyspark.__file__).parent
    assert checkpoints.manager(home, settings, environ) is None
    assert checkpoints.manager(home, {"spark.sql.streaming.checkpointLocation": "file:///tmp/x"}, {}) is not None


def test_a_spark_without_the_manager_of_checkpoints(tmp_path: Path) -> None:
    assert checkpoints.manager(tmp_path, {}, {}) is None
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-sql_2.13-9.0.jar").write_bytes(b"no zip")
    with zipfile.ZipFile(tmp_path / "jars" / "spark-sql_2.13-9.1.jar", "w") as jar:
        jar.writestr("org/apache/spark/Other.class", b"")
    assert checkpoints.manager(tmp_path, {}, {}) is None


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
