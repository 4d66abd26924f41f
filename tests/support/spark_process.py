"""Does what one of Spark's Python processes does for a stream, without Spark: `python spark_process.py ROLE FOLDER`.

The roles hand over by files in the folder, pickled as Spark pickles; `options` is there before. Prints the modules that
are loaded in the end. Nothing is imported here that the role does not need.
"""

import json
import os
import sys
from pathlib import Path

from pyspark import cloudpickle

FOLDER = Path(sys.argv[2])


def schema() -> None:
    """`load()`: checks the options and asks for the topics."""
    from cometmq.spark.source import RocketMQSource

    source = RocketMQSource(json.loads((FOLDER / "options").read_text()))
    (FOLDER / "source").write_bytes(cloudpickle.dumps((source, source.schema())))


def reader() -> None:
    """The start of a query: makes a reader for the tasks."""
    source, schema = cloudpickle.loads((FOLDER / "source").read_bytes())
    (FOLDER / "reader").write_bytes(cloudpickle.dumps(source.streamReader(schema)))


def runner() -> None:
    """The process beside the driver: plans a batch."""
    source, schema = cloudpickle.loads((FOLDER / "source").read_bytes())
    stream = source.streamReader(schema)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    (FOLDER / "partitions").write_bytes(cloudpickle.dumps(stream.partitions(start, end)))
    stream.commit(end)


def worker() -> None:
    """A task: reads the batch."""
    stream = cloudpickle.loads((FOLDER / "reader").read_bytes())
    partitions = cloudpickle.loads((FOLDER / "partitions").read_bytes())
    rows = sum(batch.num_rows for each in partitions for batch in stream.read(each))
    (FOLDER / "rows").write_text(str(rows))


ROLES = {"schema": schema, "reader": reader, "runner": runner, "worker": worker}


if __name__ == "__main__":
    ROLES[sys.argv[1]]()
    print(*sys.modules, flush=True)
    os._exit(0)  # as Spark ends its processes: links stay open
