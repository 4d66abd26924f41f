"""The columns of the sink: their names, what they may be, and whether a DataFrame has the right ones.

Checked in the driver, before a task starts. What becomes of their values is in `sink_rows`.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from cometmq.spark.errors import OptionError


class SinkColumn(NamedTuple):
    """One column: what it may be, and what it does."""

    may_be: str
    meaning: str
    takes: Callable[[DataType], bool]


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


def _is_keys(kind: DataType) -> bool:
    return isinstance(kind, StringType) or (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType))


def _is_properties(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


_NUMBER: Final = _is(ByteType, ShortType, IntegerType, LongType)
_TEXT: Final = _is(StringType)

#: Every column of the sink.
COLUMNS: Final[dict[str, SinkColumn]] = {
    "body": SinkColumn("binary or string", "the body; a text is written as UTF-8", _is(BinaryType, StringType)),
    "topic": SinkColumn("string", "the topic; where it is null, the option `topic`", _TEXT),
    "tags": SinkColumn("string", "the tag", _TEXT),
    "keys": SinkColumn("string or array<string>", "the keys, by which a message can be found", _is_keys),
    "properties": SinkColumn("map<string,string>", "properties of your own", _is_properties),
    "shardingKey": SinkColumn("string", "rows of one key go to one queue, in their order", _TEXT),
    "queueId": SinkColumn("int", "the queue, if you choose it yourself; its rows keep their order", _NUMBER),
    "brokerName": SinkColumn("string", "whose queue `queueId` means, where several brokers have one", _TEXT),
    "deliverTime": SinkColumn("timestamp", "not to be delivered before", _is(TimestampType)),
    "flag": SinkColumn("int", "the flag: a number that RocketMQ hands through", _NUMBER),
}


def check_columns(schema: StructType, topic: str) -> None:
    """Refuse a DataFrame that cannot be written; `topic` is the option of that name."""
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            raise _refused(field.name, f"the sink has the columns {', '.join(COLUMNS)}; select() those to be sent")
        if not column.takes(field.dataType):
            raise _refused(
                f"{field.name} {field.dataType.simpleString()}", f"{field.name} may be {column.may_be}; cast it"
            )
    found = frozenset(schema.names)
    if len(found) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise _refused(twice, "the DataFrame has it twice; drop one")
    if "body" not in found:
        raise _refused("body", "it is missing; select what shall be sent as body (binary or string)")
    if "brokerName" in found and "queueId" not in found:
        raise _refused("brokerName", "it means nothing without queueId; select that column, too, or drop this one")
    if "topic" not in found and not topic:
        raise OptionError("topic", "", "no topic is named: give the option, or a column topic")


def _refused(what: str, remedy: str) -> OptionError:
    return OptionError(f"column {what}", "", remedy)
