"""Moving groups: resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset."""

import click

from cometmq.admin.arguments import broker_address, timestamp
from cometmq.admin.command import Session, command, option
from cometmq.admin.java_text import boolean
from cometmq.admin.output import Table
from cometmq.client.admin import MovedOffset
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.queues import MessageQueue
from cometmq.protocol.codes import ResponseCode

#: As a time: the end of every queue.
THE_END = -1


@command(
    "resetOffsetByTime",
    option("-g", "--group", "group", required=True, help="set the consumer group"),
    option("-t", "--topic", "topic", required=True, help="set the topic"),
    option(
        "-s",
        "--timestamp",
        "when",
        type=timestamp,
        required=True,
        help="set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]; -1: the end",
    ),
    option("-f", "--force", "force", type=bool, default=True, help="also forward, not only back"),
    option("-b", "--broker", "broker", help="broker addr or name, with -q"),
    option("-q", "--queue", "queue_id", type=click.IntRange(0), help="queue id"),
    option("-o", "--offset", "offset", type=click.IntRange(0), help="Expect queue offset"),
    # Scripts for 4.9 give it without a value, where it means C++ clients.
    option(
        "-c",
        "--cluster",
        "cluster",
        is_flag=False,
        flag_value="",
        help="Cluster name or lmq parent topic, lmq is used to find the route",
    ),
    help="Reset consumer offset by timestamp(without client restart).",
)
async def reset_offset_by_time(
    session: Session,
    *,
    group: str,
    topic: str,
    when: tuple[str, int],
    force: bool,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    cluster: str | None,
) -> None:
    text, millis = when
    if broker is not None and queue_id is not None:
        queue = MessageQueue(topic, await _broker_name(session, topic, broker), queue_id)
        session.out.line(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], queueId[{queue_id}], "
            f"broker[{broker}], timestamp(string)[{text}], timestamp(long)[{millis}]"
        )
        await _reset_queue(session, group, queue, millis, offset)
        return
    if queue_id is not None or offset is not None:
        raise click.UsageError("-q and -o are for one queue: give -b and -q")
    told = f"topic[{topic}], force[{boolean(force)}], timestamp(string)[{text}], timestamp(long)[{millis}]"
    try:
        offsets = await session.admin.reset_offsets(group, topic, millis, force=force, route_topic=cluster or None)
    except BrokerError as error:
        if not _needs_the_old_way(error):
            raise
        moved = await session.admin.reset_offsets_offline(group, topic, millis, force=force)
        session.out.line(f"reset consumer offset by specified consumerGroup[{group}], {told}")
        _show_moved(session, moved, "#resetOffset")
        return
    session.out.line(f"start reset consumer offset by specified, group[{group}], {told}")
    _show_offsets(session, offsets)


def _needs_the_old_way(error: BrokerError) -> bool:
    """Brokers of 4.x reset only groups whose members are online, and that have an offset in every queue."""
    never_consumed = error.code == ResponseCode.SYSTEM_ERROR and error.remark.startswith("THe consumer group <")
    return error.code == ResponseCode.CONSUMER_NOT_ONLINE or never_consumed


async def _reset_queue(session: Session, group: str, queue: MessageQueue, millis: int, offset: int | None) -> None:
    admin = session.admin
    target = offset
    if target is None:
        target = await (admin.max_offset(queue) if millis < 0 else admin.search_offset(queue, millis))
    await admin.reset_queue_offset(group, queue, target)
    session.out.line(f"reset consumer offset to {target}")
    session.out.result([{"brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": target}])


async def _broker_name(session: Session, topic: str, text: str) -> str:
    """The broker of a topic by its name or by its address."""
    route = await session.admin.topic_route(topic)
    for each in route.broker_datas:
        if text == each.broker_name:
            return text
    address = broker_address(text)
    for each in route.broker_datas:
        if address in each.broker_addrs.values():
            return each.broker_name
    raise ClientError(f"{topic} has no queue on broker {text}")


def _show_offsets(session: Session, offsets: dict[MessageQueue, int]) -> None:
    form = "%-40s  %-40s  %-40s"
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in sorted(offsets.items())]
    session.out.table(Table(("#brokerName", "#queueId", "#offset"), form, rows, head=form))


def _show_moved(session: Session, moved: dict[MessageQueue, MovedOffset], last: str) -> None:
    form = "%-20s  " * 5 + "%-20s"
    rows = [
        (
            queue.broker_name,
            queue.queue_id,
            each.broker_offset,
            each.consumer_offset,
            each.timestamp_offset,
            each.reset_offset,
        )
        for queue, each in sorted(moved.items())
    ]
    titles = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", last)
    session.out.table(Table(titles, form, rows, head=form))


@command(
    "skipAccumulatedMessage",
    option("-g", "--group", "group", required=True, help="set the consumer group"),
    option("-t", "--topic", "topic", required=True, help="set the topic"),
    option("-f", "--force", "force", type=bool, default=True, help="set the force rollback switch[true|false]"),
    option("-c", "--cluster", "cluster", help="Cluster name or lmq parent topic, lmq is used to find the route"),
    help="Skip all messages that are accumulated (not consumed) currently.",
)
async def skip_accumulated_message(
    session: Session, *, group: str, topic: str, force: bool, cluster: str | None
) -> None:
    try:
        offsets = await session.admin.reset_offsets(group, topic, THE_END, force=force, route_topic=cluster)
    except BrokerError as error:
        if not _needs_the_old_way(error):
            raise
        moved = await session.admin.reset_offsets_offline(group, topic, THE_END, force=force)
        _show_moved(session, moved, "#rollbackOffset")
        return
    _show_offsets(session, offsets)


@command(
    "cloneGroupOffset",
    option("-s", "--srcGroup", "source", required=True, help="set source consumer group"),
    option("-d", "--destGroup", "target", required=True, help="set destination consumer group"),
    option("-t", "--topic", "topic", required=True, help="set the topic"),
    option("-o", "--offline", "offline", help="not used: it works for groups online and offline"),
    help="Clone offset from other group.",
)
async def clone_group_offset(session: Session, *, source: str, target: str, topic: str, offline: str | None) -> None:
    offsets = await session.admin.clone_offsets(source, target, topic)
    session.out.line(f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]")
    session.out.result(
        [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
            for queue, offset in sorted(offsets.items())
        ]
    )
