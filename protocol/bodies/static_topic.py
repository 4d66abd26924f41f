"""The mapping of static topics: which physical queues stand behind a logical one.

CometMQ carries these through (routes, registrations, backups); nothing here interprets them.
"""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new

GLOBAL_SCOPE = "__global__"


class TopicQueueMappingInfo(Body, frozen=True, kw_only=True):
    """The logical queues of a static topic that one broker hosts."""

    bname: str = always("")
    curr_id_map: dict[Int32, Int32] = always_new(dict)
    dirty: bool = always(False)
    epoch: Int64 = always(0)
    scope: str = always(GLOBAL_SCOPE)
    topic: str = always("")
    total_queues: Int32 = always(0)


class LogicQueueMappingItem(Body, frozen=True, kw_only=True):
    """A stretch of a logical queue that lives in one physical queue."""

    bname: str = always("")
    end_offset: Int64 = always(-1)
    gen: Int32 = always(0)
    logic_offset: Int64 = always(0)
    queue_id: Int32 = always(0)
    start_offset: Int64 = always(0)
    time_of_end: Int64 = always(-1)
    time_of_start: Int64 = always(-1)


class TopicQueueMappingDetail(Body, frozen=True, kw_only=True):
    """TopicQueueMappingInfo with the history of every hosted queue."""

    bname: str = always("")
    curr_id_map: dict[Int32, Int32] = always_new(dict)
    dirty: bool = always(False)
    epoch: Int64 = always(0)
    hosted_queues: dict[Int32, list[LogicQueueMappingItem]] = always_new(dict)
    scope: str = always(GLOBAL_SCOPE)
    topic: str = always("")
    total_queues: Int32 = always(0)
