"""Looking for messages: queryMsgById, queryMsgByKey, queryMsgByUniqueKey, queryMsgByOffset."""

import codecs

import click

from cometmq.admin.arguments import timestamp
from cometmq.admin.command import Session, command, option
from cometmq.admin.commands.messages import (
    fields,
    message_object,
    pulled_properties,
    save_body,
    show_fields,
    show_tracks,
    track_text,
)
from cometmq.admin.java_text import direct_result_text, send_result_text
from cometmq.admin.output import Table
from cometmq.client.admin.queries import FOREVER, looked_up
from cometmq.client.errors import ClientError
from cometmq.client.message import Message, ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.protocol import properties as props
from cometmq.protocol.bodies import ConsumerRunningInfo
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.remoting.address import format_address

_TOPIC = option("-t", "--topic", "topic", required=True, help="topic name")
_CLUSTER = option("-c", "--cluster", "cluster", help="Cluster name or lmq parent topic, lmq is used to find the route")
_GROUP = option("-g", "--consumerGroup", "group", help="consumer group name, with -d")
_CLIENT = option("-d", "--clientId", "client_id", help="The consumer's client id: it consumes the message now")
_CHARSET = option("-f", "--bodyFormat", "charset", help="print message body by the specified format")

#: The group that messages are sent again by.
RESEND_GROUP = "ReSendMsgById"


def _check_charset(name: str | None) -> None:
    try:
        codecs.lookup(name or "utf-8")
    except LookupError:
        raise click.UsageError(f"-f: there is no charset {name!r}") from None


@command(
    "queryMsgById",
    option("-i", "--msgId", "ids", required=True, help="Message Id, or several separated by commas"),
    option("-t", "--topic", "topic", help="topic name"),
    _GROUP,
    _CLIENT,
    option("-s", "--sendMessage", "resend", type=bool, default=False, help="resend message"),
    option("-u", "--unitName", "unit", help="unit name"),
    _CHARSET,
    _CLUSTER,
    help="Query Message by Id.",
)
async def query_msg_by_id(
    session: Session,
    *,
    ids: str,
    topic: str | None,
    group: str | None,
    client_id: str | None,
    resend: bool,
    unit: str | None,
    charset: str | None,
    cluster: str | None,
) -> None:
    _check_charset(charset)
    found: list[object] = []
    for message_id in (each.strip() for each in ids.split(",") if each.strip()):
        message = await session.admin.message_by_id(message_id, topic)
        if group is not None and client_id is not None:
            found.append(await _consume_directly(session, message, group, client_id))
        elif resend:
            found.append(await _resend(session, message, message_id))
        else:
            show_fields(session, fields(message, path=save_body(message), charset=charset))
            tracks = await session.admin.message_tracks(message)
            show_tracks(session, tracks)
            found.append(message_object(message, tracks))
    session.out.result(found)


async def _consume_directly(session: Session, message: ReceivedMessage, group: str, client_id: str) -> object:
    info = await session.admin.running_info(group, client_id)
    kind = info.properties.get(ConsumerRunningInfo.PROP_CONSUME_TYPE)
    if kind != ConsumeType.PASSIVELY:
        raise ClientError(f"this {client_id} client is not push consumer ,not support direct push")
    result = await session.admin.consume_directly(
        group,
        client_id,
        message.record.topic,
        message.offset_message_id,
        broker=format_address(*message.store_host),
    )
    session.out.line(direct_result_text(result))
    return result


async def _resend(session: Session, message: ReceivedMessage, asked: str) -> object:
    """Send a message again as a new one: what was its producer's goes along, what was the broker's does not."""
    session.out.line(f"prepare resend msg. originalMsgId={asked}")
    again = Message(
        message.body,
        tag=message.tag,
        keys=message.keys or None,
        properties={name: value for name, value in message.properties.items() if not props.is_reserved(name)},
        flag=message.flag,
    )
    async with session.client.producer(RESEND_GROUP) as producer:
        receipt = await producer.send(message.record.topic, again)
    session.out.line(send_result_text(receipt))
    return {"originalMsgId": asked, "msgId": receipt.message_id, "sendStatus": receipt.status}


@command(
    "queryMsgByKey",
    _TOPIC,
    option("-k", "--msgKey", "key", required=True, help="Message Key"),
    option("-b", "--beginTimestamp", "begin", type=timestamp, help="Begin timestamp(ms). default:0"),
    option("-e", "--endTimestamp", "end", type=timestamp, help="End timestamp(ms). default: none"),
    option("-m", "--maxNum", "limit", type=click.IntRange(1), default=64, help="The maximum number of messages"),
    _CLUSTER,
    help="Query Message by Key.",
)
async def query_msg_by_key(
    session: Session,
    *,
    topic: str,
    key: str,
    begin: tuple[str, int] | None,
    end: tuple[str, int] | None,
    limit: int,
    cluster: str | None,
) -> None:
    found = await session.admin.messages_by_key(
        topic,
        key,
        limit=limit,
        begin=begin[1] if begin else 0,
        end=end[1] if end else FOREVER,
        route_topic=cluster,
    )
    rows = [(each.message_id, each.queue.queue_id, each.queue_offset) for each in found]
    titles = ("#Message ID", "#QID", "#Offset")
    session.out.table(Table(titles, "%-50s %4d %40d", rows, head="%-50s %4s %40s"))
    session.out.result([message_object(each) for each in found])


@command(
    "queryMsgByUniqueKey",
    option("-i", "--msgId", "unique_key", required=True, help="Message Id"),
    _TOPIC,
    _GROUP,
    _CLIENT,
    option("-a", "--showAll", "show_all", is_flag=True, help="Print all message, the limit is 32"),
    _CLUSTER,
    help="Query Message by Unique key.",
)
async def query_msg_by_unique_key(
    session: Session,
    *,
    unique_key: str,
    topic: str,
    group: str | None,
    client_id: str | None,
    show_all: bool,
    cluster: str | None,
) -> None:
    messages = await session.admin.messages_by_unique_key(topic, unique_key, route_topic=cluster)
    if group is not None and client_id is not None:
        session.out.result(await _consume_directly(session, messages[0], group, client_id))
        return
    found = []
    for number, message in enumerate(messages if show_all else messages[:1], 1):
        path = save_body(message, f"_{number}" if show_all and len(messages) > 1 else "")
        show_fields(session, fields(message, path=path, with_id=False))
        tracks = await session.admin.message_tracks(message)
        session.out.line()
        session.out.line()
        # On one line, as RocketMQ has it.
        session.out.line("".join(track_text(track) for track in tracks) or "WARN: No Consumer")
        found.append(message_object(message, tracks))
    session.out.result(found)


@command(
    "queryMsgByOffset",
    _TOPIC,
    option("-b", "--brokerName", "broker", required=True, help="Broker Name"),
    option("-i", "--queueId", "queue_id", type=click.IntRange(0), required=True, help="Queue Id"),
    option("-o", "--offset", "offset", type=click.IntRange(0), required=True, help="Queue Offset"),
    _CHARSET,
    help="Query Message by offset.",
)
async def query_msg_by_offset(
    session: Session, *, topic: str, broker: str, queue_id: int, offset: int, charset: str | None
) -> None:
    _check_charset(charset)
    await session.admin.topic_route(topic)
    queue = MessageQueue(topic, broker, queue_id)
    pulled = await session.admin.pull(queue, offset, limit=1)
    if not pulled.records:
        raise ClientError(
            f"{queue} has no message at {offset}: {pulled.status}, it has {pulled.min_offset} to {pulled.max_offset}"
        )
    message = looked_up(pulled.records[0], broker)
    shown = pulled_properties(message, pulled)
    show_fields(session, fields(message, path=save_body(message), properties=shown, charset=charset))
    tracks = await session.admin.message_tracks(message)
    show_tracks(session, tracks)
    session.out.result(message_object(message, tracks))
