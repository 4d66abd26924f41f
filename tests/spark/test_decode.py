"""The decoder against the plain loop: whatever the records are, and whichever columns are asked for."""

import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampNTZType

from cometmq.protocol import sysflag
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.record import BLANK_SIZE, MAGIC_BLANK, MIN_RECORD_SIZE, decode_records
from cometmq.spark import native
from cometmq.spark.columns import TYPES, Columns, full_schema
from cometmq.spark.decode import Decoder
from cometmq.spark.errors import OptionError
from cometmq.spark.frame import Piece
from cometmq.spark.irregular import CorruptMessage
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.read_options import RAW, SKIP
from support.spark_records import EVERYTHING, Given, alike, encode, givens, inner_batch, packed, plain_rows

pytestmark = pytest.mark.spark

ALL = Columns.of(full_schema())
STORE = Path(__file__).parents[1] / "data" / "store"


@pytest.fixture(scope="module", params=["native", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here by the native twin and without it."""
    if request.param == "native" and not native.IS_BUILT:
        pytest.skip("there was no compiler to build the native twin")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(native, "_native", None)
        yield


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """The rows as the plain loop gives them: times are microseconds."""
    batch.validate(full=True)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = (column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def decode(data: bytes, columns: Columns, source: QueueRange) -> pa.RecordBatch:
    """The messages of one pull that belong to a range."""
    return Decoder(columns).decode([Piece(source, data)])


def only(names: list[str]) -> Columns:
    return Columns.of(StructType([full_schema()[name] for name in names]))


@given(givens | alike)
@settings(max_examples=200)
def test_equal_to_a_plain_loop(records):
    data = encode(records)
    batch = decode(data, ALL, EVERYTHING)
    assert batch.schema == ALL.arrow_schema
    assert rows_of(batch) == plain_rows(data)


@given(givens | alike, st.lists(st.sampled_from(list(TYPES)), min_size=1, unique=True))
@settings(max_examples=100)
def test_every_choice_of_columns(records, names):
    data = encode(records)
    batch = decode(data, only(names), EVERYTHING)
    assert batch.schema.names == names
    assert rows_of(batch) == [{name: row[name] for name in names} for row in plain_rows(data)]


@given(givens, st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=60)
def test_only_the_offsets_of_the_range(records, start, stop):
    data = encode(records)
    source = EVERYTHING._replace(start=start, stop=stop)
    assert rows_of(decode(data, ALL, source)) == plain_rows(data, source)


@given(st.lists(st.tuples(givens, st.sampled_from(["a", "b"])), min_size=1, max_size=4))
@settings(max_examples=40)
def test_pieces_of_several_queues_in_one_batch(given_pieces):
    pieces = [Piece(EVERYTHING._replace(broker=broker), encode(records)) for records, broker in given_pieces]
    rows = rows_of(Decoder(ALL).decode(pieces))
    assert rows == [row for piece in pieces for row in plain_rows(piece.data, piece.source)]


def golden_records(name: str) -> bytes:
    """A piece of a commit log of the real RocketMQ, up to its blank record."""
    data = gzip.decompress((STORE / f"{name}.log.gz").read_bytes())
    end = 0
    while end + BLANK_SIZE <= len(data):
        size = int.from_bytes(data[end : end + 4], "big", signed=True)
        magic = int.from_bytes(data[end + 4 : end + 8], "big", signed=True)
        if magic == MAGIC_BLANK or size < MIN_RECORD_SIZE or end + size > len(data):
            break
        end += size
    return data[:end]


@pytest.mark.parametrize("name", ["clean-1044657", "clean-3145728", "clean49-3062070", "special-0"])
def test_logs_of_the_real_rocketmq(name):
    data = golden_records(name)
    assert list(decode_records(data)), "the file has records"
    assert rows_of(decode(data, ALL, EVERYTHING)) == plain_rows(data)
    for column in TYPES:
        shown = rows_of(decode(data, only([column]), EVERYTHING))
        assert shown == [{column: row[column]} for row in plain_rows(data)]


def test_many_different_property_names():
    records = [Given(properties=b"".join(b"n%d\x01v\x02" % (i * 7 + k) for k in range(5))) for i in range(40)]
    records += [Given(properties=b"n1\x01a\x02n1\x01b\x02")]
    data = encode(records)
    rows = rows_of(decode(data, ALL, EVERYTHING))
    assert rows == plain_rows(data)
    assert rows[-1]["properties"] == [("n1", "b")]


def test_properties_as_json():
    columns = Columns.of(full_schema(properties_as_json=True))
    data = encode([Given(properties='a\x01"q"\x02b\x01ü\x02'.encode()), packed(b"x", sysflag.CompressionType.ZLIB)])
    assert [row["properties"] for row in rows_of(decode(data, columns, EVERYTHING))] == [
        '{"a":"\\"q\\"","b":"ü"}',
        '{"TAGS":"a"}',
    ]


def test_a_namespace_is_taken_off_the_topic():
    data = encode(
        [Given(topic=b"shop%orders"), packed(b"x", sysflag.CompressionType.ZSTD)._replace(topic=b"shop%orders")]
    )
    batch = Decoder(only(["topic"]), namespace="shop").decode([Piece(EVERYTHING, data)])
    assert batch.column(0).to_pylist() == ["orders", "orders"]


def test_tags_are_compared_by_their_text():
    long_topic = b"x" * 200
    data = encode(
        [
            Given(b"1", b"TAGS\x01AaAa\x02"),
            Given(b"2", b"TAGS\x01BBBB\x02"),  # the hash code of AaAa
            Given(b"3", b""),
            Given(b"4", b"TAGS\x01AaAa\x02", topic=long_topic),
            Given(b"5", b"TAGS\x01BBBB\x02", topic=long_topic),
        ]
    )
    batch = Decoder(only(["body"]), tags=frozenset({"AaAa"})).decode([Piece(EVERYTHING, data)])
    assert batch.column(0).to_pylist() == [b"1", b"4"]


def test_the_id_is_the_unique_key_else_the_place_in_the_log():
    data = encode([Given(properties=b"UNIQ_KEY\x01ABC\x02"), Given(store_host=pack_host("10.0.0.9", 10_911))])
    assert decode(data, only(["msgId"]), EVERYTHING).column(0).to_pylist() == ["ABC", plain_rows(data)[1]["msgId"]]


def damaged(records: list[Given], number: int) -> bytes:
    """The records, one with a wrong byte in its body."""
    data = bytearray(encode(records))
    at = data.find(records[number].body)
    data[at] ^= 0xFF
    return bytes(data)


RECORDS = [Given(b"first"), Given(b"second"), Given(b"third")]


def test_a_wrong_checksum_fails_with_queue_offset_and_remedy():
    with pytest.raises(CorruptMessage, match=r"queue 0 of topic T on broker broker-a.*offset 1 .*corruptMessages"):
        decode(damaged(RECORDS, 1), ALL, EVERYTHING)


@pytest.mark.parametrize("body", [b"no zlib at all", b""])
def test_a_body_that_does_not_decompress(body):
    broken = Given(body, sys_flag=sysflag.with_compression(0, sysflag.CompressionType.ZLIB))
    data = encode([RECORDS[0], broken, RECORDS[2]])
    if not body:
        assert rows_of(decode(data, ALL, EVERYTHING)) == plain_rows(data)
        return
    with pytest.raises(CorruptMessage, match=r"offset 1 .*zlib.*corruptMessages"):
        decode(data, ALL, EVERYTHING)
    # Who does not ask for the body does not care.
    assert decode(data, only(["queueOffset"]), EVERYTHING).column(0).to_pylist() == [0, 1, 2]


def test_damaged_messages_are_left_out_or_given_raw_on_demand():
    data = damaged(RECORDS, 1)
    left = Decoder(only(["queueOffset"]), corrupt=SKIP).decode([Piece(EVERYTHING, data)])
    assert left.column(0).to_pylist() == [0, 1, 2], "a body that nobody reads is not checked"
    skipped = Decoder(only(["queueOffset", "body"]), corrupt=SKIP).decode([Piece(EVERYTHING, data)])
    assert skipped.column(0).to_pylist() == [0, 2]
    raw = Decoder(only(["body"]), corrupt=RAW).decode([Piece(EVERYTHING, data)])
    assert raw.column(0).to_pylist() == [b"first", bytes([ord("s") ^ 0xFF]) + b"econd", b"third"]
    unchecked = Decoder(only(["body"]), check_crc=False).decode([Piece(EVERYTHING, data)])
    assert unchecked.columns == raw.columns


def test_a_raw_body_keeps_its_flag():
    flag = sysflag.with_compression(0, sysflag.CompressionType.LZ4)
    data = encode([Given(b"no lz4", sys_flag=flag)])
    batch = Decoder(only(["body", "sysFlag"]), corrupt=RAW).decode([Piece(EVERYTHING, data)])
    assert batch.to_pylist() == [{"body": b"no lz4", "sysFlag": flag}]


@pytest.mark.parametrize("corrupt", [SKIP, RAW])
def test_records_that_do_not_add_up(corrupt):
    data = bytearray(encode(RECORDS))
    data[84:88] = (10_000).to_bytes(4, "big")  # the length of the first body
    decoder = Decoder(only(["body"]), corrupt=corrupt)
    if corrupt == SKIP:
        assert decoder.decode([Piece(EVERYTHING, bytes(data))]).column(0).to_pylist() == [b"second", b"third"]
    else:
        with pytest.raises(CorruptMessage, match=r"offset 0 .*skip"):
            decoder.decode([Piece(EVERYTHING, bytes(data))])


@pytest.mark.parametrize("cut", [1, 90, 200])
def test_bytes_that_are_cut_off(cut):
    data = encode(RECORDS)[:-cut]
    with pytest.raises(CorruptMessage, match=r"topic T on broker broker-a.*checkStore"):
        decode(data, ALL, EVERYTHING)


@given(st.binary(min_size=1, max_size=400))
def test_any_bytes_give_rows_or_this_error(noise):
    try:
        decode(encode(RECORDS) + noise, ALL, EVERYTHING)
    except CorruptMessage:
        return
    raise AssertionError("noise after the records was taken for records")


@given(givens, st.data())
@settings(max_examples=150)
def test_a_flipped_byte_never_gives_anything_but_rows_or_this_error(records, draw):
    data = bytearray(encode(records))
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= draw.draw(st.integers(1, 255))
    try:
        batch = decode(bytes(data), ALL, EVERYTHING)
    except CorruptMessage:
        return
    assert rows_of(batch) == plain_rows(bytes(data))


def test_empty_bytes_are_an_empty_batch():
    batch = decode(b"", ALL, EVERYTHING)
    assert batch.num_rows == 0
    assert batch.schema == ALL.arrow_schema


def test_clocks_out_of_their_minds():
    data = encode([Given(born_timestamp=2**63 - 1), Given(born_timestamp=-(2**63), topic=b"x" * 130)])
    shown = decode(data, only(["bornTimestamp"]), EVERYTHING).column(0).view(pa.int64()).to_pylist()
    limit = (2**63 - 1) // 1000 * 1000
    assert shown == [limit, -limit]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("body", StringType()), "column body is binary"),
        (StructField("queueId", LongType()), "column queueId is int"),
        (StructField("bornTimestamp", TimestampNTZType()), "column bornTimestamp is timestamp"),
        (StructField("properties", MapType(StringType(), LongType())), "map<string,string> or string"),
        (StructField("partition", LongType()), "the source has the columns topic, brokerName"),
        (StructField("tags", StringType(), nullable=False), "drop NOT NULL"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_schema_that_the_source_cannot_fill(field, words):
    with pytest.raises(OptionError, match=words):
        Columns.of(StructType([field]))


def test_a_schema_keeps_its_nullability():
    columns = Columns.of(StructType([StructField("body", BinaryType(), nullable=False), full_schema()["properties"]]))
    batch = decode(encode(RECORDS), columns, EVERYTHING)
    assert batch.schema == columns.arrow_schema
    assert not batch.schema.field("body").nullable


def test_inner_batches_are_cut_to_the_range():
    data = encode([inner_batch([(b"a", b""), (b"b", b""), (b"c", b"")])], first=5)
    batch = decode(data, only(["body", "queueOffset"]), QueueRange("T", "b", 0, 6, 8))
    assert batch.to_pylist() == [{"body": b"b", "queueOffset": 6}, {"body": b"c", "queueOffset": 7}]


MIB = 1024 * 1024


def test_bodies_that_expand_come_in_batches_of_the_size_that_was_told():
    """Some KiB of compressed zeros would take all memory; beyond 2 GiB, Arrow would not even take them."""
    large = [packed(bytes(MIB), sysflag.CompressionType.ZLIB)] * 20
    data = encode([Given(b"first"), Given(b"second"), *large, Given(b"between"), *large, Given(b"last")])
    decoder = Decoder(ALL, batch_bytes=4 * MIB)
    assert decoder.decode([Piece(EVERYTHING, data)]).num_rows == 44  # whatever is loaded at first use is there now
    rows, peaks = [], []
    tracemalloc.start()
    try:
        for batch in decoder.batches([Piece(EVERYTHING, data)]):
            peaks.append(tracemalloc.get_traced_memory()[1])
            assert batch.nbytes <= 4 * MIB
            rows += [(row["queueOffset"], len(row["body"])) for row in rows_of(batch)]
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    assert max(peaks) <= 6 * MIB
    sizes = [5, 6, *[MIB] * 20, 7, *[MIB] * 20, 4]
    assert rows == list(enumerate(sizes))


def test_a_body_that_is_larger_than_a_batch_is_not_cut():
    data = encode([packed(bytes(MIB), sysflag.CompressionType.ZLIB)] * 3)
    batches = list(Decoder(only(["body"]), batch_bytes=1024).batches([Piece(EVERYTHING, data)]))
    assert [batch.num_rows for batch in batches] == [1, 1, 1]


def test_expanding_rows_that_a_tag_leaves_out():
    large = packed(bytes(MIB), sysflag.CompressionType.ZLIB)
    data = encode(
        [large, Given(b"1", b"TAGS\x01b\x02"), large, large._replace(properties=b"TAGS\x01b\x02"), Given(b"2")]
    )
    decoder = Decoder(only(["queueOffset"]), tags=frozenset({"b"}), batch_bytes=1024)
    assert decoder.decode([Piece(EVERYTHING, data)]).column(0).to_pylist() == [1, 3]
