"""A queue as the SDK's users see it. RocketMQ's MessageQueue."""

from typing import NamedTuple

from cometmq.protocol.bodies.message_queue import MessageQueue as WireQueue


class MessageQueue(NamedTuple):
    """One queue of a topic on a broker. Sorted as Java sorts: the members of a group must agree on the order."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # Java's text: consistent hashing of queues depends on it.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"

    def to_wire(self) -> WireQueue:
        return WireQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)

    @classmethod
    def from_wire(cls, queue: WireQueue) -> "MessageQueue":
        return cls(queue.topic, queue.broker_name, queue.queue_id)
