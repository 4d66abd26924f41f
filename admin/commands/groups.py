"""Consumer groups: updateSubGroup, updateSubGroupList, deleteSubGroup, getConsumerConfig."""

import click

from cometmq.admin.arguments import attributes_of, broker_address, json_file, one_of
from cometmq.admin.command import Session, command, option
from cometmq.admin.java_text import group_config_fields, group_config_text
from cometmq.admin.output import Table
from cometmq.client.errors import ClientError
from cometmq.protocol.bodies import GroupRetryPolicy, SubscriptionGroupConfig
from cometmq.protocol.bodies.groups import SubscriptionGroupList
from cometmq.protocol.bodies.route import MASTER_ID
from cometmq.protocol.errors import BodyError

_GROUP = option("-g", "--groupName", "group", required=True, help="consumer group name")
_BROKER = option("-b", "--brokerAddr", "broker", type=broker_address, help="on which broker")
_CLUSTER = option("-c", "--clusterName", "cluster", help="in which cluster")


@command(
    "updateSubGroup",
    _BROKER,
    _CLUSTER,
    _GROUP,
    option("-s", "--consumeEnable", "consume", type=bool, default=True, help="consume enable"),
    option("-m", "--consumeFromMinEnable", "from_min", type=bool, default=False, help="from min offset"),
    option("-d", "--consumeBroadcastEnable", "broadcast", type=bool, default=False, help="broadcast"),
    option("-o", "--consumeMessageOrderly", "ordered", type=bool, default=False, help="consume message orderly"),
    option("-q", "--retryQueueNums", "retry_queues", type=click.IntRange(0), default=1, help="retry queue nums"),
    option("-r", "--retryMaxTimes", "retry_max", type=int, default=16, help="retry max times"),
    option("-p", "--groupRetryPolicy", "policy", help="the json string of retry policy"),
    option("-i", "--brokerId", "broker_id", type=int, default=0, help="consumer from which broker id"),
    option("-w", "--whichBrokerWhenConsumeSlowly", "slow_id", type=int, default=1, help="broker id when slow"),
    option("-a", "--notifyConsumerIdsChanged", "notify", type=bool, default=True, help="notify consumerId changed"),
    option("--attributes", "attributes", help="attribute(+a=b,+c=d,-e)"),
    help="Update or create subscription group.",
)
async def update_sub_group(
    session: Session,
    *,
    broker: str | None,
    cluster: str | None,
    group: str,
    consume: bool,
    from_min: bool,
    broadcast: bool,
    ordered: bool,
    retry_queues: int,
    retry_max: int,
    policy: str | None,
    broker_id: int,
    slow_id: int,
    notify: bool,
    attributes: str | None,
) -> None:
    one_of(broker, cluster)
    config = SubscriptionGroupConfig(
        group_name=group,
        consume_enable=consume,
        consume_from_min_enable=from_min,
        consume_broadcast_enable=broadcast,
        consume_message_orderly=ordered,
        retry_queue_nums=retry_queues,
        retry_max_times=retry_max,
        group_retry_policy=_policy_of(policy),
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_id,
        notify_consumer_ids_changed_enable=notify,
        attributes=attributes_of(attributes),
    )
    addresses = [broker] if broker is not None else await session.admin.masters(cluster)
    for address in addresses:
        await session.admin.put_group(address, config)
        session.out.line(f"create subscription group to {address} success.")
    session.out.line(group_config_text(config))
    session.out.result({"brokers": addresses, "groupConfig": config})


def _policy_of(text: str | None) -> GroupRetryPolicy:
    if text is None:
        return GroupRetryPolicy()
    try:
        return GroupRetryPolicy.decode(text.encode())
    except BodyError as error:
        raise click.UsageError(f"-p: {error}") from error


@command(
    "updateSubGroupList",
    _BROKER,
    _CLUSTER,
    option(
        "-f",
        "--filename",
        "file",
        required=True,
        type=json_file,
        help="File with a JSON list of group configs",
    ),
    help="Update or create subscription groups in batch.",
)
async def update_sub_group_list(session: Session, *, broker: str | None, cluster: str | None, file: bytes) -> None:
    one_of(broker, cluster)
    try:
        configs = SubscriptionGroupList.decode(b'{"groupConfigList":' + file + b"}").group_config_list
    except BodyError as error:
        raise click.UsageError(f"-f: the file holds no list of group configs: {error}") from error
    addresses = [broker] if broker is not None else await session.admin.masters(cluster)
    what = "group" if broker is not None else "subscription group"
    for address in addresses:
        await session.admin.put_groups(address, configs)
        session.out.line(f"submit batch of {what} config to {address} success, please check the result later.")
    session.out.result({"brokers": addresses, "groups": [config.group_name for config in configs]})


@command(
    "deleteSubGroup",
    _BROKER,
    _CLUSTER,
    _GROUP,
    option("-r", "--removeOffset", "remove", type=bool, default=False, help="remove offset"),
    help="Delete subscription group from broker.",
)
async def delete_sub_group(
    session: Session, *, broker: str | None, cluster: str | None, group: str, remove: bool
) -> None:
    one_of(broker, cluster)
    addresses = [broker] if broker is not None else await session.admin.masters(cluster)
    where = "" if broker is not None else f" in cluster [{cluster}]"
    for address in addresses:
        await session.admin.delete_group_on_broker(address, group, remove_offsets=remove)
        session.out.line(f"delete subscription group [{group}] from broker [{address}]{where} success.")
    if broker is None:
        await session.admin.delete_topics_of_group(group, cluster=cluster)
    session.out.result({"group": group, "brokers": addresses})


@command("getConsumerConfig", _GROUP, help="Get consumer config by subscription group name.")
async def get_consumer_config(session: Session, *, group: str) -> None:
    found: dict[str, SubscriptionGroupConfig] = {}
    for broker in await session.admin.brokers_of_cluster():
        address = broker.broker_addrs.get(MASTER_ID)
        config = None if address is None else (await session.admin.group_configs(address)).get(group)
        if config is None:
            continue
        found[f"{broker.cluster}:{broker.broker_name}"] = config
        bar = "=" * 29
        session.out.line(f"{bar}{broker.cluster}:{broker.broker_name}{bar}")
        fields = [(name, "" if value == "null" else value) for name, value in group_config_fields(config)]
        session.out.table(Table(("Field", "Value"), "%-40s=  %s", fields))
    if not found:
        raise ClientError(f"no broker has a group {group}")
    session.out.result(found)
