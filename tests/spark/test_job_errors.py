"""Long errors of Spark as one line: the cause that a user can do something about, out of stacks of two languages."""

import pytest
from pyspark.errors import PySparkException

from cometmq.spark.jobs.command import show
from cometmq.spark.jobs.errors import JobError, told
from cometmq.spark.jobs.metrics import Metrics, ResultTable

pytestmark = pytest.mark.spark

FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Return Message: "
PYTHON = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n'
FULL_DISK = """py4j.protocol.Py4JJavaError: An error occurred while calling o165.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/a. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:823)
Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 7 more
Caused by: java.io.IOException: No space left on device
\t... 8 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{FAILED}{PYTHON}cometmq.spark.errors.OptionError: topic=x: no such topic\n SQLSTATE: 38000\n"
            "=== Streaming Query ===\nState: KeyError: 'y'",
            "topic=x: no such topic",
        ),
        # An error of the project that Python's own came out of, or led to.
        (f"{PYTHON}cometmq.spark.errors.DataLoss: gone: set it\n{PYTHON}KeyError: 7", "gone: set it"),
        (f"{FAILED}{PYTHON}KeyError: 'no such thing'\n", "KeyError: 'no such thing'"),
        (
            f"{PYTHON}pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED] bad row SQLSTATE: P0001",
            "bad row",
        ),
        (
            f"{FAILED}{PYTHON}{FULL_DISK}",
            "Task failed while writing rows to file:/lake/a (IOException: No space left on device)",
        ),
        ("An error occurred while calling o6.start.\n: java.io.IOException: mkdir failed\n\tat y", "mkdir failed"),
        ("[UNRESOLVED_COLUMN] `x` cannot be resolved. SQLSTATE: 42703; line 1 pos 7", "`x` cannot be resolved"),
        ("", "Spark failed without a word"),
    ],
)
def test_the_cause_in_one_line(text: str, line: str) -> None:
    assert told(PySparkException(text)) == line


def test_figures_as_people_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    table = ResultTable(("group", "slow", "count"), (("billing", True, 1500), ("shop", False, None)))
    details = {"slowConsumers": ["billing"]}
    show(Metrics("trace", 1500, 0, 1.0, details=details, tables={"groups": table}), as_json=False)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    for cells in (["billing", "yes", "1,500"], ["shop", "no", ""], ["rows", "1,500"], ["slowConsumers", "billing"]):
        assert cells in lines


def test_errors_of_jobs_bring_their_remedy() -> None:
    assert told(JobError("it is full", "make room")) == "it is full: make room"
    assert told(FileNotFoundError(2, "No such file", "x")) == "[Errno 2] No such file: 'x'"
