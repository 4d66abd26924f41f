"""Nameservers: their configuration, the KV config, and the write permission of brokers."""

import click

from cometmq.admin.arguments import broker_address
from cometmq.admin.command import Session, command, option
from cometmq.admin.output import Table
from cometmq.client.admin import UnknownBroker
from cometmq.client.errors import ClientError

_NAMESPACE = option("-s", "--namespace", "namespace", required=True, help="set the namespace")
_KEY = option("-k", "--key", "key", required=True, help="set the key name")
_VALUE = option("-v", "--value", "value", required=True, help="set the key value")
_BROKER = option("-b", "--brokerName", "broker", required=True, help="broker name, or its address")


@command("getNamesrvConfig", help="Get configs of name server.")
async def get_namesrv_config(session: Session) -> None:
    configs = await session.admin.nameserver_configs()
    session.out.result(configs)
    for address, config in configs.items():
        session.out.line(f"============{address}============")
        session.out.table(Table(("Key", "Value"), "%-50s=  %s", sorted(config.items())))


@command("updateNamesrvConfig", _KEY, _VALUE, help="Update configs of name server.")
async def update_namesrv_config(session: Session, *, key: str, value: str) -> None:
    addresses = await session.admin.update_nameserver_config({key: value})
    session.out.line(f"update name server config success![{', '.join(addresses)}]")
    session.out.line(f"{key} : {value}")
    session.out.result({"nameservers": addresses, "key": key, "value": value})


@command("updateKvConfig", _NAMESPACE, _KEY, _VALUE, help="Create or update KV config.")
async def update_kv_config(session: Session, *, namespace: str, key: str, value: str) -> None:
    await session.admin.put_kv(namespace, key, value)
    session.out.line("create or update kv config to namespace success.")
    session.out.result({"namespace": namespace, "key": key, "value": value})


@command("deleteKvConfig", _NAMESPACE, _KEY, help="Delete KV config.")
async def delete_kv_config(session: Session, *, namespace: str, key: str) -> None:
    await session.admin.delete_kv(namespace, key)
    session.out.line("delete kv config from namespace success.")
    session.out.result({"namespace": namespace, "key": key})


@command("wipeWritePerm", _BROKER, help="Wipe write perm of broker in all name server you defined in the -n param.")
async def wipe_write_perm(session: Session, *, broker: str) -> None:
    await _change_perm(session, broker, wipe=True)


@command("addWritePerm", _BROKER, help="Add write perm of broker in all name server you defined in the -n param.")
async def add_write_perm(session: Session, *, broker: str) -> None:
    await _change_perm(session, broker, wipe=False)


async def _change_perm(session: Session, broker: str, *, wipe: bool) -> None:
    name = await _broker_name(session, broker)
    change = session.admin.wipe_write_perm if wipe else session.admin.add_write_perm
    verb = "wipe" if wipe else "add"
    outcomes = await change(name)
    failures = []
    for address, outcome in outcomes.items():
        ok = isinstance(outcome, int)
        session.out.line(
            f"{verb} write perm of broker[{name}] in name server[{address}] {f'OK, {outcome}' if ok else 'Failed'}"
        )
        if not ok:
            failures.append(f"{address}: {outcome}")
    session.out.result({address: outcome for address, outcome in outcomes.items() if isinstance(outcome, int)})
    if failures:
        raise ClientError("; ".join(failures))


async def _broker_name(session: Session, text: str) -> str:
    """A broker by its name, or by an address of it."""
    brokers = (await session.admin.cluster_info()).broker_addr_table
    if text in brokers:
        return text
    try:
        address = broker_address(text)
    except click.BadParameter:
        address = text
    for name, data in brokers.items():
        if address in data.broker_addrs.values():
            return name
    raise UnknownBroker(f"there is no broker {text!r}")
