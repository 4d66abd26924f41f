"""Offsets as Spark keeps them in its write-ahead log: a JSON text of one line, the same text for the same offsets.

`{"v":1,"from":{...},"q":{"topic":{"broker":{"0":7}}}}`: `q` says where a batch ends in each queue. `from` says where it
begins in queues that the batch before did not end in: those of the first batch, queues that are new, and queues that
lost messages. So a batch that is planned again after a crash is the same one, whatever the cluster says by then. Spark
compares texts, hence the fixed order of keys. Nothing here asks the cluster. Kafka's KafkaSourceOffset.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from cometmq.spark.errors import SparkSourceError
from cometmq.spark.queue_range import QueueId, QueueRange

VERSION: Final = 1

#: Where a query starts, before it is known what that means in offsets: the first `latestOffset` finds out and records
#: it in the end of the first batch. A constant, because Spark asks more than once and keeps only one answer.
INITIAL: Final[dict[str, Any]] = {"v": VERSION, "init": True}

#: topic -> broker -> queue -> a number.
Nested = dict[str, dict[str, dict[str, int]]]


class Offsets(msgspec.Struct, frozen=True):
    """The end of a batch in each queue, and its beginning where the batch before does not say it."""

    ends: Mapping[QueueId, int]
    begins: Mapping[QueueId, int] = {}

    def to_json(self) -> dict[str, Any]:
        """What Spark is given. Its keys come in their order, and a text made of it is canonical."""
        begins = {"from": nested(self.begins)} if self.begins else {}
        return {**begins, "q": nested(self.ends), "v": VERSION}


def is_initial(offset: Mapping[str, Any]) -> bool:
    """Whether it is the start of a query that has not planned anything yet."""
    return bool(offset.get("init"))


def parse(offset: Mapping[str, Any]) -> Offsets:
    """Offsets out of Spark's log."""
    try:
        if offset["v"] != VERSION:
            raise ValueError
        return Offsets(dict(walk(offset["q"])), dict(walk(offset.get("from", {}))))
    except (AttributeError, KeyError, ValueError):
        raise SparkSourceError(
            f"the checkpoint holds offsets of another form: {str(offset)[:200]}",
            "the checkpoint is damaged, or belongs to another source or to a newer version; start the query with a "
            "checkpoint of its own, and with startingOffsets to continue",
        ) from None


def ranges(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[QueueRange]:
    """What a batch reads: nothing but these two offsets decides it."""
    if is_initial(end):
        return []
    before = {} if is_initial(start) else parse(start).ends
    after = parse(end)
    found = []
    for queue, stop in after.ends.items():
        begin = after.begins.get(queue, before.get(queue))
        if begin is None:
            raise SparkSourceError(
                f"the checkpoint does not say where {queue} begins",
                "the checkpoint is damaged; start with a new one, and with startingOffsets to continue",
            )
        if begin < stop:
            found.append(QueueRange(*queue, begin, stop))
    return found


def nested(numbers: Mapping[QueueId, int]) -> Nested:
    """Numbers of queues as topic -> broker -> queue, sorted."""
    tree: Nested = {}
    for queue in sorted(numbers):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = numbers[queue]
    return tree


def walk(tree: Nested) -> Iterator[tuple[QueueId, int]]:
    """The numbers of a tree by queue; AttributeError or ValueError if it is none."""
    for topic, brokers in tree.items():
        for broker, queues in brokers.items():
            for queue_id, number in queues.items():
                if type(number) is not int:
                    raise ValueError(f"{number!r} is no offset")
                yield QueueId(topic, broker, int(queue_id)), number


def lag(offset: Mapping[str, Any], latest: Mapping[str, Any]) -> dict[QueueId, int]:
    """How far `offset` is behind `latest` in each queue: both as a query's progress reports them."""
    done = {} if is_initial(offset) else parse(offset).ends
    ends = parse(latest).ends
    return {queue: max(0, end - done[queue]) for queue, end in ends.items() if queue in done}


def topics_of(queues: Iterable[QueueId]) -> list[str]:
    """The topics of queues, sorted."""
    return sorted({queue.topic for queue in queues})
