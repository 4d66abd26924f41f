"""The fast way once more, by the native twin: all columns of a batch laid out in one pass, where it has been built.

It takes batches in which every record is of the usual form; numpy has the others. `_native.c` says what is usual.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.protocol import properties as props
from cometmq.spark.columns import Columns
from cometmq.spark.frame import Frame, Ints, Piece

try:
    from cometmq.spark import _native
except ImportError:  # no compiler when it was installed, or a zip
    _native = None  # type: ignore[assignment]

IS_BUILT: Final = _native is not None

_KINDS: Final = {"<i4": pa.int32(), "<i8": pa.int64()}
#: The first buffers, in their order.
_FIELDS: Final = {
    "queue_id": "<i4",
    "flag": "<i4",
    "sys_flag": "<i4",
    "reconsume_times": "<i4",
    "queue_offset": "<i8",
    "physical_offset": "<i8",
    "born_timestamp": "<i8",
    "store_timestamp": "<i8",
    "born_host": "<u8",
    "store_host": "<u8",
}
_BODY_OFFSETS: Final = len(_FIELDS)
_MAP: Final = _BODY_OFFSETS + 2
_WANTED: Final = _MAP + 5


class Layout:
    """What a query wants to have laid out: reckoned once."""

    def __init__(self, columns: Columns, schema: pa.Schema, namespace: str, *, tags: bool, check_crc: bool) -> None:
        self.columns = columns
        self.schema = schema
        self.namespace = namespace
        found = {"tags": props.TAGS, "keys": props.KEYS, "msgId": props.UNIQ_KEY}
        self.wanted = tuple(name for column, name in found.items() if column in columns or (tags and column == "tags"))
        self._names = tuple(name.encode() for name in self.wanted)
        self._with_properties = bool(self.wanted) or "properties" in columns
        self._with_body = "body" in columns
        self._check_crc = check_crc

    def frame(self, data: bytes, pieces: Sequence[Piece]) -> "NativeFrame | None":
        """The records of pieces, if all of them are usual."""
        if _native is None or self.columns.properties_as_json:
            return None
        found = _native.columns(data, self._names, self._with_body, self._with_properties, self._check_crc)
        return None if found is None else NativeFrame(self, data, pieces, *found)


class NativeFrame(Frame):
    """Records whose columns are there already."""

    def __init__(
        self,
        layout: Layout,
        data: bytes,
        pieces: Sequence[Piece],
        starts: bytes,
        topic: bytes,
        buffers: tuple[bytes | None, ...],
    ) -> None:
        self.data = data
        self.pieces = pieces
        self.namespace = layout.namespace
        self.columns = layout.columns
        self.schema = layout.schema
        self.rows = np.arange(len(starts) // 4)
        self.fields = {
            name: np.frombuffer(buffer, kind)  # type: ignore[arg-type]
            for (name, kind), buffer in zip(_FIELDS.items(), buffers, strict=False)
        }
        self._topics = np.zeros(len(self), np.int8), [topic]
        self._starts = starts
        self._buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
        self._places = dict(zip(layout.wanted, range(_WANTED, len(buffers), 3), strict=True))
        self.counts = self._counts()

    def _counts(self) -> list[int]:
        """How many records each piece has."""
        if len(self.pieces) == 1:
            return [len(self)]
        ends = np.cumsum([len(piece.data) for piece in self.pieces])
        bounds = np.searchsorted(np.frombuffer(self._starts, "<u4"), ends)
        counts: list[int] = np.diff(bounds, prepend=0).tolist()
        return counts

    @property
    def owners(self) -> Ints:  # type: ignore[override]
        """The piece of each record."""
        return np.repeat(np.arange(len(self.pieces)), self.counts)

    def are_all_wanted(self, *, gaps: bool) -> bool:
        """Whether the records are those of the pieces' ranges: all of them, or with gaps if there may be some."""
        offsets, at = self.fields["queue_offset"], 0
        for (source, _), count in zip(self.pieces, self.counts, strict=True):
            found, at = offsets[at : at + count], at + count
            if count == source.size and (found == np.arange(source.start, source.stop)).all():
                continue
            if not gaps or (count and (found.min() < source.start or found.max() >= source.stop)):
                return False
        return True

    def topics(self) -> tuple[npt.NDArray[Any], list[bytes]]:
        return self._topics

    def property(self, name: str) -> pa.Array:
        at = self._places[name]
        return pa.Array.from_buffers(pa.string(), len(self), self._buffers[at : at + 3])

    def body_column(self) -> pa.Array:
        return self._texts(_BODY_OFFSETS, len(self), pa.binary())

    def sys_flag_column(self) -> pa.Array:
        return self.number_column("sys_flag", "<i4")

    def number_column(self, field: str, kind: str) -> pa.Array:
        return self._numbers(field, _KINDS[kind])

    def time_column(self, field: str) -> pa.Array:
        return self._numbers(field, pa.timestamp("us", tz="UTC"))

    def properties_column(self) -> pa.Array:
        kind = self.schema.field("properties").type
        pairs = len(self._buffers[_MAP + 1]) // 4 - 1  # type: ignore[arg-type]
        names, values = self._texts(_MAP + 1, pairs, pa.string()), self._texts(_MAP + 3, pairs, pa.string())
        entries = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(self), [None, self._buffers[_MAP]], children=[entries])

    def _numbers(self, field: str, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, len(self), [None, self._buffers[list(_FIELDS).index(field)]])

    def _texts(self, at: int, count: int, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, self._buffers[at], self._buffers[at + 1]])
