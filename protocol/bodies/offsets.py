"""Offsets of groups: what a slave copies, and what resets and queries of offsets carry."""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always_new
from cometmq.protocol.bodies.message_queue import MessageQueue, MessageQueueForC
from cometmq.protocol.bodies.registration import DataVersion


class ResetOffsetBody(Body, frozen=True, kw_only=True):
    """The offsets that a group goes back (or forward) to."""

    offset_table: dict[MessageQueue, Int64] = always_new(dict)


class ResetOffsetBodyForC(Body, frozen=True, kw_only=True):
    """ResetOffsetBody for C++ clients."""

    offset_table: list[MessageQueueForC] = always_new(list)


class GetConsumerStatusBody(Body, frozen=True, kw_only=True):
    """A client's offsets, or those of all clients of a group by client id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = always_new(dict)
    message_queue_table: dict[MessageQueue, Int64] = always_new(dict)


class QueryCorrectionOffsetBody(Body, frozen=True, kw_only=True):
    """The smallest offset of some groups for every queue of a topic."""

    correction_offsets: dict[Int32, Int64] = always_new(dict)


class ConsumerOffsetSerializeWrapper(Body, frozen=True, kw_only=True):
    """All offsets of a broker: `topic@group` -> queue id -> offset."""

    data_version: DataVersion = always_new(DataVersion)
    #: Java writes this beside the table that it follows from.
    group_topic_map: dict[str, list[str]] | None = None
    offset_table: dict[str, dict[Int32, Int64]] = always_new(dict)


class DelayOffsetSerializeWrapper(Body, frozen=True, kw_only=True):
    """How far the delivery of each delay level is."""

    data_version: DataVersion = always_new(DataVersion)
    offset_table: dict[Int32, Int64] = always_new(dict)
