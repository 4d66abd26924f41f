"""Locks on queues, for consumers in order. Requests 41 and 42."""

from cometmq.protocol.bodies.base import Body, always, always_new
from cometmq.protocol.bodies.message_queue import MessageQueue


class LockBatchRequestBody(Body, frozen=True, kw_only=True):
    """The queues that a client wants to hold."""

    client_id: str = always("")
    consumer_group: str = always("")
    mq_set: list[MessageQueue] = always_new(list)
    #: Brokers that lock for a quorum ask each other with this set.
    only_this_broker: bool = always(False)


class UnlockBatchRequestBody(Body, frozen=True, kw_only=True):
    """The queues that a client gives back."""

    client_id: str = always("")
    consumer_group: str = always("")
    mq_set: list[MessageQueue] = always_new(list)
    only_this_broker: bool = always(False)


class LockBatchResponseBody(Body, frozen=True, kw_only=True):
    """The queues that the client holds now, exactly as it named them."""

    lock_ok_mq_set: list[MessageQueue] = always_new(list, name="lockOKMQSet")
