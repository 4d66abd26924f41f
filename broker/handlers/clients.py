"""Heartbeats, leaving, and who is in a group: requests 34, 35, 38 and 46.

A heartbeat registers a client with all its groups, and creates what those groups need. Most heartbeats say what the one
before said; they are told by their bytes and only move a time. Mirrors RocketMQ's ClientManageProcessor and the part of
ConsumerManageProcessor that lists the members of a group.
"""

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.channels import ClientChannel
from cometmq.broker.consumers import ConsumerGroup
from cometmq.broker.handlers.row import Row
from cometmq.broker.subscriptions import Subscriptions, is_tag_type
from cometmq.broker.topics import FLAG_UNIT_SUB, WantedTopic
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, ConsumeType, HeartbeatData
from cometmq.protocol.bodies.lists import GetConsumerListByGroupResponseBody
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.errors import BodyError
from cometmq.protocol.header import NoHeader
from cometmq.protocol.msgpack_header import ANNOUNCE_KEY, ANNOUNCE_VALUE
from cometmq.protocol.requests.clients import GetConsumerListByGroup, HeartBeatAnswer, UnregisterClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Longest body of a heartbeat, in bytes: some thousand subscriptions. Reading it keeps everybody waiting.
MAX_HEARTBEAT: Final = 1024 * 1024
#: Longest body that is kept to be compared with the next one; others are read each time.
MAX_KEPT_HEARTBEAT: Final = 16 * 1024
#: Longest body of a subscription to be checked.
MAX_CHECK: Final = 256 * 1024
#: Longest names of a client and of a producer group, in characters. RocketMQ has no limit; real ones are below 100.
MAX_CLIENT_ID: Final = 1024
MAX_PRODUCER_GROUP: Final = 255

#: Where a connection's last heartbeat is kept.
_KEPT = "heartbeat"
_ANNOUNCE_BYTES = ANNOUNCE_KEY.encode()

_SUCCESS = Response()
# By whether subscriptions changed.
_ANSWERS = {changed: Response(header=HeartBeatAnswer(True, changed)) for changed in (True, False)}
_MSGPACK_ANSWERS = {
    changed: Response(header=HeartBeatAnswer(True, changed), ext={ANNOUNCE_KEY: ANNOUNCE_VALUE})
    for changed in (True, False)
}

log = logging.getLogger(__name__)


def rows(state: "BrokerState") -> list[Row]:
    requests = ClientRequests(state)
    return [
        (RequestCode.HEART_BEAT, requests.heart_beat, None),
        (RequestCode.UNREGISTER_CLIENT, requests.unregister, None),
        (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            requests.get_consumer_list,
            Permission("Sub", "Group", "consumer_group"),
        ),
        (RequestCode.CHECK_CLIENT_CONFIG, requests.check_config, None),
    ]


class _KeptHeartbeat:
    """The last heartbeat of a connection, and what must still be so for the same bytes to change nothing."""

    __slots__ = ("body", "consumers", "groups_version", "is_second_version", "producers", "topics_version")

    def __init__(self, body: bytes, is_second_version: bool) -> None:
        self.body = body
        self.is_second_version = is_second_version
        self.consumers: list[tuple[ConsumerGroup, int, ClientChannel]] = []
        self.producers: list[tuple[str, ClientChannel]] = []
        self.topics_version: DataVersion | None = None
        self.groups_version: DataVersion | None = None


class ClientRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state
        self._subscriptions = Subscriptions()
        #: Heartbeats that were told by their bytes: for tests and for the curious.
        self.unchanged = 0

    def heart_beat(self, request: Request[NoHeader]) -> Response:
        """Thousands of clients send one each 30 s, nearly all of them the same as before: about 5 us then."""
        connection = request.connection
        kept = connection.attributes.get(_KEPT)
        if kept is not None and kept.body == request.body and self._still_holds(kept, connection):
            now = self._state.clock.monotonic()
            for _, _, channel in kept.consumers:
                channel.last_update = now
            for _, channel in kept.producers:
                channel.last_update = now
            self.unchanged += 1
            is_changed = not kept.is_second_version
        else:
            is_changed = self._take(request)
        if _ANNOUNCE_BYTES in request.raw_header and request.ext.get(ANNOUNCE_KEY) == ANNOUNCE_VALUE:
            # Our own SDK. Whatever we ask of it goes out after this answer.
            connection.kind = SerializeType.MSGPACK
            return _MSGPACK_ANSWERS[is_changed]
        return _ANSWERS[is_changed]

    def unregister(self, request: Request[UnregisterClient]) -> Response:
        header, connection = request.header, request.connection
        if header.producer_group is not None:
            self._state.producers.unregister(connection, header.producer_group)
        if header.consumer_group is not None:
            self._state.consumers.unregister(connection, header.consumer_group)
        return _SUCCESS

    def get_consumer_list(self, request: Request[GetConsumerListByGroup]) -> Response:
        name = request.header.consumer_group
        group = self._state.consumers.get(name)
        if group is None:
            remark = f"no consumer for this group, {name[: names.MAX_TOPIC_LENGTH]}"
            return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
        return Response(body=GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids()).encode())

    def check_config(self, request: Request[NoHeader]) -> Response:
        """Whether a subscription can be served; clients ask before they start. Tags always can."""
        body = bounded(request, MAX_CHECK)
        data = CheckClientRequestBody.decode(body).subscription_data if body else None
        if data is not None and not is_tag_type(data.expression_type):
            self._subscriptions.make_filter(data)
        return _SUCCESS

    # A heartbeat that says something new

    def _take(self, request: Request[NoHeader]) -> bool:
        """Registers the client with all its groups. Whether the broker wants subscriptions told again."""
        data = HeartbeatData.decode(bounded(request, MAX_HEARTBEAT))
        _check_client_id(data.client_id)
        command, now = request.command, self._state.clock.monotonic()
        channel = ClientChannel(
            request.connection, data.client_id, command.language or "OTHER", command.version, last_update=now
        )
        kept = _KeptHeartbeat(request.body, data.heartbeat_fingerprint != 0)
        is_changed = self._take_consumers(channel, data, kept)
        self._take_producers(channel, data, kept)
        kept.topics_version = self._state.topics.data_version
        kept.groups_version = self._state.groups.data_version
        if len(request.body) <= MAX_KEPT_HEARTBEAT and not (kept.is_second_version and is_changed):
            request.connection.attributes[_KEPT] = kept
        else:
            request.connection.attributes.pop(_KEPT, None)
        return is_changed or not kept.is_second_version

    def _take_consumers(self, channel: ClientChannel, data: HeartbeatData, kept: _KeptHeartbeat) -> bool:
        state, fingerprint = self._state, data.heartbeat_fingerprint
        wanted = data.consumer_data_set
        if state.config.reject_pull_consumer_enable:
            wanted = [each for each in wanted if each.consume_type != ConsumeType.ACTIVELY]
        if not wanted:
            return False
        configs = state.groups.find_all(each.group_name for each in wanted)
        found = [(each, config) for each, config in zip(wanted, configs, strict=True) if config is not None]
        state.topics.create_all(self._retry_topics(found, data.without_sub))
        is_changed = False
        for each, _ in found:
            before = state.consumers.get(each.group_name)
            if before is not None and before.fingerprint not in (0, fingerprint):
                is_changed = True
            if data.without_sub and (before is None or not before.subscriptions):
                # They were left out because we knew them; we do not any more.
                is_changed = True
            state.consumers.register(channel, each, without_sub=data.without_sub, fingerprint=fingerprint)
        for each, _ in found:
            group = state.consumers.table[each.group_name]
            kept.consumers.append((group, group.generation, group.channels[channel.connection]))
        return is_changed

    def _retry_topics(
        self, found: list[tuple[ConsumerData, SubscriptionGroupConfig]], without_sub: bool
    ) -> list[WantedTopic]:
        """Where the groups' messages wait to be tried again, in order where the group consumes in order."""
        return [
            WantedTopic(
                names.retry_topic(config.group_name),
                config.retry_queue_nums,
                order=None if without_sub else self._is_in_order(data),
                sys_flag=FLAG_UNIT_SUB if data.unit_mode else 0,
            )
            for data, config in found
        ]

    def _is_in_order(self, data: ConsumerData) -> bool:
        """The group's own retry topic does not count: what once was in order would always be."""
        own, is_order = names.retry_topic(data.group_name), self._state.topics.is_order
        return any(each.topic != own and is_order(each.topic) for each in data.subscription_data_set)

    def _take_producers(self, channel: ClientChannel, data: HeartbeatData, kept: _KeptHeartbeat) -> None:
        producers = self._state.producers
        for each in data.producer_data_set:
            name = each.group_name
            if not name or len(name) > MAX_PRODUCER_GROUP:
                log.info("%s: no producer group %r", channel, name[:100])
                continue
            producers.register(channel, name)
            own = producers.get(name, channel.connection)
            assert own is not None
            kept.producers.append((name, own))

    def _still_holds(self, kept: _KeptHeartbeat, connection: Connection) -> bool:
        """Whether the kept heartbeat, sent again, would only say that the client is alive."""
        state = self._state
        if kept.topics_version is not state.topics.data_version or kept.groups_version is not state.groups.data_version:
            return False
        consumers, producers = state.consumers.table, state.producers
        for group, generation, channel in kept.consumers:
            if group.generation != generation or consumers.get(group.name) is not group:
                return False
            if group.channels.get(connection) is not channel:
                return False
        return all(producers.get(name, connection) is channel for name, channel in kept.producers)


def bounded(request: Request[NoHeader], limit: int) -> bytes:
    """The body of a request that is read at once; one that is longer than any real one is refused unread."""
    if len(request.body) > limit:
        raise BodyError(f"the body of {len(request.body)} bytes is over the limit of {limit}")
    return request.body


def _check_client_id(client_id: str) -> None:
    if not client_id or client_id.isspace():
        raise BodyError("HeartbeatData: clientID is missing")
    if len(client_id) > MAX_CLIENT_ID:
        raise BodyError(f"HeartbeatData: clientID is longer than {MAX_CLIENT_ID} characters")
