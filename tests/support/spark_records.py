"""Records for the tests of the Spark decoder, and the plain loop that it is held against."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from cometmq.client.consumer.pulling import unwrapped
from cometmq.protocol import compression, sysflag
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.record import Record, decode_records, encode_record, record_size
from cometmq.remoting.address import format_address
from cometmq.spark.queue_range import QueueRange

BROKER = "broker-a"
EVERYTHING = QueueRange("T", BROKER, 0, 0, 2**62)


class Given(NamedTuple):
    """What a record is made of."""

    body: bytes = b"body"
    properties: bytes = b"TAGS\x01a\x02"
    topic: bytes = b"T"
    born_host: bytes = pack_host("10.0.0.1", 50_000)
    store_host: bytes = pack_host("10.0.0.9", 10_911)
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    born_timestamp: int = 1_700_000_000_000
    store_timestamp: int = 1_700_000_000_001


def encode(givens: Iterable[Given], *, first: int = 0, queue_id: int = 3) -> bytes:
    """The records in a row, as a pull brings them, from a queue offset on."""
    out = b""
    for number, given in enumerate(givens):
        hosts = len(given.born_host) + len(given.store_host)
        buffer = bytearray(record_size(len(given.body), len(given.topic), len(given.properties), hosts))
        encode_record(
            buffer,
            0,
            queue_id,
            given.flag,
            first + number,
            4711 + len(out),
            given.sys_flag,
            given.born_timestamp,
            given.born_host,
            given.store_timestamp,
            given.store_host,
            given.reconsume_times,
            0,
            given.body,
            given.topic,
            given.properties,
        )
        out += buffer
    return out


def packed(body: bytes, kind: sysflag.CompressionType) -> Given:
    """A record with a compressed body."""
    return Given(compression.compress(body, kind), sys_flag=sysflag.with_compression(0, kind))


def inner_batch(items: list[tuple[bytes, bytes]]) -> Given:
    """A record that is several messages: bodies and properties."""
    body = encode_batch([BatchItem(7, body, properties) for body, properties in items])
    return Given(body, sys_flag=sysflag.INNER_BATCH | sysflag.NEED_UNWRAP)


def plain_rows(data: bytes, source: QueueRange = EVERYTHING) -> list[dict[str, Any]]:
    """What the decoder has to give, by the loop over records that everybody would write."""
    rows = []
    for stored in decode_records(data, decompress=True):
        whole = stored.sys_flag & sysflag.INNER_BATCH and stored.sys_flag & sysflag.NEED_UNWRAP
        records = unwrapped(stored) if whole else [stored]
        rows += [_row(each, source.broker) for each in records if source.start <= each.queue_offset < source.stop]
    return rows


def _micros(millis: int) -> int:
    """Clocks beyond what a timestamp holds stand at its end."""
    limit = (2**63 - 1) // 1000
    return max(-limit, min(millis, limit)) * 1000


def _row(record: Record, broker: str) -> dict[str, Any]:
    properties = record.property_map()
    return {
        "topic": record.topic,
        "brokerName": broker,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "body": record.body,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": list(properties.items()),
        "msgId": properties.get("UNIQ_KEY") or record.message_id,
        "bornTimestamp": _micros(record.born_timestamp),
        "storeTimestamp": _micros(record.store_timestamp),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "bornHost": format_address(*record.born_address),
        "storeHost": format_address(*record.store_address),
        "physicalOffset": record.physical_offset,
    }


# Generated records: mostly of the usual form, as in real life, so that both ways of the decoder meet in one batch.

_names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "region", "a", "ключ"]) | st.text("abcé", min_size=1, max_size=12)
_values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12)
_texts = st.lists(st.tuples(_names, _values), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
_usual = st.sampled_from([b"TAGS\x01a\x02KEYS\x01k\x02", b"UNIQ_KEY\x01" + b"A" * 32 + b"\x02TAGS\x01b\x02", b""])
#: Without its last terminator; whatever bytes.
_odd = _texts.map(lambda text: text[:-1]) | st.binary(max_size=20)
_hosts = st.sampled_from([("10.0.0.1", 1), ("10.0.0.2", 65_535), ("2001:db8::1", 7)]).map(lambda each: pack_host(*each))
_times = st.integers(-(10**12), 4 * 10**12)

_plain = st.builds(
    Given,
    body=st.binary(max_size=40),
    properties=st.one_of(_usual, _usual, _texts, _odd),
    topic=st.sampled_from([b"T", b"T", b"T", b"T2", "ü".encode(), b"x" * 130]),
    born_host=_hosts,
    store_host=_hosts,
    sys_flag=st.sampled_from([0, 0, sysflag.MULTI_TAGS, sysflag.TRANSACTION_COMMIT]),
    flag=st.integers(-(2**31), 2**31 - 1),
    reconsume_times=st.integers(0, 16),
    born_timestamp=_times,
    store_timestamp=_times,
)
_packed = st.builds(packed, st.binary(min_size=1, max_size=200), st.sampled_from(sysflag.CompressionType))
_items = st.lists(st.tuples(st.binary(max_size=10), _usual), min_size=1, max_size=3)
givens = st.lists(st.one_of(_plain, _plain, _plain, _packed, _items.map(inner_batch)), min_size=1, max_size=12)
#: Those of one producer: the way of the broad columns.
alike = st.integers(30, 80).flatmap(
    lambda count: st.builds(lambda given, bodies: [given._replace(body=body) for body in bodies], _plain,
                            st.lists(st.binary(min_size=3, max_size=4), min_size=count, max_size=count))
)  # fmt: skip
