"""Where the rows of a task go: to a topic, or to one queue of it when a row has a queue or a sharding key.

A lane is what keeps its order: one queue. Rows without a queue share the lane of their topic, whose requests may go to
any queue, side by side. RocketMQ's MessageQueueSelector; the queue of a key is the one that a Java producer chooses.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.message import Message
from cometmq.client.producer.selectors import java_hash
from cometmq.client.queues import MessageQueue
from cometmq.spark.errors import OptionError
from cometmq.spark.sink_options import check_topic
from cometmq.spark.sink_rows import Ints, Rows

_COLUMNS = ("topic", "shardingKey", "queueId", "brokerName")
#: Selectors look at nothing of a message but its key.
_ANY = Message(b"-")


class Lane(NamedTuple):
    """A topic, and the queue if it has to be that one."""

    topic: str
    queue: MessageQueue | None = None


class Lanes:
    """Finds the lanes of one task's rows. Mutable state: the queues of the topics seen."""

    def __init__(self, topic: str, queues_of: Callable[[str], Sequence[MessageQueue]]) -> None:
        """`topic` is that of rows without one, or empty; `queues_of` asks the cluster."""
        self._topic = topic
        self._ask = queues_of
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._checked: set[str] = set()

    def of(self, rows: Rows) -> list[tuple[Lane, Ints | None]]:
        """The lanes that the rows have, and which rows: their places, in order; None for all."""
        columns = {name: column for name in _COLUMNS if (column := rows.column(name)) is not None}
        columns = {name: column for name, column in columns.items() if column.null_count < len(column)}
        if not columns:
            return [(self._lane(rows, 0, {}), None)]
        firsts, kinds = _kinds(list(columns.values()))
        values = {name: column.take(pa.array(firsts)).to_pylist() for name, column in columns.items()}
        lanes: dict[Lane, int] = {}
        numbers = np.empty(len(firsts), np.int64)
        for kind, first in enumerate(firsts):
            lane = self._lane(rows, int(first), {name: found[kind] for name, found in values.items()})
            numbers[kind] = lanes.setdefault(lane, len(lanes))
        if len(lanes) == 1:
            return [(next(iter(lanes)), None)]
        of_rows = numbers[kinds]
        order = np.argsort(of_rows, kind="stable")
        ends = np.searchsorted(of_rows[order], np.arange(len(lanes) + 1))
        return [(lane, order[ends[number] : ends[number + 1]]) for lane, number in lanes.items()]

    def _lane(self, rows: Rows, at: int, values: dict[str, Any]) -> Lane:
        here = np.arange(len(rows.numbers)) == at
        topic = values.get("topic") or self._topic
        if not topic:
            rows.refuse(here, "it has no topic", "fill the column, or give the option topic for such rows")
        if topic not in self._checked:
            try:
                check_topic(topic)
            except OptionError as error:
                rows.refuse(here, f"{topic!r} is no topic to send to", error.remedy)
            self._checked.add(topic)
        queue_id, broker, key = (values.get(name) for name in ("queueId", "brokerName", "shardingKey"))
        if queue_id is not None:
            return Lane(topic, self._queue(rows, here, topic, queue_id, broker))
        if broker is not None:
            rows.refuse(here, f"it names broker {broker} and no queue", "give it a queueId, or no brokerName")
        if key:
            return Lane(topic, java_hash(self._of_topic(topic), _ANY, key))
        return Lane(topic)

    def _of_topic(self, topic: str) -> Sequence[MessageQueue]:
        if topic not in self._queues:
            self._queues[topic] = self._ask(topic)
        return self._queues[topic]

    def _queue(
        self, rows: Rows, here: np.ndarray[Any, Any], topic: str, queue_id: int, broker: str | None
    ) -> MessageQueue | None:
        """The queue of that number; of several brokers that have one, the first by name."""
        queues = self._of_topic(topic)
        fitting = [each for each in queues if each.queue_id == queue_id and broker in (None, each.broker_name)]
        if not fitting:
            there = ", ".join(sorted(f"{each.broker_name}/{each.queue_id}" for each in queues))
            wanted = f"{broker or ''}/{queue_id}".lstrip("/")
            rows.refuse(here, f"topic {topic} has no queue {wanted} to write to", f"its queues are {there}")
        return min(fitting)


def _kinds(columns: list[pa.Array]) -> tuple[Ints, Ints]:
    """Rows that are alike in these columns are of one kind: the first row of each kind, and the kind of each row."""
    mixed = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(column)
        codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        _, mixed = np.unique(mixed * (len(encoded.dictionary) + 1) + codes + 1, return_inverse=True)
    _, firsts, kinds = np.unique(mixed, return_index=True, return_inverse=True)
    return firsts, kinds
