"""Looking for messages: by id, by key, by their place in a queue; and who has consumed one.

RocketMQ's MQAdminImpl, and messageTrackDetail of DefaultMQAdminExtImpl.
"""

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.client.admin.cluster import ClusterAdmin
from cometmq.client.admin.errors import NoMessage, NoProgress
from cometmq.client.consumer.pulling import Pulled, PullRequest, Pulls
from cometmq.client.consumer.subscriptions import Subscription, subscription_data
from cometmq.client.errors import BrokerError, ClientError, ConsumerOffline, OffsetNotFound
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies.connections import ConsumerConnection
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.message_id import decode_message_id
from cometmq.protocol.record import Record, decode_record, decode_records
from cometmq.protocol.requests.queries import QueryMessage, ViewMessage
from cometmq.remoting.address import format_address
from cometmq.remoting.errors import TransportError

#: The group that every broker has for tools.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
#: Java's Long.MAX_VALUE: no end.
FOREVER: Final = 2**63 - 1


class TrackType(enum.StrEnum):
    """What a group has done with a message."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


class MessageTrack(msgspec.Struct, frozen=True):
    """What a group has done with a message, and why that is not known if it is not."""

    group: str
    type: TrackType
    error: str | None = None


class _NotDelivered:
    """The delivery of a message that an administrator looks at: there is nothing to settle."""

    def settle(self, message: ReceivedMessage) -> None:
        raise ClientError("this message was looked up, not delivered: it cannot be acknowledged or retried")

    def abandon(self, message: ReceivedMessage) -> None: ...

    async def ack(self, message: ReceivedMessage) -> None:
        self.settle(message)

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        self.settle(message)

    async def reply(self, message: ReceivedMessage, reply: Message) -> SendReceipt:
        raise ClientError("this message was looked up, not delivered: it cannot be acknowledged or retried")


_LOOKED_UP: Final = _NotDelivered()


def looked_up(record: Record, broker_name: str) -> ReceivedMessage:
    """A message that was found; `ack` and `retry` of it raise."""
    return ReceivedMessage(record, MessageQueue(record.topic, broker_name, record.queue_id), record.topic, _LOOKED_UP)


class QueryAdmin(ClusterAdmin):
    """The part of the admin client for single messages."""

    async def message_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its offset message id or, with its topic, by its unique key. NoMessage when there is none.

        The two kinds of ids look alike: what is not found as the first is tried as the second.
        """
        try:
            return await self.view_message(message_id, topic)
        except CometMQError:
            if topic is None:
                raise
        return (await self.messages_by_unique_key(topic, message_id))[0]

    async def view_message(self, offset_message_id: str, topic: str | None = None) -> ReceivedMessage:
        """The message at the place that an offset message id names."""
        place = decode_message_id(offset_message_id)
        address = format_address(place.host, place.port)
        header = ViewMessage(offset=place.physical_offset, topic=topic)
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        record = decode_record(answer.body, decompress=True)
        if topic is not None and record.topic != topic:
            raise NoMessage(f"the message {offset_message_id} is one of {record.topic}, not of {topic}")
        return looked_up(record, self._client.routes.brokers.name_of(address) or "")

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin: int = 0,
        end: int = FOREVER,
        route_topic: str | None = None,
    ) -> list[ReceivedMessage]:
        """The messages with a key, stored between two times (milliseconds). NoMessage when there is none."""
        header = QueryMessage(
            topic=topic, key=key, max_num=limit, begin_timestamp=begin, end_timestamp=end, unique_key_query=False
        )
        found = await self._query(header, route_topic)
        return _some(message for message in found if key in message.keys)

    async def messages_by_unique_key(
        self, topic: str, unique_key: str, *, limit: int = 32, route_topic: str | None = None
    ) -> list[ReceivedMessage]:
        """The messages with a unique key, the oldest first: one, or more after a producer's retry."""
        header = QueryMessage(
            topic=topic,
            key=unique_key,
            max_num=limit,
            begin_timestamp=0,
            end_timestamp=FOREVER,
            unique_key_query=True,
        )
        found = await self._query(header, route_topic)
        return _some(message for message in found if message.message_id == unique_key)

    async def _query(self, header: QueryMessage, route_topic: str | None) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for address in await self._addresses_of(route_topic or header.topic):
            try:
                answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header, timeout=self._long_timeout)
            except OffsetNotFound:
                continue
            name = self._client.routes.brokers.name_of(address) or ""
            found += [looked_up(record, name) for record in decode_records(answer.body, decompress=True)]
        # An index finds by a hash: others than the wanted ones may come.
        found = [message for message in found if message.topic == header.topic]
        return sorted(found, key=lambda message: (message.stored_time, message.physical_offset))

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """The message at an offset of a queue. NoMessage when there is none."""
        pulled = await self.pull(queue, offset, limit=1)
        if not pulled.records:
            raise NoMessage(f"{queue} has no message at {offset}: {pulled.status}")
        return looked_up(pulled.records[0], queue.broker_name)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        subscription: Subscription = "*",
        limit: int = 32,
        group: str = TOOLS_GROUP,
    ) -> Pulled:
        """Read a queue from an offset on, as no consumer of it: nothing is committed."""
        await self._master_for(queue)
        wanted = PullRequest(
            queue,
            offset,
            subscription_data(queue.topic, subscription, 0),
            max_count=limit,
            hold=0,
            with_subscription=True,
        )
        return await Pulls(self._client, group).pull(wanted)

    # Who has consumed a message

    async def message_tracks(self, message: ReceivedMessage) -> list[MessageTrack]:
        """What each group that consumes its topic has done with a message."""
        groups = await self.groups_of_topic(message.topic)
        return [await self._track(group, message) for group in groups]

    async def _track(self, group: str, message: ReceivedMessage) -> MessageTrack:
        try:
            connection = await self.consumer_connection(group)
            if connection.consume_type == ConsumeType.ACTIVELY:
                return MessageTrack(group, TrackType.PULL)
            if connection.consume_type != ConsumeType.PASSIVELY:
                return MessageTrack(group, TrackType.UNKNOWN)
            consumed = await self._has_consumed(group, message)
        except (ConsumerOffline, NoProgress):
            return MessageTrack(group, TrackType.NOT_ONLINE)
        except BrokerError as error:
            if error.code == ResponseCode.BROADCAST_CONSUMPTION:
                return MessageTrack(group, TrackType.CONSUME_BROADCASTING)
            return MessageTrack(group, TrackType.UNKNOWN, f"CODE: {error.code}  DESC: {_first_line(error.remark)}")
        except (ClientError, TransportError) as error:
            return MessageTrack(group, TrackType.UNKNOWN, str(error))
        if not consumed:
            return MessageTrack(group, TrackType.NOT_CONSUME_YET)
        is_wanted = _subscribes(connection, message)
        return MessageTrack(group, TrackType.CONSUMED if is_wanted else TrackType.CONSUMED_BUT_FILTERED)

    async def _has_consumed(self, group: str, message: ReceivedMessage) -> bool:
        stats = await self.consume_stats(group, message.topic)
        stored_by = format_address(*message.store_host)
        return any(
            queue.topic == message.topic
            and queue.queue_id == message.queue.queue_id
            and self._client.routes.brokers.name_of(stored_by) in (queue.broker_name, None)
            and wrapper.consumer_offset > message.queue_offset
            for queue, wrapper in stats.offset_table.items()
        )


def _subscribes(connection: ConsumerConnection, message: ReceivedMessage) -> bool:
    """Whether the tags of a group take a message; an SQL expression is taken to."""
    subscription = connection.subscription_table.get(message.topic)
    if subscription is None or not subscription.tags_set or "*" in subscription.tags_set:
        return True
    return message.tag in subscription.tags_set


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _some(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    found = list(messages)
    if not found:
        raise NoMessage("query message by key finished, but no message.")
    return found
