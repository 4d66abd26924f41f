"""Whose directory it is: the query of one checkpoint writes there, and no other.

Batches are numbered by the query. A second one, with a checkpoint of its own, would begin with batch 0 again: that is
passed over as done, or takes the place of the first one's files. So a mark in the directory names the query, before
its first file is there. Its name begins with _, so that readers of all files pass it over.
"""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from cometmq.spark.jobs.errors import NotOurs
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.publication import json_of


class Kind(NamedTuple):
    """What a directory is, and the file that says so."""

    name: str
    mark: str
    partitions: tuple[str, ...] = ()


TABLE = Kind("table", "_table.json")


@dataclass(slots=True)
class Ownership:
    """A directory and the checkpoint that wants to write to it. Mutable state: whether this run has it."""

    lake: Lake
    checkpoint: str
    kind: Kind
    _is_claimed: bool = field(default=False, init=False)

    def check(self) -> None:
        """Whether a run with this checkpoint may write here: messages must neither come twice nor be left out."""
        lake, kind = self.lake, self.kind
        owner, query = owner_of(lake, kind), self._query()
        if owner is not None:
            self._compare(owner, query)
            return
        if any(not name.startswith(("_", ".")) for name in lake.children(lake.root)):
            raise NotOurs(
                f"{lake.root} has files and is no {kind.name} (it has no {kind.mark})",
                "name a directory that is new or empty",
            )
        if query is not None and lake.children(f"{self.checkpoint}/commits"):
            raise NotOurs(
                f"the checkpoint {self.checkpoint} has written messages already, and {lake.root} is not there",
                f"bring the {kind.name} back to where it was, or begin with a new --checkpoint",
            )

    def claim(self) -> None:
        """Say whose it is, in the first batch: Spark has numbered the query by then. Later batches ask nobody."""
        if self._is_claimed:
            return
        query = self._query()
        assert query is not None, f"no query id in {self.checkpoint}"
        owner = owner_of(self.lake, self.kind)
        if owner is None:
            content = {"v": 1, "query": query, "partitions": list(self.kind.partitions)}
            self.lake.make_directory(self.lake.root)
            self.lake.write(f"{self.lake.root}/{self.kind.mark}", json.dumps(content))
        else:
            self._compare(owner, query)
        self._is_claimed = True

    def _query(self) -> str | None:
        """The id that Spark gave the query of the checkpoint; None when it has never started."""
        found = json_of(self.lake, f"{self.checkpoint}/metadata").get("id")
        return str(found) if found else None

    def _compare(self, owner: str, query: str | None) -> None:
        if owner != query:
            raise NotOurs(
                f"the {self.kind.name} {self.lake.root} was written with another checkpoint",
                "give that one by --checkpoint, or write to another directory: messages would be there twice, or lost",
            )


def owner_of(lake: Lake, kind: Kind) -> str | None:
    """The id of the query that writes a directory; None when it has no mark."""
    found = json_of(lake, f"{lake.root}/{kind.mark}").get("query")
    return str(found) if found else None
