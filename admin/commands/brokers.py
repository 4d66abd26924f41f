"""Brokers: brokerStatus, getBrokerConfig, updateBrokerConfig, and the three that make them clean up."""

from collections.abc import Awaitable, Callable

from cometmq.admin.arguments import broker_address, one_of
from cometmq.admin.command import Session, command, option
from cometmq.admin.output import Table
from cometmq.protocol.bodies.route import MASTER_ID

_BROKER = option("-b", "--brokerAddr", "broker", type=broker_address, help="Broker address")
_CLUSTER = option("-c", "--clusterName", "cluster", help="which cluster")
_CLUSTER_SHORT = option("-c", "--cluster", "cluster", help="which cluster")


@command("brokerStatus", _BROKER, _CLUSTER, help="Fetch broker runtime status data.")
async def broker_status(session: Session, *, broker: str | None, cluster: str | None) -> None:
    one_of(broker, cluster)
    addresses = [broker] if broker is not None else await session.admin.all_addresses(cluster)
    figures = {address: await session.admin.broker_status(address) for address in addresses}
    session.out.result(figures if broker is None else figures[broker])
    for address, table in figures.items():
        rows = sorted(table.items())
        if broker is not None:
            session.out.table(Table(("Figure", "Value"), "%-32s: %s", rows))
        else:
            with_address = [(address, key, value) for key, value in rows]
            session.out.table(Table(("Broker", "Figure", "Value"), "%-24s %-32s: %s", with_address))


@command("getBrokerConfig", _BROKER, _CLUSTER, help="Get broker config by cluster or special broker.")
async def get_broker_config(session: Session, *, broker: str | None, cluster: str | None) -> None:
    one_of(broker, cluster)
    found: dict[str, dict[str, str]] = {}
    for title, address in await _titled(session, broker, cluster):
        config = found[address] = await session.admin.broker_config(address)
        session.out.line(f"============{title}============")
        session.out.table(Table(("Key", "Value"), "%-50s=  %s", sorted(config.items())))
        session.out.line()
    session.out.result(found if broker is None else found[broker])


async def _titled(session: Session, broker: str | None, cluster: str | None) -> list[tuple[str, str]]:
    """Headings and addresses: masters, and slaves with their masters."""
    if broker is not None:
        return [(broker, broker)]
    titled = []
    for each in await session.admin.brokers_of_cluster(cluster):
        master = each.broker_addrs.get(MASTER_ID)
        for number, address in sorted(each.broker_addrs.items()):
            slave = f"My Master: {master or 'NO_MASTER'}=====Slave: {address}"
            titled.append((f"Master: {address}" if number == MASTER_ID else slave, address))
    return titled


@command(
    "updateBrokerConfig",
    _BROKER,
    _CLUSTER,
    option("-a", "--updateAllBroker", "everywhere", help="with -c: update all brokers include slave (any value)"),
    option("-k", "--key", "key", required=True, help="config key"),
    option("-v", "--value", "value", required=True, help="config value"),
    help="Update broker's config.",
)
async def update_broker_config(
    session: Session, *, broker: str | None, cluster: str | None, everywhere: str | None, key: str, value: str
) -> None:
    one_of(broker, cluster)
    if broker is not None:
        addresses = [broker]
    elif everywhere is not None:
        addresses = await session.admin.all_addresses(cluster)
    else:
        addresses = await session.admin.masters(cluster)
    for address in addresses:
        await session.admin.update_broker_config(address, {key: value})
        session.out.line(f"update broker config success, {address}")
    session.out.result({"brokers": addresses, "key": key, "value": value})


async def _clean(
    session: Session, broker: str | None, cluster: str | None, clean: Callable[[str], Awaitable[None]]
) -> None:
    addresses = [broker] if broker is not None else await session.admin.all_addresses(cluster)
    for address in addresses:
        await clean(address)
    session.out.line("success")
    session.out.result({"brokers": addresses})


@command("cleanExpiredCQ", _BROKER, _CLUSTER_SHORT, help="Clean expired ConsumeQueue on broker.")
async def clean_expired_cq(session: Session, *, broker: str | None, cluster: str | None) -> None:
    await _clean(session, broker, cluster, session.admin.clean_expired_queues)


@command("cleanUnusedTopic", _BROKER, _CLUSTER_SHORT, help="Clean unused topic on broker.")
async def clean_unused_topic(session: Session, *, broker: str | None, cluster: str | None) -> None:
    await _clean(session, broker, cluster, session.admin.clean_unused_topics)


@command("deleteExpiredCommitLog", _BROKER, _CLUSTER_SHORT, help="Delete expired CommitLog files.")
async def delete_expired_commit_log(session: Session, *, broker: str | None, cluster: str | None) -> None:
    await _clean(session, broker, cluster, session.admin.delete_expired_log_files)
