"""Cuts the rows of a task into requests: batches for most, single messages for the large and for the delayed.

A batch must not be larger than a message may be, with all that its items take beside their bodies, and cannot wait for
a delivery time. All rows are encoded as items first, so that a row is the same message either way. Between encoding
(`sink_rows`), choosing (`sink_lanes`) and sending (`sink_sender`): values in, values out.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.producer.outgoing import SEND_BATCH, Outgoing
from cometmq.protocol import properties as props
from cometmq.protocol.batch import decode_batch
from cometmq.spark.access import Access
from cometmq.spark.sink_lanes import Lane, Lanes
from cometmq.spark.sink_rows import Flags, Ints, RowEncoder, Rows
from cometmq.spark.sink_sender import Request

#: Rows and bytes that are encoded at once: enough to make columns pay, too little to fill a worker's memory.
PIECE_ROWS: Final = 16_384
PIECE_BYTES: Final = 32 * 1024 * 1024


def pieces(batch: pa.RecordBatch, first_row: int, partition: int = 0, topic: str = "") -> Iterator[Rows]:
    """The rows of a batch, a bounded part at a time. `first_row` is the number of its first row."""
    count = batch.num_rows
    step = max(1, min(PIECE_ROWS, count * PIECE_BYTES // max(batch.nbytes, 1)))
    for start in range(0, count, step):
        part = batch.slice(start, step)
        yield Rows(part, np.arange(first_row + start, first_row + start + part.num_rows), partition, topic)


class Requests:
    """Makes the requests of one task."""

    def __init__(self, encoder: RowEncoder, lanes: Lanes, access: Access, send_bytes: int) -> None:
        self._encoder = encoder
        self._lanes = lanes
        self._access = access
        self._send_bytes = send_bytes

    def of(self, rows: Rows) -> Iterator[Request]:
        """The requests of some rows; those of one lane in the order of their rows."""
        times = rows.column("deliverTime")
        if times is not None:
            later = _later(times, datetime.now(UTC))
            if later.any():
                yield from self._delayed(rows.only(later))
                rows = rows.only(~later)
        if len(rows.numbers):
            yield from self._batches(rows)

    def _batches(self, rows: Rows) -> Iterator[Request]:
        for lane, items, numbers in self._by_lane(rows):
            for body, first, last in _cut(items, numbers, self._send_bytes):
                if first == last and len(body) > self._send_bytes:
                    yield self._single(lane, body, rows.partition, first)
                    continue
                # Every item has a unique key of its own: the whole needs none.
                topic = self._access.wire_topic(lane.topic)
                outgoing = Outgoing(topic, body, self._encoder.common, "", code=SEND_BATCH)
                yield Request(lane, outgoing, len(body), rows.partition, first, last)

    def _delayed(self, rows: Rows) -> Iterator[Request]:
        # A number says which of the rows an item was: lanes take them out of their order.
        moments = dict(zip(rows.numbers.tolist(), _moments(rows), strict=True))
        for lane, items, numbers in self._by_lane(rows):
            for item, number in zip(items, numbers.tolist(), strict=True):
                yield self._single(lane, item.as_py(), rows.partition, number, moments[number])

    def _by_lane(self, rows: Rows) -> Iterator[tuple[Lane, pa.BinaryArray, Ints]]:
        """The lanes of rows, the items that go there, and the numbers of their rows, in order."""
        items = self._encoder.items(rows)
        for lane, places in self._lanes.of(rows):
            if places is None:
                yield lane, items, rows.numbers
            else:
                yield lane, items.take(pa.array(places)), rows.numbers[places]

    def _single(
        self, lane: Lane, encoded: bytes, partition: int, number: int, deliver_at: datetime | None = None
    ) -> Request:
        (item,) = decode_batch(encoded)
        text = item.properties
        if deliver_at is not None:
            text += f"{props.TIMER_DELIVER_MS}\x01{_millis(deliver_at)}\x02".encode()
        key = (props.find(text, props.UNIQ_KEY.encode()) or b"").decode()
        topic = self._access.wire_topic(lane.topic)
        outgoing = Outgoing(topic, item.body, text.decode(), key, item.flag)
        return Request(lane, outgoing, len(item.body), partition, number, number, deliver_at)


def _moments(rows: Rows) -> list[datetime]:
    times = rows.column("deliverTime")
    assert times is not None, "these rows were chosen by it"
    return [moment.astimezone(UTC) for moment in times.to_pylist()]


def _millis(moment: datetime) -> int:
    """Milliseconds since 1970, rounded up: never before its time."""
    return -((datetime(1970, 1, 1, tzinfo=UTC) - moment) // timedelta(milliseconds=1))


def _later(times: pa.Array, now: datetime) -> Flags:
    moment = pa.scalar(now, pa.timestamp("us", tz="UTC"))
    later: Flags = pc.greater(times.cast(moment.type), moment).fill_null(False).to_numpy(zero_copy_only=False)
    return later


def _cut(items: pa.BinaryArray, numbers: Ints, limit: int) -> Iterator[tuple[bytes, int, int]]:
    """The items in parts of at most so many bytes, or one item; and the numbers of first and last row of each."""
    _, offsets, data = items.buffers()
    ends = np.frombuffer(offsets, np.int32)[items.offset : items.offset + len(items) + 1].astype(np.int64)
    view = memoryview(data)
    start = 0
    while start < len(items):
        stop = max(int(np.searchsorted(ends, ends[start] + limit, side="right")) - 1, start + 1)
        yield bytes(view[ends[start] : ends[stop]]), int(numbers[start]), int(numbers[stop - 1])
        start = stop
