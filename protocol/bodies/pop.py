"""Pop consumption: who gets which queues in which mode, and batches of acknowledgements."""

import enum
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.message_queue import MessageQueue


class MessageRequestMode(enum.StrEnum):
    """How a consumer gets its messages."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(Body, frozen=True, kw_only=True):
    """Asks the broker to divide the queues of a topic."""

    client_id: str = always("")
    consumer_group: str = always("")
    message_model: str | None = None
    strategy_name: str | None = None
    topic: str = always("")


class MessageQueueAssignment(Body, frozen=True, kw_only=True):
    """A queue that a consumer was given."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue | None = None
    mode: str = always(MessageRequestMode.PULL.value)


class QueryAssignmentResponseBody(Body, frozen=True, kw_only=True):
    """The queues of a consumer. None means: keep what you have; an empty list: drop all."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body, frozen=True, kw_only=True):
    """The mode of a group for a topic."""

    consumer_group: str = always("")
    mode: str = always(MessageRequestMode.PULL.value)
    pop_share_queue_num: Int32 = always(0)
    topic: str = always("")


class MessageRequestModeSerializeWrapper(Body, frozen=True, kw_only=True):
    """The modes of all groups: topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = always_new(dict)


class BatchAck(Body, frozen=True, kw_only=True):
    """Acknowledges messages that were popped together. The names on the wire are one or two letters."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "bitSet": "b",
        "consumerGroup": "c",
        "invisibleTime": "it",
        "popTime": "pt",
        "queueId": "q",
        "retry": "r",
        "reviveQueueId": "rq",
        "startOffset": "so",
        "topic": "t",
    }

    #: Bit i of byte i // 8, counted from the lowest, acknowledges `start_offset + i`.
    bit_set: bytes = msgspec.field(name="b")
    consumer_group: str = msgspec.field(name="c")
    invisible_time: Int64 = msgspec.field(name="it")
    pop_time: Int64 = msgspec.field(name="pt")
    queue_id: Int32 = msgspec.field(name="q")
    #: "0" for the topic itself, "1" and "2" for the two forms of retry topics.
    retry: str = msgspec.field(name="r")
    revive_queue_id: Int32 = msgspec.field(name="rq")
    start_offset: Int64 = msgspec.field(name="so")
    topic: str = msgspec.field(name="t")


class BatchAckMessageRequestBody(Body, frozen=True, kw_only=True):
    """The body of BATCH_ACK_MESSAGE."""

    acks: list[BatchAck] = always_new(list)
    broker_name: str = always("")
