"""The sink on a real Spark and a real broker: rows arrive with all they have, in order, at least once."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cometmq.spark import Stamp, without_repeats
from cometmq.spark.stamps import SPARK_ROW
from cometmq.testing import EmbeddedBroker
from support.spark_queries import PATIENCE, run_now, stream_of, table_of, wait_until
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


class Sink:
    """Writes DataFrames to the broker of the tests, and reads topics back."""

    def __init__(self, spark: SparkSession, nameserver: str) -> None:
        self.spark = spark
        self.nameserver = nameserver

    def write(self, rows: DataFrame, mode: str = "append", **options: str) -> None:
        rows.write.format("rocketmq").options(**{"nameServer": self.nameserver, **options}).mode(mode).save()

    def stream(self, rows: DataFrame, checkpoint: str, **options: str) -> None:
        """Write what a stream has now."""
        writer = rows.writeStream.format("rocketmq").options(**{"nameServer": self.nameserver, **options})
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE), "the query did not end"

    def options(self, topic: str) -> dict[str, str]:
        return {"nameServer": self.nameserver, "subscribe": topic, "startingOffsets": "earliest"}

    def table(self, topic: str) -> DataFrame:
        return table_of(self.spark, self.options(topic))

    def read(self, topic: str) -> list[Row]:
        return self.table(topic).orderBy("queueId", "queueOffset").collect()


@pytest.fixture
def sink(spark: SparkSession, broker: EmbeddedBroker) -> Sink:
    return Sink(spark, broker.nameserver)


@pytest.fixture
def jobs(spark: SparkSession, name: Name) -> Iterator[Callable[[], int]]:
    """How many jobs Spark has begun for the batches of this test."""
    group, context = name("jobs"), spark.sparkContext
    context.setJobGroup(group, group)
    yield lambda: len(context.statusTracker().getJobIdsForGroup(group))
    context.setLocalProperty("spark.jobGroup.id", None)


def stamp_of(row: Row) -> Stamp:
    return Stamp.parse(row.properties[SPARK_ROW])


def test_rows_arrive_with_all_that_they_have(sink: Sink, topics: TopicKit, name: Name) -> None:
    topic, other = topics.make(name("T"), 4), topics.make(name("U"), 4)
    frame = sink.spark.range(0, 300, 1, 3).select(
        F.format_string("body-%d", "id").alias("body"),
        F.when(F.col("id") % 3 == 0, F.lit(other)).alias("topic"),
        F.when(F.col("id") % 2 == 0, F.lit("even")).alias("tags"),
        F.array(F.format_string("k%d", "id"), F.lit("all")).alias("keys"),
        F.create_map(F.lit("number"), F.col("id").cast("string"), F.lit("ü"), F.lit("é")).alias("properties"),
        F.format_string("s%d", F.col("id") % 10).alias("shardingKey"),
        F.col("id").cast("int").alias("flag"),
    )
    sink.write(frame, topic=topic, sendBytes="2000")
    rows = sink.read(topic) + sink.read(other)
    assert sorted(row.body for row in rows) == sorted(f"body-{number}".encode() for number in range(300))
    queues: dict[tuple[str, str], set[int]] = defaultdict(set)
    for row in rows:
        number = int(row.properties["number"])
        assert row.body == f"body-{number}".encode()
        assert row.topic == (other if number % 3 == 0 else topic)
        assert row.tags == ("even" if number % 2 == 0 else None)
        assert row["keys"] == f"k{number} all"
        assert row.properties["ü"] == "é"
        assert row.flag == number
        stamp = stamp_of(row)
        assert (stamp.batch_id, stamp.partition, stamp.row) == (0, number // 100, number % 100)
        queues[row.topic, row.properties["__SHARDINGKEY"]].add(row.queueId)
    assert len({stamp_of(row).query_id for row in rows}) == 1
    assert {len(found) for found in queues.values()} == {1}
    assert len({row.msgId for row in rows}) == 300


def test_rows_of_a_key_and_of_a_queue_keep_their_order(sink: Sink, topics: TopicKit, name: Name) -> None:
    by_key, by_queue = topics.make(name("K"), 4), topics.make(name("Q"), 4)
    numbers = sink.spark.range(0, 4000, 1, 1)
    keyed = numbers.selectExpr("cast(id as string) body", "concat('k', id % 13) shardingKey")
    sink.write(keyed, topic=by_key, sendBytes="5000")
    rows = sink.read(by_key)
    for key in range(13):
        found = [int(row.body) for row in rows if row.properties["__SHARDINGKEY"] == f"k{key}"]
        assert found == list(range(key, 4000, 13))
    chosen = numbers.selectExpr("cast(id as string) body", "cast(id % 3 as int) queueId")
    sink.write(chosen, topic=by_queue, sendBytes="5000", maxInFlight="64")
    rows = sink.read(by_queue)
    for queue in range(3):
        assert [int(row.body) for row in rows if row.queueId == queue] == list(range(queue, 4000, 3))


def test_a_topic_can_be_copied_as_it_is(sink: Sink, topics: TopicKit, name: Name) -> None:
    source, target = topics.make(name("S"), 2), topics.make(name("T"), 2)
    frame = sink.spark.range(20).selectExpr(
        "cast(cast(id as string) as binary) body",
        "'t' tags",
        "concat('k', id) keys",
        "map('a', cast(id as string)) properties",
    )
    sink.write(frame, topic=source)
    copy = sink.table(source).select("body", "tags", "keys", "properties", "queueId", "brokerName", "flag")
    sink.write(copy, topic=target)
    columns = ("queueId", "body", "tags", "keys", "flag")
    first, second = sink.read(source), sink.read(target)
    assert sorted(tuple(row[column] for column in columns) for row in first) == sorted(
        tuple(row[column] for column in columns) for row in second
    )
    assert sorted(row.properties["a"] for row in second) == sorted(str(number) for number in range(20))
    assert {stamp_of(row).query_id for row in first}.isdisjoint({stamp_of(row).query_id for row in second})


def test_what_rocketmq_takes_is_written(sink: Sink, topics: TopicKit, name: Name) -> None:
    """The largest body, and values with what ends the names of properties."""
    source, target = topics.make(name("S"), 1), topics.make(name("T"), 1)
    largest = 4 * 1024 * 1024
    rows = sink.spark.range(0, 3, 1, 1).selectExpr(
        f"if(id = 1, repeat('x', {largest}), 'y') body", "concat('n', id) keys", "map('d', '1\\u0001 2') properties"
    )
    sink.write(rows, topic=source)
    copied = sink.table(source).selectExpr("body", "keys", "properties", "queueId", "brokerName")
    sink.write(copied, topic=target)
    found = sink.table(target).selectExpr("length(body) size", "keys", "properties['d'] d").orderBy("keys").collect()
    assert [tuple(row) for row in found] == [(size, f"n{n}", "1\x01 2") for n, size in enumerate([1, largest, 1])]

    with pytest.raises(PySparkException) as caught:
        sink.write(rows.selectExpr("keys", "concat(body, 'z') body"), topic=target)
    for text in (f"row 1 of partition 0 for topic {target} could not be sent", "raise maxMessageSize on the broker"):
        assert text in str(caught.value)


def test_a_stream_is_written_batch_by_batch(sink: Sink, topics: TopicKit, name: Name, checkpoint: str) -> None:
    source, target = topics.made(name("S"), [60, 40]), topics.make(name("T"), 2)
    options = sink.options(source) | {"maxOffsetsPerTrigger": "50", "minPartitions": "2"}
    sink.stream(stream_of(sink.spark, options).select("body"), checkpoint, topic=target)
    rows = sink.read(target)
    assert sorted(row.body for row in rows) == sorted(row.body for row in sink.read(source))
    stamps = [stamp_of(row) for row in rows]
    assert len(set(stamps)) == 100
    assert {stamp.batch_id for stamp in stamps} == {0, 1}
    assert len({stamp.query_id for stamp in stamps}) == 1
    topics.fill(source, {0: 10})
    sink.stream(stream_of(sink.spark, options).select("body"), checkpoint, topic=target)
    again = sink.read(target)
    assert len(again) == 110
    assert {stamp_of(row).query_id for row in again} == {stamps[0].query_id}


def test_a_batch_that_is_repeated_can_be_told_apart(sink: Sink, topics: TopicKit, name: Name, checkpoint: str) -> None:
    source, target, missing = topics.made(name("S"), [50]), topics.make(name("T"), 2), name("M")
    topics.send(target, {0: [b"of somebody else"] * 3})
    stream = stream_of(sink.spark, sink.options(source)).select(
        "body", F.when(F.col("queueOffset") == 49, F.lit(missing)).alias("topic")
    )
    # One request at a time: those for the first topic are stored when the one for the missing topic fails.
    options = {"topic": target, "maxInFlight": "1", "sendBytes": "1000"}
    with pytest.raises(PySparkException, match=f"row 49 of partition 0 for topic {missing} could not be sent"):
        sink.stream(stream, checkpoint, **options)
    topics.make(missing)
    sink.stream(stream, checkpoint, **options)

    rows = sink.read(target)
    counts = Counter(str(stamp_of(row)) for row in rows if SPARK_ROW in row.properties)
    assert len(counts) == 49
    assert set(counts.values()) == {2}
    once = without_repeats(sink.table(target))
    assert once.columns == sink.table(target).columns
    kept = once.collect()
    assert Counter(bytes(row.body) for row in kept) == Counter(
        [b"of somebody else"] * 3 + [f"0:{number}".encode() for number in range(49)]
    )
    streamed = without_repeats(
        stream_of(sink.spark, sink.options(target) | {"maxOffsetsPerTrigger": "30"}), timedelta(minutes=5)
    )
    found = run_now(streamed, f"{checkpoint}-downstream").rows
    assert Counter(bytes(row.body) for row in found) == Counter(bytes(row.body) for row in kept)


def test_rows_with_one_stamp_that_differ_are_no_repeats(sink: Sink, topics: TopicKit, name: Name) -> None:
    topic = topics.make(name("T"), 1)
    for body in ("a", "a", "b"):
        sink.write(sink.spark.sql(f"select '{body}' body"), topic=topic, writeId="job-1")
    assert {str(stamp_of(row)) for row in sink.read(topic)} == {"job-1:0:0:0"}
    assert sorted(row.body for row in without_repeats(sink.table(topic)).collect()) == [b"a", b"b"]
    as_text = table_of(sink.spark, sink.options(topic) | {"propertiesAsJson": "true"})
    assert without_repeats(as_text).count() == 2
    with pytest.raises(ValueError, match=r"column properties: without_repeats\(\) needs"):
        without_repeats(sink.table(topic).drop("properties"))


def test_rows_with_one_stamp_and_body_that_differ_are_no_repeats(sink: Sink, topics: TopicKit, name: Name) -> None:
    topic = topics.make(name("T"), 1)
    rows = sink.spark.range(0, 5, 1, 1)
    plain = rows.selectExpr("'x' body")
    others = rows.selectExpr(
        "'x' body",
        "if(id = 0, 't', null) tags",
        "if(id = 1, 'k', null) keys",
        "if(id = 2, map('p', '1', 'q', '2'), if(id = 3, map('q', '1', 'p', '2'), null)) properties",
        "if(id = 4, 7, 0) flag",
    )
    for frame in (plain, others, others):
        sink.write(frame, topic=topic, writeId="job-1")
    assert set(Counter(str(stamp_of(row)) for row in sink.read(topic)).values()) == {3}

    as_text = table_of(sink.spark, sink.options(topic) | {"propertiesAsJson": "true"})
    for table in (sink.table(topic), as_text):
        kept = without_repeats(table).collect()
        assert len(kept) == 10
        assert Counter((row.tags, row["keys"], row.flag) for row in kept) == {
            (None, None, 0): 7,
            ("t", None, 0): 1,
            (None, "k", 0): 1,
            (None, None, 7): 1,
        }


def test_a_write_in_foreach_batch_bears_the_stamps_of_its_batch(
    sink: Sink, topics: TopicKit, name: Name, checkpoint: str
) -> None:
    source, target = topics.made(name("S"), [20]), topics.make(name("T"))

    def copy(batch: DataFrame, batch_id: int) -> None:
        sink.write(batch.select("body"), topic=target)

    stream = stream_of(sink.spark, sink.options(source) | {"maxOffsetsPerTrigger": "10"})
    query = (
        stream.writeStream.foreachBatch(copy)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    stamps = {stamp_of(row) for row in sink.read(target)}
    assert len(stamps) == 20
    assert {(stamp.query_id, stamp.batch_id) for stamp in stamps} == {(query.id, 0), (query.id, 1)}


def _ids(values: object) -> str | None:
    return "-".join(values) if isinstance(values, dict) else None


@pytest.mark.slow
def test_a_topic_that_nobody_knows_is_told_before_a_task_starts(
    sink: Sink, topics: TopicKit, name: Name, checkpoint: str, jobs: Callable[[], int]
) -> None:
    missing, source = name("NONE"), topics.made(name("S"), [10])
    rows = sink.spark.range(10).groupBy("id").count().selectExpr("cast(id as string) body")
    stream = stream_of(sink.spark, sink.options(source)).select("body")
    for write in (
        lambda: sink.write(rows, topic=missing),
        lambda: sink.write(
            rows.selectExpr("body", "null topic").selectExpr("body", "cast(topic as string) topic"), topic=missing
        ),
        lambda: sink.stream(stream, checkpoint, topic=missing),
    ):
        with pytest.raises(PySparkException) as caught:
            write()
        for text in (
            f"OptionError: topic={missing}: ",
            "auto-creation is off",
            "create the topic (mqadmin updateTopic)",
        ):
            assert text in str(caught.value)
    for write in (
        lambda **given: sink.write(rows, **given),
        lambda **given: sink.stream(stream, f"{checkpoint}-2", **given),
    ):
        with pytest.raises(PySparkException) as caught:
            write(topic="T", nameServer="127.0.0.1:1", sendRetries="1")
        assert "nameServer=127.0.0.1:1: no nameserver answers" in str(caught.value)
    assert not jobs()
    topics.make(missing)
    sink.stream(stream, checkpoint, topic=missing)
    sink.write(rows, topic=missing)
    assert len(sink.read(missing)) == 20
    wait_until(lambda: jobs() > 0)


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("'x' body", {}, "topic: no topic is named: give the option, or a column topic"),
        (
            "'x' body",
            {"topic": "T", "sendRetrys": "1"},
            "sendretrys: there is no such option; did you mean",
        ),
        ("'x' body", {"topic": "T", "path": "T"}, "path: there is none; name topics by the option topic"),
        ("'x' body", {"topic": "T", "sendRetries": "many"}, "sendRetries=many: give a whole number"),
        ("'x' body", {"topic": "a b"}, "topic=a b: "),
        ("'x' body", {"topic": "SCHEDULE_TOPIC_XXXX"}, "topic=SCHEDULE_TOPIC_XXXX: it belongs to the system"),
        ("'x' body", {"topic": "T", "exactlyOnce": "true"}, "exactlyOnce=true: the sink delivers at least once"),
        ("'x' body", {"topic": "T", "writeId": "a:b"}, "writeId=a:b: give letters"),
        ("'x' body", {"topic": "T", "producerGroup": "a b"}, "producerGroup=a b: "),
        ("'x' value", {"topic": "T"}, "column value: the sink has the columns body, topic, tags"),
        (
            "'x' tags",
            {"topic": "T"},
            "column body: it is missing; select what shall be sent as body",
        ),
        ("1 body", {"topic": "T"}, "column body int: body may be binary or string; cast it"),
        ("'x' body, map('a', 1) properties", {"topic": "T"}, "properties may be map<string,string>; cast it"),
        ("'x' body, array(1) keys", {"topic": "T"}, "keys may be string or array<string>; cast it"),
        ("'x' body, '1' queueId", {"topic": "T"}, "queueId may be int; cast it"),
        (
            "'x' body, 'b' brokerName",
            {"topic": "T"},
            "column brokerName: it means nothing without queueId; select that column, too",
        ),
        ("'x' body, '1' deliverTime", {"topic": "T"}, "deliverTime may be timestamp; cast it"),
    ],
    ids=_ids,
)
def test_what_is_wrong_is_told_before_a_task_starts(
    sink: Sink, sql: str, options: dict[str, str], message: str, jobs: Callable[[], int]
) -> None:
    with pytest.raises(PySparkException) as caught:
        sink.write(sink.spark.sql(f"select {sql}"), **options)
    assert message in str(caught.value)
    assert not jobs()


def test_a_topic_is_not_overwritten(sink: Sink) -> None:
    with pytest.raises(PySparkException, match="mode=overwrite"):
        sink.write(sink.spark.sql("select 'x' body"), mode="overwrite", topic="T")


def test_rows_that_cannot_be_sent_are_named(sink: Sink, topics: TopicKit, name: Name) -> None:
    topic = topics.make(name("T"))

    def refused(rows: DataFrame, **options: Any) -> str:
        with pytest.raises(PySparkException) as caught:
            sink.write(rows, **{"topic": topic, **options})
        return str(caught.value)

    one = sink.spark.range(0, 10, 1, 1)
    assert f"row 7 of partition 0 for topic {topic}: its body is null: filter such rows out" in refused(
        one.selectExpr("if(id = 7, null, 'x') body")
    )
    unknown = refused(one.selectExpr("'x' body", f"'{name('NONE')}' topic"))
    assert f"rows 0-9 of partition 0 for topic {name('NONE')} could not be sent" in unknown
    assert "create the topic with mqadmin updateTopic, or correct the option topic" in unknown
    keyed = refused(one.selectExpr("'x' body", "'k' shardingKey", f"'{name('NONE')}' topic"))
    assert f"rows for topic {name('NONE')} could not be sent" in keyed
    later = F.lit(datetime.now(UTC) + timedelta(hours=1)).alias("deliverTime")
    assert "the brokers keep no timers: leave the column deliverTime out" in refused(
        one.select(F.lit("x").alias("body"), later)
    )
