"""Source and sink against the real Apache RocketMQ: what a broker of ours does by agreement, and theirs by itself."""

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cometmq
from cometmq.client.producer.selectors import java_hash
from cometmq.client.queues import MessageQueue
from cometmq.spark import without_repeats
from support import real_rocketmq
from support.cluster import BROKER_NAME, REAL, Cluster
from support.spark_queries import PATIENCE, Batches, run_now, started, stream_of, table_of, wait_until
from support.spark_topics import TopicKit, body_of, rows_expected, rows_of

# The first test pays for the start of a broker, and on a fresh machine for its download.
pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.timeout(900)]

Name = Callable[[str], str]


def earliest(kit: TopicKit, topic: str, **more: Any) -> dict[str, str]:
    options = {"nameServer": kit.nameserver, "subscribe": topic, "startingOffsets": "earliest"}
    return options | {name: str(value) for name, value in more.items()}


def test_a_backlog_in_batches_and_a_restart(spark: SparkSession, real: TopicKit, name: Name, checkpoint: str) -> None:
    topic, group = real.made(name("T"), [700, 300]), name("G")
    options = earliest(real, topic, maxOffsetsPerTrigger=400, consumerGroup=group)
    first = run_now(stream_of(spark, options), checkpoint)
    assert first.sizes == [400, 400, 200]
    assert rows_of(first.rows) == rows_expected(topic, {0: range(700), 1: range(300)})
    real.fill(topic, {1: 5})
    assert rows_of(run_now(stream_of(spark, options), checkpoint).rows) == rows_expected(topic, {1: range(300, 305)})

    wait_until(lambda: real.progress(group, topic) == {0: (700, 700), 1: (305, 305)})


def test_brokers_filter_by_tag_and_by_sql(spark: SparkSession, real: TopicKit, name: Name, tmp_path: Path) -> None:
    topic = real.make(name("T"), 1)
    messages = [cometmq.Message(b"0:%d" % n, tag="ab"[n % 2], properties={"n": str(n)}) for n in range(100)]
    real.send(topic, {0: messages})
    tagged = run_now(stream_of(spark, earliest(real, topic, subExpression="b")), tmp_path / "1")
    assert rows_of(tagged.rows) == rows_expected(topic, {0: range(1, 100, 2)})
    sql = earliest(real, topic, expressionType="SQL92", subExpression="n >= 90 AND TAGS = 'a'")
    assert rows_of(run_now(stream_of(spark, sql), tmp_path / "2").rows) == rows_expected(topic, {0: range(90, 100, 2)})


def test_an_expression_that_is_none_is_told_by_load(spark: SparkSession, real: TopicKit, name: Name) -> None:
    wrong = earliest(real, real.made(name("T"), [1]), expressionType="SQL92", subExpression="n >> 90")
    for load in (stream_of, table_of):
        with pytest.raises(PySparkException, match="OptionError: subExpression=n >> 90: a broker cannot filter by it"):
            load(spark, wrong)


def test_a_running_query_sees_new_messages_and_queues(
    spark: SparkSession, real: TopicKit, name: Name, checkpoint: str
) -> None:
    topic = real.made(name("T"), [5])
    batches = Batches()
    options = earliest(real, topic, startingOffsets="latest", discoveryInterval="200ms")
    query = started(stream_of(spark, options), checkpoint, batches)
    try:
        wait_until(lambda: bool(batches.by_id), query)
        real.fill(topic, {0: 3})
        wait_until(lambda: len(batches.rows) == 3, query)
        real.make(topic, 2)
        real.fill(topic, {1: 2})
        wait_until(lambda: len(batches.rows) == 5, query)
    finally:
        query.stop()
    assert rows_of(batches.rows) == rows_expected(topic, {0: range(5, 8), 1: range(2)})


def test_ranges_and_times_of_a_batch(spark: SparkSession, real: TopicKit, name: Name) -> None:
    topic = real.made(name("T"), [100])
    everything = table_of(spark, earliest(real, topic)).collect()
    assert rows_of(everything) == rows_expected(topic, {0: range(100)})
    last = max(row.storeTimestamp for row in everything)
    middle = round(last.timestamp() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > middle)  # the broker's clock is this machine's
    real.fill(topic, {0: 10})
    later = table_of(spark, {"nameServer": real.nameserver, "subscribe": topic, "startingTimestamp": str(middle)})
    assert rows_of(later.collect()) == rows_expected(topic, {0: range(100, 110)})
    earlier = table_of(spark, earliest(real, topic, endingTimestamp=middle))
    assert rows_of(earlier.collect()) == rows_expected(topic, {0: range(100)})
    bounds = {"startingOffsets": json.dumps({topic: 40}), "endingOffsets": json.dumps({topic: 50})}
    some = table_of(spark, earliest(real, topic) | bounds)
    assert rows_of(some.collect()) == rows_expected(topic, {0: range(40, 50)})


@pytest.mark.slow
def test_a_topic_that_is_made_anew_is_a_loss(spark: SparkSession, real: TopicKit, name: Name, checkpoint: str) -> None:
    topic = real.made(name("T"), [20])
    run_now(stream_of(spark, earliest(real, topic)), checkpoint)
    real.run(lambda mq: mq.admin().delete_topic(topic))
    real.made(topic, [5])
    with pytest.raises(PySparkException, match="DataLoss"):
        run_now(stream_of(spark, earliest(real, topic)), checkpoint)
    going_on = run_now(stream_of(spark, earliest(real, topic, failOnDataLoss="false")), checkpoint)
    assert rows_of(going_on.rows) == rows_expected(topic, {0: range(5)})


def write(rows: DataFrame, kit: TopicKit, **options: str) -> None:
    rows.write.format("rocketmq").options(nameServer=kit.nameserver, **options).mode("append").save()


def test_all_columns_of_the_sink_come_back(spark: SparkSession, real: TopicKit, name: Name) -> None:
    topic, other, largest = real.make(name("T"), 4), real.make(name("U"), 4), 4 * 1024 * 1024
    rows = spark.range(0, 60, 1, 2).select(
        F.when(F.col("id") == 7, F.repeat(F.lit("x"), largest)).otherwise(F.format_string("b%d", "id")).alias("body"),
        F.when(F.col("id") % 3 == 0, F.lit(other)).alias("topic"),
        F.when(F.col("id") % 2 == 0, F.lit("even")).alias("tags"),
        F.array(F.format_string("k%d", "id"), F.lit("all")).alias("keys"),
        F.create_map(
            F.lit("n"), F.col("id").cast("string"), F.lit("ü"), F.lit("1\x01 2"), F.lit("BUYER_ID"), F.lit("b")
        ).alias("properties"),
        F.when(F.col("id") % 5 != 0, F.format_string("s%d", F.col("id") % 10)).alias("shardingKey"),
        F.when(F.col("id") % 5 == 0, F.lit(3)).alias("queueId"),
        F.when(F.col("id") % 5 == 0, F.lit(real.broker_name)).alias("brokerName"),
        F.col("id").cast("int").alias("flag"),
    )
    write(rows, real, topic=topic, writeId="real")
    write(rows.where("id < 30"), real, topic=topic, writeId="real")  # the first of both partitions, once more
    table = table_of(spark, {"nameServer": real.nameserver, "subscribe": f"{topic},{other}"})
    assert table.count() == 90
    found = without_repeats(table).collect()
    assert sorted(int(row.properties["n"]) for row in found) == list(range(60))
    for row in found:
        number = int(row.properties["n"])
        assert row.body == (b"x" * largest if number == 7 else b"b%d" % number)
        assert row.topic == (other if number % 3 == 0 else topic)
        assert (row.tags, row["keys"]) == ("even" if number % 2 == 0 else None, f"k{number} all")
        assert (row.properties["ü"], row.properties["BUYER_ID"]) == ("1\x01 2", "b")
        assert row.flag == number
        key = row.properties.get("__SHARDINGKEY")
        assert key == (f"s{number % 10}" if number % 5 else None)
        queues = [MessageQueue(row.topic, real.broker_name, queue_id) for queue_id in range(4)]
        assert row.queueId == (java_hash(queues, cometmq.Message(b"-"), key).queue_id if key else 3)

    with pytest.raises(PySparkException, match=f"row 0 of partition 0 for topic {topic} could not be sent") as caught:
        write(spark.sql(f"select repeat('x', {largest + 1}) body"), real, topic=topic)
    assert "raise maxMessageSize on the broker" in str(caught.value)


def test_rows_are_delivered_at_their_time(spark: SparkSession, real: TopicKit, name: Name) -> None:
    topic, now = real.make(name("T"), 1), datetime.now(UTC)
    soon = now + timedelta(seconds=3)
    rows = spark.createDataFrame(
        [("soon", soon), ("now", None), ("past", now - timedelta(days=1))], "body string, deliverTime timestamp"
    )
    write(rows, real, topic=topic)
    wait_until(lambda: real.ends(topic) == {0: 3})
    table = table_of(spark, {"nameServer": real.nameserver, "subscribe": topic})
    stored = {
        bytes(row.body): row.at for row in table.selectExpr("body", "unix_micros(storeTimestamp) / 1e6 at").collect()
    }
    assert stored.keys() == {b"soon", b"now", b"past"}
    assert stored[b"soon"] >= soon.timestamp() - 1  # a second is what its timers tell apart

    with pytest.raises(PySparkException, match="give an earlier deliverTime, or raise timerMaxDelaySec"):
        write(spark.sql("select 'x' body, current_timestamp() + interval 4 days deliverTime"), real, topic=topic)


def test_a_topic_that_is_missing_is_told_by_the_driver(spark: SparkSession, real: TopicKit, name: Name) -> None:
    with pytest.raises(PySparkException, match=f"OptionError: topic={name('NONE')}: .* auto-creation is off"):
        write(spark.sql("select 'x' body"), real, topic=name("NONE"))


@pytest.mark.slow
def test_a_broker_that_dies_under_a_copy_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    each = 300
    with Cluster(REAL, tmp_path, nameserver_version=real_rocketmq.V5) as cluster:
        real = TopicKit(cluster.nameserver, BROKER_NAME)
        source, target = real.made("S", [each] * 2), real.make("T", 2)
        rows = stream_of(spark, earliest(real, source, maxOffsetsPerTrigger=100)).select("body")
        # One row a request: many are under way when the broker dies.
        sink = {"nameServer": real.nameserver, "topic": target, "sendBytes": "1", "sendRetries": "30"}
        writer = rows.writeStream.format("rocketmq").options(**sink)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        wait_until(lambda: sum(real.ends(target).values()) > 100, query)
        cluster.kill_broker()
        assert query.isActive
        cluster.restart_broker()
        assert query.awaitTermination(PATIENCE)
        table = table_of(spark, {"nameServer": real.nameserver, "subscribe": target})
        copied = Counter(bytes(row.body) for row in without_repeats(table).collect())
        assert copied == Counter(body_of(queue, number) for queue in range(2) for number in range(each))
