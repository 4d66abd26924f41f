"""Changing topics: updateTopic, updateTopicList, deleteTopic, updateTopicPerm, updateOrderConf."""

import click

from cometmq.admin.arguments import attributes_of, broker_address, json_file, one_of
from cometmq.admin.command import Session, command, option
from cometmq.admin.java_text import topic_config_text
from cometmq.client.errors import ClientError
from cometmq.protocol.bodies import MASTER_ID, TopicConfig, TopicRouteData
from cometmq.protocol.bodies.registration import TopicConfigList
from cometmq.protocol.errors import BodyError

_TOPIC = option("-t", "--topic", "topic", required=True, help="topic name")
_BROKER = option("-b", "--brokerAddr", "broker", type=broker_address, help="create topic to which broker")
_CLUSTER = option("-c", "--clusterName", "cluster", help="create topic to which cluster")
_PERMS = click.Choice(["2", "4", "6"])
_UNIT, _UNIT_SUB = 1, 2


@command(
    "updateTopic",
    _BROKER,
    _CLUSTER,
    _TOPIC,
    option("-r", "--readQueueNums", "read_queues", type=click.IntRange(0), default=8, help="set read queue nums"),
    option("-w", "--writeQueueNums", "write_queues", type=click.IntRange(0), default=8, help="set write queue nums"),
    option("-p", "--perm", "perm", type=_PERMS, default="6", help="set topic's permission: 2 W, 4 R, 6 RW"),
    option("-o", "--order", "order", type=bool, default=False, help="set topic's order(true|false)"),
    option("-u", "--unit", "unit", type=bool, default=False, help="is unit topic (true|false)"),
    option("-s", "--hasUnitSub", "unit_sub", type=bool, default=False, help="has unit sub (true|false)"),
    option("-a", "--attributes", "attributes", help="attribute(+a=b,+c=d,-e)"),
    help="Update or create topic.",
)
async def update_topic(
    session: Session,
    *,
    broker: str | None,
    cluster: str | None,
    topic: str,
    read_queues: int,
    write_queues: int,
    perm: str,
    order: bool,
    unit: bool,
    unit_sub: bool,
    attributes: str | None,
) -> None:
    one_of(broker, cluster)
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=int(perm),
        order=order,
        topic_sys_flag=(_UNIT if unit else 0) | (_UNIT_SUB if unit_sub else 0),
        attributes=attributes_of(attributes),
    )
    addresses = [broker] if broker is not None else await session.admin.masters(cluster)
    for address in addresses:
        await session.admin.put_topic(address, config)
        session.out.line(f"create topic to {address} success.")
    if order:
        text = await session.admin.put_order_of(config, broker=broker, cluster=cluster)
        where = "cluster" if broker is None else "broker"
        session.out.line(f"set {where} orderConf. isOrder=true, orderConf=[{text}]")
    session.out.line(topic_config_text(config))
    session.out.result({"brokers": addresses, "topicConfig": config})


@command(
    "updateTopicList",
    _BROKER,
    _CLUSTER,
    option(
        "-f",
        "--filename",
        "file",
        required=True,
        type=json_file,
        help="File with a JSON list of topic configs",
    ),
    help="Create or update topics in batch.",
)
async def update_topic_list(session: Session, *, broker: str | None, cluster: str | None, file: bytes) -> None:
    one_of(broker, cluster)
    try:
        configs = TopicConfigList.decode(b'{"topicConfigList":' + file + b"}").topic_config_list
    except BodyError as error:
        raise click.UsageError(f"-f: the file holds no list of topic configs: {error}") from error
    addresses = [broker] if broker is not None else await session.admin.masters(cluster)
    for address in addresses:
        await session.admin.put_topics(address, configs)
        session.out.line(f"submit batch of topic config to {address} success, please check the result later.")
    session.out.result({"brokers": addresses, "topics": [config.topic_name for config in configs]})


@command(
    "deleteTopic",
    _TOPIC,
    option("-c", "--clusterName", "cluster", required=True, help="delete topic from which cluster"),
    help="Delete topic from broker and NameServer.",
)
async def delete_topic(session: Session, *, topic: str, cluster: str) -> None:
    addresses = await session.admin.masters(cluster)
    for address in addresses:
        await session.admin.delete_topic_on_broker(address, topic)
    session.out.line(f"delete topic [{topic}] from cluster [{cluster}] success.")
    await session.admin.delete_topic_on_nameservers(topic, cluster=cluster)
    session.out.line(f"delete topic [{topic}] from NameServer success.")
    session.out.result({"topic": topic, "cluster": cluster, "brokers": addresses})


@command(
    "updateTopicPerm",
    _BROKER,
    _CLUSTER,
    _TOPIC,
    option("-p", "--perm", "perm", type=_PERMS, required=True, help="set topic's permission: 2 W, 4 R, 6 RW"),
    help="Update topic perm.",
)
async def update_topic_perm(
    session: Session, *, broker: str | None, cluster: str | None, topic: str, perm: str
) -> None:
    one_of(broker, cluster)
    new = int(perm)
    route = await session.admin.topic_route(topic)
    if not route.queue_datas:
        raise ClientError(f"the route of {topic} has no queues")
    if broker is None:
        addresses = await session.admin.masters(cluster)
        old = route.queue_datas[0].perm
    else:
        addresses, old = [broker], _perm_on(route, broker)
        if old == new:
            session.out.line("new perm equals to the old one!")
            session.out.result({"old": old, "new": new, "brokers": []})
            return
    for address in addresses:
        config = await session.admin.set_topic_perm(topic, new, address=address, route=route)
        session.out.line(f"update topic perm from {old} to {new} in {address} success.")
        if broker is not None:
            session.out.line(f"{topic_config_text(config)}.")
    session.out.result({"old": old, "new": new, "brokers": addresses})


def _perm_on(route: TopicRouteData, address: str) -> int:
    name = next((each.broker_name for each in route.broker_datas if each.broker_addrs.get(MASTER_ID) == address), None)
    for queues in route.queue_datas:
        if queues.broker_name == name:
            return queues.perm
    raise ClientError(f"updateTopicPerm error broker not exit or broker is not master!: {address} has no such topic")


@command(
    "updateOrderConf",
    _TOPIC,
    option("-m", "--method", "method", type=click.Choice(["get", "put", "delete"]), required=True, help="what to do"),
    option("-v", "--orderConf", "text", help="set order conf [eg. brokerName1:num;brokerName2:num]"),
    help="Create or update or delete order conf.",
)
async def update_order_conf(session: Session, *, topic: str, method: str, text: str | None) -> None:
    admin, out = session.admin, session.out
    if method == "get":
        found = await admin.order_conf(topic)
        if found is None:
            raise ClientError(f"topic {topic} has no order conf")
        out.line(f"get orderConf success. topic=[{topic}], orderConf=[{found}] ")
        out.result({"topic": topic, "orderConf": found})
    elif method == "put":
        if not text or not text.strip():
            raise click.UsageError("please set orderConf with option -v.")
        await admin.put_order_conf(topic, text.strip())
        out.line(f"update orderConf success. topic=[{topic}], orderConf=[{text.strip()}]")
        out.result({"topic": topic, "orderConf": text.strip()})
    else:
        await admin.delete_order_conf(topic)
        out.line(f"delete orderConf success. topic=[{topic}]")
        out.result({"topic": topic, "orderConf": None})
