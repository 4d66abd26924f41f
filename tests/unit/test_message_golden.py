"""Messages of the real RocketMQ: every one decodes, and its values encode to the same bytes again."""

import collections
import gzip
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cometmq.protocol import names, namespaces, properties, signing, sysflag
from cometmq.protocol.batch import decode_batch, encode_batch
from cometmq.protocol.checksum import crc32, reserve_property_crc, seal_property_crc, verify_property_crc
from cometmq.protocol.compression import decompress
from cometmq.protocol.message_id import (
    UniqueKeyGenerator,
    decode_message_id,
    decode_unique_key,
    encode_message_id,
    pack_host,
)
from cometmq.protocol.record import (
    MAGIC_BLANK,
    Record,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    record_size,
)
from support import golden

STORE = Path(__file__).parent.parent / "data" / "store"

# Answers that carry records: pull, lite pull, query, view by id, pop. Requests that do: check of a transaction,
# consume directly.
ANSWERED = {11, 361, 12, 33, 200050}
ASKED = {39, 309}
USERS = {"rocketmq": "12345678", "alice": "alicepw1"}


def exchanges() -> Iterator[golden.Exchange]:
    for name in golden.names():
        yield from golden.exchanges(name)


def record_bodies() -> Iterator[tuple[golden.Frame, int, bytes]]:
    """Frame, code of the request, and bytes of every body that holds records."""
    for exchange in exchanges():
        request, response = exchange.request, exchange.response
        if request.code in ASKED and request.whole and request.body:
            yield request, request.code, request.body
        if request.code in ANSWERED and response and response.whole and response.code == 0 and response.body:
            yield response, request.code, response.body


def encoded(record: Record) -> bytes:
    topic = record.topic.encode()
    hosts = len(record.born_host) + len(record.store_host)
    buffer = bytearray(record_size(len(record.body), len(topic), len(record.properties), hosts))
    size = encode_record(
        buffer,
        0,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        topic,
        record.properties,
    )
    assert size == len(buffer) == record.size
    return bytes(buffer)


def test_records_on_the_wire() -> None:
    found: collections.Counter[int] = collections.Counter()
    for frame, code, body in record_bodies():
        records = list(decode_records(body))
        assert b"".join(map(encoded, records)) == body, str(frame)
        found[code] += len(records)
    assert found == {11: 183, 361: 62, 12: 7, 33: 7, 39: 9, 309: 2, 200050: 6}


def test_properties_of_records_on_the_wire() -> None:
    terminated: collections.Counter[bool] = collections.Counter()
    for frame, _, body in record_bodies():
        for record in decode_records(body):
            pairs = record.property_map()
            for name in properties.WELL_KNOWN:
                found = properties.find(record.properties, name.encode())
                assert (found.decode() if found else None) == pairs.get(name), str(frame)
            # Java 5 terminates the last pair, Java 4 does not.
            ends = record.properties.endswith(b"\x02")
            terminated[ends] += 1
            if b"\x01\x02" not in record.properties and record.properties.count(b"\x01") == len(pairs):
                text = properties.encode_properties(pairs)
                assert (text if ends else text[:-1]) == record.properties, str(frame)
    assert set(terminated) == {True, False}


def test_offset_message_ids_on_the_wire() -> None:
    seen = 0
    for exchange in exchanges():
        response = exchange.response
        if exchange.request.code in (10, 310, 320) and response and response.code == 0:
            for text in response.ext["msgId"].split(","):
                place = decode_message_id(text)
                assert encode_message_id(pack_host(place.host, place.port), place.physical_offset) == text
                seen += 1
    assert seen > 100


def test_unique_keys_on_the_wire() -> None:
    hosts = set()
    for exchange in exchanges():
        request = exchange.request
        if request.code != 310:
            continue
        text = properties.parse_properties(request.ext["i"]).get(properties.UNIQ_KEY)
        if text is None:
            continue
        key = decode_unique_key(text)
        born = datetime.fromtimestamp(int(request.ext["g"]) / 1000, UTC)
        sent = key.sent_at(born)
        # A key is made before the first try to send; the captures were made in UTC.
        assert 0 <= (born - sent).total_seconds() < 60, str(request)
        hosts.add(key.host)
        again = UniqueKeyGenerator(
            key.host, key.pid, key.hash_code, clock=lambda sent=sent: round(sent.timestamp() * 1000), zone=UTC
        )
        assert again()[:-4] == text[:-4]
    assert hosts == {"192.0.2.2", "fd00::2"}


def test_batches_on_the_wire() -> None:
    bodies = [exchange.request.body for exchange in exchanges() if exchange.request.code == 320]
    assert len(bodies) == 5
    for body in bodies:
        items = decode_batch(body)
        assert len(items) == 5
        assert encode_batch(items) == body
        assert all(properties.find(item.properties, b"UNIQ_KEY") for item in items)


def test_compressed_bodies_on_the_wire() -> None:
    kinds = collections.Counter()
    for exchange in exchanges():
        request = exchange.request
        flag = int(request.ext.get("f", 0)) if request.code == 310 else 0
        if not request.whole or not sysflag.is_compressed(flag):
            continue
        kind = sysflag.compression_type(flag)
        plain = decompress(request.body, kind)
        assert len(plain) > len(request.body), str(request)
        assert len(plain) >= 4096, str(request)
        kinds[kind.name] += 1
    assert kinds == {"ZLIB": 5, "LZ4": 1, "ZSTD": 1}


def test_signatures_on_the_wire() -> None:
    results: collections.Counter[tuple[str, bool]] = collections.Counter()
    for exchange in golden.exchanges("auth"):
        request, response = exchange.request, exchange.response
        user = request.ext.get(signing.ACCESS_KEY)
        if user not in USERS:
            continue
        right = signing.verify(request.ext, request.body, USERS[user], version=request.version)
        results[user, right] += 1
        unsigned = {key: value for key, value in request.ext.items() if key != signing.SIGNATURE}
        assert (signing.sign(unsigned, request.body, USERS[user]) == request.ext[signing.SIGNATURE]) is right
        # One client of the capture has a wrong secret. The nameserver does not look; the broker refuses it.
        refused = (
            response is not None
            and response.header is not None
            and (response.header.get("remark") == "check signature failed.")
        )
        if request.link == "client-broker":
            assert right is not refused, str(request)
    assert results == {("rocketmq", True): 43, ("rocketmq", False): 7, ("alice", True): 13}


def test_body_checksums_of_registrations_on_the_wire() -> None:
    checked = 0
    for exchange in exchanges():
        request = exchange.request
        if request.code == 103 and request.whole and int(request.ext.get("bodyCrc32", 0)):
            assert crc32(request.body) == int(request.ext["bodyCrc32"]), str(request)
            checked += 1
    assert checked > 5


def test_names_on_the_wire() -> None:
    topics = {record.topic for _, _, body in record_bodies() for record in decode_records(body)}
    assert any(names.is_retry_topic(topic) for topic in topics)
    for topic in topics:
        names.validate_topic(topic)
    wrapped = {topic for topic in topics if namespaces.namespace_of(topic) == "MQ_INST_X"}
    assert "MQ_INST_X%TopicNs" in wrapped
    for topic in wrapped:
        assert namespaces.wrap("MQ_INST_X", namespaces.unwrap("MQ_INST_X", topic)) == topic


def test_namespace_fields_on_the_wire() -> None:
    marked = [exchange.request.ext for exchange in golden.exchanges("namespaces") if "nsd" in exchange.request.ext]
    assert marked
    for ext in marked:
        assert namespaces.namespace_fields(ext["ns"]).items() <= ext.items()


def read_log(name: str) -> tuple[int, bytes]:
    """The physical offset and the bytes of a piece of a commit log."""
    return int(name.rpartition("-")[2]), gzip.decompress((STORE / f"{name}.log.gz").read_bytes())


@pytest.mark.parametrize(
    ("name", "count", "topics"),
    [
        ("clean-3145728", 87, {"RMQ_SYS_TRANS_HALF_TOPIC", "StoreBatch", "%DLQ%CG_store", "rmq_sys_wheel_timer"}),
        ("clean49-3062070", 87, {"RMQ_SYS_TRANS_OP_HALF_TOPIC", "StoreBatch", "%RETRY%CG_store"}),
        ("special-0", 36, {"BatchCqTopic", "LmqTopic"}),
    ],
)
def test_records_on_disk(name: str, count: int, topics: set[str]) -> None:
    base, log = read_log(name)
    at = 0
    records = []
    for record in decode_records(log):
        assert record.physical_offset == base + at
        assert encoded(record) == log[at : at + record.size]
        at += record.size
        records.append(record)
    assert len(records) == count
    assert topics <= {record.topic for record in records}
    plain = list(decode_records(log, decompress=True))
    assert any(
        sysflag.is_compressed(stored.sys_flag) and len(read.body) > len(stored.body)
        for stored, read in zip(records, plain, strict=True)
    ) is (name != "special-0")


def test_property_checksums_on_disk() -> None:
    _, log = read_log("special-0")
    at = 0
    inner_batches = 0
    for record in decode_records(log):
        assert verify_property_crc(log, at, record.size)
        # Made again from the text without the trailer, the record has the same bytes.
        text = properties.remove(record.properties, b"__CRC32#")
        assert reserve_property_crc(text)[:-20] == record.properties[:-20]
        copy = bytearray(encoded(record))
        copy[-20:] = bytes(20)
        seal_property_crc(copy, 0, len(copy))
        assert copy == log[at : at + record.size]
        if record.sys_flag & sysflag.INNER_BATCH:
            items = decode_batch(record.body)
            assert len(items) == int(record.property_map()[properties.INNER_NUM])
            assert encode_batch(items) == record.body
            inner_batches += 1
        at += record.size
    assert inner_batches == 5


def test_blank_record_on_disk() -> None:
    _, log = read_log("clean-1044657")
    at = decode_record(log).size
    assert int.from_bytes(log[at + 4 : at + 8], "big", signed=True) == MAGIC_BLANK
    buffer = bytearray(8)
    encode_blank(buffer, 0, len(log) - at)
    assert buffer == log[at : at + 8]
