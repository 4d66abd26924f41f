"""Directories of results: jobs replace their own, and refuse what is somebody else's."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.spark.jobs import JobError, Metrics, archive, audit, lag, read_archive, trace
from cometmq.spark.jobs.results import AUDIT, LATENCIES, claim
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


@pytest.fixture
def writers(spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit) -> dict[str, Callable[[str], Metrics]]:
    """The jobs whose results belong to no checkpoint, ready to write to a directory."""
    topic = topics.made("RESULTS", [2])

    async def consumed(mq: Client) -> None:
        await mq.admin().create_group("RESULTS_GROUP")
        await mq.admin().commit_offset("RESULTS_GROUP", MessageQueue(topic, "broker-a", 0), 1)

    topics.run(consumed)
    return {
        "audit": lambda output: audit(spark, topic, output=output, name_server=broker.nameserver),
        "trace": lambda output: trace(spark, topic=topic, output=output, name_server=broker.nameserver),
        "lag": lambda output: lag(spark, output, "RESULTS_GROUP", name_server=broker.nameserver),
    }


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_files_of_others_are_refused(
    spark: SparkSession,
    broker: EmbeddedBroker,
    writers: dict[str, Callable[[str], Metrics]],
    tmp_path: Path,
) -> None:
    place = tmp_path / "archive"
    archive(spark, "RESULTS", str(place), name_server=broker.nameserver)
    (tmp_path / "mine" / "findings").mkdir(parents=True)
    (tmp_path / "mine" / "findings" / "notes.txt").write_text("mine")
    (tmp_path / "afile").write_text("mine, too")
    before = contents(tmp_path)
    for run in (*writers.values(), lambda output: audit(spark, archive=str(place), output=output)):
        for name, why in (
            ("mine", "has files and is no"),
            ("afile", "is a file"),
            ("archive", "is in the archive"),
            ("archive/topic=RESULTS/result", "is in the archive"),
        ):
            with pytest.raises(JobError, match=why):
                run(str(tmp_path / name))
    assert contents(tmp_path) == before
    assert read_archive(spark, str(place)).count() == 2


@pytest.mark.slow
def test_results_of_an_earlier_run_make_room(
    spark: SparkSession, writers: dict[str, Callable[[str], Metrics]], tmp_path: Path
) -> None:
    for name, kind, table in (("audit", AUDIT, "audit/lost"), ("trace", LATENCIES, "trace")):
        assert claim(spark, str(tmp_path / name), kind)
        (tmp_path / table).mkdir(exist_ok=True)
        (tmp_path / table / "part-of-before.parquet").write_text("not even Parquet")
        writers[name](str(tmp_path / name))
        assert pyarrow.dataset.dataset(tmp_path / table).count_rows() == 0
        assert not claim(spark, str(tmp_path / name), kind)
    for _ in range(2):
        writers["lag"](str(tmp_path / "lag"))
    assert pyarrow.dataset.dataset(tmp_path / "lag").count_rows() == 2, "samples are added"
    with pytest.raises(JobError, match=r"has files and is no result of an audit"):
        writers["audit"](str(tmp_path / "lag"))
