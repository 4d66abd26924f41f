"""The frame whose columns numpy cuts out of the pulled bytes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cometmq.protocol import sysflag
from cometmq.spark.columns import Columns
from cometmq.spark.frame import Frame, Ints, Piece
from cometmq.spark.heads import Heads
from cometmq.spark.irregular import MAX_MILLIS, json_text
from cometmq.spark.property_table import PropertyTable
from cometmq.spark.slices import numbers, slices, texts, values_of


class NumpyFrame(Frame):
    """Records of which it is known where their parts are. `properties` is set by whoever needs them."""

    properties: PropertyTable

    def __init__(
        self,
        data: bytes,
        heads: Heads,
        rows: Ints,
        owners: Ints,
        pieces: Sequence[Piece],
        namespace: str,
        columns: Columns,
        schema: pa.Schema,
    ) -> None:
        self.data = data
        self.heads = heads
        self.fields = heads.fields
        self.rows = rows
        self.owners = owners
        self.pieces = pieces
        self.namespace = namespace
        self.columns = columns
        self.schema = schema
        self._topics: tuple[Ints, list[bytes]] | None = None

    def topics(self) -> tuple[Ints, list[bytes]]:
        if self._topics is None:
            starts, ends = self.heads.body_ends + 1, self.heads.topic_ends
            width = int(ends[0] - starts[0])
            if (ends - starts == width).all():
                found = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))[starts]
                matrix = found.view(np.uint8).reshape(len(starts), width) if width else None
                if matrix is None or (matrix == matrix[0]).all():
                    self._topics = np.zeros(len(starts), np.int8), [bytes(found[0]) if width else b""]
                    return self._topics
            encoded = slices(self.data, starts, ends, pa.binary()).dictionary_encode()
            self._topics = values_of(encoded.indices), encoded.dictionary.to_pylist()
        return self._topics

    def rows_with_odd_topics(self) -> Ints:
        """Those whose topic is no UTF-8: the slow way says what is wrong with them."""
        if not len(self):
            return self.rows
        codes, topics = self.topics()
        odd = [code for code, topic in enumerate(topics) if "\ufffd" in topic.decode(errors="replace")]
        return self.rows[np.isin(codes, odd)] if odd else self.rows[:0]

    def property(self, name: str) -> pa.Array:
        return self.properties.value_of(name)

    def body_column(self) -> pa.Array:
        return slices(self.data, self.heads.body_starts, self.heads.body_ends, pa.binary())

    def sys_flag_column(self) -> pa.Array:
        flags = self.fields["sys_flag"].astype(np.int32)
        # Bodies come decompressed, so the flag says that they are plain; an empty body was never compressed.
        flags[self.heads.body_ends > self.heads.body_starts] &= ~sysflag.COMPRESSED
        return numbers(flags)

    def number_column(self, field: str, kind: str) -> pa.Array:
        return numbers(self.fields[field].astype(kind))

    def time_column(self, field: str) -> pa.Array:
        millis = np.clip(self.fields[field].astype(np.int64), -MAX_MILLIS, MAX_MILLIS)
        return numbers(millis * 1000).view(pa.timestamp("us", tz="UTC"))

    def properties_column(self) -> pa.Array:
        if self.columns.properties_as_json:
            return texts([json_text(each) for each in self.properties.as_dicts()])
        return self.properties.as_map(self.schema.field("properties").type)
