"""Reading queues: printMsg, printMsgByQueue, consumeMessage. Nothing is committed by it."""

import codecs
import time
from collections import Counter

import click

from cometmq.admin.arguments import timestamp
from cometmq.admin.command import Session, command, option
from cometmq.admin.commands.messages import message_line, message_object, pulled_properties
from cometmq.admin.output import Table
from cometmq.client.admin.queries import TOOLS_GROUP, looked_up
from cometmq.client.consumer.pulling import Pulled
from cometmq.client.queues import MessageQueue

_TOPIC = option("-t", "--topic", "topic", required=True, help="topic name")
_BEGIN = "Begin timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"
_END = "End timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"
#: Messages of one pull.
BATCH = 32
_DONE = ("NO_NEW_MSG", "OFFSET_ILLEGAL")

When = tuple[str, int] | None


def _check_charset(name: str) -> None:
    try:
        codecs.lookup(name)
    except LookupError:
        raise click.UsageError(f"-c: there is no charset {name!r}") from None


@command(
    "printMsg",
    _TOPIC,
    option("-c", "--charsetName", "charset", default="utf-8", help="CharsetName(eg: UTF-8,GBK)"),
    option("-s", "--subExpression", "expression", default="*", help="Subscribe Expression(eg: TagA || TagB)"),
    option("-b", "--beginTimestamp", "begin", type=timestamp, help=_BEGIN),
    option("-e", "--endTimestamp", "end", type=timestamp, help=_END),
    option("-d", "--printBody", "with_body", type=bool, default=True, help="print body"),
    option("-l", "--lmqParentTopic", "parent", help="Lmq parent topic, lmq is used to find the route"),
    help="Print Message Detail.",
)
async def print_msg(
    session: Session,
    *,
    topic: str,
    charset: str,
    expression: str,
    begin: When,
    end: When,
    with_body: bool,
    parent: str | None,
) -> None:
    _check_charset(charset)
    reader = Reader(session, charset=charset if with_body else None, expression=expression)
    for queue in await session.admin.read_queues_of(topic, route_topic=parent):
        first, last = await reader.ends(queue, begin, end)
        session.out.line(f"minOffset={first}, maxOffset={last}, {queue}")
        offset = first
        while offset < last:
            pulled = await reader.pull(queue, offset, BATCH)
            offset = pulled.next_offset
            if pulled.status in _DONE:
                break
        session.out.line("-" * 56)
    session.out.result(reader.found)


@command(
    "printMsgByQueue",
    _TOPIC,
    option("-a", "--brokerName", "broker", required=True, help="broker name"),
    option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="queue id"),
    option("-c", "--charsetName", "charset", default="utf-8", help="CharsetName(eg: UTF-8,GBK)"),
    option("-s", "--subExpression", "expression", default="*", help="Subscribe Expression(eg: TagA || TagB)"),
    option("-b", "--beginTimestamp", "begin", type=timestamp, help=_BEGIN),
    option("-e", "--endTimestamp", "end", type=timestamp, help=_END),
    option("-p", "--printMsg", "with_messages", type=bool, default=False, help="print messages"),
    option("-d", "--printBody", "with_body", type=bool, default=False, help="print body"),
    option("-f", "--calculate", "count_tags", type=bool, default=False, help="count messages by tag"),
    help="Print Message Detail by queueId.",
)
async def print_msg_by_queue(
    session: Session,
    *,
    topic: str,
    broker: str,
    queue_id: int,
    charset: str,
    expression: str,
    begin: When,
    end: When,
    with_messages: bool,
    with_body: bool,
    count_tags: bool,
) -> None:
    _check_charset(charset)
    await session.admin.topic_route(topic)
    reader = Reader(
        session, charset=charset if with_body else None, expression=expression, show=with_messages, tell_status=False
    )
    queue = MessageQueue(topic, broker, queue_id)
    offset, last = await reader.ends(queue, begin, end)
    while offset < last:
        pulled = await reader.pull(queue, offset, BATCH)
        offset = pulled.next_offset
        if pulled.status != "FOUND":
            break
    if count_tags:
        tags = Counter(str(each["tags"]) for each in reader.found)
        session.out.table(Table(("Tag", "Count"), "Tag: %-30s Count: %s", tags.most_common()))
    session.out.result(reader.found)


@command(
    "consumeMessage",
    _TOPIC,
    option("-b", "--brokerName", "broker", help="Broker name"),
    option("-i", "--queueId", "queue_id", type=click.IntRange(0), help="Queue Id"),
    option("-o", "--offset", "offset", type=click.IntRange(0), help="Queue offset"),
    option("-g", "--consumerGroup", "group", default=TOOLS_GROUP, help="Consumer group name"),
    option("-s", "--beginTimestamp", "begin", type=timestamp, help=_BEGIN),
    option("-e", "-d", "--endTimestamp", "end", type=timestamp, help=_END),
    option("-c", "--MessageNumber", "count", type=int, default=128, help="Number of message to be consumed"),
    help="Consume message.",
)
async def consume_message(
    session: Session,
    *,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str,
    begin: When,
    end: When,
    count: int,
) -> None:
    _check(broker, queue_id, offset, begin, end, count)
    reader = Reader(session, charset="utf-8", group=group, announce=True)
    queues = await session.admin.read_queues_of(topic)
    if broker is not None:
        queues = [queue for queue in queues if queue.broker_name == broker]
    if queue_id is not None:
        queues = [queue for queue in queues if queue.queue_id == queue_id]
    if not queues:
        raise click.UsageError(f"{topic} has no queue {'' if queue_id is None else queue_id} on {broker}")
    for queue in queues:
        first, last = await reader.ends(queue, begin, end)
        first = first if offset is None else offset
        if last - first > count:
            one = f"The oldler {count} message will be provided"
            session.out.line(
                one
                if queue_id is not None
                else f"The older {count} message of the {queue.queue_id} queue will be provided"
            )
            last = first + count - 1
        await reader.read(queue, first, last)
    session.out.result(reader.found)


def _check(broker: str | None, queue_id: int | None, offset: int | None, begin: When, end: When, count: int) -> None:
    now = time.time() * 1000
    complaints = (
        (count <= 0, "Please input a positive messageNumber!"),
        (queue_id is not None and broker is None, "Please set the brokerName before queueId!"),
        (offset is not None and queue_id is None, "Please set queueId before offset!"),
        (begin is not None and begin[1] > now, "Please set the beginTimestamp before now!"),
        (end is not None and end[1] > now, "Please set the endTimestamp before now!"),
        (begin is not None and end is not None and begin[1] > end[1], "Please make sure that begin is before end!"),
    )
    for is_wrong, text in complaints:
        if is_wrong:
            raise click.UsageError(text)


class Reader:
    """Pulls from queues and shows what comes."""

    def __init__(
        self,
        session: Session,
        *,
        charset: str | None,
        expression: str = "*",
        group: str = TOOLS_GROUP,
        announce: bool = False,
        show: bool = True,
        tell_status: bool = True,
    ) -> None:
        self._session = session
        self._charset = charset
        self._expression = expression
        self._group = group
        self._announce = announce
        self._show = show
        self._tell_status = tell_status
        self.found: list[dict[str, object]] = []

    async def ends(self, queue: MessageQueue, begin: When, end: When) -> tuple[int, int]:
        """The offsets between which a queue has messages, or has those of a span of time."""
        admin = self._session.admin
        first = await (admin.min_offset(queue) if begin is None else admin.search_offset(queue, begin[1]))
        last = await (admin.max_offset(queue) if end is None else admin.search_offset(queue, end[1]))
        return first, last

    async def read(self, queue: MessageQueue, first: int, last: int) -> None:
        """Everything from the first to the last offset, both included."""
        offset = first
        while offset <= last:
            pulled = await self.pull(queue, offset, last - offset + 1)
            offset = pulled.next_offset
            if pulled.status in _DONE:
                return

    async def pull(self, queue: MessageQueue, offset: int, limit: int) -> Pulled:
        """One pull, shown."""
        out = self._session.out
        pulled = await self._session.admin.pull(
            queue, offset, subscription=self._expression, limit=min(limit, BATCH), group=self._group
        )
        status = f"status={pulled.status}, offset={pulled.next_offset}"
        if pulled.status == "FOUND":
            if self._announce:
                out.line("Consume ok")
            for record in pulled.records:
                message = looked_up(record, queue.broker_name)
                body = "NOT PRINT BODY" if self._charset is None else message.body.decode(self._charset, "replace")
                if self._show:
                    out.line(message_line(message, pulled_properties(message, pulled), body))
                self.found.append(message_object(message))
        elif not self._tell_status:
            return pulled
        elif pulled.status == "NO_MATCHED_MSG":
            out.line(f"{queue} no matched msg. {status}")
        else:
            out.line(f"{queue} print msg finished. {status}")
        return pulled
