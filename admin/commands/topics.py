"""Looking at topics: topicList, topicRoute, topicStatus, topicClusterList, allocateMQ."""

import json

from cometmq.admin.command import Session, command, option, tell_failure
from cometmq.admin.java_text import hash_order, human_time, route_text
from cometmq.admin.output import Form, Table
from cometmq.client.consumer.allocate import Averagely
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names
from cometmq.protocol.bodies import TopicRouteData
from cometmq.remoting.errors import TransportError

_TOPIC = option("-t", "--topic", "topic", required=True, help="topic name")


@command(
    "topicList",
    option("-c", "--clusterModel", "by_cluster", is_flag=True, help="With clusters and consumer groups"),
    help="Fetch all topic list from name server.",
)
async def topic_list(session: Session, *, by_cluster: bool) -> None:
    topics = await session.admin.topics()
    if not by_cluster:
        session.out.table(Table(("#Topic",), "%s", [(topic,) for topic in topics]))
        session.out.result(topics)
        return
    rows: list[tuple[str, str, str]] = []
    for topic in topics:
        if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
            continue
        clusters = await session.admin.topic_clusters(topic)
        groups = await _groups(session, topic)
        rows += [(clusters[0] if clusters else "", topic, group) for group in groups or [""]]
    session.out.table(
        Table(
            ("#Cluster Name", "#Topic", "#Consumer Group"),
            "%-20.20s  %-64.64s  %-64.64s",
            rows,
            head="%-20s  %-48s  %-48s",
        )
    )


async def _groups(session: Session, topic: str) -> list[str]:
    """Who consumes a topic; nobody, and a line on stderr, when it cannot be told: the list goes on."""
    try:
        return await session.admin.groups_of_topic(topic)
    except (BrokerError, ClientError, TransportError) as error:
        tell_failure("topicList", error)
        return []


@command(
    "topicRoute",
    _TOPIC,
    option("-l", "--list", "as_list", is_flag=True, help="Use list format to print data"),
    help="Examine topic route info.",
)
async def topic_route(session: Session, *, topic: str, as_list: bool) -> None:
    route = await session.admin.topic_route(topic)
    session.out.result(route)
    if as_list or session.out.form is Form.DRAWN:
        _show_list(session, route)
    else:
        session.out.line(route_text(route))


def _show_list(session: Session, route: TopicRouteData) -> None:
    queues = {each.broker_name: each for each in route.queue_datas}
    rows: list[tuple[object, ...]] = []
    for broker in sorted(route.broker_datas, key=lambda each: each.broker_name):
        own = queues.get(broker.broker_name)
        if own is not None:
            addresses = ", ".join(f"{number}={address}" for number, address in sorted(broker.broker_addrs.items()))
            counts = (own.read_queue_nums, own.write_queue_nums, own.perm)
            rows.append((broker.cluster, broker.broker_name, f"{{{addresses}}}", *counts))
    form = "%-45s %-32s %-50s %-10s %-11s %-5s"
    titles = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    session.out.table(Table(titles, form, rows, head=form))
    reads = sum(each.read_queue_nums for each in route.queue_datas)
    writes = sum(each.write_queue_nums for each in route.queue_datas)
    if session.out.form is Form.DRAWN:
        session.out.line(f"Total: {len(rows)} brokers, {reads} queues to read, {writes} to write")
    else:
        session.out.line("-" * 158)
        session.out.line(form % ("Total:", len(rows), "", reads, writes, ""))


@command(
    "topicStatus",
    _TOPIC,
    option("-c", "--cluster", "cluster", help="cluster name or lmq parent topic, lmq is used to find the route"),
    help="Examine topic Status info.",
)
async def topic_status(session: Session, *, topic: str, cluster: str | None) -> None:
    stats = await session.admin.topic_stats(topic, route_topic=cluster)
    if not stats.offset_table:
        raise ClientError("Not found the topic stats info")
    table = {MessageQueue.from_wire(queue): offset for queue, offset in stats.offset_table.items()}
    rows = [
        (
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            human_time(offset.last_update_timestamp) if offset.last_update_timestamp > 0 else "",
        )
        for queue, offset in sorted(table.items())
    ]
    form = "%-32s  %-4s  %-20s  %-20s    %s"
    titles = ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")
    shown = Table(titles, form, rows, head=form)
    session.out.table(shown)
    session.out.line()
    session.out.line(f"Topic Put TPS: {stats.topic_put_tps}")
    session.out.result({"queues": shown.objects(), "topicPutTps": stats.topic_put_tps})


@command("topicClusterList", _TOPIC, help="Get cluster info for topic.")
async def topic_cluster_list(session: Session, *, topic: str) -> None:
    clusters = await session.admin.topic_clusters(topic)
    session.out.result(clusters)
    for cluster in clusters:
        session.out.line(cluster)


@command(
    "allocateMQ",
    _TOPIC,
    option("-i", "--ipList", "clients", required=True, help="Client ids, separated by commas"),
    help="Allocate MQ: who would get which queue, by the averagely strategy.",
)
async def allocate_mq(session: Session, *, topic: str, clients: str) -> None:
    ids = list(dict.fromkeys(each.strip() for each in clients.split(",") if each.strip()))
    queues = await session.admin.read_queues_of(topic)
    shares = {each: Averagely()("", each, queues, ids) for each in ids}
    result = {
        each: [
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic} for queue in shares[each]
        ]
        for each in hash_order(ids)
    }
    session.out.result({"result": result})
    if session.out.form is Form.DRAWN:
        rows = [(each, queue.broker_name, queue.queue_id) for each, share in shares.items() for queue in share]
        session.out.table(Table(("Client", "Broker", "Queue"), "%s %s %s", rows))
    else:
        session.out.line(json.dumps({"result": result}, separators=(",", ":"), ensure_ascii=False))
