"""Pulled bytes to an Arrow record batch: only the columns that are asked for, all rows at once.

The fast way, by numpy, for records of the usual form; what is unusual goes the slow way of `irregular`, and the rows
of both are put into order. Nothing here reads a socket. RocketMQ's MessageDecoder, turned by ninety degrees.

Budget, with all columns and five properties: 0.6 us a row at 100 bytes, 1 us at 1 KiB, checksums included.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.protocol import namespaces, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.checksum import CRC_MASK, raw_crc32
from cometmq.protocol.errors import RecordError
from cometmq.spark.columns import Columns
from cometmq.spark.heads import Flags, Heads, Ints, read_heads, record_starts
from cometmq.spark.irregular import MAX_MILLIS, CorruptMessage, SlowRules, host_text, json_text, slow_batch, slow_rows
from cometmq.spark.property_table import OddProperties, PropertyTable
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import FAIL
from cometmq.spark.slices import constant, fixed_width, of_codes, slices

#: Columns that come out of the properties.
_FROM_PROPERTIES: Final = frozenset({"tags", "keys", "properties", "msgId"})

_HEX: Final = np.frombuffer(b"".join(b"%02X" % number for number in range(256)), dtype="<u2")


class Piece(NamedTuple):
    """What one pull gave, and the range that it was asked for: messages outside of it do not count."""

    source: QueueRange
    data: bytes


class Decoder:
    """Turns pieces into record batches for one query. It keeps nothing from batch to batch."""

    def __init__(
        self,
        columns: Columns,
        *,
        namespace: str = "",
        tags: frozenset[str] = frozenset(),
        corrupt: str = FAIL,
        check_crc: bool = True,
        on_gap: Callable[[QueueId, int, int], None] | None = None,
    ) -> None:
        """`on_gap` is told of queue, offset wanted and next offset there where a piece does not have all of its range;
        without it nobody looks: a filter leaves gaps."""
        self.schema = columns.arrow_schema
        self._columns = columns
        self._namespace = namespace
        self._tags = tags
        self._check_crc = check_crc and "body" in columns
        self._needs_properties = bool(tags) or any(name in columns for name in _FROM_PROPERTIES)
        self._on_gap = on_gap
        self._slow = SlowRules(columns, namespace, tags, corrupt, check_crc)

    def decode(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """The rows of all pieces, in their order."""
        data = pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)
        starts, counts = _starts(pieces)
        if not len(starts):
            return self._empty()
        heads = read_heads(data, starts, compressed_too="body" not in self._columns)
        owners = np.repeat(np.arange(len(pieces)), counts)
        if self._on_gap is not None:
            self._look_for_gaps(heads, pieces, counts)
        fast = np.flatnonzero(heads.regular & _in_range(heads, pieces, owners))
        slow = np.flatnonzero(~heads.regular)
        if self._check_crc:
            damaged = _damaged(data, heads, fast)
            if len(damaged):
                fast, slow = np.setdiff1d(fast, damaged), np.union1d(slow, damaged)
        frame, odd = self._frame(data, heads, fast, owners, pieces)
        while len(odd):  # one kind of oddness may hide another
            fast, slow = np.setdiff1d(fast, odd), np.union1d(slow, odd)
            frame, odd = self._frame(data, heads, fast, owners, pieces)
        return self._together(frame, slow, data, starts, owners)

    def _look_for_gaps(self, heads: Heads, pieces: Sequence[Piece], counts: list[int]) -> None:
        offsets, at = heads.fields["queue_offset"].astype(np.int64), 0
        batches = heads.fields["sys_flag"] & sysflag.INNER_BATCH != 0
        for (source, _), count in zip(pieces, counts, strict=True):
            found, is_batch, at = offsets[at : at + count], batches[at : at + count].any(), at + count
            if is_batch or (count == source.size and (found == np.arange(source.start, source.stop)).all()):
                continue  # how many messages an inner batch has is not known here
            bounds = np.concatenate([[source.start - 1], found, [source.stop]])
            assert self._on_gap is not None
            for number in np.flatnonzero(np.diff(bounds) > 1).tolist():
                self._on_gap(source.queue, int(bounds[number]) + 1, int(bounds[number + 1]))

    def _frame(
        self, data: bytes, heads: Heads, rows: Ints, owners: Ints, pieces: Sequence[Piece]
    ) -> tuple["_Frame", Ints]:
        """The records that go the fast way, and those of them that cannot."""
        if len(rows) < len(owners):
            heads, owners = heads.only(rows), owners[rows]
        frame = _Frame(data, heads, rows, owners, pieces, self._namespace, self._columns, self.schema)
        if self._needs_properties and len(rows):
            try:
                frame.properties = PropertyTable(data, heads.topic_ends + 2, heads.ends)
            except OddProperties as odd:
                return frame, rows[odd.rows]
        return frame, frame.rows_with_odd_topics() if "topic" in self._columns else rows[:0]

    def _together(self, frame: "_Frame", slow: Ints, data: bytes, starts: Ints, owners: Ints) -> pa.RecordBatch:
        if not len(slow):
            return self._fast_batch(frame)[0]
        rows, numbers = [], []
        for number in slow.tolist():
            found = slow_rows(data, int(starts[number]), frame.pieces[owners[number]].source, self._slow)
            rows += found
            numbers += [number] * len(found)
        late = slow_batch(rows, self._columns, self.schema)
        if not len(frame.rows):
            return late
        batch, kept = self._fast_batch(frame)
        order = np.argsort(np.concatenate([kept, np.array(numbers, dtype=np.int64)]), kind="stable")
        return pa.concat_batches([batch, late]).take(pa.array(order))

    def _fast_batch(self, frame: "_Frame") -> tuple[pa.RecordBatch, Ints]:
        """The rows that go the fast way, and their numbers among the records."""
        if not len(frame.rows):
            return self._empty(), frame.rows
        arrays = [_BUILDERS[name](frame) for name in self.schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not self._tags:
            return batch, frame.rows
        # Brokers compare hash codes of tags: another tag of the same code may have come.
        fits = pc.is_in(frame.property("TAGS"), value_set=pa.array(sorted(self._tags), pa.string()))
        return batch.filter(fits), frame.rows[fits.to_numpy(zero_copy_only=False)]

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in self.schema.types], schema=self.schema)


def decode(data: bytes, columns: Columns, source: QueueRange) -> pa.RecordBatch:
    """The messages of one pull that belong to a range."""
    return Decoder(columns).decode([Piece(source, data)])


def _starts(pieces: Sequence[Piece]) -> tuple[Ints, list[int]]:
    """Where records begin in the joined data, and how many each piece has."""
    parts, base = [], 0
    for piece in pieces:
        try:
            parts.append(record_starts(piece.data) + base)
        except RecordError as error:
            remedy = "this is no answer of a sound broker: look at its store with mqadmin checkStore"
            raise CorruptMessage(
                piece.source.queue, piece.source.start, f"in the pull from there, {error}", remedy
            ) from error
        base += len(piece.data)
    return np.concatenate(parts), [len(part) for part in parts]


def _in_range(heads: Heads, pieces: Sequence[Piece], owners: Ints) -> Flags:
    offsets = heads.fields["queue_offset"]
    first: Any = pieces[0].source.start
    stop: Any = pieces[0].source.stop
    if len(pieces) > 1:
        first = np.array([piece.source.start for piece in pieces])[owners]
        stop = np.array([piece.source.stop for piece in pieces])[owners]
    fits: Flags = (offsets >= first) & (offsets < stop)
    return fits


def _damaged(data: bytes, heads: Heads, rows: Ints) -> Ints:
    """The rows whose bodies do not match their checksums. An empty body has none."""
    view = memoryview(data)
    starts, ends = heads.body_starts[rows], heads.body_ends[rows]
    sums = [raw_crc32(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    wrong = np.array(sums, dtype=np.int64) & CRC_MASK != heads.fields["body_crc"][rows]
    damaged: Ints = rows[wrong & (starts < ends)]
    return damaged


class _Frame:
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
            encoded = pc.dictionary_encode(slices(self.data, starts, ends, pa.binary()))
            self._topics = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
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
        return pa.array(flags)

    def number_column(self, field: str, kind: str) -> pa.Array:
        return pa.array(self.fields[field].astype(kind))

    def time_column(self, field: str) -> pa.Array:
        millis = np.clip(self.fields[field].astype(np.int64), -MAX_MILLIS, MAX_MILLIS)
        return pa.array(millis * 1000).view(pa.timestamp("us", tz="UTC"))

    def host_column(self, field: str) -> pa.Array:
        hosts = self.fields[field].astype(np.uint64)
        if (hosts == hosts[0]).all():
            return constant(host_text(hosts[:1].tobytes()), len(self))
        encoded = pc.dictionary_encode(pa.array(hosts))
        known = encoded.dictionary.to_numpy()
        return of_codes(encoded.indices.to_numpy(zero_copy_only=False), [host_text(host.tobytes()) for host in known])

    def id_column(self) -> pa.Array:
        """The unique key that the producer made, else the place of the message in its broker's log."""
        keys = self.property(props.UNIQ_KEY)
        if not keys.null_count:
            return keys
        packed = np.empty((len(self), 2), dtype=np.uint64)
        packed[:, 0] = self.fields["store_host"]
        packed[:, 1] = self.fields["physical_offset"].astype(">i8").view(np.uint64)
        digits = _HEX[packed.view(np.uint8)].view(np.uint8)
        return pc.coalesce(keys, fixed_width(digits))

    def properties_column(self) -> pa.Array:
        if self.columns.properties_as_json:
            return pa.array([json_text(each) for each in self.properties.as_dicts()], pa.string())
        return self.properties.as_map(self.schema.field("properties").type)


_BUILDERS: Final[dict[str, Callable[[_Frame], pa.Array]]] = {
    "topic": _Frame.topic_column,
    "brokerName": _Frame.broker_column,
    "queueId": lambda frame: frame.number_column("queue_id", "<i4"),
    "queueOffset": lambda frame: frame.number_column("queue_offset", "<i8"),
    "body": _Frame.body_column,
    "tags": lambda frame: frame.property(props.TAGS),
    "keys": lambda frame: frame.property(props.KEYS),
    "properties": _Frame.properties_column,
    "msgId": _Frame.id_column,
    "bornTimestamp": lambda frame: frame.time_column("born_timestamp"),
    "storeTimestamp": lambda frame: frame.time_column("store_timestamp"),
    "flag": lambda frame: frame.number_column("flag", "<i4"),
    "sysFlag": _Frame.sys_flag_column,
    "reconsumeTimes": lambda frame: frame.number_column("reconsume_times", "<i4"),
    "bornHost": lambda frame: frame.host_column("born_host"),
    "storeHost": lambda frame: frame.host_column("store_host"),
    "physicalOffset": lambda frame: frame.number_column("physical_offset", "<i8"),
}
