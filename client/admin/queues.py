"""Which topics and queues there are, where queues begin and end, and how far a group is in one: what a reader asks."""

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.errors import NoRoute, OffsetNotFound
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import route_of
from cometmq.protocol.bodies.lists import TopicList
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetAnswer,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)


class QueueAdmin(AdminCalls):
    """The part of the admin client for readers. Light: a process may load it without the others."""

    async def topics(self) -> list[str]:
        """All topics, those of the system too."""
        answer = await self._ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return TopicList.decode(answer.body).topic_list

    async def read_queues_of(self, topic: str, *, route_topic: str | None = None) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted."""
        return list(route_of(topic, await self.topic_route(route_topic or topic)).subscribe)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of a queue gets."""
        header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that a queue has."""
        header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def search_offset(self, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message that was stored at a time (milliseconds) or later."""
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: int, header: GetMaxOffset | GetMinOffset | SearchOffset) -> int:
        answer = await self._ask(await self._master_for(queue), code, header)
        return answer.header(OffsetAnswer).offset

    async def _master_for(self, queue: MessageQueue) -> str:
        """The address of a queue's master; the route is asked for when the broker is not known, or not any more."""
        routes = self._client.routes
        if not routes.brokers.has(queue.broker_name):
            try:
                await routes.fetch(queue.topic)  # once for all who ask at the same time; and it is kept up to date
            except NoRoute:
                await self.topic_route(queue.topic)  # says it as a nameserver does
        return routes.brokers.master(queue.broker_name)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that a group has committed in a queue; None when it has none."""
        header = QueryConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        try:
            answer = await self._ask(await self._master_for(queue), RequestCode.QUERY_CONSUMER_OFFSET, header)
        except OffsetNotFound:
            return None
        return answer.header(OffsetAnswer).offset

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a group in a queue. Consumers that run overwrite it: reset it for those."""
        header = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._ask(await self._master_for(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)
