"""Directories and checkpoints that do not belong together: left over, brought back from a copy, or of another form."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import etl
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def offsets_in(directory: Path) -> list[int]:
    """All rows, whatever their folders are called."""
    files = sorted(directory.rglob("*.parquet"))
    return sorted(pyarrow.dataset.dataset(files).to_table()["queueOffset"].to_pylist())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The table; its checkpoint and its staging are beside it."""
    return tmp_path / "table"


#: Adds so many messages and runs the job, with the columns that its files are partitioned by.
Run = Callable[..., int]


@pytest.fixture
def run(spark: SparkSession, broker: EmbeddedBroker, name: Callable[[str], str], output: Path) -> Run:
    topics = TopicKit(broker.nameserver)
    topic = topics.made(name("T"), [0])

    def run(messages: int, *partition_by: str) -> int:
        topics.fill(topic, {0: messages})
        return etl(
            spark,
            topic,
            sql="select queueOffset, queueId as _queue from messages",
            output=str(output),
            partition_by=partition_by,
            name_server=broker.nameserver,
        ).rows

    return run


@pytest.mark.slow
def test_a_new_table_has_nothing_to_do_with_what_is_staged_of_a_deleted_one(run: Run, output: Path) -> None:
    staging = Path(f"{output}.staging")
    assert run(5) == 5
    assert (staging / "journal" / "batch-0000000000.done").exists()
    # A batch that was being moved when the table was deleted.
    (staging / "journal" / "batch-0000000001.json").write_text('{"v": 1, "moves": {"a.parquet": "b.parquet"}}')
    shutil.rmtree(output)
    shutil.rmtree(f"{output}.checkpoint")
    assert run(2) == 7
    assert offsets_in(output) == list(range(7))


def test_a_batch_that_spark_gives_again_is_there_once(run: Run, output: Path) -> None:
    run(5)
    run(3)
    for file in Path(f"{output}.checkpoint", "commits").iterdir():
        if "1" in file.name:  # and its checksum
            file.unlink()
    run(1)
    assert offsets_in(output) == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("later", [1, 2])
def test_a_checkpoint_that_is_older_than_its_table_is_refused(run: Run, output: Path, later: int) -> None:
    checkpoint, copy = Path(f"{output}.checkpoint"), Path(f"{output}.copy")
    run(5)
    shutil.copytree(checkpoint, copy)
    for _ in range(later):
        run(2)
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    before = offsets_in(output)
    with pytest.raises(Exception, match=rf"has batch-000000000{later} already, .* another batch-0000000001.*newer"):
        run(1)
    assert offsets_in(output) == before


def test_folders_of_columns_that_begin_with_an_underscore_have_rows(run: Run, output: Path) -> None:
    assert run(5, "_queue") == 5
    assert [folder.name for folder in output.iterdir() if folder.is_dir()] == ["_queue=0"]
    assert offsets_in(output) == list(range(5))


@pytest.mark.slow
def test_a_table_stays_partitioned_as_it_is(run: Run, output: Path) -> None:
    run(2, "_queue")
    with pytest.raises(Exception, match=r"is partitioned by _queue, and not by nothing.*partition as before"):
        run(2)
    assert run(0, "_queue") == 2
