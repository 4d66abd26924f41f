"""The etl job: SQL and functions, to topics, files and other formats; what is refused, and how it is told."""

import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs import JobError, Metrics, archive, etl
from cometmq.spark.jobs.etl_job import check_name
from cometmq.spark.jobs.metrics import Meter, Silence
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
    assert spark.table("etl_offsets").count() == 21
    spark.sql("drop table etl_offsets")  # as the end of its session does: the catalogue forgets, the files stay


@pytest.mark.slow
def test_a_table_goes_on_in_another_session(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.made("ETL_TABLE", [3])

    def run(checkpoint: str = "checkpoint") -> int:
        return etl(
            spark,
            topic,
            sql="select queueOffset, topic as `a topic` from messages",
            table="etl_table",
            partition_by=["a topic"],
            output_options={"compression": "gzip"},
            name_server=broker.nameserver,
            checkpoint=str(tmp_path / checkpoint),
        ).rows

    def found() -> list[tuple[int, str]]:
        return sorted((row.queueOffset, row["a topic"]) for row in spark.table("etl_table").collect())

    try:
        assert run() == 3
        assert found() == [(number, topic) for number in range(3)]
        topics.fill(topic, {0: 2})
        assert run() == 2
        assert found() == [(number, topic) for number in range(5)]
        spark.sql("drop table etl_table")
        topics.fill(topic, {0: 1})
        assert run() == 1
        assert found() == [(number, topic) for number in range(6)]
        with pytest.raises(JobError, match="written with another checkpoint"):
            run("another")
    finally:
        spark.sql("drop table if exists etl_table")


@pytest.mark.slow
def test_an_output_is_the_same_however_it_is_written_and_its_checkpoint_is_beside_it(
    spark: SparkSession, broker: EmbeddedBroker, orders: str, tmp_path: Path
) -> None:
    def run(output: str, sql: str = "select text from messages", **arguments: object) -> Metrics:
        return etl(spark, orders, sql=sql, output=output, name_server=broker.nameserver, **arguments)  # type: ignore[arg-type]

    for place in ("out/checkpoint", "out", "out.staging/checkpoint", ""):
        with pytest.raises(JobError, match="is inside of"):
            run(f"{tmp_path}/out", checkpoint=f"{tmp_path}/{place}")
    with pytest.raises(JobError, match="is inside of"):
        archive(
            spark, orders, f"{tmp_path}/out", name_server=broker.nameserver, checkpoint=f"{tmp_path}/out/checkpoint"
        )
    assert run(f"{tmp_path}/out/").rows == 21
    assert (tmp_path / "out.checkpoint" / "metadata").exists()
    again = run(f"{tmp_path}/out")
    assert (again.rows, "note" in again.details) == (0, False)

    other = run(f"{tmp_path}/out", sql="select text from messages where true")
    assert "what was read before with another query does not come again" in other.details["note"]
    assert "note" not in run(f"{tmp_path}/out", sql="select text from messages where true").details
    later = run(f"{tmp_path}/out", sql="select text from messages where true", since=datetime(2026, 1, 1, tzinfo=UTC))
    assert "another time to begin is only heard with a new one" in later.details["note"]


class FillingOnce(Silence):
    """Has more sent when all is read, and stops the job when that is read, too."""

    def __init__(self, send: Callable[[], None], stop: threading.Event) -> None:
        self._sends = iter([send, stop.set])
        self._waits_for = 3

    def show(self, meter: Meter) -> None:
        if meter.rows == self._waits_for:
            next(self._sends)()
            self._waits_for += 2


def test_a_continuous_run_goes_on_until_it_is_stopped(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic, stop = topics.made("ETL_ON_AND_ON", [3]), threading.Event()
    done = etl(
        spark,
        topic,
        sql="select queueOffset from messages",
        output=str(tmp_path / "out"),
        name_server=broker.nameserver,
        trigger="continuous",
        interval="100ms",
        display=FillingOnce(lambda: topics.fill(topic, {0: 2}), stop),
        stop=stop,
    )
    assert done.rows == 5
    assert pyarrow.dataset.dataset(tmp_path / "out").count_rows() == 5


def test_functions_that_fail_are_told_with_their_line(
    spark: SparkSession, broker: EmbeddedBroker, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_broken.py").write_text("import json\n\njson.nothing\n")
    (tmp_path / "own_missing.py").write_text("import no_such_library\n")
    (tmp_path / "own_half.py").write_text("def f(:\n")
    (tmp_path / "own_raising.py").write_text(
        "import json\n\n\ndef named(messages):\n    return mesages\n\n\n"
        "def deep(messages):\n    return json.loads('oops')\n\n\n"
        "def asked(messages):\n    return messages.select('nothing')\n"
    )
    cannot, failed = "cannot be imported: ", "failed: "
    assert not {"own_broken", "own_raising"} & set(sys.modules)
    for name, told in (
        ("own_broken:f", rf"own_broken {cannot}AttributeError: .*nothing.* \(.*own_broken\.py:3\)"),
        ("own_missing:f", rf"own_missing {cannot}ModuleNotFoundError: .*no_such.* \(.*own_missing\.py:1\)"),
        ("own_half:f", rf"own_half {cannot}SyntaxError: .* \(.*own_half\.py:1\)"),
        ("own_raising:named", rf"own_raising:named {failed}NameError: .*mesages.* \(.*own_raising\.py:5\)"),
        ("own_raising:deep", rf"own_raising:deep {failed}JSONDecodeError: .* \(.*own_raising\.py:9\)"),
        ("own_raising:asked", rf"own_raising:asked {failed}.*`nothing` .* \(.*own_raising\.py:13\)"),
        ("os.path:join", rf"os.path:join {failed}TypeError: .*PathLike"),
    ):
        check_name(name)  # before Spark starts: nothing is imported yet
        with pytest.raises(JobError, match=told):
            etl(spark, orders, function=name, output=str(tmp_path / "out"), name_server=broker.nameserver)


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
    refused("would be written to itself", sql="select body from messages", to_topic=orders, output=None)
    refused("complete mode", sql="select count(*) from messages", output_mode="complete")
    refused("there is no trigger", sql="select text from messages", trigger="never")
    assert not Path(output).exists()

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "own_functions.py").write_text("def same(messages):\n    return messages.select('text')\n")
    done = etl(spark, orders, function="own_functions:same", output=output, name_server=broker.nameserver)
    assert done.rows == 21
