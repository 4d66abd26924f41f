"""sendMessage: one message from the command line."""

import time

import click

from cometmq.admin.command import Session, command, option
from cometmq.admin.output import Table
from cometmq.client.message import Message
from cometmq.client.queues import MessageQueue


@command(
    "sendMessage",
    option("-t", "--topic", "topic", required=True, help="Topic name"),
    option("-p", "--body", "body", required=True, help="UTF-8 string format of the message body"),
    option("-k", "--key", "key", help="Message keys"),
    option("-c", "--tags", "tags", help="Message tags"),
    option("-b", "--broker", "broker", help="Send message to target broker"),
    option("-i", "--qid", "queue_id", type=click.IntRange(0), help="Send message to target queue"),
    option("-m", "--msgTraceEnable", "trace", type=bool, default=False, help="Message Trace Enable"),
    help="Send a message.",
)
async def send_message(
    session: Session,
    *,
    topic: str,
    body: str,
    key: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
    trace: bool,
) -> None:
    if queue_id is not None and broker is None:
        raise click.UsageError("Broker name must be set if the queue is chosen!")
    queue = None if queue_id is None or broker is None else MessageQueue(topic, broker, queue_id)
    # A group of its own for each call, as RocketMQ's tool has it.
    group = str(time.time_ns() // 1_000_000)
    options = {"trace": True} if trace else {}
    async with session.client.producer(group, **options) as producer:
        receipt = await producer.send(topic, Message(body.encode(), tag=tags, keys=key), queue=queue)
    form = "%-32s  %-4s  %-20s    %s"
    row = (receipt.queue.broker_name, receipt.queue.queue_id, str(receipt.status), receipt.message_id)
    session.out.table(Table(("#Broker Name", "#QID", "#Send Result", "#MsgId"), form, [row], head=form))
