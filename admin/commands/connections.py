"""Who is connected: consumerConnection, producerConnection, producer."""

from cometmq.admin.arguments import broker_address
from cometmq.admin.command import Session, command, option
from cometmq.admin.output import Table
from cometmq.client.admin import version_name


@command(
    "consumerConnection",
    option("-g", "--consumerGroup", "group", required=True, help="consumer group name"),
    option("-b", "--brokerAddr", "broker", type=broker_address, help="broker address"),
    help="Query consumer's socket connection, client version and subscription.",
)
async def consumer_connection(session: Session, *, group: str, broker: str | None) -> None:
    found = await session.admin.consumer_connection(group, broker=broker)
    out = session.out
    out.result(found)
    form = "%-36s %-22s %-10s %s"
    rows = [
        (each.client_id, each.client_addr, each.language or "", version_name(each.version))
        for each in found.connection_set
    ]
    out.table(Table(("#ClientId", "#ClientAddr", "#Language", "#Version"), form, rows, head=form))
    out.line()
    out.line("Below is subscription:")
    subscriptions = [(topic, data.sub_string) for topic, data in sorted(found.subscription_table.items())]
    out.table(Table(("#Topic", "#SubExpression"), "%-20s %s", subscriptions, head="%-20s %s"))
    out.line()
    out.line(f"ConsumeType: {found.consume_type}")
    out.line(f"MessageModel: {found.message_model}")
    out.line(f"ConsumeFromWhere: {found.consume_from_where}")


@command(
    "producerConnection",
    option("-g", "--producerGroup", "group", required=True, help="producer group name"),
    option("-t", "--topic", "topic", required=True, help="topic name"),
    help="Query producer's socket connection and client version.",
)
async def producer_connection(session: Session, *, group: str, topic: str) -> None:
    found = await session.admin.producer_connection(group, topic)
    session.out.result(found)
    rows = [
        (number, each.client_id, each.client_addr, each.language or "", version_name(each.version))
        for number, each in enumerate(found.connection_set, 1)
    ]
    titles = ("#Number", "#ClientId", "#ClientAddr", "#Language", "#Version")
    session.out.table(Table(titles, "%04d  %-32s %-22s %-8s %s", rows))


@command(
    "producer",
    option("-b", "--broker", "broker", type=broker_address, required=True, help="broker address"),
    help="Query producer's instances, connection, status, etc.",
)
async def producer(session: Session, *, broker: str) -> None:
    found = await session.admin.producers(broker)
    session.out.result(found)
    for group, members in found.items():
        if not members:
            session.out.line(f"producer group ({group}) instances are empty")
        for each in members:
            session.out.line(
                f"producer group ({group}) instance : clientId={each.client_id},remoteIP={each.remote_ip}, "
                f"language={each.language}, version={each.version}, "
                f"lastUpdateTimestamp={each.last_update_timestamp}"
            )
