"""Topics: create, change, delete, list, where they live, how far their queues go, who consumes them."""

from collections.abc import Mapping

from cometmq.client.admin.errors import UnknownBroker
from cometmq.client.admin.nameserver import NameserverAdmin
from cometmq.client.errors import NotSupported, TopicNotFound
from cometmq.protocol import names
from cometmq.protocol.bodies.lists import GroupList, TopicList
from cometmq.protocol.bodies.message_queue import MessageQueue as WireQueue
from cometmq.protocol.bodies.registration import TopicConfig, TopicConfigAndMappingSerializeWrapper, TopicConfigList
from cometmq.protocol.bodies.route import MASTER_ID, TopicRouteData
from cometmq.protocol.bodies.stats import TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.admin import GetTopicStats, QueryTopicConsumeByWho
from cometmq.protocol.requests.namesrv import DeleteTopicInNamesrv, GetTopicsByCluster
from cometmq.protocol.requests.topics import CreateTopic, DeleteTopic, GetTopicConfig

READ_WRITE = 6


class TopicAdmin(NameserverAdmin):
    """The part of the admin client for topics."""

    # Changing

    async def create_topic(
        self,
        topic: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create a topic or change it: on a broker (its address), on a cluster, or everywhere. Where it was done.

        `attributes` are set, for example `{"message.type": "FIFO"}`. An ordered topic gets its order configuration.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=perm,
            order=order,
            attributes={f"+{name}": value for name, value in (attributes or {}).items()},
        )
        addresses = await self._targets(broker, cluster)
        for address in addresses:
            await self.put_topic(address, config)
        if order:
            await self.put_order_of(config, broker=broker, cluster=cluster)
        return addresses

    async def put_topic(self, address: str, config: TopicConfig) -> None:
        """Create or change a topic on one broker. Attributes of `config` are changes: `+name` sets, `-name` removes."""
        names.validate_topic(config.topic_name)
        header = CreateTopic(
            topic=config.topic_name,
            default_topic=names.DEFAULT_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes_text(config.attributes) or None,
        )
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def put_topics(self, address: str, configs: list[TopicConfig]) -> None:
        """Create or change many topics of one broker by one request (since 5.3)."""
        body = TopicConfigList(topic_config_list=configs).encode()
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body, timeout=self._long_timeout)

    async def put_order_of(self, config: TopicConfig, *, broker: str | None, cluster: str | None) -> str:
        """Write the order configuration that a topic's queues give, and return it.

        For a cluster it is written anew, for one broker that broker's part of it is replaced.
        """
        info = await self.cluster_info()
        count = config.write_queue_nums
        if broker is None:
            brokers = [each.broker_name for each in await self.brokers_of_cluster(cluster)]
            text = ";".join(f"{name}:{count}" for name in brokers)
        else:
            name = next(
                (each.broker_name for each in info.broker_addr_table.values() if broker in each.broker_addrs.values()),
                None,
            )
            if name is None:
                raise UnknownBroker(f"the nameserver knows no broker at {broker}")
            parts = [part for part in (await self.order_conf(config.topic_name) or "").split(";") if part]
            parts = [part for part in parts if part.rpartition(":")[0] != name]
            text = ";".join(sorted([*parts, f"{name}:{count}"]))
        await self.put_order_conf(config.topic_name, text)
        return text

    async def set_topic_perm(self, topic: str, perm: int, *, address: str, route: TopicRouteData) -> TopicConfig:
        """Change the permission of a topic on the broker at this address; the rest stays as the route tells it."""
        first = route.queue_datas[0]
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=first.read_queue_nums,
            write_queue_nums=first.write_queue_nums,
            topic_sys_flag=first.topic_sys_flag,
            perm=perm,
        )
        await self.put_topic(address, config)
        return config

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic on all masters of a cluster, or everywhere, and on the nameservers."""
        for address in await self.masters(cluster):
            await self.delete_topic_on_broker(address, topic)
        await self.delete_topic_on_nameservers(topic, cluster=cluster)

    async def delete_topic_on_broker(self, address: str, topic: str) -> None:
        """Delete a topic and its messages on one broker."""
        names.validate_topic(topic)
        await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(topic=topic))

    async def delete_topic_on_nameservers(self, topic: str, *, cluster: str | None = None) -> None:
        """Make the nameservers forget a route, of one cluster or at all."""
        await self._tell_nameservers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrv(topic=topic, cluster_name=cluster)
        )

    # Looking

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that a broker of the cluster has."""
        answer = await self._ask_nameserver(RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByCluster(cluster=cluster))
        return TopicList.decode(answer.body).topic_list

    async def topic_config(self, address: str, topic: str) -> TopicConfig:
        """The configuration of a topic on one broker; brokers of 4.x are asked for all of theirs."""
        try:
            return await self._get(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, GetTopicConfig(topic=topic))
        except NotSupported:
            configs = await self.topic_configs(address)
        if topic not in configs:
            raise TopicNotFound(int(ResponseCode.TOPIC_NOT_EXIST), f"topic {topic} does not exist", address)
        return configs[topic]

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """The configurations of all topics of one broker."""
        wrapper = await self._get(
            TopicConfigAndMappingSerializeWrapper,
            address,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            timeout=self._long_timeout,
        )
        return wrapper.topic_config_table

    async def topic_stats(self, topic: str, *, route_topic: str | None = None) -> TopicStatsTable:
        """The ends of all queues of a topic. `route_topic` names the topic whose route counts (light topics)."""
        table: dict[WireQueue, TopicOffset] = {}
        tps = 0.0
        for address in await self._addresses_of(route_topic or topic):
            stats = await self._get(
                TopicStatsTable,
                address,
                RequestCode.GET_TOPIC_STATS_INFO,
                GetTopicStats(topic=topic),
                timeout=self._long_timeout,
            )
            table |= stats.offset_table
            tps += stats.topic_put_tps
        return TopicStatsTable(offset_table=table, topic_put_tps=tps)

    async def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic."""
        route = await self.topic_route(topic)
        info = await self.cluster_info()
        brokers = {broker.broker_name for broker in route.broker_datas}
        return sorted(cluster for cluster, members in info.cluster_addr_table.items() if brokers & set(members))

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that consume a topic, now or once. (Brokers of 5.x name the topic itself among them.)"""
        groups: dict[str, None] = {}
        header = QueryTopicConsumeByWho(topic=topic)
        for address in await self._addresses_of(topic):
            found = await self._get(GroupList, address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            groups |= dict.fromkeys(found.group_list)
        return list(groups)

    async def masters_of_topic(self, topic: str) -> list[str]:
        """The addresses of a topic's masters."""
        route = await self.topic_route(topic)
        return [broker.broker_addrs[MASTER_ID] for broker in route.broker_datas if MASTER_ID in broker.broker_addrs]


def attributes_text(attributes: Mapping[str, str]) -> str:
    """Changes of attributes as brokers read them: `+name=value,-name`."""
    return ",".join(f"{name}={value}" if name.startswith("+") else name for name, value in attributes.items())
