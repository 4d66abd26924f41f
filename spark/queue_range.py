"""A queue, and a range of its offsets: what the driver plans with and what an executor is told to read.

Plain values that pickle small: Spark sends one range, or some, with every task. Topics are named as the user names
them, without a namespace. RocketMQ's MessageQueue; Kafka's KafkaOffsetRange.
"""

from typing import NamedTuple


class QueueId(NamedTuple):
    """One queue of a topic on a broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic} on broker {self.broker}"


class QueueRange(NamedTuple):
    """The messages of a queue from `start` up to, and without, `stop`."""

    topic: str
    broker: str
    queue_id: int
    start: int
    stop: int

    @property
    def queue(self) -> QueueId:
        return QueueId(self.topic, self.broker, self.queue_id)

    @property
    def size(self) -> int:
        """How many offsets it spans; a filter, or a hole in the queue, may leave fewer messages."""
        return self.stop - self.start
