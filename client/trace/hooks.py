"""The hooks that make trace records of sends and of consumption.

Not traced: sends that failed or went oneway, messages whose broker has traces off, and the traces themselves.
RocketMQ's SendMessageTraceHookImpl and ConsumeMessageTraceHookImpl.
"""

from cometmq.client.errors import RetryLater
from cometmq.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from cometmq.client.message import ReceivedMessage
from cometmq.client.trace import records
from cometmq.client.trace.dispatcher import TraceDispatcher
from cometmq.client.trace.records import ConsumeCode, MessageType
from cometmq.protocol import properties as props
from cometmq.protocol.message_id import UniqueKeyGenerator, wall_millis

_BEGAN, _REQUEST = "trace began", "trace request"


class TraceSendHook(SendHook):
    """Traces the sends of one producer."""

    def __init__(self, dispatcher: TraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def before_send(self, context: SendContext) -> None:
        context.notes[_BEGAN] = wall_millis()

    def after_send(self, context: SendContext) -> None:
        receipt = context.receipt
        if receipt is None or not receipt.trace_on or context.topic == self._dispatcher.topic:
            return
        pairs = props.parse_properties(context.properties_text)
        ids = receipt.message_id.split(",")
        places = receipt.offset_message_id.split(",")
        self._dispatcher.add(
            records.sent(
                time=context.notes[_BEGAN],
                region=receipt.region_id,
                group=context.group,
                topic=context.topic,
                message_id=message_id,
                tag=pairs.get(props.TAGS),
                keys=pairs.get(props.KEYS),
                address=context.address,
                body_size=context.body_size // len(ids),
                cost=round(context.seconds * 1000),
                kind=_kind(pairs),
                offset_message_id=places[number] if number < len(places) else places[0],
                success=True,
            )
            for number, message_id in enumerate(ids)
        )


def _kind(pairs: dict[str, str]) -> MessageType:
    if pairs.get(props.TRAN_MSG) == "true":
        return MessageType.HALF
    if props.DELAY in pairs or props.START_DELIVER_TIME in pairs or props.TIMER_DELIVER_MS in pairs:
        return MessageType.DELAY
    return MessageType.NORMAL


class TraceConsumeHook(ConsumeHook):
    """Traces what one consumer's application processes."""

    def __init__(self, dispatcher: TraceDispatcher, new_id: UniqueKeyGenerator) -> None:
        self._dispatcher = dispatcher
        self._new_id = new_id

    def before_consume(self, context: ConsumeContext) -> None:
        request = context.notes[_REQUEST] = self._new_id()
        self._dispatcher.add(
            records.before_consume(
                time=wall_millis(),
                region=message.properties.get(props.MSG_REGION, "DefaultRegion"),
                group=context.group,
                topic=message.topic,
                request_id=request,
                message_id=message.message_id,
                retries=message.reconsume_times,
                keys=message.properties.get(props.KEYS),
            )
            for message in self._traced(context)
        )

    def after_consume(self, context: ConsumeContext) -> None:
        request = context.notes.get(_REQUEST)
        if request is None:
            return
        if context.is_success:
            code = ConsumeCode.SUCCESS
        elif context.error is None or isinstance(context.error, RetryLater):
            code = ConsumeCode.FAILED
        else:
            code = ConsumeCode.EXCEPTION
        cost = round(context.seconds * 1000 / len(context.messages))
        self._dispatcher.add(
            records.after_consume(
                time=wall_millis(),
                group=context.group,
                topic=message.topic,
                request_id=request,
                message_id=message.message_id,
                cost=cost,
                success=context.is_success,
                keys=message.properties.get(props.KEYS),
                code=code,
            )
            for message in self._traced(context)
        )

    def _traced(self, context: ConsumeContext) -> list[ReceivedMessage]:
        return [
            message
            for message in context.messages
            if message.topic != self._dispatcher.topic and message.properties.get(props.TRACE_ON) != "false"
        ]
