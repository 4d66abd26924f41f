"""One run of a query's source, called as Spark calls it: the engine without Spark.

Offsets go through JSON between the calls, as they do in Spark.
"""

import json
import time
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cometmq.spark.columns import full_schema
from cometmq.spark.stream import StreamReader
from support.spark_topics import TopicKit


class SourceRun:
    """One run of a query's source: what Spark's engine does with a reader, without the engine."""

    def __init__(
        self, kit: TopicKit, topic: str | None = None, *, schema: StructType | None = None, **options: Any
    ) -> None:
        chosen = {"nameServer": kit.nameserver, "idleWait": "50ms", "discoveryInterval": "0ms"}
        if topic is not None:
            chosen["subscribe"] = topic
        texts = {name: str(value) for name, value in options.items()}
        self.reader = StreamReader({**chosen, **texts}, schema or full_schema())
        self.start: dict[str, Any] | None = None

    def batch(self, *, everything: bool = False) -> dict[int, tuple[int, int]] | None:
        """Plan the next batch: queue -> from, to. None when there is nothing to read."""
        if self.start is None:
            assert self.reader.initialOffset() == self.reader.initialOffset()
            self.start = _through_json(self.reader.initialOffset())
        limit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        end = _through_json(self.reader.latestOffset(_through_json(self.start), limit))
        if json.dumps(end) == json.dumps(self.start):
            return None
        planned = self.reader.partitions(self.start, end)
        assert [each.ranges for each in self.reader.partitions(self.start, end)] == [each.ranges for each in planned]
        self.start = end
        found: dict[int, tuple[int, int]] = {}
        for each in sorted(each for partition in planned for each in partition.ranges):
            begin, _ = found.get(each.queue_id, (each.start, 0))
            found[each.queue_id] = (begin, each.stop)
        return found

    def wait_for_batch(self) -> dict[int, tuple[int, int]]:
        """The next batch that reads something."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if batch := self.batch():
                return batch
        raise TimeoutError("no batch within 30 s")


def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(offset)
    assert "\n" not in text
    loaded: dict[str, Any] = json.loads(text)
    return loaded
