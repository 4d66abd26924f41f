"""Whose directory it is: the query of one checkpoint writes there, and no other.

Batches are numbered by the query. A second one, with a checkpoint of its own, would begin with batch 0 again: that is
passed over as done, or takes the place of the first one's files. So a mark in the directory names the query, before
its first file is there. Its name begins with _, so that readers of all files pass it over.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from cometmq.spark.jobs.errors import JobError, NotOurs
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.publication import Batch, Publication, is_hidden, json_of

#: Of the mark. Marks of the first version had no partitions of tables.
_VERSION: Final = 2


class Kind(NamedTuple):
    """What a directory is, the file that says so, and the columns that its files are partitioned by."""

    name: str
    mark: str
    partitions: tuple[str, ...] = ()


TABLE: Final = Kind("table", "_table.json")


class Ownership:
    """A directory and the checkpoint that wants to write to it. Mutable state: whether this run has it."""

    def __init__(self, spark: SparkSession, publication: Publication, checkpoint: str, kind: Kind) -> None:
        self._publication = publication
        self._lake = publication.lake
        self._log = Lake(spark, checkpoint)
        self._kind = kind
        self._is_claimed = False

    def check(self) -> None:
        """Whether a run with this checkpoint may write here: messages must neither come twice nor be left out."""
        lake, kind = self._lake, self._kind
        if {lake.root, self._publication.staging} & set(self._log.above()):
            raise JobError(
                f"the checkpoint {self._log.root} is inside of {lake.root}: readers would take its files for rows",
                "give a --checkpoint beside it; one that is there already can be moved",
            )
        if self._log.root in lake.above():
            raise JobError(
                f"{lake.root} is inside of the checkpoint {self._log.root}", "name a directory beside the checkpoint"
            )
        mark, query = _mark(lake, kind), self._query()
        if mark:
            self._compare(mark, query)
            return
        refuse_files(lake, kind)
        if query is not None and self._log.children(f"{self._log.root}/commits"):
            raise NotOurs(
                f"the checkpoint {self._log.root} has written messages already, and {lake.root} is not there",
                f"bring the {kind.name} back to where it was, or begin with a new --checkpoint",
            )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Have the directory for this process alone."""
        with self._publication.opened(is_new=lambda: owner_of(self._lake, self._kind) is None):
            yield

    def batch(self, number: int) -> Batch:
        """A batch of the query. The first one says whose the directory is: Spark has numbered the query by then."""
        self._claim()
        planned = f"{self._log.root}/offsets/{number}"
        messages = hashlib.sha256(self._log.read(planned).encode()).hexdigest() if self._log.exists(planned) else None
        return Batch(f"batch-{number:010d}", messages)

    def _claim(self) -> None:
        if self._is_claimed:
            return
        query = self._query()
        assert query is not None, f"no query id in {self._log.root}"
        mark = _mark(self._lake, self._kind)
        if mark:
            self._compare(mark, query)
        else:
            write_mark(self._lake, self._kind, query=query)
        self._is_claimed = True

    def _query(self) -> str | None:
        """The id that Spark gave the query of the checkpoint; None when it has never started."""
        found = json_of(self._log, f"{self._log.root}/metadata").get("id")
        return str(found) if found else None

    def _compare(self, mark: dict[str, Any], query: str | None) -> None:
        lake, kind = self._lake, self._kind
        if mark.get("query") != query:
            raise NotOurs(
                f"the {kind.name} {lake.root} was written with another checkpoint",
                "give that one by --checkpoint, or write to another directory: messages would be there twice, or lost",
            )
        before = tuple(mark.get("partitions", ()))
        if mark.get("v") == _VERSION and before != kind.partitions:
            raise NotOurs(
                f"the {kind.name} {lake.root} is partitioned by {_listed(before)}, and not by "
                f"{_listed(kind.partitions)}: readers of both find neither",
                "partition as before, or write to another directory with a new --checkpoint",
            )


def owner_of(lake: Lake, kind: Kind) -> str | None:
    """The id of the query that writes a directory; None when it has no mark."""
    found = _mark(lake, kind).get("query")
    return str(found) if found else None


def refuse_files(lake: Lake, kind: Kind) -> None:
    """Whoever has files in a directory without a mark did not mean a job to write there."""
    if not all(map(is_hidden, lake.children(lake.root))):
        raise NotOurs(
            f"{lake.root} has files and is no {kind.name} (it has no {kind.mark})",
            "name a directory that is new or empty",
        )


def write_mark(lake: Lake, kind: Kind, **content: str) -> None:
    """Say what a directory is, before its first file."""
    lake.make_directory(lake.root)
    mark = {"v": _VERSION, **content, "partitions": list(kind.partitions)}
    lake.write(f"{lake.root}/{kind.mark}", json.dumps(mark))


def _mark(lake: Lake, kind: Kind) -> dict[str, Any]:
    return json_of(lake, f"{lake.root}/{kind.mark}")


def _listed(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "nothing"
