"""What a job can tell its user, and how the long errors of Spark become one line.

A job's error names what was asked, why it cannot be, and what to do. Errors of options, queues and the cluster are
those of `cometmq.spark.errors` and of the SDK.
"""

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cometmq.protocol.errors import CometMQError
from cometmq.spark.errors import SparkSourceError

#: The last line of a Python traceback inside the text of a Spark error: `package.module.Name: what happened`.
_RAISED = re.compile(r"^(?P<home>(?:[A-Za-z_]\w*\.)*)(?P<name>[A-Z]\w*): (?P<text>\S.*)$", re.M)
#: The first line of a Java stack that Python shows, and those of its causes.
_JAVA = re.compile(r"^(?:: |Caused by: )[\w.$]*?(?P<name>\w+): (?P<text>\S.*)$", re.M)
#: Behind it a streaming query tells about its plan.
_PLAN = "\n=== Streaming Query ==="
#: `[CONDITION] text SQLSTATE: 42000` and where in the query it was.
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.S)
_HERE = Path(__file__).parents[2]


#: Where the files of a traceback are that no user has written.
_LIBRARIES: Final = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, "<frozen ", f"{_HERE}/")


class JobError(SparkSourceError):
    """Raised when a job cannot do what it was asked for."""


class NotAnArchive(JobError):
    """Raised when a directory is not what the archive job writes, or has not what is asked for."""


class ManyTypes(JobError):
    """Raised when files that belong together have a column of the same name and of different types."""


class NotOurs(JobError):
    """Raised when a directory that a job is to write to is not the one of its checkpoint."""


def told(error: BaseException) -> str:
    """What is wrong, and what to do, without Spark's stack of causes."""
    if isinstance(error, PySparkException | Py4JError):
        return _told_by_spark(str(error))
    text = str(error) or type(error).__name__
    remedy = getattr(error, "remedy", "") if isinstance(error, CometMQError) else ""
    return text if not remedy or remedy in text else f"{text}; {remedy}"


def raised_at(error: Exception) -> str:
    """What went wrong in code of a user, and the last line of it that is neither ours nor a library's."""
    name = "" if isinstance(error, PySparkException | CometMQError) else f"{type(error).__name__}: "
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(_LIBRARIES)]
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
        return f"{name}{error.msg} ({place})"
    if not own:
        return f"{name}{told(error)}"
    return f"{name}{told(error)} ({own[-1].filename}:{own[-1].lineno})"


def _told_by_spark(text: str) -> str:
    """An error of this project inside of it says it best; then the last one of Python; then Java's, with its root."""
    text = text.partition(_PLAN)[0]
    raised = list(_RAISED.finditer(text))
    for found in reversed(raised):
        if found["home"].startswith("cometmq."):
            return _plain(found["text"])
    if raised and not raised[-1]["home"].startswith("py4j."):
        last = raised[-1]
        # Spark's own names say nothing that its text does not; KeyError and the like say all.
        name = "" if last["home"].startswith("pyspark.") else f"{last['name']}: "
        return name + _plain(last["text"])
    if java := list(_JAVA.finditer(text)):
        first, root = _plain(java[0]["text"]), _plain(java[-1]["text"])
        return first if root in first else f"{first} ({java[-1]['name']}: {root})"
    return _plain(next((line for line in text.splitlines() if line.strip()), "Spark failed without a word"))


def _plain(line: str) -> str:
    return _SQLSTATE.sub("", _CONDITION.sub("", line)).strip().rstrip(".")
