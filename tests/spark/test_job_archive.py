"""The archive job: every message once, for any reader; runs that go on; compaction; what is refused."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import JobError, archive, compact_archive, read_archive
from cometmq.spark.jobs.archive_files import MARK
from cometmq.spark.jobs.compaction import Hour
from cometmq.spark.jobs.lake import Lake, LakeFile
from cometmq.spark.jobs.publication import Batch, Publication
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit, rows_expected, rows_of

pytestmark = pytest.mark.spark


class Plain:
    """The archive as a reader sees it that knows nothing of Spark."""

    def __init__(self, directory: Path) -> None:
        self.files = sorted(directory.rglob("*.parquet"))
        self.table = pyarrow.dataset.dataset(directory, partitioning="hive").to_table()

    def rows(self) -> list[tuple[str, int, int, bytes]]:
        columns = (self.table[name].to_pylist() for name in ("topic", "queueId", "queueOffset", "body"))
        return sorted(zip(*columns, strict=True))


def test_every_message_is_there_once_for_any_reader(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    one, other = topics.made("ARCHIVED", [30, 20]), topics.made("ARCHIVED_TOO", [5])
    output = tmp_path / "archive"

    first = archive(
        spark,
        [one, other],
        str(output),
        name_server=broker.nameserver,
        options={"maxOffsetsPerTrigger": "20"},
        compact_closed=False,
    )
    assert (first.rows, first.backlog) == (55, 0)
    assert first.bytes == sum(file.stat().st_size for file in Plain(output).files)
    topics.fill(one, {0: 3})
    second = archive(spark, [one, other], str(output), name_server=broker.nameserver)
    assert second.rows == 3
    third = archive(spark, [one, other], str(output), name_server=broker.nameserver)
    assert third.rows == 0

    expected = rows_expected(one, {0: range(33), 1: range(20)}) + rows_expected(other, {0: range(5)})
    assert Plain(output).rows() == sorted(expected)
    read = read_archive(spark, str(output))
    assert rows_of(read.collect()) == sorted(expected)
    now = datetime.now(UTC)
    assert read_archive(spark, str(output), until=now - timedelta(hours=1)).count() == 0
    assert read_archive(spark, str(output), since=now - timedelta(hours=1), until=now).count() == 58
    folder = Plain(output).files[0].parent.relative_to(output).parts
    stored = Plain(output).table["storeTimestamp"][0].as_py()
    assert folder == ("topic=ARCHIVED", f"day={stored:%Y-%m-%d}", f"hour={stored:%H}")

    before = Plain(output)
    assert len(before.files) > 3
    compacted = compact_archive(spark, str(output))
    after = Plain(output)
    assert after.rows() == before.rows()
    assert compacted.details["compactedFiles"] > 3
    assert len(after.files) < len(before.files)
    offsets = pyarrow.dataset.dataset(after.files[0]).to_table(columns=["queueId", "queueOffset"])
    pairs = list(zip(offsets["queueId"].to_pylist(), offsets["queueOffset"].to_pylist(), strict=True))
    assert pairs == sorted(pairs), "rows of a compacted file are in queue order"
    assert "compactedHours" not in compact_archive(spark, str(output)).details


# Kills at the worst moments: the steps of a publication are cut off one by one


class Killed(Exception):
    """Stands for the end of the process."""


STEPS = ("write", "move", "delete", "exchange")


def killed_after(lake: Lake, steps: int) -> Callable[[], int]:
    """Lets so many changes of the file system pass, and ends the process before the next one."""
    passed = 0

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal passed
            if passed == steps:
                raise Killed
            passed += 1
            return change(*arguments)

        return call

    for name in STEPS:
        setattr(lake, name, counted(getattr(lake, name)))
    return lambda: passed


@pytest.mark.parametrize("stride", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_between_any_two_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, stride: int
) -> None:
    place = tmp_path / "table"
    rows = spark.range(0, 40).selectExpr("id", "cast(id % 2 as string) as part").coalesce(1).cache()
    more = spark.range(40, 60).selectExpr("id", "cast(id % 2 as string) as part").coalesce(1).cache()
    batches = {"batch-0": rows, "batch-1": more}
    seen = []
    for steps in range(1, 40, stride):
        for each in (place, Path(f"{place}.staging")):
            Lake(spark, str(each)).delete(str(each))
        publication = Publication(spark, str(place))
        done = killed_after(publication.lake, steps)
        last = "batch-0"
        with contextlib.suppress(Killed), publication.opened():
            for last, batch in batches.items():
                publication.publish(batch, Batch(last), partition_by=["part"])
            content = spark.read.parquet(f"{place}/part=0").coalesce(1)
            publication.replace("part=0", content, "compact-x", rows=30)
        # The next run does the rest: Spark calls for the last batch again, and for those that follow.
        again = Publication(spark, str(place))
        with again.opened():
            for name, batch in batches.items():
                if name >= last:
                    again.publish(batch, Batch(name), partition_by=["part"])
        found = sorted(pyarrow.dataset.dataset(place, partitioning="hive").to_table()["id"].to_pylist())
        assert found == list(range(60)), f"killed after {steps} steps"
        seen.append(len(list(place.rglob("*.parquet"))))
        if done() < steps:
            break
    assert {3, 4} == set(seen), "killed before and after the compaction"


def moved_by_copy(lake: Lake, steps: Iterator[int], killed_at: int | None, source: str, target: str) -> None:
    """As an object store moves: file by file, copied all and then deleted, and nothing over what is there."""
    assert not lake.exists(target), f"{target} is there"
    one, other = Path(str(lake.local(source))), Path(str(lake.local(target)))
    files = [file for file in one.rglob("*") if file.suffix == ".parquet"] if one.is_dir() else [one]
    for is_copied in (False, True):
        for file in files:
            place = other / file.relative_to(one)
            place.parent.mkdir(parents=True, exist_ok=True)
            if is_copied:
                lake.delete(str(file))
            else:
                shutil.copyfile(file, place)
            if next(steps) == killed_at:
                raise Killed
    lake.delete(source)


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_while_an_object_store_moves_does_no_harm(spark: SparkSession, tmp_path: Path, stride: int) -> None:
    rows = spark.range(12).selectExpr("id", "cast(id % 2 as string) as part").repartition(2, "id").cache()
    for killed_at in range(stride - 1, 99, stride):
        place = tmp_path / f"table-{killed_at}"
        publication, again = (Publication(spark, str(place)) for _ in range(2))
        steps = iter(range(200))
        for lake, last in ((publication.lake, killed_at), (again.lake, None)):
            lake.move = partial(moved_by_copy, lake, steps, last)  # type: ignore[method-assign]
            lake.exchange = lambda one, other: False  # type: ignore[method-assign]
        is_through = False
        with contextlib.suppress(Killed), publication.opened():
            publication.publish(rows, Batch("batch-0"), partition_by=["part"])
            publication.replace("part=0", spark.read.parquet(f"{place}/part=0").repartition(3), "compact-x", rows=6)
            is_through = True
        with again.opened():
            again.publish(rows, Batch("batch-0"), partition_by=["part"])
        found = pyarrow.dataset.dataset(place, partitioning="hive").to_table()["id"].to_pylist()
        assert sorted(found) == list(range(12)), f"killed after {killed_at} steps"
        if is_through:
            break
    assert 20 < killed_at < 60


def test_two_jobs_cannot_write_to_one_archive(spark: SparkSession, tmp_path: Path) -> None:
    publication = Publication(spark, str(tmp_path / "table"))
    with (
        publication.opened(),
        pytest.raises(JobError, match="another job writes"),
        Publication(spark, str(tmp_path / "table")).opened(),
    ):
        pass


def test_hours_are_over_some_time_after_their_end() -> None:
    hour = Hour("topic=a/day=2026-01-31/hour=07", (LakeFile("x", 10), LakeFile("y", 10)))
    end = datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert not hour.is_over(end)
    assert hour.is_over(end + timedelta(minutes=10))
    assert hour.wants(100)
    assert not hour.wants(20), "both are large enough"


def test_what_is_no_archive_is_refused(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.made("ARCHIVED_BADLY", [3])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "data.csv").write_text("1")
    with pytest.raises(JobError, match="is no archive"):
        archive(spark, topic, str(foreign), name_server=broker.nameserver)
    with pytest.raises(JobError, match="is no archive"):
        compact_archive(spark, str(foreign))
    with pytest.raises(JobError, match="is no archive"):
        read_archive(spark, str(tmp_path / "nothing"))

    output = tmp_path / "archive"
    archive(spark, topic, str(output), name_server=broker.nameserver)
    assert json.loads((output / MARK).read_text())["partitions"] == ["topic", "day", "hour"]
    with pytest.raises(JobError, match="another checkpoint"):
        archive(spark, topic, str(output), name_server=broker.nameserver, checkpoint=str(tmp_path / "new"))
    output.rename(tmp_path / "elsewhere")
    with pytest.raises(JobError, match="has written messages already"):
        archive(spark, topic, str(output), name_server=broker.nameserver)


def test_bad_input_is_told_at_once(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    output = str(tmp_path / "archive")
    with pytest.raises(Exception, match=r"no nameserver knows this topic.*updateTopic"):
        archive(spark, "NO_SUCH_TOPIC", output, name_server=broker.nameserver)
    with pytest.raises(Exception, match="no nameserver answers"):
        archive(spark, "ANY", output, name_server="127.0.0.1:1")
    with pytest.raises(JobError, match="no topic is named"):
        archive(spark, " , ", output, name_server=broker.nameserver)
    with pytest.raises(Exception, match="did you mean"):
        archive(spark, "ANY", output, name_server=broker.nameserver, options={"maxOffsetPerTrigger": "1"})
    assert not Path(output).exists()
