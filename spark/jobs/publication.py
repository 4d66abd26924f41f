"""Files that appear in a directory exactly once, whoever reads it: staged beside it, listed in a journal, moved.

Spark's own file sink is exact only for readers of its `_spark_metadata`; after a crash others (pyarrow, DuckDB) see
files twice or torn. Here every file under the directory is whole and counts. The way of a batch:

    1. its files are written to the staging directory             a kill here: thrown away, written again
    2. the journal says which file goes where (one rename)        from here on the batch only goes forward
    3. each file is moved to its place, under the batch's name    a kill here: the next run moves the rest
    4. the journal's entry is marked done (one rename)            a batch that comes again is passed over

A directory is replaced (compaction) in the same way; step 3 is then an exchange of two directories, in one step where
the system can do that, else by two renames. One process at a time: a lock says so on local disks. What Delta Lake does
with its log, for plain directories. Not promised: that a reader sees all files of a batch at once.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import Lake, LakeFile

#: Formats whose files Spark writes itself: the ones that can be staged.
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")


class Publication:
    """One directory of files, and how files come into it.

    Mutable state is on disk: `<directory>.staging/` with `journal/`, one directory a batch that is under way, `lock`.
    """

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self.lake = Lake(spark, directory)
        self.directory = self.lake.root
        self.staging = f"{self.directory}.staging"
        self._journal = f"{self.staging}/journal"

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have it for this process alone; what a killed process left half done is done first."""
        self.lake.make_directory(self._journal)
        with _locked(self.lake, self.staging):
            self._recover()
            yield

    # What happens to it

    def is_done(self, batch: str) -> bool:
        """Whether a batch was published."""
        return self.lake.exists(f"{self._journal}/{batch}.done")

    def publish(
        self,
        rows: DataFrame,
        batch: str,
        *,
        partition_by: Sequence[str] = (),
        format: str = "parquet",
        options: Mapping[str, str] | None = None,
    ) -> list[LakeFile]:
        """Put the rows into the directory, unless that batch is there; batches come in the order of their names.

        The files that were added.
        """
        if self.is_done(batch):
            return []
        staged = self._stage(rows, batch, partition_by, format, options or {})
        moves = {file.name: _named(file.name, batch, number) for number, file in enumerate(staged)}
        self._enter(batch, {"moves": moves})
        self._forget_before(batch)
        return [LakeFile(moves[file.name], file.size) for file in staged]

    def replace(self, folder: str, content: DataFrame, batch: str, *, rows: int) -> None:
        """Put so many rows in the place of all files of a folder; `batch` is a name that was never used."""
        place, staged = f"{self.directory}/{folder}", f"{self.staging}/{batch}"
        before = self.lake.files(place)
        for number, file in enumerate(self._stage(content, batch, (), "parquet", {})):
            self.lake.move(f"{staged}/{file.name}", f"{staged}/{_named(file.name, batch, number)}")
        written = self._spark.read.parquet(staged).count()
        if self.lake.files(place) != before or written != rows:
            raise JobError(
                f"{place} changed while it was rewritten: {rows} rows were to be written and {written} were",
                "let one job at a time write there",
            )
        self._enter(batch, {"replace": folder})

    def _stage(
        self, rows: DataFrame, batch: str, partition_by: Sequence[str], format: str, options: Mapping[str, str]
    ) -> list[LakeFile]:
        place = f"{self.staging}/{batch}"
        with _plain_files(rows.sparkSession):
            rows.write.mode("overwrite").format(format).options(**options).partitionBy(*partition_by).save(place)
        return [file for file in self.lake.files(place) if not _is_hidden(file.name)]

    def _enter(self, batch: str, work: Mapping[str, object]) -> None:
        self.lake.write(f"{self._journal}/{batch}.json", json.dumps({"v": 1, **work}))
        self._finish(batch)

    # Going forward from the journal

    def _recover(self) -> None:
        entries = self.lake.children(self._journal)
        for entry in entries:
            if entry.endswith(".json"):
                self._finish(entry.removesuffix(".json"))
            elif entry.endswith(".draft"):
                self.lake.delete(f"{self._journal}/{entry}")
        for name in self.lake.children(self.staging):
            if name not in ("journal", "lock"):
                self.lake.delete(f"{self.staging}/{name}")

    def _finish(self, batch: str) -> None:
        """Do what the journal says about a batch, or the rest of it."""
        entry = f"{self._journal}/{batch}.json"
        work = json_of(self.lake, entry)
        for source, target in work.get("moves", {}).items():
            self._move(f"{self.staging}/{batch}/{source}", f"{self.directory}/{target}")
        if "replace" in work:
            self._swap(batch, f"{self.directory}/{work['replace']}")
            self.lake.delete(f"{self.staging}/{batch}.old")
            self.lake.delete(entry)
        else:
            self.lake.move(entry, f"{self._journal}/{batch}.done")
        self.lake.delete(f"{self.staging}/{batch}")

    def _move(self, source: str, target: str) -> None:
        if self.lake.exists(source):
            self.lake.make_directory(target.rpartition("/")[0])
            self.lake.move(source, target)
        elif not self.lake.exists(target):
            raise JobError(
                f"{target} is in the journal of {self.staging} and was neither staged nor published",
                "somebody removed it; write the table anew, with a new checkpoint",
            )

    def _swap(self, batch: str, folder: str) -> None:
        new, old = f"{self.staging}/{batch}", f"{self.staging}/{batch}.old"
        if any(name.startswith(batch) for name in self.lake.children(folder)):
            return  # it was swapped before the process was killed
        if self.lake.exists(folder):
            if self.lake.exchange(new, folder):
                return
            self.lake.move(folder, old)
        self.lake.move(new, folder)

    def _forget_before(self, batch: str) -> None:
        """A batch runs only after Spark has noted the end of those before it: they cannot come again."""
        for entry in self.lake.children(self._journal):
            name, _, state = entry.rpartition(".")
            if state == "done" and name < batch:
                self.lake.delete(f"{self._journal}/{entry}")


def _named(name: str, batch: str, number: int) -> str:
    """The name of a published file: its folder and ending, and in between what tells its batch."""
    folder, _, file = name.rpartition("/")
    ending = "".join(f".{part}" for part in file.split(".")[1:]).replace(".c000", "")
    return f"{folder}{'/' if folder else ''}{batch}-{number:05d}{ending}"


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


@contextmanager
def _plain_files(spark: SparkSession) -> Iterator[None]:
    """Timestamps in the form that every reader of Parquet knows, and no marker files."""
    wanted = {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, previous in before.items():
            if previous is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, previous)


@contextmanager
def _locked(lake: Lake, staging: str) -> Iterator[None]:
    """The lock of a local directory; the system takes it back from a process that was killed."""
    local = None if lake.local is None else f"{lake.local}.staging/lock"
    if local is None or sys.platform == "win32":
        yield
        return
    import fcntl

    with open(local, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(f"another job writes to {lake.root}", "wait for its end, or stop it") from error
        yield


def json_of(lake: Lake, name: str) -> dict[str, Any]:
    """A small JSON file; an empty object when it is not there."""
    if not lake.exists(name):
        return {}
    try:
        found = json.loads(lake.read(name))
    except ValueError as error:
        raise JobError(
            f"{name} is damaged: {error}", "bring it back from a copy, or begin anew, with another directory"
        ) from error
    return found if isinstance(found, dict) else {}
