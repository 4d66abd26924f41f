"""The stamp of a row that the sink wrote: which query, batch, partition and row it was, in one property.

Spark repeats a batch that it could not finish, and a repeated batch has the same rows in the same places: the same
stamps. So whoever reads the topic can tell a repeat from a second message; `repeats` does it. Kafka's transactional
producers keep such numbers on the broker.
"""

from typing import Final, NamedTuple

from cometmq.spark.errors import SparkSourceError

#: The property that holds the stamp.
SPARK_ROW: Final = "SPARK_ROW"


class Stamp(NamedTuple):
    """Where a message comes from: `query:batch:partition:row`."""

    #: The id that Spark keeps in the checkpoint, or what the option `writeId` says.
    query_id: str
    #: The micro-batch; 0 for what `df.write` wrote.
    batch_id: int
    partition: int
    #: From 0 within the partition.
    row: int

    def __str__(self) -> str:
        return f"{prefix(self.query_id, self.batch_id, self.partition)}{self.row}"

    @classmethod
    def parse(cls, text: str) -> "Stamp":
        """The stamp that a property holds."""
        parts = text.rsplit(":", 3)
        if len(parts) != 4 or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
            raise SparkSourceError(f"{text!r} is no stamp", "a stamp is query:batch:partition:row")
        return cls(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


def prefix(query_id: str, batch_id: int, partition: int) -> str:
    """What the stamps of one task have in common."""
    return f"{query_id}:{batch_id}:{partition}:"
