"""What the runs of one checkpoint were asked for.

A stream goes on from its checkpoint, whatever it is asked for this time: whoever asks for something else is told so.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pyspark.sql import SparkSession

from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.publication import json_of

#: In the checkpoint, beside what Spark keeps there.
_NAME: Final = "_asked.json"

#: The question that is only heard by a first run.
BEGIN: Final = "begin"


def time(since: datetime | None) -> str | None:
    """The time to begin at, as it is noted."""
    return None if since is None else since.isoformat()


def note(spark: SparkSession, checkpoint: str, asked: Mapping[str, str | None]) -> str | None:
    """What a user should know who asks for something else than the run before; notes what is asked for now."""
    if getattr(spark, "_jvm", None) is None:  # Spark Connect shows no files
        return None
    lake = Lake(spark, checkpoint)
    name = f"{lake.root}/{_NAME}"
    before = json_of(lake, name)
    if before == asked:
        return None
    lake.make_directory(lake.root)
    lake.delete(name)
    lake.write(name, json.dumps(asked))
    others = [each for each, value in asked.items() if value is not None and each in before and before[each] != value]
    if not others:
        return None
    if others == [BEGIN]:
        return f"the checkpoint {lake.root} goes first: another time to begin is only heard with a new one"
    return f"the checkpoint {lake.root} goes first: what was read before with another query does not come again"
