"""What a consumer tells about itself when a broker asks for an operator, and one message consumed out of turn.

RocketMQ's consumerRunningInfo and consumeMessageDirectly.
"""

import asyncio
import io
import logging
import sys
import traceback
from typing import TYPE_CHECKING

from cometmq.client.errors import RetryFrom, RetryLater
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer.request_reply import send_reply
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.protocol.bodies.connections import ConsumeResult, ProcessQueueInfo
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.codes import Version
from cometmq.protocol.record import Record

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.consumer.assignment import Assignment
    from cometmq.client.consumer.push import PushConsumer

log = logging.getLogger(__name__)

_MIB = 1024 * 1024


def running_info(consumer: "PushConsumer", *, with_stacks: bool) -> ConsumerRunningInfo:
    """The state of a consumer; with the stacks of threads and tasks if wanted."""
    info = ConsumerRunningInfo
    options = {name: str(getattr(consumer.options, name)) for name in type(consumer.options).__struct_fields__}
    properties = {
        **options,
        "consumerGroup": consumer.group,
        info.PROP_CONSUME_ORDERLY: "true" if consumer.ordered else "false",
        info.PROP_THREADPOOL_CORE_SIZE: str(consumer.concurrency),
        info.PROP_CONSUMER_START_TIMESTAMP: str(consumer.started_at),
        info.PROP_NAMESERVER_ADDR: "".join(f"{address};" for address in consumer.client.nameservers.addresses),
        info.PROP_CONSUME_TYPE: ConsumeType.PASSIVELY.value,
        info.PROP_CLIENT_VERSION: Version.V5_3_3.name,
    }
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=list(consumer.subscriptions.values()),
        mq_table={queue.to_wire(): _queue_info(consumer, each) for queue, each in consumer.assignments.items()},
        jstack=stacks() if with_stacks else None,
    )


def _queue_info(consumer: "PushConsumer", assignment: "Assignment") -> ProcessQueueInfo:
    window = assignment.window
    first = window.first
    return ProcessQueueInfo(
        commit_offset=consumer.offsets_store.known(assignment.queue) or 0,
        cached_msg_min_offset=0 if first is None else first.queue_offset,
        cached_msg_max_offset=0 if first is None else first.queue_offset + window.span,
        cached_msg_count=len(window),
        cached_msg_size_in_mib=window.size // _MIB,
        locked=assignment.locked_at is not None,
        droped=assignment.is_dropped,
    )


def stacks() -> str:
    """Where every thread and every task stands."""
    text = io.StringIO()
    for ident, frame in sys._current_frames().items():
        text.write(f"thread {ident}\n{''.join(traceback.format_stack(frame))}\n")
    for task in asyncio.all_tasks():
        text.write(f"task {task.get_name()}\n")
        task.print_stack(limit=20, file=text)
        text.write("\n")
    return text.getvalue()


class _OutOfTurn:
    """The delivery of a message that an operator has consumed: nothing is committed by it."""

    #: Whether the handler wants it again, which nobody will do.
    is_failed = False

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def reply(self, message: ReceivedMessage, reply: Message) -> SendReceipt:
        return await send_reply(self._client, message, reply)

    async def ack(self, message: ReceivedMessage) -> None:
        self.settle(message)

    def settle(self, message: ReceivedMessage) -> None: ...

    def abandon(self, message: ReceivedMessage) -> None: ...

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        self.is_failed = True


async def consume_result(consumer: "PushConsumer", record: Record, broker_name: str) -> ConsumeMessageDirectlyResult:
    """Call the handler for one message, and say how that went."""
    queue = MessageQueue(record.topic, broker_name, record.queue_id)
    delivery = _OutOfTurn(consumer.client)
    message = ReceivedMessage(record, queue, consumer.shown_topic(record.topic), delivery)
    loop = asyncio.get_running_loop()
    began = loop.time()
    result, remark = ConsumeResult.SUCCESS, None
    if not consumer.handling:
        result, remark = ConsumeResult.THROW_EXCEPTION, "this consumer iterates: it has no handler to call"
    else:
        try:
            await consumer.handling([message])
            if delivery.is_failed:
                result = ConsumeResult.LATER
        except (RetryLater, RetryFrom):
            result = ConsumeResult.LATER
        except Exception as error:
            log.exception("the handler of %s failed for %r, which an operator sent", consumer.group, message)
            result, remark = ConsumeResult.THROW_EXCEPTION, f"{type(error).__name__}: {error}"
    return ConsumeMessageDirectlyResult(
        order=consumer.ordered,
        consume_result=result.value,
        remark=remark,
        spent_time_mills=round((loop.time() - began) * 1000),
    )
