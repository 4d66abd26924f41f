"""MessageQueue: one queue of a topic on a broker, the key of most tables in RocketMQ's bodies."""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always


class MessageQueue(Body, frozen=True, kw_only=True):
    """Names a queue. Hashable: tables of queues use it as their key, on the wire too."""

    broker_name: str = always("")
    queue_id: Int32 = always(0)
    topic: str = always("")


class MessageQueueForC(Body, frozen=True, kw_only=True):
    """A queue with its offset: what C++ clients get, who cannot read objects as keys."""

    broker_name: str = always("")
    offset: Int64 = always(0)
    queue_id: Int32 = always(0)
    topic: str = always("")
