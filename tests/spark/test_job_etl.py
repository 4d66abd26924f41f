"""The etl job: SQL and functions, to topics, files and other formats; what is refused, and how it is told."""

import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs import JobError, etl
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

SCHEMA = "id string, amount int"


@pytest.fixture(scope="module")
def orders(broker: EmbeddedBroker) -> str:
    topics = TopicKit(broker.nameserver)
    topic = topics.make("ETL_ORDERS", 2)
    bodies = [f'{{"id": "o-{number}", "amount": {number}}}'.encode() for number in range(20)]
    topics.send(topic, {0: [*bodies, b"no json"], 1: []})
    return topic


def doubled(messages: DataFrame) -> DataFrame:
    """What `package.module:function` names in these tests."""
    return messages.select((F.col("json.amount") * 2).alias("amount"), (F.col("json.amount") % 2).alias("odd"))


def test_sql_to_a_topic(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, orders: str, tmp_path: Path
) -> None:
    target = topics.make("ETL_BIG", 1)
    done = etl(
        spark,
        orders,
        sql="select json.id as keys, upper(text) as body from messages where json.amount >= 15",
        json_schema=SCHEMA,
        to_topic=target,
        name_server=broker.nameserver,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert (done.rows, done.bytes) == (21, None)
    read = spark.read.format("rocketmq").options(nameServer=broker.nameserver, subscribe=target).load()
    assert sorted(row.keys for row in read.select("keys").collect()) == [f"o-{number}" for number in range(15, 20)]


def test_a_function_to_files_exactly_once_and_on(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.make("ETL_FILES", 1)
    topics.send(topic, {0: [b'{"id": "x", "amount": %d}' % number for number in range(6)]})
    output = tmp_path / "doubled"

    def run() -> int:
        return etl(
            spark,
            topic,
            function=doubled,
            json_schema=SCHEMA,
            output=str(output),
            partition_by=["odd"],
            name_server=broker.nameserver,
        ).rows

    assert run() == 6
    topics.send(topic, {0: [b'{"id": "x", "amount": 6}']})
    assert run() == 1
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table()
    pairs = sorted(zip(table["amount"].to_pylist(), table["odd"].to_pylist(), strict=True))
    assert pairs == [(2 * number, number % 2) for number in range(7)]


def test_to_a_table_of_the_catalogue(spark: SparkSession, broker: EmbeddedBroker, orders: str, tmp_path: Path) -> None:
    etl(
        spark,
        orders,
        sql="select queueOffset from messages",
        table="etl_offsets",
        name_server=broker.nameserver,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    try:
        assert spark.table("etl_offsets").count() == 21
    finally:
        spark.sql("drop table etl_offsets")


def test_what_cannot_be_done_is_told_before_anything_is_written(
    spark: SparkSession,
    broker: EmbeddedBroker,
    orders: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = str(tmp_path / "out")

    def refused(match: str, **arguments: object) -> None:
        given = {"output": output, "name_server": broker.nameserver, **arguments}
        with pytest.raises(Exception, match=match) as caught:
            etl(spark, orders, **given)  # type: ignore[arg-type]
        assert isinstance(caught.value, JobError | ValueError)

    refused("the SQL cannot be used: .*`nothing`.*queueOffset", sql="select nothing from messages")
    refused("the SQL cannot be used: .*[Ss]yntax error", sql="selec body")
    refused("the JSON schema cannot be used", sql="select 1 from messages", json_schema="id wrong type")
    refused("either sql or a function")
    refused("cannot be imported", function="no_such_module:f")
    refused("has no nothing", function="json:nothing")
    refused("names no function", function="json")
    refused("return the DataFrame", function=lambda messages: 7)
    refused("does not come from the messages", function=lambda messages: spark.range(3))
    refused("give one of to_topic, output and table", sql="select 1", to_topic="T")
    refused("column body.*missing", sql="select 1 as flag from messages", to_topic="T", output=None)
    refused("no column day", sql="select text from messages", partition_by=["day"])
    refused("complete mode", sql="select count(*) from messages", output_mode="complete")
    refused("there is no trigger", sql="select text from messages", trigger="never")
    assert not Path(output).exists()

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_functions.py").write_text("def same(messages):\n    return messages.select('text')\n")
    done = etl(spark, orders, function="own_functions:same", output=output, name_server=broker.nameserver)
    assert done.rows == 21
