"""What an operator asks of a client through the broker, on the connection that the client has opened.

The broker passes requests and answers on as bytes. RocketMQ's Broker2Client.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.handlers.pacing import body_of
from cometmq.broker.handlers.row import Row
from cometmq.protocol.bodies.message_queue import MessageQueue
from cometmq.protocol.bodies.offsets import GetConsumerStatusBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError, RecordError
from cometmq.protocol.message_id import decode_message_id
from cometmq.protocol.requests.admin import GetConsumerStatus
from cometmq.protocol.requests.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from cometmq.remoting.dispatch import Body, Permission, Request, Response
from cometmq.remoting.errors import Timeout, TransportError

if TYPE_CHECKING:
    from cometmq.broker.channels import ClientChannel
    from cometmq.broker.state import BrokerState

#: Seconds that a client has for its answer to a request that is passed on ...
CALL_TIMEOUT = 10.0
#: ... and to the question for its offsets.
STATUS_TIMEOUT: Final = 5.0
#: Keys of an operator's request that are not a client's business.
CREDENTIALS: Final = frozenset({"AccessKey", "Signature", "SecurityToken"})

log = logging.getLogger(__name__)


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ClientCalls(state)
    group = Permission("Get", "Group", "consumer_group")
    return [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, requests.get_running_info, group),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, requests.consume_directly, Permission("Sub", "Group", "consumer_group")),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, requests.get_status, Permission("Get", "Group", "group")),
    ]


class ClientCalls:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    async def get_running_info(self, request: Request[GetConsumerRunningInfo]) -> Response:
        """What a consumer tells about itself."""
        return await self._pass_on(request, request.header.consumer_group, request.header.client_id, request.body, {})

    async def consume_directly(self, request: Request[ConsumeMessageDirectly]) -> Response:
        """One client consumes one message now, whoever has its queue."""
        header = request.header
        try:
            offset = decode_message_id(header.msg_id).physical_offset
        except RecordError as error:
            return _failed(str(error))
        if self._channel(header.consumer_group, header.client_id) is None:
            return _offline(header.consumer_group, header.client_id)
        found = self._state.store.message_at(offset)
        if found is None:
            return _failed(f"can not find message by the offset, {offset}")
        more = {"brokerName": self._state.config.broker_name}
        topic = self._state.topics.get(header.topic) if header.topic else None
        if topic is not None:
            more["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._state.groups.get(header.consumer_group)
        if group is not None:
            more["groupSysFlag"] = str(group.group_sys_flag)
        body = await body_of(self._state.runner, [found])
        return await self._pass_on(request, header.consumer_group, header.client_id, body, more)

    async def get_status(self, request: Request[GetConsumerStatus]) -> Response:
        """The offsets of the members of a group, or of one of them, as they see them."""
        header = request.header
        group = self._state.consumers.get(header.group)
        if group is None or not group.channels:
            return _failed(f"No Any Consumer online in the consumer group: [{header.group}]")
        wanted = (header.client_addr or "").strip()
        channels = [each for each in group.channels.values() if not wanted or each.client_id == wanted]
        question = GetConsumerStatusFromClient(header.topic, header.group)
        # All at once: one that does not answer must not use up the patience of the one who asks.
        answers = await asyncio.gather(*(self._status_of(channel, question) for channel in channels))
        table = {
            channel.client_id: answer for channel, answer in zip(channels, answers, strict=True) if answer is not None
        }
        return Response(body=GetConsumerStatusBody(consumer_table=table).encode())

    async def _status_of(
        self, channel: "ClientChannel", question: GetConsumerStatusFromClient
    ) -> dict[MessageQueue, int] | None:
        try:
            answer = await channel.connection.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, timeout=STATUS_TIMEOUT
            )
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                log.warning("%s did not tell its offsets: %s %s", channel, answer.code, answer.remark)
                return None
            return GetConsumerStatusBody.decode(answer.body).message_queue_table
        except (TransportError, ProtocolError) as error:
            log.warning("%s did not tell its offsets: %s", channel, error)
            return None

    async def _pass_on(
        self, request: Request[Any], group: str, client_id: str, body: Body, more: dict[str, str]
    ) -> Response:
        """The same request to a client, with some keys more; its answer is the answer."""
        channel = self._channel(group, client_id)
        if channel is None:
            return _offline(group, client_id)
        ext = {key: text for key, text in request.ext.items() if key not in CREDENTIALS}
        try:
            answer = await channel.connection.request(
                request.code, None, body, timeout=CALL_TIMEOUT, ext={**ext, **more}
            )
        except Timeout as error:
            text = f"consumer <{group}> <{client_id}> Timeout: {error}"
            return Response(int(ResponseCode.CONSUME_MSG_TIMEOUT), remark=text)
        except TransportError as error:
            return _failed(f"invoke consumer <{group}> <{client_id}> Exception: {error}")
        # Java clients put a text that says nothing on their good answers.
        remark = answer.remark if answer.code != ResponseCode.SUCCESS else None
        return Response(answer.code, body=answer.body, remark=remark, ext=answer.ext)

    def _channel(self, group: str, client_id: str) -> "ClientChannel | None":
        channel: ClientChannel | None = self._state.consumers.find_channel(group, client_id)
        return channel


def _offline(group: str, client_id: str) -> Response:
    return _failed(f"The Consumer <{group}> <{client_id}> not online")


def _failed(remark: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
