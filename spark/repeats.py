"""`without_repeats()`: drops what the sink wrote twice, where a topic is read.

Two messages are one row when stamp and content are the same: topic, body, tags, keys, properties that are not
RocketMQ's own, and the flag if that column is there. The stamp alone would not do: after a shuffle, a repeated task may
have its rows in another order, and then two different rows bear one stamp. Messages without a stamp (of other
producers) all stay.
"""

from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from cometmq.spark.errors import OptionError
from cometmq.spark.sink_properties import OF_COLUMNS, RESERVED, RESERVED_PREFIX
from cometmq.spark.stamps import SPARK_ROW

#: Columns of the source that tell messages apart.
NEEDED: Final = ("topic", "brokerName", "queueId", "queueOffset", "body", "properties")

_ROW: Final = "__cometmq_row"
_READ: Final = "__cometmq_read"


def without_repeats(messages: DataFrame, within: timedelta = timedelta(hours=1)) -> DataFrame:
    """The messages of a DataFrame of the source, each row of the sink once; the columns stay as they are.

    A stream remembers each row for `within`, counted from when it was read: longer than a writing query is ever down
    before it is started again. Nothing is dropped for being late. A batch has no such bound.
    """
    for name in NEEDED:
        if name not in messages.columns:
            raise OptionError(
                f"column {name}", "", f"without_repeats() needs {', '.join(NEEDED)}; select() your own afterwards"
            )
    marked = messages.withColumn(_ROW, _row_of(messages))
    if not messages.isStreaming:
        return marked.dropDuplicates([_ROW]).drop(_ROW)
    # The time of the batch, not of the message: a message of a queue that lags behind must not count as late.
    timed = marked.withColumn(_READ, F.current_timestamp()).withWatermark(
        _READ, f"{within.total_seconds():.3f} seconds"
    )
    return timed.dropDuplicatesWithinWatermark([_ROW]).drop(_ROW, _READ)


def _row_of(messages: DataFrame) -> Column:
    """A text that two messages have in common when they are one row."""
    pairs = F.col("properties")
    if isinstance(messages.schema["properties"].dataType, StringType):
        pairs = F.from_json(pairs, "map<string,string>")
    # Sorted, as a map has no order and hence no hash.
    content = F.array_sort(F.map_entries(F.map_filter(pairs, _is_content)))
    columns = ["topic", "body", *(["flag"] if "flag" in messages.columns else [])]
    place = F.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")
    return F.coalesce(F.concat(pairs[SPARK_ROW], F.lit("#"), F.hex(F.xxhash64(*columns, content))), place)


def _is_content(name: Column, value: Column) -> Column:
    return ~(name.isin(*sorted(RESERVED - OF_COLUMNS)) | name.startswith(RESERVED_PREFIX))
