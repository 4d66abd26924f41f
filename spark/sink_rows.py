"""From the rows of an Arrow batch to the bytes of messages, by columns: no Python for a single row but its unique key.

Each row becomes an item of SEND_BATCH_MESSAGE (`protocol.batch`): all items lie in one buffer, one after the other, so
that a request is a slice of it. Where rows go is in `sink_lanes`. Nothing here talks to anybody.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.protocol import properties as props
from cometmq.protocol.batch import item_size
from cometmq.protocol.frame import MAX_FRAME
from cometmq.protocol.message_id import wall_millis
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.sink_properties import RESERVED, RESERVED_PREFIX
from cometmq.spark.stamps import SPARK_ROW

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("length", ">i4")])
_OVERHEAD: Final = item_size(0, 0)

#: Bytes of a row at most: no peer takes a larger frame, and a header needs its share. What brokers take is theirs to
#: say (maxMessageSize, 4 MiB by default).
MAX_ROW_BYTES: Final = MAX_FRAME - 64 * 1024


class RowRefused(SparkSourceError):
    """Raised when a row cannot be sent as it is; says which one, and why."""


class Rows(NamedTuple):
    """Rows of a task, and the number that each of them has in its partition."""

    batch: pa.RecordBatch
    numbers: Ints
    partition: int = 0
    #: Of rows that name none.
    topic: str = ""

    def column(self, name: str) -> pa.Array | None:
        """None when the DataFrame does not have it."""
        at = self.batch.schema.get_field_index(name)
        return None if at < 0 else self.batch.column(at)

    def only(self, wanted: Flags) -> "Rows":
        return self._replace(batch=self.batch.filter(pa.array(wanted)), numbers=self.numbers[wanted])

    def refuse(self, where: Flags, cause: str, remedy: str) -> None:
        """Raise for the first row where it is so, if there is one."""
        if where.any():
            at = int(np.argmax(where))
            topics = self.column("topic")
            topic = (None if topics is None else topics[at].as_py()) or self.topic
            named = f" for topic {topic}" if topic else ""
            raise RowRefused(f"row {self.numbers[at]} of partition {self.partition}{named}: {cause}", remedy)


class RowEncoder:
    """Encodes the rows of one task."""

    def __init__(
        self, new_key: Callable[[int], str], *, stamp_prefix: str, namespace: str = "", drops_reserved: bool = True
    ) -> None:
        """`new_key` gives a unique key for a moment in epoch milliseconds (`UniqueKeyGenerator.at`)."""
        self._new_key = new_key
        self.stamp_prefix = stamp_prefix
        self._stamp = f"{SPARK_ROW}\x01{stamp_prefix}".encode()
        #: What a request of items says of all of them.
        self.common = "WAIT\x01true\x02" + (f"{props.INSTANCE_ID}\x01{namespace}\x02" if namespace else "")
        self._fixed = f"\x02{self.common}".encode()
        self._drops_reserved = drops_reserved

    def items(self, rows: Rows) -> pa.BinaryArray:
        """The rows as items of a batch request."""
        bodies = _bytes(_present(rows.column("body")))
        texts = self._texts(rows)
        body_lengths, text_lengths = _lengths(bodies), _lengths(texts)
        rows.refuse(~_valid(bodies), "its body is null", "filter such rows out, or give them a body")
        rows.refuse(body_lengths == 0, "its body is empty", "RocketMQ has no empty messages; filter such rows out")
        sizes = body_lengths + text_lengths + _OVERHEAD
        rows.refuse(sizes > MAX_ROW_BYTES, f"it takes more than {MAX_ROW_BYTES} bytes", "keep large bodies elsewhere")
        rows.refuse(
            text_lengths > props.MAX_PROPERTIES_LENGTH,
            f"its tags, keys and properties take more than {props.MAX_PROPERTIES_LENGTH} bytes",
            "put what is large into the body",
        )
        heads = np.zeros(len(rows.numbers), _HEAD)
        heads["size"], heads["length"], heads["flag"] = sizes, body_lengths, self._flags(rows)
        lengths = _fixed_size(text_lengths.astype(">i2"), 2)
        return pc.binary_join_element_wise(_fixed_size(heads, _HEAD.itemsize), bodies, lengths, texts, b"")

    def _flags(self, rows: Rows) -> Ints:
        flags = rows.column("flag")
        if flags is None:
            return np.zeros(len(rows.numbers), np.int64)
        numbers = _numbers(flags, 0)
        rows.refuse(numbers != numbers.astype(np.int32), "its flag has more than 32 bits", "give a smaller one")
        return numbers

    def _texts(self, rows: Rows) -> pa.BinaryArray:
        """The property text of each row; see `Packer.text`."""
        count = len(rows.numbers)
        now, new_key = wall_millis(), self._new_key
        keys = pa.array([new_key(now) for _ in range(count)], pa.string()).cast(pa.binary())
        stamps = pa.array(rows.numbers).cast(pa.string()).cast(pa.binary())
        parts: list[object] = [b"UNIQ_KEY\x01", keys, self._fixed, self._stamp, stamps, b"\x02"]
        pairs = np.full(count, self._fixed.count(b"\x01") + 2)
        for name, column in (("TAGS", "tags"), ("KEYS", "keys"), (props.SHARDING_KEY, "shardingKey")):
            values = _key_texts(rows) if column == "keys" else rows.column(column)
            if values is not None:
                values = _bytes(values)
                has = _lengths(values) > 0
                joined = pc.binary_join_element_wise(f"{name}\x01".encode(), values, b"\x02", b"")
                parts.append(pc.if_else(pa.array(has), joined, b""))
                pairs += has
        if (maps := rows.column("properties")) is not None:
            texts, counts = self._properties(rows, maps)
            parts.append(texts)
            pairs += counts
        whole = pc.binary_join_element_wise(*parts, b"")
        rows.refuse(
            pc.count_substring(whole, pattern=b"\x02").to_numpy() != pairs,
            "its tags, keys, shardingKey or properties hold the character 0x02, which separates properties",
            "remove the character, or put the text into the body",
        )
        return whole

    def _properties(self, rows: Rows, maps: pa.MapArray) -> tuple[pa.BinaryArray, Ints]:
        """The texts of the maps, and how many pairs each has."""
        offsets = maps.offsets.to_numpy().astype(np.int64)
        names = maps.keys.slice(offsets[0], offsets[-1] - offsets[0])
        values = maps.items.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
        names, values = _bytes(names), _bytes(values)
        rows.refuse(
            _any_of_each(_numbers(pc.count_substring(names, pattern=b"\x01"), 0) > 0, offsets),
            "the name of a property holds the character 0x01, which ends names",
            "remove the character, or put the text into the body",
        )
        reserved = self._reserved(rows, names)
        empty = (_lengths(names) == 0) | (_lengths(values) == 0)
        rows.refuse(
            _any_of_each(empty & ~reserved, offsets),
            "a property has an empty name, or a value that is null or empty, which no reader would see",
            "take such pairs out with map_filter()",
        )
        if reserved.any():
            if not self._drops_reserved:
                first = names[int(np.argmax(reserved))].as_py().decode()
                rows.refuse(
                    _any_of_each(reserved, offsets),
                    f"property {first} has a meaning of its own in RocketMQ",
                    "use the column for it, or the option reservedProperties=drop",
                )
            kept = pa.array(~reserved)
            names, values = names.filter(kept), values.filter(kept)
            offsets = np.concatenate(([0], np.cumsum(~reserved)))[offsets]
        pairs = pc.binary_join_element_wise(
            pc.binary_join_element_wise(names, values, b"\x01"), pa.scalar(b"", pa.binary()), b"\x02"
        )
        return _joined(pairs, offsets), np.diff(offsets)

    def _reserved(self, rows: Rows, names: pa.BinaryArray) -> Flags:
        own = {props.SHARDING_KEY} if rows.column("shardingKey") is not None else set()
        listed = [name.encode() for name in RESERVED | own]
        known = pc.is_in(names, value_set=pa.array(listed, pa.binary()))
        passing = pc.starts_with(names, pattern=RESERVED_PREFIX.encode())
        found: Flags = pc.or_(known, passing).to_numpy(zero_copy_only=False)
        return found


def _key_texts(rows: Rows) -> pa.Array | None:
    """The keys of each row as RocketMQ has them: separated by blanks."""
    keys = rows.column("keys")
    if keys is None or not (pa.types.is_list(keys.type) or pa.types.is_large_list(keys.type)):
        return keys
    # Spark says that there are no nulls, in a way for which pyarrow has no kernel.
    joined = pc.binary_join(keys.cast(pa.list_(pa.string())), props.KEY_SEPARATOR)
    rows.refuse(_valid(keys) & ~_valid(joined), "one of its keys is null", "filter it out of the array")
    return joined


def _present(column: pa.Array | None) -> pa.Array:
    assert column is not None, "checked in the driver"
    return column


def _bytes(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())


def _valid(column: pa.Array) -> Flags:
    flags: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _lengths(column: pa.BinaryArray) -> Ints:
    """How long each is; 0 for nulls."""
    return _numbers(pc.binary_length(column), 0)


def _numbers(column: pa.Array, instead_of_null: int) -> Ints:
    numbers: Ints = column.cast(pa.int64()).fill_null(instead_of_null).to_numpy(zero_copy_only=False)
    return numbers


def _fixed_size(values: "npt.NDArray[np.generic]", width: int) -> pa.BinaryArray:
    """The bytes of each value."""
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(values.tobytes())])
    return array.cast(pa.binary())


def _any_of_each(flags: Flags, offsets: Ints) -> Flags:
    """For each row: whether one of its entries has the flag."""
    sums = np.concatenate(([0], np.cumsum(flags)))
    return np.asarray(sums[offsets[1:]] > sums[offsets[:-1]])


def _joined(pieces: pa.BinaryArray, offsets: Ints) -> pa.BinaryArray:
    """For each row: its pieces as one. They lie one after the other already, so that only the ends change."""
    if not len(pieces):
        return pa.array([b""] * (len(offsets) - 1), pa.binary())
    ends = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset : pieces.offset + len(pieces) + 1]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(ends[offsets])), pieces.buffers()[2]]
    )
