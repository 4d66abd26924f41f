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
_SHORT: Final = {"--master": "spark.master", "--name": "spark.app.name", "--driver-memory": "spark.driver.memory"}
_SHORT_JAVA: Final = ("--driver-java-options", "spark.driver.extraJavaOptions")


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings by their names; the arguments go before the file."""
    submitted = _submitted(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    file = submitted.pop("", None) or _defaults(environ)
    return {**(_read(Path(file)) if file else {}), **submitted}


def _defaults(environ: Mapping[str, str]) -> str | None:
    places = [environ.get("SPARK_CONF_DIR"), os.path.join(environ.get("SPARK_HOME") or "", "conf")]
    return next((os.path.join(place, "spark-defaults.conf") for place in places if place), None)


def _read(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    return {name: value.strip() for name, value in properties_text.loads(file.read_bytes()).items()}


def _submitted(text: str) -> dict[str, str]:
    """What the arguments set; under the empty name the file of properties, if they name one."""
    parser = _Silent(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file")
    for option, name in (*_SHORT.items(), _SHORT_JAVA):
        parser.add_argument(option, dest=name)
    try:
        given, _ = parser.parse_known_args(shlex.split(text))
    except ValueError:  # Spark will say what is wrong with them
        return {}
    found = {name: value for name, value in vars(given).items() if name.startswith("spark.") and value is not None}
    for each in given.conf:
        name, _, value = each.partition("=")
        found[name] = value
    return found | ({"": given.properties_file} if given.properties_file else {})


class _Silent(argparse.ArgumentParser):
    """Raises ValueError where others end the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
