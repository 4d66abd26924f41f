"""The lag job: samples of real groups' backlog in a table that grows, and its chart."""

from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.spark.jobs import JobError, lag
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def test_backlog_is_sampled_into_a_table_that_grows(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.made("LAGGING", [10, 4])

    async def consumed(mq: Client, group: str, offsets: dict[int, int]) -> None:
        admin = mq.admin()
        await admin.create_group(group)
        for queue, offset in offsets.items():
            await admin.commit_offset(group, MessageQueue(topic, "broker-a", queue), offset)

    topics.run(lambda mq: consumed(mq, "LAG_SLOW", {0: 3, 1: 4}))
    topics.run(lambda mq: consumed(mq, "LAG_FAST", {0: 10, 1: 4}))
    output, chart = tmp_path / "lag", tmp_path / "lag.svg"

    def run(samples: int) -> object:
        report = lag(
            spark,
            str(output),
            ["LAG_SLOW", "LAG_FAST"],
            name_server=broker.nameserver,
            samples=samples,
            interval=0.05,
            chart=str(chart),
        )
        assert report.details["samples"] == samples
        assert report.to_dict()["backlog"] == report.backlog  # a table of that name would hide it
        rows = report.tables["groups"].objects()
        return {(row["group"], row["topic"]): (row["queues"], row["backlog"]) for row in rows}

    assert run(2) == {("LAG_SLOW", topic): (2, 7), ("LAG_FAST", topic): (2, 0)}
    topics.fill(topic, {1: 5})
    assert run(1) == {("LAG_SLOW", topic): (2, 12), ("LAG_FAST", topic): (2, 5)}
    table = pyarrow.dataset.dataset(output).to_table()
    assert table.num_rows == 3 * 2 * 2
    slow = [row for row in table.to_pylist() if row["group"] == "LAG_SLOW" and row["queueId"] == 1]
    assert sorted((row["brokerOffset"], row["consumerOffset"], row["backlog"]) for row in slow) == [
        (4, 4, 0),
        (4, 4, 0),
        (9, 4, 5),
    ]
    drawing = chart.read_text(encoding="utf-8")
    assert "LAG_SLOW" in drawing
    assert "LAG_FAST" in drawing
    everybody = lag(spark, str(tmp_path / "all"), name_server=broker.nameserver)
    assert {"LAG_SLOW", "LAG_FAST"} <= {row["group"] for row in everybody.tables["groups"].objects()}


def test_bad_input_is_told(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    output = str(tmp_path / "lag")
    with pytest.raises(JobError, match="the group NOBODY has no offsets"):
        lag(spark, output, "NOBODY", name_server=broker.nameserver)
    with pytest.raises(Exception, match="does not answer"):
        lag(spark, output, name_server="127.0.0.1:1")
    with pytest.raises(Exception, match="there is no such option"):
        lag(spark, output, name_server=broker.nameserver, options={"subscribe": "T"})
