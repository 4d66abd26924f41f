"""Telling the brokers how far a query is, so that `mqadmin consumerProgress` shows its lag like that of any group.

For operators only: what a query reads next is in its checkpoint, never here. So no batch waits for it, and nothing that
goes wrong with it reaches the query; only one that is about to end waits a moment. RocketMQ's RemoteBrokerOffsetStore.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

from cometmq.client.admin.queues import QueueAdmin
from cometmq.client.errors import BrokerError, ClientError, NoRoute
from cometmq.client.first_offsets import FirstOffsets
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names
from cometmq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.clients import UnregisterClient
from cometmq.remoting.errors import TransportError
from cometmq.spark.access import Access
from cometmq.spark.link import link_to
from cometmq.spark.queue_range import QueueId

log = logging.getLogger(__name__)


class Progress:
    """The progress of one group. Mutable state: what was told last, and whether that is under way."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._link = link_to(access)
        self._told: dict[QueueId, int] = {}
        self._first = FirstOffsets()
        #: One telling at a time, so that an old offset never overtakes a new one.
        self._turn = asyncio.Lock()
        self._is_known = False
        self._under_way: Future[None] | None = None

    def tell(self, offsets: Mapping[QueueId, int]) -> None:
        """All messages before these offsets are done. Returns at once."""
        news = {queue: offset for queue, offset in offsets.items() if self._told.get(queue) != offset}
        if news:
            self._told.update(news)
            self._under_way = self._link.submit(self._tell(news))  # logs what goes wrong, and raises nothing

    def settle(self) -> None:
        """Wait until brokers know what they were told, as long as they may take for an answer."""
        if self._under_way is not None:
            wait_for([self._under_way], self._access.request_timeout)

    async def _tell(self, offsets: dict[QueueId, int]) -> None:
        places = {self._place(queue): queue for queue in offsets}
        async with self._turn:
            try:
                await self._introduce(offsets)
            except (ClientError, BrokerError, TransportError) as error:
                for queue in offsets:
                    self._not_told(queue, error)
                return
            for some in self._first.split(places):
                commits = (self._commit(place, offsets[places[place]]) for place in some)
                for place, outcome in zip(some, await asyncio.gather(*commits, return_exceptions=True), strict=True):
                    if outcome is not None:
                        self._not_told(places[place], outcome)

    def _place(self, queue: QueueId) -> MessageQueue:
        return MessageQueue(self._access.wire_topic(queue.topic), queue.broker, queue.queue_id)

    async def _commit(self, place: MessageQueue, offset: int) -> None:
        await QueueAdmin(self._link.client).commit_offset(self._access.wire_group, place, offset)
        self._first.answered(place)

    def _not_told(self, queue: QueueId, error: BaseException) -> None:
        """Told again with the next batch, or never: the checkpoint is what counts."""
        log.warning("the progress of group %s in %s was not told: %s", self._access.group, queue, error)
        self._told.pop(queue, None)

    async def _introduce(self, offsets: Mapping[QueueId, int]) -> None:
        """Have the brokers make the group, if they do not have it: by its retry topic they find its figures.

        A heartbeat does that; it is taken back at once, so that nobody waits for a consumer that does not consume.
        A group that exists is left alone: a heartbeat would move the queues of its consumers.
        """
        if self._is_known:
            return
        client, group = self._link.client, self._access.wire_group
        topics = {self._access.wire_topic(queue.topic) for queue in offsets}
        for topic in topics:
            if client.routes.known(topic) is None:  # a query that starts again tells before it asks for anything
                await client.routes.get(topic)
        try:
            await client.routes.fetch(names.retry_topic(group))
        except NoRoute:
            subscriptions = [SubscriptionData(topic=topic, sub_string="*") for topic in sorted(topics)]
            member = ConsumerData(
                group_name=group,
                consume_type="CONSUME_ACTIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                subscription_data_set=subscriptions,
            )
            body = HeartbeatData(client_id=client.client_id, consumer_data_set=[member]).encode()
            for name in {queue.broker for queue in offsets}:
                address = client.routes.brokers.master(name)
                timeout = self._access.request_timeout
                await client.remoting.request(address, RequestCode.HEART_BEAT, None, body, timeout=timeout)
                farewell = UnregisterClient(client.client_id, consumer_group=group)
                await client.remoting.request(address, RequestCode.UNREGISTER_CLIENT, farewell, timeout=timeout)
        self._is_known = True
