"""Requests about offsets that clients make while they consume: what a group has committed, how far a queue goes.

Resets, clones and corrections are the administrator's (`reset`). RocketMQ's ConsumerManageProcessor (14, 15) and a part
of its AdminBrokerProcessor (29 to 32).
"""

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.row import Row
from cometmq.broker.store.consume_queue import Boundary
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests import offsets as headers
from cometmq.remoting.dispatch import NO_ANSWER, Permission, Request, Response, Result

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

log = logging.getLogger(__name__)

_SUCCESS: Final = Response(header=NoHeader())
_NOT_FOUND: Final = Response(
    int(ResponseCode.QUERY_NOT_FOUND),
    NoHeader(),
    remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
)
_NOT_FOUND_NOT_ZERO: Final = Response(
    int(ResponseCode.QUERY_NOT_FOUND),
    NoHeader(),
    remark="Not found, do not set to zero, maybe this group boot first",
)


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = OffsetRequests(state)
    consume, look = Permission("Sub", "Topic", "topic"), Permission("Get", "Topic", "topic")
    return [
        (RequestCode.QUERY_CONSUMER_OFFSET, requests.query, consume),
        (RequestCode.UPDATE_CONSUMER_OFFSET, requests.update, consume),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, requests.search, look),
        (RequestCode.GET_MAX_OFFSET, requests.get_max, look),
        (RequestCode.GET_MIN_OFFSET, requests.get_min, look),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, requests.get_earliest_time, look),
    ]


class OffsetRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state
        self._offsets = state.offsets
        self._store = state.store

    def query(self, request: Request[headers.QueryConsumerOffset]) -> Result:
        """Where a group goes on. Decides where a new one begins: 22 lets the client choose.

        An error code would be no harmless answer: 4.x clients take every one for "no offset" and jump to the end of the
        queue. So a store that cannot be read is not answered at all, and the client asks again.
        """
        header = request.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = -1
        if self._state.config.use_server_side_reset_offset:
            pending = self._offsets.peek_reset(group, topic, queue_id)
            offset = -1 if pending is None else pending
        if offset < 0:
            offset = self._offsets.query(group, topic, queue_id)
        if offset >= 0:
            return Response(header=headers.OffsetAnswer(offset))
        if header.set_zero_if_not_found is False:
            return _NOT_FOUND_NOT_ZERO
        try:
            # The topic is young: a new group gets all of it, whatever its ConsumeFromWhere says.
            from_the_start = self._store.min_offset(topic, queue_id) <= 0 and self._store.is_hot(topic, queue_id, 0)
        except OSError as error:
            log.error("%s is not answered, the queue cannot be read: %s", request, error)
            return NO_ANSWER
        return Response(header=headers.OffsetAnswer(0)) if from_the_start else _NOT_FOUND

    def update(self, request: Request[headers.UpdateConsumerOffset]) -> Response:
        """A commit; mostly oneway. Hot: every consumer sends one for each of its queues every 5 s."""
        header = request.header
        group, topic_name, queue_id, offset = header.consumer_group, header.topic, header.queue_id, header.commit_offset
        state = self._state
        if state.groups.get(group) is None:
            return Response(int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), remark=f"Group {group} not exist!")
        topic: TopicConfig | None = state.topics.get(topic_name)
        if topic is None:
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), NoHeader(), remark=f"Topic {topic_name} not exist!")
        if queue_id is None:
            return _invalid(f"QueueId is null, topic is {topic_name}")
        if offset is None:
            return _invalid(f"Offset is null, topic is {topic_name}")
        if offset < 0:
            return _invalid(f"Offset {offset} is negative, topic is {topic_name}")
        if not 0 <= queue_id < max(topic.read_queue_nums, topic.write_queue_nums) and not self._has_queue(
            topic_name, queue_id
        ):
            # Without this, one client could fill the table with queues that nobody will ever have.
            return _invalid(f"QueueId {queue_id} is not one of topic {topic_name}")
        uses_resets = state.config.use_server_side_reset_offset
        if uses_resets and self._offsets.peek_reset(group, topic_name, queue_id) is not None:
            # Committed before the client has heard of the reset: that would undo it.
            return _SUCCESS
        self._offsets.commit(group, topic_name, queue_id, offset, request.connection)
        return _SUCCESS

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        """A topic that has shrunk still has its old queues, and consumers that leave them."""
        return self._store.queues.get(topic, queue_id) is not None

    def search(self, request: Request[headers.SearchOffset]) -> Response:
        header = request.header
        upper = header.boundary_type is not None and header.boundary_type.upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return Response(header=headers.OffsetAnswer(offset))

    def get_max(self, request: Request[headers.GetMaxOffset]) -> Response:
        header = request.header
        offset = self._store.max_offset(header.topic, header.queue_id, committed=header.committed is not False)
        return Response(header=headers.OffsetAnswer(offset))

    def get_min(self, request: Request[headers.GetMinOffset]) -> Response:
        header = request.header
        return Response(header=headers.OffsetAnswer(self._store.min_offset(header.topic, header.queue_id)))

    def get_earliest_time(self, request: Request[headers.GetEarliestMsgStoreTime]) -> Response:
        header = request.header
        timestamp = self._store.earliest_time(header.topic, header.queue_id)
        return Response(header=headers.GetEarliestMsgStoreTimeAnswer(timestamp))


def _invalid(remark: str) -> Response:
    return Response(int(ResponseCode.INVALID_PARAMETER), NoHeader(), remark=remark)
