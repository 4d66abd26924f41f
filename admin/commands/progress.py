"""How far consumer groups are: consumerProgress, brokerConsumeStats."""

import click

from cometmq.admin.arguments import broker_address
from cometmq.admin.command import Session, command, option, tell_failure
from cometmq.admin.java_text import plain_time
from cometmq.admin.output import Table
from cometmq.client.admin import NoProgress, version_name
from cometmq.client.errors import BrokerError, ClientError, ConsumerOffline
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names
from cometmq.protocol.bodies import ConsumerConnection, ConsumeStats
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.remoting.errors import TransportError

_GROUP_TITLES = ("#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
_GROUP_ENDS = ("#Diff", "#Inflight", "#LastTime")


@command(
    "consumerProgress",
    option("-g", "--groupName", "group", help="consumer group name"),
    option("-t", "--topicName", "topic", help="topic name"),
    option("-s", "--showClientIP", "with_clients", type=bool, default=False, help="Show Client IP per Queue"),
    option("-c", "--cluster", "cluster", help="Cluster name or lmq parent topic, lmq is used to find the route"),
    help="Query consumer's progress, speed.",
)
async def consumer_progress(
    session: Session, *, group: str | None, topic: str | None, with_clients: bool, cluster: str | None
) -> None:
    if group is None:
        await _all_groups(session)
    else:
        await _one_group(session, group, topic, with_clients, cluster)


async def _one_group(session: Session, group: str, topic: str | None, with_clients: bool, cluster: str | None) -> None:
    stats = await session.admin.consume_stats(group, topic, route_topic=cluster)
    clients = await _clients_by_queue(session, group) if with_clients else {}
    rows: list[tuple[object, ...]] = []
    diffs = inflights = 0
    table = {MessageQueue.from_wire(queue): wrapper for queue, wrapper in stats.offset_table.items()}
    for queue, wrapper in sorted(table.items()):
        diff = wrapper.broker_offset - wrapper.consumer_offset
        inflight = wrapper.pull_offset - wrapper.consumer_offset
        diffs, inflights = diffs + diff, inflights + inflight
        place = (queue.topic, queue.broker_name, queue.queue_id, wrapper.broker_offset, wrapper.consumer_offset)
        client = (clients.get(queue, "N/A"),) if with_clients else ()
        last = plain_time(wrapper.last_timestamp) if wrapper.last_timestamp > 0 else "N/A"
        rows.append((*place, *client, diff, inflight, last))
    extra, title = ("%-20s ", ("#Client IP",)) if with_clients else ("", ())
    shown = Table(
        (*_GROUP_TITLES, *title, *_GROUP_ENDS),
        f"%-64.64s  %-32.32s  %-4d  %-20d  %-20d  {extra}%-20d %-20d %s",
        rows,
        head=f"%-64s  %-32s  %-4s  %-20s  %-20s  {extra}%-20s %-20s%s",
    )
    session.out.table(shown)
    session.out.line()
    session.out.line(f"Consume TPS: {stats.consume_tps:.2f}")
    session.out.line(f"Consume Diff Total: {diffs}")
    session.out.line(f"Consume Inflight Total: {inflights}")
    session.out.result(
        {"queues": shown.objects(), "consumeTps": stats.consume_tps, "diffTotal": diffs, "inflightTotal": inflights}
    )


async def _clients_by_queue(session: Session, group: str) -> dict[MessageQueue, str]:
    """Which client has which queue, by what the clients say themselves."""
    owners: dict[MessageQueue, str] = {}
    try:
        connection = await session.admin.consumer_connection(group)
        for member in connection.connection_set:
            info = await session.admin.running_info(group, member.client_id)
            ip = member.client_id.partition("@")[0]
            owners |= dict.fromkeys((MessageQueue.from_wire(queue) for queue in info.mq_table), ip)
    except (BrokerError, ClientError, TransportError) as error:
        tell_failure("consumerProgress", error)  # the progress is what was asked for
    return owners


async def _all_groups(session: Session) -> None:
    rows: list[tuple[object, ...]] = []
    for topic in await session.admin.topics():
        if not topic.startswith(names.RETRY_PREFIX):
            continue
        group = topic.removeprefix(names.RETRY_PREFIX)
        stats, connection = await _stats_of(session, group), await _connection_of(session, group)
        diff = sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())
        rows.append((group, *_members(connection), int(stats.consume_tps), diff))
    rows.sort(key=lambda row: (-int(str(row[1])), -int(str(row[6])), str(row[0])))
    session.out.table(
        Table(
            ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"),
            "%-64.64s  %-6d  %-24s %-5s  %-14s  %-7d  %d",
            rows,
            head="%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s",
        )
    )


async def _stats_of(session: Session, group: str) -> ConsumeStats:
    try:
        return await session.admin.consume_stats(group)
    except NoProgress:
        return ConsumeStats()
    except (BrokerError, TransportError) as error:
        tell_failure("consumerProgress", error)
        return ConsumeStats()


async def _connection_of(session: Session, group: str) -> ConsumerConnection | None:
    try:
        return await session.admin.consumer_connection(group)
    except ConsumerOffline:
        return None
    except (BrokerError, TransportError) as error:
        tell_failure("consumerProgress", error)
        return None


def _members(connection: ConsumerConnection | None) -> tuple[int, str, str, str]:
    """Count, version, type and model of a group."""
    if connection is None or not connection.connection_set:
        return 0, "OFFLINE", "", ""
    version = version_name(min(each.version for each in connection.connection_set))
    is_pull = connection.consume_type == ConsumeType.ACTIVELY
    model = "" if is_pull else connection.message_model or ""
    return len(connection.connection_set), version, "PULL" if is_pull else "PUSH", model


@command(
    "brokerConsumeStats",
    option("-b", "--brokerAddr", "broker", type=broker_address, required=True, help="Broker address"),
    option("-t", "--timeoutMillis", "millis", type=click.IntRange(1), help="not used: an answer may take 50 s"),
    option("-l", "--level", "level", type=int, default=0, help="threshold of print diff"),
    option("-o", "--order", "order", type=bool, default=False, help="order topic"),
    help="Fetch broker consume stats data.",
)
async def broker_consume_stats(
    session: Session,
    *,
    broker: str,
    millis: int | None,
    level: int,
    order: bool,
) -> None:
    found = await session.admin.broker_consume_stats(broker, ordered_only=order)
    rows: list[tuple[object, ...]] = []
    for groups in found.consume_stats_list:
        for group, several in groups.items():
            for stats in several:
                rows += _stats_rows(group, stats, level)
    form = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    titles = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime")
    shown = Table(titles, form, rows, head=form)
    session.out.table(shown)
    session.out.line()
    session.out.line(f"Diff Total: {found.total_diff}")
    session.out.result({"queues": shown.objects(), "diffTotal": found.total_diff})


def _stats_rows(group: str, stats: ConsumeStats, level: int) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    table = {MessageQueue.from_wire(queue): wrapper for queue, wrapper in stats.offset_table.items()}
    for queue, each in sorted(table.items()):
        diff = each.broker_offset - each.consumer_offset
        if diff >= level and each.last_timestamp > 0:
            place = (queue.topic[:64], group[:64], queue.broker_name[:32], queue.queue_id)
            rows.append((*place, each.broker_offset, each.consumer_offset, diff, plain_time(each.last_timestamp)))
    return rows
