"""The columns of the source: their names, Spark types and Arrow types, and the ones that a user's schema asks for.

Spark does not tell a Python source which columns a query needs, so `.schema(...)` is the way to read less: only the
columns named there are built. What fills them is in `decode`. pyarrow is imported where it is needed: Spark's driver
gets by without it. RocketMQ's MessageExt; the fixed schema of Kafka's source.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

PROPERTIES: Final = "properties"

_TEXT, _INT, _LONG, _TIME = StringType(), IntegerType(), LongType(), TimestampType()

#: Every column, in the order of a schema that nobody chose.
TYPES: Final[dict[str, DataType]] = {
    "topic": _TEXT,
    "brokerName": _TEXT,
    "queueId": _INT,
    "queueOffset": _LONG,
    "body": BinaryType(),
    "tags": _TEXT,
    "keys": _TEXT,
    PROPERTIES: MapType(_TEXT, _TEXT, valueContainsNull=False),
    "msgId": _TEXT,
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "flag": _INT,
    "sysFlag": _INT,
    "reconsumeTimes": _INT,
    "bornHost": _TEXT,
    "storeHost": _TEXT,
    "physicalOffset": _LONG,
}

#: Columns that are null for some messages. All others never are, and Spark is told so: it need not look, and files that
#: are written need no room to say it (a twentieth less processor time of a query that writes Parquet).
MAY_BE_NULL: Final = frozenset({"tags", "keys"})


def full_schema(include_properties: bool = True, properties_as_json: bool = False) -> StructType:
    """All columns; the properties as a map, as JSON text (what RocketMQ's old connector gave), or not at all."""
    fields = []
    for name, kind in TYPES.items():
        if name == PROPERTIES:
            if not include_properties:
                continue
            kind = _TEXT if properties_as_json else kind
        fields.append(StructField(name, kind, nullable=name in MAY_BE_NULL))
    return StructType(fields)


class Columns(msgspec.Struct, frozen=True):
    """The columns of one query, in its order. Pickles with the reader."""

    schema: StructType

    @classmethod
    def of(cls, schema: StructType) -> "Columns":
        """The columns of a schema; whatever the source cannot fill is refused by name."""
        if not schema.fields:
            raise OptionError("schema", "", f"name at least one column of {', '.join(TYPES)}")
        seen = set()
        for field in schema.fields:
            _check(field)
            if field.name in seen:
                raise OptionError("schema", field.name, "name each column once")
            seen.add(field.name)
        return cls(schema)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def __contains__(self, name: str) -> bool:
        return name in self.schema.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.schema.names)

    @property
    def properties_as_json(self) -> bool:
        """Whether the properties are one text."""
        return PROPERTIES in self and isinstance(self.schema[PROPERTIES].dataType, StringType)

    @property
    def arrow_schema(self) -> "pa.Schema":
        """The schema that Spark compares with that of each batch, nullability included."""
        import pyarrow as pa

        return pa.schema(
            [pa.field(each.name, _arrow_type(each.dataType), nullable=each.nullable) for each in self.schema.fields]
        )


def _check(field: StructField) -> None:
    wanted = TYPES.get(field.name)
    if wanted is None:
        raise OptionError("schema", field.name, f"the source has the columns {', '.join(TYPES)}")
    if field.name == PROPERTIES and (isinstance(field.dataType, StringType) or _is_text_map(field.dataType)):
        return
    if type(field.dataType) is not type(wanted) or isinstance(wanted, MapType):
        may_be = "map<string,string> or string (JSON)" if isinstance(wanted, MapType) else wanted.simpleString()
        raise OptionError(
            "schema",
            f"{field.name} {field.dataType.simpleString()}",
            f"column {field.name} is {may_be}; cast it in the query",
        )
    if not field.nullable and field.name in MAY_BE_NULL:
        raise OptionError("schema", field.name, f"column {field.name} is null for messages without it: drop NOT NULL")


def _is_text_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and type(kind.keyType) is type(kind.valueType) is StringType


def _arrow_type(kind: DataType) -> "pa.DataType":
    import pyarrow as pa

    if isinstance(kind, MapType):
        key = pa.field("key", pa.string(), nullable=False)
        return pa.map_(key, pa.field("value", pa.string(), nullable=kind.valueContainsNull))
    simple = {
        StringType: pa.string,
        BinaryType: pa.binary,
        IntegerType: pa.int32,
        LongType: pa.int64,
        TimestampType: lambda: pa.timestamp("us", tz="UTC"),
    }
    return simple[type(kind)]()
