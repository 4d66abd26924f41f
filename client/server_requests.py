"""What brokers ask of a client, on the connections that it opened: six requests, passed on to the members they concern.

The check-back of transactions comes with transactions: until then it is answered as an unknown request. RocketMQ's
ClientRemotingProcessor.
"""

import logging
from typing import TYPE_CHECKING, Protocol

from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.record import Record, decode_record
from cometmq.protocol.requests.callbacks import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    PushReply,
    ResetConsumerOffset,
)
from cometmq.remoting.dispatch import NO_ANSWER, HandlerTable, Outcome, Request, Response

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)


class AskedConsumer(Protocol):
    """What brokers may ask of a consumer."""

    def members_changed(self) -> None:
        """Somebody joined or left the group."""

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Go on from these offsets."""

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """How far it is."""

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    async def consume_directly(self, record: Record, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Consume one message now, out of turn."""


class ReplyWaiter(Protocol):
    """Who waits for replies to requests."""

    def arrived(self, header: PushReply, body: bytes) -> None: ...


class ServerRequests:
    """The handlers of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        #: Set by the first producer that makes requests.
        self.replies: ReplyWaiter | None = None

    def add_to(self, table: HandlerTable) -> None:
        table.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.notify_members_changed)
        table.add(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset_offset)
        table.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.get_status)
        table.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self.get_running_info)
        table.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)
        table.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.push_reply)

    def notify_members_changed(self, request: Request[NotifyConsumerIdsChanged]) -> Outcome:
        consumer = self._consumer(request.header.consumer_group)
        if consumer is not None:
            consumer.members_changed()
        return NO_ANSWER

    async def reset_offset(self, request: Request[ResetConsumerOffset]) -> Outcome:
        consumer = self._consumer(request.header.group)
        if consumer is not None:
            table = ResetOffsetBody.decode(request.body).offset_table
            offsets = {MessageQueue.from_wire(queue): offset for queue, offset in table.items()}
            log.info("%s: offsets of %s reset by a broker", request.header.group, request.header.topic)
            await consumer.reset_offsets(request.header.topic, offsets)
        return NO_ANSWER

    def get_status(self, request: Request[GetConsumerStatusFromClient]) -> Response:
        consumer = self._consumer(request.header.group)
        offsets = {} if consumer is None else consumer.offsets(request.header.topic)
        body = GetConsumerStatusBody(message_queue_table={queue.to_wire(): offset for queue, offset in offsets.items()})
        return Response(body=body.encode())

    def get_running_info(self, request: Request[GetConsumerRunningInfo]) -> Response:
        consumer = self._consumer(request.header.consumer_group)
        if consumer is None:
            return _no_consumer(request.header.consumer_group)
        info = consumer.running_info(with_stacks=bool(request.header.jstack_enable))
        return Response(body=info.encode())

    async def consume_directly(self, request: Request[ConsumeMessageDirectly]) -> Response:
        consumer = self._consumer(request.header.consumer_group)
        if consumer is None:
            return _no_consumer(request.header.consumer_group)
        record = decode_record(request.body, decompress=True)
        result = await consumer.consume_directly(record, request.header.broker_name or "")
        return Response(body=result.encode())

    def push_reply(self, request: Request[PushReply]) -> Response:
        if self.replies is not None:
            self.replies.arrived(request.header, request.body)
        return Response()

    def _consumer(self, group: str) -> AskedConsumer | None:
        return self._client.consumers.get(group)


def _no_consumer(group: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=f"The Consumer Group <{group}> not exist in this consumer")
