"""Moving the offsets of groups: to a moment, to a place, to where another group is; and handing out all of them.

A reset is either kept here until the group's next pull, which works without its clients, or pushed to the clients that
are online (`useServerSideResetOffset=false`, the way of RocketMQ 4). RocketMQ's AdminBrokerProcessor and Broker2Client.
"""

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.pacing import encoded, paced
from cometmq.broker.handlers.row import Row
from cometmq.protocol.bodies.message_queue import MessageQueue, MessageQueueForC
from cometmq.protocol.bodies.offsets import QueryCorrectionOffsetBody, ResetOffsetBody, ResetOffsetBodyForC
from cometmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests.admin import CloneGroupOffset, QueryCorrectionOffset, ResetOffset
from cometmq.protocol.requests.callbacks import ResetConsumerOffset
from cometmq.remoting.dispatch import Permission, Request, Response
from cometmq.remoting.errors import ConnectionLost

if TYPE_CHECKING:
    from cometmq.broker.channels import ClientChannel
    from cometmq.broker.state import BrokerState

#: The oldest clients that know RESET_CONSUMER_CLIENT_OFFSET: V3_0_7_SNAPSHOT.
RESET_SINCE: Final = 28
_LONG_MAX: Final = 2**63 - 1
_CPP: Final = LanguageCode.CPP.name

log = logging.getLogger(__name__)


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ResetRequests(state)
    read = Permission("Get", "Cluster")
    return [
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, requests.reset, Permission("Update", "Group", "group")),
        (RequestCode.CLONE_GROUP_OFFSET, requests.clone, Permission("Update", "Group", "dest_group")),
        (RequestCode.QUERY_CORRECTION_OFFSET, requests.query_correction, Permission("Get", "Group", "compare_group")),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, requests.get_all_offsets, read),
        (RequestCode.GET_ALL_DELAY_OFFSET, requests.get_all_delay_offsets, read),
    ]


class ResetRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    # Resets

    async def reset(self, request: Request[ResetOffset]) -> Response:
        """All queues of a topic to a moment, or one queue to a moment or an offset."""
        header = request.header
        topic = self._state.topics.get(header.topic)
        if topic is None:
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=f"Topic {header.topic} does not exist")
        if self._state.config.use_server_side_reset_offset:
            return await self._reset_here(header, topic.read_queue_nums)
        return await self._reset_clients(header, topic.write_queue_nums, is_cpp=request.command.language == _CPP)

    async def _reset_here(self, header: ResetOffset, queues: int) -> Response:
        """The next pull of each queue is sent to the new offset; until then commits do not count."""
        state = self._state
        if not state.config.is_master:
            return _failed("Can not reset offset in slave broker")
        if state.groups.get(header.group) is None:
            remark = f"Group {header.group} does not exist"
            return Response(int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), remark=remark)
        if header.queue_id >= queues:
            return _failed(f"Topic {header.topic} has {queues} queues, none with the id {header.queue_id}")
        if header.queue_id >= 0 and header.offset != -1:
            low, high = self._range(header.topic, header.queue_id)
            if not low <= header.offset <= high + 1:
                return _failed(f"Target offset {header.offset} not in consume queue range [{low}-{high}]")
            offsets = {header.queue_id: header.offset}
        else:
            chosen = range(queues) if header.queue_id < 0 else (header.queue_id,)
            offsets = {queue_id: self._at(header.topic, queue_id, header.timestamp) async for queue_id in paced(chosen)}
        if not offsets:
            return _failed("No queues to reset.")
        for queue_id, offset in offsets.items():
            state.offsets.set_reset(header.group, header.topic, queue_id, offset)
        log.info("group %s: reset in %s to %s", header.group, header.topic, offsets)
        return Response(body=ResetOffsetBody(offset_table=self._by_queue(header.topic, offsets)).encode())

    async def _reset_clients(self, header: ResetOffset, queues: int, *, is_cpp: bool) -> Response:
        """Each online client is told to go on from the new offsets; without force never forward."""
        state = self._state
        offsets: dict[int, int] = {}
        async for queue_id in paced(range(queues)):
            current = state.offsets.query(header.group, header.topic, queue_id)
            if current == -1:
                return _failed(f"THe consumer group <{header.group}> not exist")
            wanted = self._at(header.topic, queue_id, header.timestamp)
            offsets[queue_id] = wanted if header.is_force or wanted < current else current
        group = state.consumers.get(header.group)
        if group is None or not group.channels:
            remark = (
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}"
            )
            return Response(int(ResponseCode.CONSUMER_NOT_ONLINE), remark=remark)
        channels = list(group.channels.values())
        for channel in channels:
            if channel.version < RESET_SINCE:
                return _failed(f"the client does not support this feature. version={channel.version}")
        for channel in channels:
            self._push(channel, header, offsets, is_cpp=is_cpp or channel.language == _CPP)
        log.info("group %s: %d clients told to reset %s to %s", header.group, len(channels), header.topic, offsets)
        return Response(body=ResetOffsetBody(offset_table=self._by_queue(header.topic, offsets)).encode())

    def _push(self, channel: "ClientChannel", header: ResetOffset, offsets: dict[int, int], *, is_cpp: bool) -> None:
        body: ResetOffsetBody | ResetOffsetBodyForC = ResetOffsetBody(
            offset_table=self._by_queue(header.topic, offsets)
        )
        if is_cpp:
            name = self._state.config.broker_name
            body = ResetOffsetBodyForC(
                offset_table=[
                    MessageQueueForC(broker_name=name, offset=offset, queue_id=queue_id, topic=header.topic)
                    for queue_id, offset in offsets.items()
                ]
            )
        command = ResetConsumerOffset(header.topic, header.group, header.timestamp, header.is_force)
        try:
            channel.connection.send_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, command, body.encode())
        except ConnectionLost as error:
            # It left between the lookup and now: what it comes back to is the committed offset.
            log.info("%s was not told of a reset: %s", channel, error)

    def _at(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The offset of a moment; of a negative one the end."""
        store = self._state.store
        if timestamp < 0:
            return store.max_offset(topic, queue_id)
        return max(store.offset_by_time(topic, queue_id, timestamp), 0)

    def _range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._state.store.min_offset(topic, queue_id), self._state.store.max_offset(topic, queue_id)

    def _by_queue(self, topic: str, offsets: dict[int, int]) -> dict[MessageQueue, int]:
        name = self._state.config.broker_name
        return {
            MessageQueue(broker_name=name, queue_id=queue_id, topic=topic): offset
            for queue_id, offset in offsets.items()
        }

    # Other groups

    def clone(self, request: Request[CloneGroupOffset]) -> Response:
        """Another group goes on where a group is: in a topic, or in all that it has offsets in."""
        header = request.header
        state = self._state
        topics = [header.topic] if header.topic and header.topic.strip() else state.offsets.topics_of(header.src_group)
        live = state.consumers.get(header.src_group)
        for topic in topics:
            if state.topics.get(topic) is None:
                log.warning("offsets of group %s in %s not cloned: no such topic", header.src_group, topic)
            elif not header.offline and live is not None and live.subscriptions and topic not in live.subscriptions:
                log.warning("offsets of group %s in %s not cloned: not subscribed", header.src_group, topic)
            else:
                state.offsets.clone(header.src_group, header.dest_group, topic)
        return Response()

    def query_correction(self, request: Request[QueryCorrectionOffset]) -> Response:
        """The lowest offset of all groups in each queue; where the compared group is behind it, none.

        Groups to leave out are left out; RocketMQ deletes their offsets.
        """
        header = request.header
        state = self._state
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        lowest: dict[int, int] = {}
        for group in state.offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in state.offsets.queues(group, header.topic).items():
                if offset >= state.store.min_offset(header.topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in state.offsets.queues(header.compare_group, header.topic).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = _LONG_MAX
        return Response(body=QueryCorrectionOffsetBody(correction_offsets=lowest).encode())

    # Everything

    async def get_all_offsets(self, request: Request[NoHeader]) -> Response:
        table = self._state.offsets.snapshot()
        return Response(body=await encoded(self._state.runner, table, len(table.offset_table)))

    def get_all_delay_offsets(self, request: Request[NoHeader]) -> Response:
        return Response(body=self._state.delay.snapshot().encode())


def _failed(remark: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
