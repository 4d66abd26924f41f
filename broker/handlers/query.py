"""Looking for single messages: by key, by their place in the log, and at the units of a consume queue.

What is found goes out as it lies in the log; the client decodes it, and drops what only has the same hash. RocketMQ's
QueryMessageProcessor, and QUERY_CONSUME_QUEUE of its AdminBrokerProcessor.
"""

from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.pacing import body_of, paced, run_paced
from cometmq.broker.handlers.row import Row
from cometmq.broker.store.commit_log import Range
from cometmq.broker.store.consume_queue_ext import ExtUnit, is_address
from cometmq.broker.store.consume_queues import AnyQueue
from cometmq.broker.store.reading import MessageFilter
from cometmq.broker.subscriptions import SubscriptionRefused, Subscriptions
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.stats import ConsumeQueueData, QueryConsumeQueueResponseBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.admin import QueryConsumeQueue
from cometmq.protocol.requests.queries import QueryMessage, QueryMessageAnswer, ViewMessage
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Units of a consume queue in one answer; a frame would hold a hundred times as many.
MAX_UNITS: Final = 2000
#: Bytes of messages in one answer: a frame is 16 MiB, and one message may be 4 MiB.
MAX_ANSWER: Final = 12 << 20


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = QueryRequests(state)
    by_topic = Permission("Get", "Topic", "topic")
    return [
        (RequestCode.QUERY_MESSAGE, requests.query_message, by_topic),
        (RequestCode.VIEW_MESSAGE_BY_ID, requests.view_message, by_topic),
        (RequestCode.QUERY_CONSUME_QUEUE, requests.query_consume_queue, by_topic),
    ]


class QueryRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state
        self._subscriptions = Subscriptions()

    async def query_message(self, request: Request[QueryMessage]) -> Response:
        """By key, or by unique key."""
        header = request.header
        state = self._state
        count = header.max_num
        if header.unique_key_query:
            count = state.config.store.default_query_max_num
        result = await run_paced(
            state.store.reading.querying(
                header.topic, header.key, max(count, 0), header.begin_timestamp, header.end_timestamp
            )
        )
        answer = QueryMessageAnswer(result.index_last_update_timestamp, result.index_last_update_offset)
        room = MAX_ANSWER
        kept: list[Range] = []
        for found in result.ranges:
            room -= found.length
            if room >= 0 or not kept:
                kept.append(found)
            else:
                found.release()
        if not kept:
            remark = "can not find message, maybe time range not correct"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), header=answer, remark=remark)
        return Response(header=answer, body=await body_of(state.runner, kept))

    async def view_message(self, request: Request[ViewMessage]) -> Response:
        """By the place in the log, which is part of the message's id."""
        offset = request.header.offset
        found = self._state.store.message_at(offset)
        if found is None:
            remark = f"can not find message by the offset, {offset}"
            return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
        return Response(body=await body_of(self._state.runner, [found]))

    async def query_consume_queue(self, request: Request[QueryConsumeQueue]) -> Response:
        """Units of a queue, and which of them a group's subscription takes."""
        header = request.header
        queue = self._state.store.queues.get(header.topic, header.queue_id)
        if queue is None:
            remark = f"{header.queue_id}@{header.topic} is not exist!"
            return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
        filter_data = subscription = None
        if header.consumer_group is not None:
            subscription = self._state.consumers.subscription(header.consumer_group, header.topic)
            filter_data = "null"  # there are no compiled expressions to show
            if subscription is None:
                filter_data = f"{header.consumer_group}@{header.topic} is not online!"
        units = None
        if queue.min_offset <= header.index < queue.max_offset:
            takes = self._judge(subscription)
            count = min(max(header.count, 0), MAX_UNITS)
            entries = list(queue.entries(header.index, count))[:count]
            units = [_unit(queue, code, physical, size, takes) async for _, physical, size, code, _ in paced(entries)]
        return Response(
            body=QueryConsumeQueueResponseBody(
                filter_data=filter_data,
                max_queue_index=queue.max_offset,
                min_queue_index=queue.min_offset,
                queue_data=units,
                subscription_data=subscription,
            ).encode()
        )

    def _judge(self, subscription: SubscriptionData | None) -> MessageFilter | bool:
        """The filter of a subscription; or whether all messages are taken."""
        if subscription is None:
            return False
        try:
            wanted = self._subscriptions.make_filter(subscription)
        except SubscriptionRefused:
            return False
        return True if wanted is None else wanted


def _unit(queue: AnyQueue, code: int, physical: int, size: int, takes: MessageFilter | bool) -> ConsumeQueueData:
    ext: ExtUnit | None = None
    message = None
    if queue.ext is not None and is_address(code):
        ext = queue.ext.get(code)
        if ext is None:
            message = f"Cq extend not exist!addr: {code}"
    taken = takes if isinstance(takes, bool) else takes.matches_unit(code if ext is None else ext.tags_code, ext)
    return ConsumeQueueData(eval=taken, msg=message, physic_offset=physical, physic_size=size, tags_code=code)
