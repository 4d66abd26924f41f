"""How far topics and groups are: the ends of queues, the offsets of groups, and how old what they have to consume is.

Thousands of queues may have to be looked at for one answer, so these handlers pause. RocketMQ's AdminBrokerProcessor.
"""

from typing import TYPE_CHECKING

from cometmq.broker.handlers.pacing import encoded, paced
from cometmq.broker.handlers.row import Row
from cometmq.protocol.bodies.message_queue import MessageQueue
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.admin import GetBrokerConsumeStats, GetConsumeStats, GetTopicStats, QueryConsumeTimeSpan
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ConsumeStatsRequests(state)
    return [
        (RequestCode.GET_TOPIC_STATS_INFO, requests.get_topic_stats, Permission("Get", "Topic", "topic")),
        (RequestCode.GET_CONSUME_STATS, requests.get_consume_stats, Permission("Get", "Group", "consumer_group")),
        (RequestCode.GET_BROKER_CONSUME_STATS, requests.get_broker_consume_stats, Permission("Get", "Cluster")),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, requests.query_time_span, Permission("Get", "Group", "group")),
    ]


class ConsumeStatsRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    async def get_topic_stats(self, request: Request[GetTopicStats]) -> Response:
        """The ends of all queues of a topic."""
        topic = request.header.topic
        config = self._state.topics.get(topic)
        if config is None:
            return _unknown(topic)
        store = self._state.store
        table: dict[MessageQueue, TopicOffset] = {}
        async for queue_id in paced(range(max(config.read_queue_nums, config.write_queue_nums))):
            end = store.max_offset(topic, queue_id)
            last = store.message_time(topic, queue_id, end - 1) if end > 0 else 0
            table[self._queue(topic, queue_id)] = TopicOffset(
                last_update_timestamp=max(last, 0),
                max_offset=end,
                min_offset=max(store.min_offset(topic, queue_id), 0),
            )
        tps = self._state.stats.topic_put_tps(topic)
        stats = TopicStatsTable(offset_table=table, topic_put_tps=tps)
        return Response(body=await encoded(self._state.runner, stats, len(table)))

    async def get_consume_stats(self, request: Request[GetConsumeStats]) -> Response:
        """How far a group is: in a topic, in some (`topicList`), or in all that it has offsets in."""
        header = request.header
        group = header.consumer_group
        if header.topic_list and header.topic_list.strip():
            topics = [topic for topic in header.topic_list.split(";") if topic]
        elif header.topic and header.topic.strip():
            topics = [header.topic]
        else:
            topics = self._state.offsets.topics_of(group)
        tps = 0.0
        table: dict[MessageQueue, OffsetWrapper] = {}
        for topic in dict.fromkeys(topics):
            config = self._state.topics.get(topic)
            if config is not None and self._is_consumed(group, topic):
                tps += self._state.stats.group_get_tps(group, topic)
                table.update(await self._progress(group, config, config.read_queue_nums))
        stats = ConsumeStats(consume_tps=tps, offset_table=table)
        return Response(body=await encoded(self._state.runner, stats, len(table)))

    async def get_broker_consume_stats(self, request: Request[GetBrokerConsumeStats]) -> Response:
        """How far all groups are, in ordered topics only or in all."""
        state = self._state
        groups = []
        diff = inflight = entries = 0
        async for group in paced(list(state.groups.table)):
            stats = []
            for topic in state.offsets.topics_of(group):
                config = state.topics.get(topic)
                if config is None or (request.header.is_order and not config.order):
                    continue
                if not self._is_consumed(group, topic):
                    continue
                table = await self._progress(group, config, config.write_queue_nums)
                stats.append(ConsumeStats(consume_tps=state.stats.group_get_tps(group, topic), offset_table=table))
                entries += len(table)
                diff += sum(queue.broker_offset - queue.consumer_offset for queue in table.values())
                inflight += sum(queue.pull_offset - queue.consumer_offset for queue in table.values())
            groups.append({group: stats})
        body = ConsumeStatsList(
            broker_addr=state.address, consume_stats_list=groups, total_diff=diff, total_inflight_diff=inflight
        )
        return Response(body=await encoded(state.runner, body, entries))

    async def query_time_span(self, request: Request[QueryConsumeTimeSpan]) -> Response:
        """From when to when the messages of each queue are, and how old the next one of the group is."""
        topic, group = request.header.topic, request.header.group
        config = self._state.topics.get(topic)
        if config is None:
            return _unknown(topic)
        spans = [self._span(topic, group, queue_id) async for queue_id in paced(range(config.write_queue_nums))]
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return Response(body=await encoded(self._state.runner, body, len(spans)))

    def _span(self, topic: str, group: str, queue_id: int) -> QueueTimeSpan:
        store = self._state.store
        first = store.earliest_time(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        last = store.message_time(topic, queue_id, end - 1)
        offset = self._state.offsets.query(group, topic, queue_id)
        consumed = store.message_time(topic, queue_id, offset - 1) if offset > 0 else first
        delay = 0
        if offset < end:
            # A group that never committed has the whole queue before it.
            following = store.message_time(topic, queue_id, offset) if offset >= 0 else first
            delay = self._state.clock.wall() - following if following >= 0 else 0
        return QueueTimeSpan(
            consume_time_stamp=consumed,
            consume_time_stamp_str=self._text(consumed),
            delay_time=delay,
            max_time_stamp=last,
            max_time_stamp_str=self._text(last),
            message_queue=self._queue(topic, queue_id),
            min_time_stamp=first,
            min_time_stamp_str=self._text(first),
        )

    async def _progress(self, group: str, config: TopicConfig, queues: int) -> dict[MessageQueue, OffsetWrapper]:
        """How far a group is in each queue of a topic."""
        topic = config.topic_name
        return {
            self._queue(topic, queue_id): self._offsets(group, topic, queue_id)
            async for queue_id in paced(range(queues))
        }

    def _offsets(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        store, offsets = self._state.store, self._state.offsets
        consumed = max(offsets.query(group, topic, queue_id), 0)
        last = store.message_time(topic, queue_id, consumed - 1) if consumed > 0 else 0
        return OffsetWrapper(
            broker_offset=store.max_offset(topic, queue_id),
            consumer_offset=consumed,
            last_timestamp=max(last, 0),
            pull_offset=max(consumed, offsets.pull_offset(group, topic, queue_id)),
        )

    def _is_consumed(self, group: str, topic: str) -> bool:
        """Whether the group's members want the topic; without members its offsets say so."""
        live = self._state.consumers.get(group)
        return live is None or not live.subscriptions or topic in live.subscriptions

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(broker_name=self._state.config.broker_name, queue_id=queue_id, topic=topic)

    def _text(self, timestamp: int) -> str:
        """A time as RocketMQ writes it, in the zone of the machine."""
        return f"{self._state.clock.local(timestamp):%Y-%m-%d#%H:%M:%S:%f}"[:-3]


def _unknown(topic: str) -> Response:
    return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=f"topic[{topic}] not exist")
