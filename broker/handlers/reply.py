"""SEND_REPLY_MESSAGE (324) and its short form (325): the answer to a message, on its way to who asked.

The reply is pushed to the client that waits for it, over the connection on which that client produces, and stored as
well where the configuration says so. Mirrors RocketMQ's ReplyMessageProcessor.
"""

import logging

from cometmq.broker.handlers.put_result import STORED
from cometmq.broker.handlers.row import Row
from cometmq.broker.handlers.send import Refused, SendRequests, born_host
from cometmq.broker.state import BrokerState
from cometmq.broker.store.message import Message
from cometmq.protocol import properties as props
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.callbacks import PushReply
from cometmq.protocol.requests.send import SendMessage, SendMessageAnswer, SendMessageRefusal
from cometmq.remoting.dispatch import Permission, Request, Response
from cometmq.remoting.errors import TransportError

log = logging.getLogger(__name__)

#: Seconds that the client which waits may take to say that it has the reply.
PUSH_TIMEOUT = 10.0


def rows(state: BrokerState) -> list[Row]:
    requests = ReplyRequests(state, SendRequests(state))
    permission = Permission("Pub", "Topic", "topic")
    return [
        (RequestCode.SEND_REPLY_MESSAGE, requests.reply, permission),
        (RequestCode.SEND_REPLY_MESSAGE_V2, requests.reply, permission),
    ]


class ReplyRequests:
    """The handler; a reply is checked like any other send."""

    def __init__(self, state: BrokerState, sends: SendRequests) -> None:
        self._state = state
        self._sends = sends

    async def reply(self, request: Request[SendMessage]) -> Response:
        config = self._state.config
        try:
            queue_id = self._sends.queue(request.header, self._sends.check(request))
        except Refused as refused:
            header = SendMessageRefusal(trace_on=config.trace_on, msg_region=config.region_id)
            return Response(refused.code, header, remark=refused.remark)
        pairs = props.parse_properties(request.header.properties or "")
        pairs[props.MSG_REGION] = config.region_id
        pairs[props.TRACE_ON] = "true" if config.trace_on else "false"
        failure = await self._push(request, queue_id, pairs)
        message_id, queue_offset = "0", 0
        if config.store_reply_message_enable:
            message_id, queue_offset = await self._store(request, queue_id, pairs)
        answer = SendMessageAnswer(
            message_id, queue_id, queue_offset, trace_on=config.trace_on, msg_region=config.region_id
        )
        code = ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS
        return Response(int(code), answer, remark=failure)

    async def _push(self, request: Request[SendMessage], queue_id: int, pairs: dict[str, str]) -> str | None:
        """Hand the reply over; why that failed, or None."""
        client_id = pairs.get(props.REPLY_TO_CLIENT)
        if client_id is None:
            return f"the reply has no property {props.REPLY_TO_CLIENT}: nobody knows who waits for it"
        channel = self._state.producers.by_client_id(client_id)
        if channel is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = self._state.clock.wall()
        header = self._header(request, queue_id, {**pairs, props.PUSH_REPLY_TIME: str(now)}, now)
        try:
            answer = await channel.connection.request(
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, request.body, timeout=PUSH_TIMEOUT
            )
        except TransportError as error:
            log.warning("a reply did not reach %s: %s", client_id, error)
            return f"push reply message to {client_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: it answered {answer.code} {answer.remark or ''}".rstrip()
        return None

    def _header(self, request: Request[SendMessage], queue_id: int, pairs: dict[str, str], now: int) -> PushReply:
        sent = request.header
        return PushReply(
            producer_group=sent.producer_group,
            topic=sent.topic,
            default_topic=sent.default_topic,
            default_topic_queue_nums=sent.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=sent.sys_flag,
            born_timestamp=sent.born_timestamp,
            flag=sent.flag,
            born_host=str(request.connection),
            store_host=self._state.address,
            store_timestamp=now,
            properties=props.format_properties(props.in_java_order(pairs)),
            reconsume_times=sent.reconsume_times,
            unit_mode=sent.unit_mode,
        )

    async def _store(self, request: Request[SendMessage], queue_id: int, pairs: dict[str, str]) -> tuple[str, int]:
        """Put the reply; its message id and queue offset, or what stands for them when it could not be stored."""
        sent = request.header
        ticket = await self._state.store.put(
            Message(
                sent.topic,
                queue_id,
                request.body or None,
                props.format_properties(props.in_java_order(pairs)).encode("utf-8", "replace"),
                sent.flag,
                sent.sys_flag,
                sent.born_timestamp,
                born_host(request),
                None,
                sent.reconsume_times,
            )
        ).future()
        if ticket.status not in STORED:
            log.warning("a reply of %s was not stored: %s %s", sent.producer_group, ticket.status, ticket.remark)
            return "0", 0
        self._state.stats.put(sent.topic, queue_id, 1, ticket.end_offset - ticket.physical_offset)
        return ticket.message_id, ticket.queue_offset
