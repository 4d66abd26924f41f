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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from cometmq.spark.jobs.errors import JobError, NotOurs
from cometmq.spark.jobs.lake import Lake, LakeFile, literal

#: Formats whose files Spark writes itself: the ones that can be staged.
FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")


class Batch(NamedTuple):
    """What is published together."""

    #: Later batches of a query have greater names.
    name: str
    #: Tells its messages from those that another batch of this name would have; None where nothing comes twice.
    messages: str | None = None


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
    def opened(self, is_new: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Have it for this process alone; what a killed process left half done is done first.

        What is staged beside a directory that `is_new` was meant for one that somebody deleted.
        """
        self.lake.make_directory(self._journal)
        with locked(self.lake, f"{self.staging}/lock", f"another job writes to {self.directory}"):
            if is_new():
                self.lake.delete(self._journal)
                self.lake.make_directory(self._journal)
            self._recover()
            yield

    # What happens to it

    def publish(
        self,
        rows: DataFrame,
        batch: Batch,
        *,
        partition_by: Sequence[str] = (),
        format: str = "parquet",
        options: Mapping[str, str] | None = None,
    ) -> list[LakeFile] | None:
        """Put the rows into the directory: the files that were added, or None when that batch is there."""
        if self._is_done(batch):
            return None
        name = batch.name
        staged = self._stage(rows, name, partition_by, format, options or {})
        moves = {file.name: _named(file.name, name, number) for number, file in enumerate(staged)}
        self._enter(name, {"moves": moves} | ({} if batch.messages is None else {"messages": batch.messages}))
        self._forget_before(name)
        return [LakeFile(moves[file.name], file.size) for file in staged]

    def _is_done(self, batch: Batch) -> bool:
        """Whether a batch was published.

        After a kill Spark gives the last one again, with the same messages. Where it has others, or others came after
        it, the checkpoint is an older one: these messages would be passed over, or be there twice.
        """
        done = f"{self._journal}/{batch.name}.done"
        if batch.messages is None:
            return self.lake.exists(done)
        names = self._done()
        if batch.name in names and json_of(self.lake, done).get("messages") in (None, batch.messages):
            return True
        if names and names[-1] >= batch.name:
            raise NotOurs(
                f"{self.directory} has {names[-1]} already, and the checkpoint goes on with another {batch.name}: "
                "it is older than the directory",
                "bring back the newer checkpoint, or write to another directory with a new one",
            )
        return False

    def _done(self) -> list[str]:
        """The batches that the journal remembers as done, sorted."""
        return [each.removesuffix(".done") for each in self.lake.children(self._journal) if each.endswith(".done")]

    def replace(self, folder: str, content: DataFrame, batch: str, *, rows: int) -> None:
        """Put so many rows in the place of all files of a folder; `batch` is a name that was never used."""
        place, staged = f"{self.directory}/{folder}", f"{self.staging}/{batch}"
        before = self.lake.files(place)
        for number, file in enumerate(self._stage(content, batch, (), "parquet", {})):
            self.lake.move(f"{staged}/{file.name}", f"{staged}/{_named(file.name, batch, number)}")
        written = self._spark.read.parquet(literal(staged)).count()
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
        return [file for file in self.lake.files(place) if not any(map(is_hidden, file.name.split("/")))]

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
            self._move(entry, f"{self._journal}/{batch}.done")
        self.lake.delete(f"{self.staging}/{batch}")

    def _move(self, source: str, target: str) -> None:
        size, moved = self.lake.size(source), self.lake.size(target)
        if size is not None and size == moved:
            # Object stores copy and then delete: a kill in between leaves both, and they move nothing over a file.
            self.lake.delete(source)
        elif size is not None:
            self.lake.make_directory(target.rpartition("/")[0])
            self.lake.move(source, target)
        elif moved is None:
            raise JobError(
                f"{target} is in the journal of {self.staging} and was neither staged nor published",
                "somebody removed it; write the table anew, with a new checkpoint",
            )

    def _swap(self, batch: str, folder: str) -> None:
        new, old = f"{self.staging}/{batch}", f"{self.staging}/{batch}.old"
        staged = [name for name in self.lake.children(new) if name.startswith(batch)]
        if not staged:
            return  # it was swapped before the process was killed
        there = self.lake.children(folder)
        if there and not self.lake.exists(old) and not any(name.startswith(batch) for name in there):
            if self.lake.exchange(new, folder):
                return
            self.lake.move(folder, old)
        if not self.lake.exists(folder):
            self.lake.move(new, folder)
            return
        # Object stores move a directory file by file: a kill in between leaves parts of it on both sides.
        for name in self.lake.children(folder):
            if not name.startswith(batch):
                self.lake.delete(f"{folder}/{name}")
        for name in staged:
            self._move(f"{new}/{name}", f"{folder}/{name}")

    def _forget_before(self, batch: str) -> None:
        """A batch runs only after Spark has noted the end of those before it: they cannot come again."""
        for name in self._done():
            if name < batch:
                self.lake.delete(f"{self._journal}/{name}.done")


def _named(name: str, batch: str, number: int) -> str:
    """The name of a published file: its folder and ending, and in between what tells its batch."""
    folder, _, file = name.rpartition("/")
    ending = "".join(f".{part}" for part in file.split(".")[1:]).replace(".c000", "")
    return f"{folder}{'/' if folder else ''}{batch}-{number:05d}{ending}"


def is_hidden(name: str) -> bool:
    """Whether Spark's readers pass over a file or a folder of that name: `_day=2025-01-31` has rows."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


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
def locked(lake: Lake, name: str, why_not: str) -> Iterator[None]:
    """A lock of local disks, a file in a directory; the system takes it back from a process that was killed."""
    local = lake.local(name)
    if local is None or sys.platform == "win32":
        yield
        return
    import fcntl

    with open(local, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(why_not, "wait for its end, or stop it") from error
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
