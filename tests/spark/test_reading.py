"""Reading on an executor, without Spark: ranges of queues of a real broker, and what may happen to them meanwhile."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

import cometmq
from cometmq.client import Client
from cometmq.client.errors import NoNameserver, NoRoute
from cometmq.spark.access import Access
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.decode import Decoder
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.frame import Piece
from cometmq.spark.irregular import CorruptMessage
from cometmq.spark.link import close_links
from cometmq.spark.pulls import PullFailed, QueueGone
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import SLAVE, SQL92, ReadOptions
from cometmq.spark.reading import LEAST_SPAN, read_ranges
from cometmq.testing import EmbeddedBroker
from support.spark_records import EVERYTHING, Given, encode
from support.spark_topics import TopicKit, body_of

pytestmark = pytest.mark.spark

Name = Callable[[str], str]
#: Where a broker is known to be gone, nobody needs to wait for it.
HASTY = ReadOptions(retries=1)
#: RocketMQ's own limits of a pull.
LIKE_ROCKETMQ = {"maxTransferCountOnMessageInMemory": 32, "maxTransferBytesOnMessageInMemory": 256 * 1024}


def only(*names: str) -> Columns:
    return Columns.of(StructType([full_schema()[name] for name in names]))


PLACE = only("queueId", "queueOffset", "body")


def access(topics: TopicKit, **changes: object) -> Access:
    return Access(name_servers=(topics.nameserver,), **changes)  # type: ignore[arg-type]


def read(
    topics: TopicKit, ranges: list[QueueRange], how: ReadOptions = HASTY, columns: Columns = PLACE
) -> list[tuple[object, ...]]:
    """All rows, as tuples, in the order in which they came."""
    batches = read_ranges(ranges, access(topics), columns, how)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def whole(topics: TopicKit, topic: str) -> list[QueueRange]:
    return [QueueRange(topic, "broker-a", queue, 0, end) for queue, end in sorted(topics.ends(topic).items()) if end]


def rows_of(ranges: list[QueueRange]) -> list[tuple[object, ...]]:
    return [(each.queue_id, number, body_of(each.queue_id, number)) for each in ranges for number in range(*each[3:])]


def test_all_messages_in_the_order_of_the_ranges(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [700, 0, 3, 5000])
    ranges = whole(topics, topic)
    assert read(topics, ranges) == rows_of(ranges)
    assert read(topics, ranges[::-1]) == rows_of(ranges[::-1])


def test_parts_of_queues_and_nothing_beside_them(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [100, 100])
    queues = [QueueRange(topic, "broker-a", 0, 10, 11), QueueRange(topic, "broker-a", 1, 0, 0)]
    queues.append(QueueRange(topic, "broker-a", 1, 90, 100))
    assert read(topics, queues) == rows_of(queues)
    assert read(topics, []) == []


def test_batches_are_as_large_as_told(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [1000])
    how = ReadOptions(batch_rows=64)
    sizes = [each.num_rows for each in read_ranges(whole(topics, topic), access(topics), PLACE, how)]
    assert max(sizes) == 64
    assert sum(sizes) == 1000


def test_small_queues_share_a_batch(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [5] * 8)
    ranges = whole(topics, topic)
    batches = list(read_ranges(ranges, access(topics), PLACE, HASTY))
    assert [batch.num_rows for batch in batches] == [40]
    assert [tuple(row.values()) for row in batches[0].to_pylist()] == rows_of(ranges)


def test_a_broker_that_gives_little_a_pull(name: Name, tmp_path: Path) -> None:
    with EmbeddedBroker(store=tmp_path, config={"brokerName": "broker-a", **LIKE_ROCKETMQ}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [LEAST_SPAN * 9 + 17, 40])
        ranges = whole(topics, topic)
        assert read(topics, ranges) == rows_of(ranges)
        # A task that is ended early leaves pulls under way; the next one does not mind.
        batches = read_ranges(ranges, access(topics), PLACE, ReadOptions(batch_rows=10))
        assert next(batches).num_rows == 10
        batches.close()  # type: ignore[attr-defined]
        assert read(topics, ranges) == rows_of(ranges)


def test_tags_are_filtered_on_the_broker_and_by_their_text_here(topics: TopicKit, name: Name) -> None:
    topic = topics.make(name("T"), 1)
    tags = ["AaAa", "BBBB", "other", None]  # the first two have one hash code
    topics.send(topic, {0: [cometmq.Message(b"%d" % i, tag=tags[i % 4]) for i in range(400)]})
    [source] = whole(topics, topic)
    how = ReadOptions(sub_expression="AaAa || nobody", retries=1)
    rows = read(topics, [source], how, only("queueOffset", "tags"))
    assert rows == [(i, "AaAa") for i in range(0, 400, 4)]
    # A filter leaves gaps, also at the ends, and that is no loss.
    assert read(topics, [source._replace(start=1, stop=4)], how, only("queueOffset")) == []
    assert read(topics, [source], ReadOptions(sub_expression="nobody", retries=1)) == []


def test_an_expression_that_the_broker_refuses_is_told_at_once(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [3])
    how = ReadOptions(sub_expression="a >", expression_type=SQL92)
    with pytest.raises(OptionError, match=r"^subExpression=a >: a broker cannot filter by it"):
        read(topics, whole(topics, topic), how)


def test_a_queue_that_ends_too_early(topics: TopicKit, name: Name, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.made(name("T"), [50])
    [source] = whole(topics, topic)
    longer = source._replace(stop=70)
    with pytest.raises(DataLoss, match=r"queue 0 of topic T_.*offset 50 is gone.*failOnDataLoss") as raised:
        read(topics, [longer], HASTY)
    assert pickle.loads(pickle.dumps(raised.value)).wanted == 50
    how = ReadOptions(retries=0, fail_on_data_loss=False)
    assert read(topics, [longer, longer._replace(start=60)], how) == rows_of([source])
    assert len([each for each in caplog.records if "to 69 are gone, going on" in each.getMessage()]) == 1


def test_a_queue_that_begins_too_late(name: Name, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 16, "fileReservedTime": 0}
    with EmbeddedBroker(store=tmp_path, config=config | {"deleteCommitLogFilesInterval": 0}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.make(name("T"), 1)
        for _ in range(10):
            topics.fill(topic, {0: 20}, size=1000)

        async def trim(mq: Client) -> int:
            await mq.admin().delete_expired_log_files(broker.address)
            [queue] = await mq.admin().read_queues_of(topic)
            return await mq.admin().min_offset(queue)

        while (first := topics.run(trim)) == 0:
            pass
        source = QueueRange(topic, "broker-a", 0, 0, 200)
        with pytest.raises(DataLoss, match="offset 0 is gone, the nearest one there is"):
            read(topics, [source])
        columns = only("queueOffset")
        rows = read(topics, [source], ReadOptions(fail_on_data_loss=False), columns)
        assert rows == [(number,) for number in range(int(rows[0][0]), 200)]  # type: ignore[call-overload]
        assert int(rows[0][0]) >= first  # type: ignore[call-overload]
        assert "are gone, going on without them" in caplog.text


def test_holes_inside_of_what_was_pulled_are_seen() -> None:
    gaps: list[tuple[QueueId, int, int]] = []
    decoder = Decoder(only("queueOffset"), on_gap=lambda *gap: gaps.append(gap))
    data = encode([Given()] * 2, first=5) + encode([Given()], first=9)
    source = EVERYTHING._replace(start=4, stop=12)
    assert decoder.decode([Piece(source, data)]).column(0).to_pylist() == [5, 6, 9]
    assert gaps == [(source.queue, 4, 5), (source.queue, 7, 9), (source.queue, 10, 12)]


def test_a_broker_restart_in_the_middle(name: Name, tmp_path: Path) -> None:
    with EmbeddedBroker(store=tmp_path, config={"brokerName": "broker-a", **LIKE_ROCKETMQ}) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [12_000], size=200)
        [source] = whole(topics, topic)
        batches = read_ranges([source], access(topics), only("queueOffset"), ReadOptions())
        offsets = next(batches).column(0).to_pylist()
        broker.restart()
        for batch in batches:
            offsets += batch.column(0).to_pylist()
        assert offsets == list(range(12_000))


def test_a_master_serves_when_there_is_no_slave(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [10])
    ranges = whole(topics, topic)
    assert read(topics, ranges, ReadOptions(read_from=SLAVE)) == rows_of(ranges)


def test_a_namespace(topics: TopicKit, name: Name) -> None:
    topic = topics.made(f"shop%{name('T')}", [10])
    source = QueueRange(name("T"), "broker-a", 0, 0, 10)
    columns = only("topic", "queueOffset")
    [batch] = read_ranges([source], access(topics, namespace="shop", group="g"), columns, HASTY)
    assert topic.endswith(source.topic)
    assert batch.to_pylist() == [{"topic": source.topic, "queueOffset": number} for number in range(10)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_nobody_knows_and_whose_broker_is_down(topics: TopicKit, fails: bool) -> None:
    """Nameservers forget the topics of a broker that is silent: it may come back with them."""
    with pytest.raises(PullFailed, match=r"queue 0 of topic Nowhere .*pullRetries") as raised:
        read(topics, [QueueRange("Nowhere", "down", 0, 0, 10)], ReadOptions(retries=1, fail_on_data_loss=fails))
    assert isinstance(raised.value.__cause__, NoRoute)


def delete(topics: TopicKit, topic: str) -> None:
    topics.run(lambda mq: mq.admin().delete_topic(topic))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "is no more" in each.getMessage()]


@pytest.mark.parametrize("is_route_known", [True, False])
def test_a_deleted_topic(topics: TopicKit, name: Name, caplog: pytest.LogCaptureFixture, is_route_known: bool) -> None:
    topic, other = topics.made(name("T"), [700, 5]), topics.made(name("O"), [5])
    gone, there = whole(topics, topic), whole(topics, other)
    close_links()  # with what they know of routes
    if is_route_known:
        assert read(topics, gone) == rows_of(gone)
    delete(topics, topic)
    with pytest.raises(DataLoss, match=rf"queue 0 of topic {topic} .*offsets 0 to 699: .*failOnDataLoss") as raised:
        read(topics, gone)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.wanted) == (str(raised.value), 0)
    assert read(topics, [*gone, *there], ReadOptions(retries=1, fail_on_data_loss=False)) == rows_of(there)
    first, second = warnings_of(caplog)
    assert f"queue 0 of topic {topic} on broker broker-a is no more, and with it offsets 0 to 699: " in first
    assert f"queue 1 of topic {topic} on broker broker-a is no more, and with it offsets 0 to 4: " in second


def test_a_topic_that_is_deleted_in_the_middle(topics: TopicKit, name: Name, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.made(name("T"), [8000])
    how = ReadOptions(retries=1, fail_on_data_loss=False, pull_count=32)
    batches = read_ranges(whole(topics, topic), access(topics), only("queueOffset"), how)
    offsets = next(batches).column(0).to_pylist()
    delete(topics, topic)
    for batch in batches:
        offsets += batch.column(0).to_pylist()
    assert offsets == list(range(len(offsets)))
    assert len(offsets) < 8000
    [warning] = warnings_of(caplog)
    assert f"topic {topic} on broker broker-a is no more, and with it offsets {len(offsets)} to 7999: " in warning


def test_a_queue_that_is_no_more(topics: TopicKit, name: Name, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.made(name("T"), [5, 5])
    ranges = whole(topics, topic)
    topics.make(topic, 1)
    with pytest.raises(DataLoss, match=r"queue 1 of topic T_.* is no more.* 0 to 4: .*is illegal.*failOnDataLoss"):
        read(topics, ranges)
    assert read(topics, ranges, ReadOptions(retries=0, fail_on_data_loss=False)) == rows_of(ranges[:1])
    assert len(warnings_of(caplog)) == 1


def test_nameservers_that_do_not_answer() -> None:
    nobody = TopicKit("127.0.0.1:1")
    with pytest.raises(PullFailed, match="in 2 tries: no nameserver answered") as raised:
        read(nobody, [QueueRange("T", "broker-a", 0, 0, 10)])
    assert isinstance(raised.value.__cause__, NoNameserver)
    close_links()


@pytest.mark.parametrize(
    "error",
    [
        QueueGone(QueueRange("T", "b", 1, 5, 7), "deleted"),
        PullFailed(QueueId("T", "b", 1), 5, 2, "nobody answers"),
        CorruptMessage(QueueId("T", "b", 1), 5, "no zlib", "look"),
        DataLoss(QueueId("T", "b", 1), 5, 7, "look"),
    ],
)
def test_errors_reach_the_driver_as_they_are(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
