"""The records of a batch that go the fast way, and how each column is made of them: whole columns, by numpy and Arrow.

`Frame` knows where things are in the pulled bytes; `native` has one whose columns have been laid out already.
"""

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.protocol import namespaces, sysflag
from cometmq.protocol import properties as props
from cometmq.spark.columns import Columns
from cometmq.spark.heads import Heads, Ints
from cometmq.spark.irregular import MAX_MILLIS, host_text, json_text
from cometmq.spark.property_table import PropertyTable
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.slices import constant, fixed_width, numbers, of_codes, slices, values_of

_HEX: Final = np.frombuffer(b"".join(b"%02X" % number for number in range(256)), dtype="<u2")


class Piece(NamedTuple):
    """What one pull gave, and the range that it was asked for: messages outside of it do not count."""

    source: QueueRange
    data: bytes


class Frame:
    """The records of a batch that go the fast way."""

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
        #: Their numbers among all records.
        self.rows = rows
        self.owners = owners
        self.pieces = pieces
        self.namespace = namespace
        self.columns = columns
        self.schema = schema
        self._topics: tuple[npt.NDArray[Any], list[bytes]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def property(self, name: str) -> pa.Array:
        return self.properties.value_of(name)

    def topics(self) -> tuple[npt.NDArray[Any], list[bytes]]:
        """A code for each record, and the topics by their codes. Nearly always there is one."""
        if self._topics is None:
            starts, ends = self.heads.body_ends + 1, self.heads.topic_ends
            width = int(ends[0] - starts[0])
            if (ends - starts == width).all():
                texts = np.ndarray((len(self.data) - width + 1,), f"V{width}", self.data, strides=(1,))[starts]
                matrix = texts.view(np.uint8).reshape(len(starts), width) if width else None
                if matrix is None or (matrix == matrix[0]).all():
                    self._topics = np.zeros(len(starts), np.int8), [bytes(texts[0]) if width else b""]
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

    def topic_column(self) -> pa.Array:
        codes, topics = self.topics()
        return of_codes(codes, [namespaces.unwrap(self.namespace, topic.decode()) for topic in topics])

    def broker_column(self) -> pa.Array:
        brokers = [piece.source.broker for piece in self.pieces]
        if len(set(brokers)) == 1:
            return constant(brokers[0], len(self))
        return of_codes(self.owners, brokers)

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

    def host_column(self, field: str) -> pa.Array:
        hosts = self.fields[field].astype(np.uint64)
        if (hosts == hosts[0]).all():
            return constant(host_text(hosts[:1].tobytes()), len(self))
        encoded = numbers(hosts).dictionary_encode()
        known = [host_text(host.tobytes()) for host in values_of(encoded.dictionary)]
        return of_codes(values_of(encoded.indices), known)

    def id_column(self) -> pa.Array:
        """The unique key that the producer made, else the place of the message in its broker's log."""
        keys = self.property(props.UNIQ_KEY)
        if not keys.null_count:
            return keys
        packed = np.empty((len(self), 2), dtype=np.uint64)
        packed[:, 0] = self.fields["store_host"]
        packed[:, 1] = self.fields["physical_offset"].astype(">i8").view(np.uint64)
        digits = _HEX[packed.view(np.uint8)].view(np.uint8)
        return keys.fill_null(fixed_width(digits))

    def properties_column(self) -> pa.Array:
        if self.columns.properties_as_json:
            return pa.array([json_text(each) for each in self.properties.as_dicts()], pa.string())
        return self.properties.as_map(self.schema.field("properties").type)


BUILDERS: Final[dict[str, Callable[[Frame], pa.Array]]] = {
    "topic": methodcaller("topic_column"),
    "brokerName": methodcaller("broker_column"),
    "queueId": lambda frame: frame.number_column("queue_id", "<i4"),
    "queueOffset": lambda frame: frame.number_column("queue_offset", "<i8"),
    "body": methodcaller("body_column"),
    "tags": lambda frame: frame.property(props.TAGS),
    "keys": lambda frame: frame.property(props.KEYS),
    "properties": methodcaller("properties_column"),
    "msgId": methodcaller("id_column"),
    "bornTimestamp": lambda frame: frame.time_column("born_timestamp"),
    "storeTimestamp": lambda frame: frame.time_column("store_timestamp"),
    "flag": lambda frame: frame.number_column("flag", "<i4"),
    "sysFlag": methodcaller("sys_flag_column"),
    "reconsumeTimes": lambda frame: frame.number_column("reconsume_times", "<i4"),
    "bornHost": lambda frame: frame.host_column("born_host"),
    "storeHost": lambda frame: frame.host_column("store_host"),
    "physicalOffset": lambda frame: frame.number_column("physical_offset", "<i8"),
}
