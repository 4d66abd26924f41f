"""The slow way from bytes to Arrow, a record at a time: for whatever the fast way of `decode` does not take.

That is compressed bodies, IPv6 hosts, long topics, inner batches, odd properties, and damage. Here it is decided what
becomes of a damaged message. The records are those of `cometmq.protocol.record`, the properties as Java reads them.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from cometmq.client.consumer.pulling import unwrapped
from cometmq.protocol import namespaces, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.compression import CodecMissing
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import Record, decode_record
from cometmq.spark.columns import Columns
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.frame import host_text
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import FAIL, SKIP

log = logging.getLogger(__name__)

#: Bytes that a row takes in Arrow beside its body and its properties; these are there as a map and as columns.
_REST_OF_A_ROW: Final = 256

#: The milliseconds that, as microseconds, still fit into an i64: beyond stands a broken clock.
MAX_MILLIS: Final = (2**63 - 1) // 1000


class CorruptMessage(SparkSourceError):
    """Raised when a message is damaged and `corruptMessages` does not say what to do instead."""

    def __init__(self, queue: QueueId, offset: int, reason: str, remedy: str) -> None:
        super().__init__(f"{queue}: the message at offset {offset} cannot be decoded: {reason}", remedy)
        self.args = (queue, offset, reason, remedy)
        self.queue = queue
        self.offset = offset


class SlowRules(NamedTuple):
    """What the slow way has to know of a query."""

    columns: Columns
    namespace: str
    #: Texts of the tags that are let through; empty: all.
    tags: frozenset[str]
    corrupt: str
    check_crc: bool
    #: Bytes that the rows of a batch may take.
    batch_bytes: int

    @property
    def needs_body(self) -> bool:
        return "body" in self.columns


class SlowRow(NamedTuple):
    """A message, ready for its columns."""

    record: Record
    broker: str
    properties: dict[str, str]
    namespace: str

    @property
    def weight(self) -> int:
        """Bytes that it takes in a batch, rather too many."""
        return len(self.record.body) + 2 * len(self.record.properties) + _REST_OF_A_ROW


def slow_rows(data: bytes, start: int, source: QueueRange, rules: SlowRules) -> list[SlowRow]:
    """The messages of the record at `start` that belong to the range: mostly one, more out of an inner batch."""
    rows = []
    for record in _records(data, start, source.queue, rules):
        if not source.start <= record.queue_offset < source.stop:
            continue
        properties = record.property_map()
        if not rules.tags or properties.get(props.TAGS) in rules.tags:
            rows.append(SlowRow(record, source.broker, properties, rules.namespace))
    return rows


def _records(data: bytes, start: int, queue: QueueId, rules: SlowRules) -> list[Record]:
    try:
        is_batch = _is_inner_batch(decode_record(data, start, check_crc=False, read_body=False))
        with_body = rules.needs_body or is_batch
        record = decode_record(
            data, start, check_crc=rules.check_crc and with_body, read_body=with_body, decompress=with_body
        )
        if not with_body and record.sys_flag & sysflag.COMPRESSED:
            # The column says the same whether the body was asked for or not.
            record = msgspec.structs.replace(record, sys_flag=sysflag.without_compression(record.sys_flag))
        return unwrapped(record) if is_batch else [record]
    except CodecMissing as error:
        raise CorruptMessage(queue, _offset(data, start), str(error), error.remedy) from error
    except RecordError as error:
        return _damaged(data, start, queue, rules, error)


def _is_inner_batch(record: Record) -> bool:
    wanted = sysflag.NEED_UNWRAP | sysflag.INNER_BATCH
    return record.sys_flag & wanted == wanted


def _damaged(data: bytes, start: int, queue: QueueId, rules: SlowRules, error: RecordError) -> list[Record]:
    offset = _offset(data, start)
    if rules.corrupt == SKIP:
        log.warning("%s: the message at offset %d is left out: %s", queue, offset, error)
        return []
    remedy = "set corruptMessages to raw for its bytes as they are stored, or to skip to go on without it"
    if rules.corrupt != FAIL:
        try:
            return [decode_record(data, start, check_crc=False)]
        except RecordError:
            remedy = "its structure is broken too: set corruptMessages to skip to go on without it"
    raise CorruptMessage(queue, offset, str(error), remedy) from error


def _offset(data: bytes, start: int) -> int:
    """The queue offset that a record says, whatever else it is."""
    return int.from_bytes(data[start + 20 : start + 28], "big", signed=True)


def micros(millis: int) -> int:
    return max(-MAX_MILLIS, min(millis, MAX_MILLIS)) * 1000


def json_text(properties: dict[str, str]) -> str:
    return msgspec.json.encode(properties).decode()


_VALUES: Final[dict[str, Callable[[SlowRow], Any]]] = {
    "topic": lambda row: namespaces.unwrap(row.namespace, row.record.topic),
    "brokerName": lambda row: row.broker,
    "queueId": lambda row: row.record.queue_id,
    "queueOffset": lambda row: row.record.queue_offset,
    "body": lambda row: row.record.body,
    "tags": lambda row: row.properties.get(props.TAGS),
    "keys": lambda row: row.properties.get(props.KEYS),
    "properties": lambda row: list(row.properties.items()),
    "msgId": lambda row: row.properties.get(props.UNIQ_KEY) or row.record.message_id,
    "bornTimestamp": lambda row: micros(row.record.born_timestamp),
    "storeTimestamp": lambda row: micros(row.record.store_timestamp),
    "flag": lambda row: row.record.flag,
    "sysFlag": lambda row: row.record.sys_flag,
    "reconsumeTimes": lambda row: row.record.reconsume_times,
    "bornHost": lambda row: host_text(row.record.born_host),
    "storeHost": lambda row: host_text(row.record.store_host),
    "physicalOffset": lambda row: row.record.physical_offset,
}


def slow_batch(rows: list[SlowRow], columns: Columns, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as Arrow."""
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        value = _VALUES[name]
        values = [value(row) for row in rows]
        if name == "properties" and columns.properties_as_json:
            values = [json_text(dict(pairs)) for pairs in values]
        arrays.append(pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
