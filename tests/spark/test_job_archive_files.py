"""Archives as several runs left them: with columns of their own, and read from machines in any zone of time."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from cometmq.spark.jobs import JobError, compact_archive, read_archive
from cometmq.spark.jobs.archive_files import ARCHIVE
from cometmq.spark.jobs.compaction import Closing
from cometmq.spark.jobs.lake import Lake, LakeFile
from cometmq.spark.jobs.messages import Messages, names_in
from cometmq.spark.jobs.ownership import write_mark
from cometmq.spark.jobs.publication import Publication

pytestmark = pytest.mark.spark

MOMENT = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
PROPERTIES = pyarrow.map_(pyarrow.string(), pyarrow.string())


class ArchiveKit:
    """An archive whose files are written here."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.place = place
        self._files = 0
        write_mark(Lake(spark, str(place)), ARCHIVE, query="of a test")

    def add(self, topic: str = "T", stored: datetime = MOMENT, **columns: pyarrow.Array) -> None:
        """One message in a file of its own."""
        folder = self.place / f"topic={topic}" / f"day={stored:%Y-%m-%d}" / f"hour={stored:%H}"
        folder.mkdir(parents=True, exist_ok=True)
        times = pyarrow.array([stored], pyarrow.timestamp("us", "UTC"))
        table = pyarrow.table({"queueOffset": [self._files], "storeTimestamp": times, **columns})
        pyarrow.parquet.write_table(table, folder / f"batch-{self._files:010d}-00000.parquet")
        self._files += 1

    def read(self, *topics: str, **times: datetime) -> list[int]:
        rows = read_archive(self.spark, str(self.place), topics, **times)
        return sorted(row.queueOffset for row in rows.select("queueOffset").collect())

    def published(self, stored: datetime) -> LakeFile:
        """A file that a run has just written."""
        self.add(stored=stored)
        file = max(self.place.rglob("*.parquet"), key=lambda each: each.name)
        return LakeFile(str(file.relative_to(self.place)), file.stat().st_size)


@pytest.fixture
def kit(spark: SparkSession, tmp_path: Path) -> ArchiveKit:
    return ArchiveKit(spark, tmp_path / "archive")


def properties_of(**pairs: str) -> Any:
    return pyarrow.array([list(pairs.items())], PROPERTIES)


def test_columns_that_only_some_files_have_stay(kit: ArchiveKit) -> None:
    kit.add(keys=pyarrow.array(["k"]))
    kit.add(properties=properties_of(n="1"))
    for _ in range(2):
        rows = read_archive(kit.spark, str(kit.place)).orderBy("queueOffset").collect()
        assert [(row["keys"], row["properties"]) for row in rows] == [("k", None), (None, {"n": "1"})]
        compact_archive(kit.spark, str(kit.place))
    [file] = kit.place.rglob("*.parquet")
    assert {"keys", "properties"} <= set(pyarrow.parquet.read_schema(file).names)


@pytest.mark.slow
def test_columns_of_two_types_are_told_and_left_as_they_are(kit: ArchiveKit) -> None:
    kit.add(properties=properties_of(n="1"))
    kit.add(properties=pyarrow.array(['{"n": "2"}']))
    kit.add(stored=MOMENT + timedelta(days=1))
    with pytest.raises(JobError, match=r"has several types .*propertiesAsJson"):
        kit.read()
    assert kit.read(since=MOMENT + timedelta(days=1)) == [2]
    assert compact_archive(kit.spark, str(kit.place)).details == {"unjoinedHours": 1}
    assert len(list(kit.place.rglob("*.parquet"))) == 3


@pytest.fixture
def honolulu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ten hours behind UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Honolulu")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.slow
def test_times_without_a_zone_are_utc_wherever_it_is_read(kit: ArchiveKit, honolulu: None) -> None:
    kit.add()
    kit.add(stored=MOMENT + timedelta(hours=1))
    naive = MOMENT.replace(tzinfo=None)
    for moment in (MOMENT, naive):
        assert kit.read(since=moment, until=moment + timedelta(minutes=1)) == [0]
        assert kit.read(since=moment + timedelta(hours=1)) == [1]
        assert kit.read(until=moment) == []
    assert kit.read(since=MOMENT, until=naive + timedelta(days=1)) == [0, 1]


def test_topics_are_named_alike_wherever_they_are_read() -> None:
    for text in ("a,b", " a, b ", ["a", "b"], ("a ,b",), ["a", "", "b,"]):
        assert names_in(text) == ["a", "b"]
        assert Messages.of(text, None).topics == ("a", "b")


def test_topics_are_found_by_their_names_and_not_by_those_of_folders(kit: ArchiveKit) -> None:
    kit.add("007")
    kit.add("shop%25orders")
    assert kit.read("007") == [0]
    assert kit.read("shop%orders") == [1]
    assert {row.topic for row in read_archive(kit.spark, str(kit.place)).collect()} == {"007", "shop%orders"}


def test_hours_without_news_are_listed_once_a_run(kit: ArchiveKit, monkeypatch: pytest.MonkeyPatch) -> None:
    publication, listed, hour = Publication(kit.spark, str(kit.place)), [], timedelta(hours=1)

    def files(directory: str, of: Callable[[str], list[LakeFile]] = publication.lake.files) -> list[LakeFile]:
        listed.append(directory.removeprefix(publication.directory))
        return of(directory)

    monkeypatch.setattr(publication.lake, "files", files)
    closing, first, second = Closing(publication), "topic=T/day=2026-01-31/hour=23", "topic=T/day=2026-02-01/hour=00"

    def over(hours: int) -> list[tuple[str, int]]:
        listed.clear()
        return [(each.folder, len(each.files)) for each in closing.over(MOMENT + hours * hour)]

    closing.add([kit.published(MOMENT), kit.published(MOMENT + hour)])
    assert (over(1), listed) == ([(first, 1)], [""])
    # One hour is not over yet, and gets a file; the other one gets a late message.
    closing.add([kit.published(MOMENT + hour)])
    assert (over(1), listed) == ([], [f"/{second}"])
    closing.add([kit.published(MOMENT)])
    assert over(3) == [(first, 2), (second, 2)]
    assert (over(9), listed) == ([], [])
