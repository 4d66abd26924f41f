"""Cuts the rows of a task into requests: batches for most, single messages for those with a delivery time to come.

Between encoding (`sink_rows`), choosing (`sink_lanes`) and sending (`sink_sender`): values in, values out.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.message import Message
from cometmq.client.producer.outgoing import SEND_BATCH, Outgoing
from cometmq.spark.access import Access
from cometmq.spark.sink_lanes import Lane, Lanes
from cometmq.spark.sink_properties import RESERVED, RESERVED_PREFIX
from cometmq.spark.sink_rows import Flags, Ints, RowEncoder, Rows
from cometmq.spark.sink_sender import Request
from cometmq.spark.stamps import SPARK_ROW

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
                yield from self._single(rows.only(later))
                rows = rows.only(~later)
        if len(rows.numbers):
            yield from self._batches(rows)

    def _batches(self, rows: Rows) -> Iterator[Request]:
        items = self._encoder.items(rows)
        for lane, places in self._lanes.of(rows):
            taken, numbers = items, rows.numbers
            if places is not None:
                taken, numbers = items.take(pa.array(places)), rows.numbers[places]
            topic = self._access.wire_topic(lane.topic)
            for body, first, last in _cut(taken, numbers, self._send_bytes):
                # Every item has a unique key of its own: the whole needs none.
                outgoing = Outgoing(topic, body, self._encoder.common, "", code=SEND_BATCH)
                yield Request(lane, outgoing, len(body), rows.partition, first, last)

    def _single(self, rows: Rows) -> Iterator[Request]:
        self._encoder.items(rows)  # refuses what cannot be sent
        lanes = self._lanes.of(rows)
        of_row: dict[int, Lane] = {}
        for lane, places in lanes:
            of_row |= dict.fromkeys(range(len(rows.numbers)) if places is None else places.tolist(), lane)
        for at, row in enumerate(rows.batch.to_pylist(maps_as_pydicts="strict")):
            number = int(rows.numbers[at])
            message = self._message(row, number)
            yield Request(of_row[at], message, len(message.body), rows.partition, number, number)

    def _message(self, row: dict[str, Any], number: int) -> Message:
        body, own = row["body"], row.get("properties") or {}
        kept = {name: value for name, value in own.items() if name not in RESERVED}
        kept = {name: value for name, value in kept.items() if not name.startswith(RESERVED_PREFIX)}
        return Message(
            body.encode() if isinstance(body, str) else body,
            tag=row.get("tags") or None,
            keys=row.get("keys") or None,
            properties=kept | {SPARK_ROW: f"{self._encoder.stamp_prefix}{number}"},
            flag=row.get("flag") or 0,
            sharding_key=row.get("shardingKey") or None,
            deliver_at=row["deliverTime"].astimezone(UTC),
        )


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
