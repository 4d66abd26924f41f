"""How `session()` has Spark write its checkpoints: without starting a process for every look at a file.

Spark writes them through Hadoop's FileContext, which asks the program `readlink` about each path where Hadoop's native
library is missing, and pyspark brings none: some ten processes for each of the two or three files of a micro-batch, two
thirds of its time when there is little to read. Through Hadoop's FileSystem the same files come about by the same
steps, a temporary file that is renamed, without these questions.

That is for checkpoints on disks of this machine. Elsewhere the default knows better: on HDFS a file of a state store
that is written again replaces the first one only through FileContext.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

#: Who writes them, as Spark is told.
MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
#: Where checkpoints go whose query names a directory without a scheme, or none.
_PLACES: Final = ("spark.hadoop.fs.defaultFS", "spark.sql.streaming.checkpointLocation")
#: Where Hadoop's own files are looked for: they may name another file system.
_HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def manager(spark_home: Path, settings: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """The class for a session with these settings; None where Spark's own choice is right, or somebody has chosen."""
    if MANAGER in settings or any(environ.get(name) for name in _HADOOP):
        return None
    if any(urlsplit(settings.get(name, "")).scheme not in ("", "file") for name in _PLACES):
        return None
    return _BY_FILE_SYSTEM if _is_there(spark_home, _BY_FILE_SYSTEM) else None


def _is_there(spark_home: Path, name: str) -> bool:
    """Whether this Spark has the class: it is no part of what Spark promises, and a wrong one fails every query."""
    for jar in (spark_home / "jars").glob("spark-sql_*.jar"):
        try:
            with zipfile.ZipFile(jar) as classes:
                classes.getinfo(f"{name.replace('.', '/')}.class")
        except (KeyError, OSError, zipfile.BadZipFile):
            continue
        return True
    return False
