"""From rows to requests: the items are those that the SDK makes, and whatever cannot be sent is named by its row."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.message import Message
from cometmq.client.producer.outgoing import Packer
from cometmq.client.producer.selectors import java_hash
from cometmq.client.queues import MessageQueue
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.message_id import UniqueKeyGenerator
from cometmq.protocol.properties import decode_properties, parse_properties
from cometmq.spark.access import Access
from cometmq.spark.sink_lanes import Lane, Lanes
from cometmq.spark.sink_requests import Requests, pieces
from cometmq.spark.sink_rows import RowEncoder, RowRefused, Rows
from cometmq.spark.sink_sender import Request
from cometmq.spark.stamps import SPARK_ROW, Stamp

pytestmark = pytest.mark.spark

TEXTS = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "properties": TEXTS,
    "shardingKey": pa.string(),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "deliverTime": pa.timestamp("us", tz="UTC"),
    "flag": pa.int32(),
}
QUEUES = [MessageQueue("T", broker, number) for broker in ("b", "a") for number in range(3)]


def rows_of(first: int = 0, **columns: Sequence[object]) -> Rows:
    arrays = {name: pa.array(values, TYPES[name]) for name, values in columns.items()}
    batch = pa.record_batch(arrays)
    return Rows(batch, np.arange(first, first + batch.num_rows), partition=3, topic="T")


def encoder(**options: Any) -> RowEncoder:
    numbers = count()
    return RowEncoder(lambda now: f"{next(numbers):032X}", stamp_prefix="q:7:3:", **options)


def requests_of(rows: Rows, send_bytes: int = 1 << 20) -> list[Request]:
    access = Access(name_servers=("127.0.0.1:1",))
    return list(Requests(encoder(), Lanes("T", lambda topic: QUEUES), access, send_bytes).of(rows))


def bodies_of(request: Request) -> list[bytes]:
    return [item.body for item in decode_batch(request.content.body)]


words = st.text("ab é😀", min_size=1, max_size=4)
rows_given = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=50),
            "tags": st.none() | words | st.just(""),
            "keys": st.none() | st.lists(words, max_size=3),
            "properties": st.none() | st.dictionaries(words, words, max_size=3),
            "shardingKey": st.none() | words,
            "flag": st.none() | st.integers(-(2**31), 2**31 - 1),
        }
    ),
    min_size=1,
    max_size=8,
)


@given(rows_given, st.sampled_from(["", "space"]), st.booleans())
def test_the_items_are_those_of_the_sdk(given_rows: list[dict[str, Any]], namespace: str, is_slice: bool) -> None:
    columns: dict[str, list[Any]] = {name: [row[name] for row in given_rows] for name in given_rows[0]}
    columns["properties"] = [None if each is None else list(each.items()) for each in columns["properties"]]
    if is_slice:
        # What Spark sends is whole, what is cut into pieces is not.
        columns = {name: [values[0], *values, values[-1]] for name, values in columns.items()}
    rows = rows_of(**columns)
    if is_slice:
        rows = rows._replace(batch=rows.batch.slice(1, len(given_rows)), numbers=np.arange(len(given_rows)))
    made = [decode_batch(item.as_py())[0] for item in encoder(namespace=namespace).items(rows)]
    packer = Packer(
        UniqueKeyGenerator("127.0.0.1", 1, 2), compression=None, max_message_size=1 << 22, instance_id=namespace
    )
    for number, (item, row) in enumerate(zip(made, given_rows, strict=True)):
        message = Message(
            row["body"],
            tag=row["tags"],
            keys=row["keys"],
            properties=(row["properties"] or {}) | {SPARK_ROW: f"q:7:3:{number}"},
            flag=row["flag"] or 0,
            sharding_key=row["shardingKey"],
        )
        _, _, head, tail = packer.message_item(message)
        (expected,) = decode_batch(head + message.body + tail)
        assert (item.flag, item.body) == (expected.flag, expected.body)
        wanted = decode_properties(expected.properties)
        got = decode_properties(item.properties)
        assert got.pop("UNIQ_KEY") == f"{number:032X}"
        assert len(wanted.pop("UNIQ_KEY")) == 32
        assert got == wanted
        assert len(item.properties) == len(expected.properties)


def test_bodies_may_be_texts_and_large_types() -> None:
    batch = pa.record_batch({"body": pa.array(["ä"], pa.large_string()), "tags": pa.array(["t"], pa.large_string())})
    (item,) = encoder().items(Rows(batch, np.arange(1)))
    (decoded,) = decode_batch(item.as_py())
    assert decoded.body == "ä".encode()
    assert decode_properties(decoded.properties)["TAGS"] == "t"


def test_the_buyer_is_a_users_property() -> None:
    rows = rows_of(body=[b"x"], properties=[[(name, "1") for name in ("BUYER_ID", "TTL", "INSTANCE_ID", "MQ2_FLAG")]])
    (item,) = encoder(drops_reserved=True).items(rows)
    found = decode_properties(decode_batch(item.as_py())[0].properties)
    assert found.keys() == {"UNIQ_KEY", "WAIT", SPARK_ROW, "BUYER_ID"}


def test_names_of_rocketmq_are_left_out_of_the_properties_or_refused() -> None:
    own = [("UNIQ_KEY", "old"), ("a", "1"), (SPARK_ROW, "x:1:2:3"), ("__RMQ.TRANSIENT.x", "y"), ("TAGS", "no")]
    rows = rows_of(body=[b"x", b"y"], properties=[[("b", "2")], own], tags=["t", None])
    first, second = (decode_properties(decode_batch(item.as_py())[0].properties) for item in encoder().items(rows))
    assert {"TAGS": "t", "b": "2", SPARK_ROW: "q:7:3:0"}.items() <= first.items()
    assert {name: value for name, value in second.items() if name not in ("UNIQ_KEY", "WAIT")} == {
        "a": "1",
        SPARK_ROW: "q:7:3:1",
    }
    with pytest.raises(RowRefused, match=r"row 1 of partition 3 for topic T: property UNIQ_KEY .* reservedProperties"):
        encoder(drops_reserved=False).items(rows)


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"body": [b"x", None]}, "its body is null"),
        ({"body": [b"x", b""]}, "its body is empty"),
        ({"body": [b"x", b"x" * (16 << 20)]}, "it takes more than 16711680 bytes"),
        ({"body": [b"x"] * 2, "tags": ["t", "a\x02b"]}, "0x02, which separates properties"),
        ({"body": [b"x"] * 2, "keys": [["k"], ["k", "\x02"]]}, "0x02, which separates properties"),
        ({"body": [b"x"] * 2, "properties": [None, [("a", "b\x02c\x01d")]]}, "0x02, which separates properties"),
        ({"body": [b"x"] * 2, "properties": [[("a", "b")], [("a", "b"), ("c\x01", "d")]]}, "0x01, which ends names"),
        ({"body": [b"x"] * 2, "properties": [[("a", "b")], [("a", "b"), ("c", "")]]}, "null or empty"),
        ({"body": [b"x"] * 2, "properties": [[("a", "b")], [("c", None)]]}, "null or empty"),
        ({"body": [b"x"] * 2, "properties": [[], [("", "v")]]}, "an empty name"),
        ({"body": [b"x"] * 2, "properties": [[], [("p", "v" * 40_000)]]}, "take more than 32767 bytes"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, list[Any]], cause: str) -> None:
    with pytest.raises(RowRefused, match="row 11 of partition 3 for topic T: ") as caught:
        encoder().items(rows_of(10, **columns))
    assert cause in str(caught.value)
    assert caught.value.remedy


def test_a_null_among_the_keys_is_refused() -> None:
    batch = pa.record_batch({"body": [b"x"], "keys": pa.array([["a", None]], pa.list_(pa.string()))})
    with pytest.raises(RowRefused, match="one of its keys is null"):
        encoder().items(Rows(batch, np.arange(1)))


def test_rows_without_a_queue_go_together_in_pieces() -> None:
    rows = rows_of(body=[b"%05d" % number for number in range(1000)])
    requests = requests_of(rows, send_bytes=10_000)
    assert {request.lane for request in requests} == {Lane("T")}
    assert len(requests) > 5
    assert all(request.size <= 10_000 for request in requests)
    assert [body for request in requests for body in bodies_of(request)] == [b"%05d" % number for number in range(1000)]
    assert [(request.first_row, request.last_row) for request in requests[:1]] == [(0, len(bodies_of(requests[0])) - 1)]


def test_a_row_that_is_larger_than_a_request_goes_alone() -> None:
    bodies = [b"0", b"1" * (4 << 20), b"2"]  # RocketMQ counts the body of a message; of a batch all of it
    rows = rows_of(body=bodies, queueId=[1] * 3, tags=["t"] * 3, flag=[7] * 3, properties=[[("a", "1")]] * 3)
    first, large, last = requests_of(rows, send_bytes=4 << 20)
    assert (bodies_of(first), bodies_of(last)) == ([b"0"], [b"2"])
    assert first.content.is_batch
    assert not large.content.is_batch
    assert (large.content.body, large.content.flag, large.first_row, large.last_row) == (bodies[1], 7, 1, 1)
    assert large.lane == first.lane == Lane("T", MessageQueue("T", "a", 1))
    found = parse_properties(large.content.properties)
    assert found.pop("UNIQ_KEY") == large.content.unique_key
    assert found == {"WAIT": "true", "TAGS": "t", "a": "1", SPARK_ROW: "q:7:3:1"}


def test_values_keep_what_ends_names() -> None:
    """RocketMQ writes it, and looks for the first one when it reads."""
    rows = rows_of(body=[b"x"], tags=["a\x01b"], keys=[["k\x01", "l"]], properties=[[("d", "1\x01 2"), ("e", "f")]])
    (item,) = encoder().items(rows)
    found = decode_properties(decode_batch(item.as_py())[0].properties)
    assert {"TAGS": "a\x01b", "KEYS": "k\x01 l", "d": "1\x01 2", "e": "f"}.items() <= found.items()


def test_rows_of_a_key_go_to_its_queue_in_order() -> None:
    keys = [f"k{number % 20}" for number in range(200)]
    requests = requests_of(rows_of(body=[b"%d" % number for number in range(200)], shardingKey=keys))
    for request in requests:
        numbers = [int(body) for body in bodies_of(request)]
        assert numbers == sorted(numbers)
        assert {java_hash(QUEUES, Message(b"x"), keys[number]) for number in numbers} == {request.lane.queue}
    assert sum(len(bodies_of(request)) for request in requests) == 200
    assert len({request.lane for request in requests}) == len(requests) > 1


def test_queues_and_topics_are_the_rows_own() -> None:
    requests = requests_of(
        rows_of(
            body=[b"0", b"1", b"2", b"3", b"4"],
            topic=["A", None, "A", None, "B"],
            queueId=[None, 1, None, 1, None],
            brokerName=[None, "b", None, None, None],
        )
    )
    assert {request.lane: bodies_of(request) for request in requests} == {
        Lane("A"): [b"0", b"2"],
        Lane("T", MessageQueue("T", "b", 1)): [b"1"],
        Lane("T", MessageQueue("T", "a", 1)): [b"3"],
        Lane("B"): [b"4"],
    }


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        (
            {"queueId": [0, 9]},
            "for topic T: topic T has no queue 9 to write to: its queues are a/0",
        ),
        ({"queueId": [0, 1], "brokerName": ["a", "c"]}, "row 1 of partition 3 for topic T: topic T has no queue c/1"),
        (
            {"queueId": [0, None], "brokerName": ["a", "b"]},
            "row 1 of partition 3 for topic T: it names broker b and no",
        ),
        ({"topic": ["ok", "not ok"]}, "row 1 of partition 3 for topic not ok: 'not ok' is no topic to send to"),
    ],
)
def test_places_that_are_none_are_refused(columns: dict[str, list[Any]], cause: str) -> None:
    with pytest.raises(RowRefused) as caught:
        requests_of(rows_of(body=[b"x", b"y"], **columns))
    assert cause in str(caught.value)


def test_a_row_without_a_topic_is_refused_when_there_is_no_default() -> None:
    rows = rows_of(body=[b"x", b"y"], topic=["A", None])._replace(topic="")
    access = Access(name_servers=("127.0.0.1:1",))
    with pytest.raises(RowRefused, match="row 1 of partition 3: it has no topic"):
        list(Requests(encoder(), Lanes("", lambda topic: QUEUES), access, 1000).of(rows))


def test_what_is_to_be_delivered_later_goes_alone() -> None:
    later = datetime.now(UTC).replace(microsecond=500_000) + timedelta(hours=1)
    rows = rows_of(
        body=[b"0", b"1", b"2", b"3"],
        deliverTime=[None, later, datetime(2020, 1, 1, tzinfo=UTC), later + timedelta(microseconds=1)],
        shardingKey=["k", "k", None, None],
        properties=[None, [("a", "1"), ("TAGS", "no")], None, [("__SHARDINGKEY", "no")]],
        keys=[None, ["k1", "k2"], None, None],
        flag=[0, 7, 0, 0],
    )
    *batches, first, second = sorted(requests_of(rows), key=lambda each: each.deliver_at is not None)
    first, second = sorted((first, second), key=lambda each: each.first_row)
    for single, number in ((first, 1), (second, 3)):
        assert not single.content.is_batch
        assert (single.content.body, single.first_row, single.last_row) == (b"%d" % number, number, number)
    assert (first.content.flag, first.deliver_at) == (7, later)
    assert first.lane.queue == java_hash(QUEUES, Message(b"x"), "k")
    assert second.lane.queue is None
    millis = round(later.timestamp() * 1000)
    found = parse_properties(first.content.properties)
    assert found.pop("UNIQ_KEY") == first.content.unique_key
    assert found == {
        "WAIT": "true",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "k",
        "a": "1",
        SPARK_ROW: "q:7:3:1",
        "TIMER_DELIVER_MS": str(millis),
    }
    # A row is the same message, whichever way it goes: where there is a column, it alone says the sharding key.
    found = parse_properties(second.content.properties)
    assert found.keys() == {"UNIQ_KEY", "WAIT", SPARK_ROW, "TIMER_DELIVER_MS"}
    assert found["TIMER_DELIVER_MS"] == str(millis + 1)
    assert sorted(body for batch in batches for body in bodies_of(batch)) == [b"0", b"2"]


def test_a_large_batch_is_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.spark.sink_requests.PIECE_ROWS", 7)
    batch = pa.record_batch({"body": [b"%d" % number for number in range(20)]})
    parts = list(pieces(batch, 100))
    assert [part.batch.num_rows for part in parts] == [7, 7, 6]
    assert np.concatenate([part.numbers for part in parts]).tolist() == list(range(100, 120))
    found = [body for part in parts for request in requests_of(part) for body in bodies_of(request)]
    assert found == [b"%d" % number for number in range(20)]


def test_a_stamp_is_its_text() -> None:
    stamp = Stamp("f47ac10b-58cc", 3, 2, 17)
    assert str(stamp) == "f47ac10b-58cc:3:2:17"
    assert Stamp.parse(str(stamp)) == stamp
    for text in ("", "a:b:c:d", "q:1:2", ":1:2:3", "q:1:2:-3"):
        with pytest.raises(Exception, match="is no stamp"):
            Stamp.parse(text)
