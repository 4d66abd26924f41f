"""Jobs in trouble: directories of other runs, damaged checkpoints, brokers that go away, and signals in the middle."""

import signal
import threading
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs import JobError, Metrics, archive, audit, etl, lag, read_archive, replay, trace
from cometmq.spark.jobs.command import Settings, job
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.metrics import Meter, Silence
from cometmq.spark.jobs.signals import stopped_by_signals
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def offsets_of(directory: Path) -> list[int]:
    """What is in a table that has the column queueOffset, as any reader of Parquet sees it."""
    return sorted(pyarrow.dataset.dataset(directory, partitioning="hive").to_table()["queueOffset"].to_pylist())


@pytest.mark.slow
def test_a_table_belongs_to_its_checkpoint(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic, output = topics.made("TROUBLE_ETL", [5]), tmp_path / "table"

    def run(checkpoint: str, to: Path = output) -> int:
        return etl(
            spark,
            topic,
            sql="select queueOffset from messages",
            output=str(to),
            checkpoint=str(tmp_path / checkpoint),
            name_server=broker.nameserver,
        ).rows

    assert run("first") == 5
    # Its batch 0 would pass for the one that is done, or take the place of its files.
    with pytest.raises(JobError, match="written with another checkpoint: give that one by --checkpoint"):
        run("second")
    topics.fill(topic, {0: 2})
    assert run("first") == 2
    assert offsets_of(output) == list(range(7))

    output.rename(tmp_path / "moved")
    with pytest.raises(JobError, match=r"has written messages already, and .*table is not there"):
        run("first")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(JobError, match=r"has files and is no table \(it has no _table.json\)"):
        run("third", other)


def test_traces_of_a_stream_belong_to_their_checkpoint(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic, output = topics.made("TROUBLE_TRACE", [1]), tmp_path / "latencies"

    output.mkdir()
    (output / "_table.json").write_text('{"v": 1, "query": "somebody else"}')
    with pytest.raises(JobError, match="written with another checkpoint"):
        trace(spark, name_server=broker.nameserver, topic=topic, output=str(output), trigger="available-now")


@pytest.mark.slow
def test_an_archive_is_asked_for_topics_that_it_has(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    one, two, place = topics.made("TROUBLE_A", [3]), topics.made("TROUBLE_B", [4]), str(tmp_path / "archive")
    archive(spark, [one, two], place, name_server=broker.nameserver)
    assert read_archive(spark, place, [two]).count() == 4
    for ask in (
        lambda: read_archive(spark, place, ["TROUBLE_C"]),
        lambda: audit(spark, f"{one}, TROUBLE_C", archive=place),
        lambda: replay(spark, one, "TROUBLE_C", archive=place, name_server=broker.nameserver),
    ):
        with pytest.raises(JobError, match="has no topic TROUBLE_C: it has TROUBLE_A, TROUBLE_B"):
            ask()
    # One topic less than before: what it still gets would be missing in the archive.
    with pytest.raises(Exception, match=rf"OptionError: subscribe={two}: the checkpoint is about {one} too"):
        archive(spark, two, place, name_server=broker.nameserver)


def test_damaged_files_of_jobs_are_told(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic, target = topics.made("TROUBLE_DAMAGED", [3]), topics.make("TROUBLE_DAMAGED_TO", 1)
    place, plan = tmp_path / "archive", tmp_path / "replay" / "plan.json"
    archive(spark, topic, str(place), name_server=broker.nameserver)
    (place / "_archive.json").write_text("{oops")
    (place / "._archive.json.crc").unlink()
    with pytest.raises(JobError, match=r"_archive\.json is damaged: .*begin anew"):
        archive(spark, topic, str(place), name_server=broker.nameserver)
    plan.parent.mkdir()
    for text in ("{oops", "[]", "{}"):
        plan.write_text(text)
        with pytest.raises(JobError, match=r"plan\.json is no plan of a replay .*begin anew"):
            replay(spark, target, topic, name_server=broker.nameserver, checkpoint=str(plan.parent))


def test_files_that_cannot_be_written_are_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    lake = Lake(spark, str(tmp_path))
    for work in (
        lambda: lake.write(f"{lake.root}/file/below", "text"),
        lambda: lake.make_directory(f"{lake.root}/file/below"),
        lambda: lake.read(f"{lake.root}/nothing"),
        lambda: lake.move(f"{lake.root}/nothing", f"{lake.root}/something"),
    ):
        with pytest.raises(JobError, match=r"^cannot (write|make .*|read|move) file:.*: (check|both)") as told:
            work()
        assert "\n" not in str(told.value)


def test_access_of_a_replay_ignores_case(spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit) -> None:
    topic = topics.made("TROUBLE_ACCESS", [1])
    # It goes to both sides: the target is looked for in the namespace, too.
    with pytest.raises(OptionError, match="subscribe=TROUBLE_ACCESS: no nameserver knows this topic"):
        replay(spark, topic, topic, name_server=broker.nameserver, options={"NAMESPACE": "elsewhere"})


class AwayAfterOne(Silence):
    """Takes the broker away after the first sample, and ends the job when one is missing."""

    def __init__(self, broker: EmbeddedBroker, stop: threading.Event) -> None:
        self._broker = broker
        self._stop = stop
        self._is_away = False

    def show(self, meter: Meter) -> None:
        if not self._is_away and meter.details["samples"]:
            self._broker.close()
            self._is_away = True
        if meter.details["missedSamples"]:
            self._stop.set()


def test_lag_survives_a_cluster_that_goes_away(spark: SparkSession, tmp_path: Path) -> None:
    small = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    with EmbeddedBroker(store=tmp_path / "store", config=small) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made("TROUBLE_LAG", [3])

        async def consumed(mq: Client) -> None:
            await mq.admin().create_group("TROUBLE_GROUP")
            await mq.admin().commit_offset("TROUBLE_GROUP", MessageQueue(topic, "broker-a", 0), 1)

        topics.run(consumed)
        stop = threading.Event()
        done = lag(
            spark,
            str(tmp_path / "lag"),
            "TROUBLE_GROUP",
            name_server=broker.nameserver,
            interval=0.01,
            samples=None,
            options={"requestTimeoutMs": "300"},
            display=AwayAfterOne(broker, stop),
            stop=stop,
        )
    assert (done.details["samples"], done.details["missedSamples"]) == (1, 1)
    # What was sampled before is in the table.
    assert pyarrow.dataset.dataset(tmp_path / "lag").to_table()["backlog"].to_pylist() == [2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_a_signal_ended_early_says_so(
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    def ended(backlog: int | None) -> int:
        @job("any", "A job that gets a signal.")
        def command(settings: Settings) -> Metrics:
            with stopped_by_signals() as stop:
                signal.raise_signal(number)
                assert stop.is_set()
                return stop.ended(Metrics("any", 7, 0, 1.0, backlog))

        try:
            command.main([], standalone_mode=False)
        except SystemExit as exit:
            return int(exit.code or 0)
        return 0

    assert ended(2500) == code
    out, err = capsys.readouterr()
    assert "rows" in out
    assert f"stopped by {number.name} with 2,500 to go; start it again" in err
    # It came too late to hinder anything.
    assert ended(0) == 0
