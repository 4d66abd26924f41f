"""What the user has told Spark elsewhere: in `spark-defaults.conf`, or in PYSPARK_SUBMIT_ARGS.

A session that is built with a setting overrules both, so `session()` has to know them. They are read as Spark does: the
file by Java's rules for properties, the arguments by a shell's rules for words.
"""

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from cometmq.protocol import properties_text

#: Options of spark-submit that are short for a setting.
_SHORT: Final = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings by their names; the arguments go before the file."""
    parser = _Silent(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file", default=_defaults(environ))
    for option in _SHORT:
        parser.add_argument(option, dest=option)
    try:
        given, _ = parser.parse_known_args(shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", "")))
    except ValueError:  # Spark will say what is wrong with them
        given = parser.parse_args([])
    found = _read(Path(given.properties_file)) if given.properties_file else {}
    found |= {name: value for option, name in _SHORT.items() if (value := getattr(given, option)) is not None}
    for each in given.conf:
        name, _, value = each.partition("=")
        found[name] = value
    return found


def _defaults(environ: Mapping[str, str]) -> str | None:
    """Spark's own file, which counts where the arguments name no other."""
    home = environ.get("SPARK_HOME")
    place = environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    return os.path.join(place, "spark-defaults.conf") if place else None


def _read(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    return {name: value.strip() for name, value in properties_text.loads(file.read_bytes()).items()}


class _Silent(argparse.ArgumentParser):
    """Raises ValueError where others end the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
