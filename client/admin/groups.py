"""Consumer groups: create, change, delete, list. RocketMQ's subscription groups."""

from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.errors import GroupNotFound
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.topics import DeleteGroup


class GroupAdmin(TopicAdmin):
    """The part of the admin client for consumer groups."""

    async def create_group(
        self,
        group: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        ordered: bool = False,
        broadcast: bool = True,
    ) -> list[str]:
        """Create a group or change it: on a broker (its address), on a cluster, or everywhere. Where it was done."""
        config = SubscriptionGroupConfig(
            group_name=group,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_message_orderly=ordered,
            consume_broadcast_enable=broadcast,
        )
        addresses = await self._targets(broker, cluster)
        for address in addresses:
            await self.put_group(address, config)
        return addresses

    async def put_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create or change a group on one broker."""
        names.validate_group(config.group_name)
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())

    async def put_groups(self, address: str, configs: list[SubscriptionGroupConfig]) -> None:
        """Create or change many groups of one broker by one request (since 5.3)."""
        body = SubscriptionGroupList(group_config_list=configs).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await self._ask(address, code, body=body, timeout=self._long_timeout)

    async def delete_group(self, group: str, *, cluster: str | None = None, remove_offsets: bool = False) -> list[str]:
        """Delete a group on all masters of a cluster, or everywhere, with its retry and dead letter topics."""
        addresses = await self.masters(cluster)
        for address in addresses:
            await self.delete_group_on_broker(address, group, remove_offsets=remove_offsets)
        await self.delete_topics_of_group(group, cluster=cluster)
        return addresses

    async def delete_group_on_broker(self, address: str, group: str, *, remove_offsets: bool = False) -> None:
        """Delete a group on one broker, with its offsets if asked to. Its topics stay."""
        header = DeleteGroup(group_name=group, clean_offset=remove_offsets)
        await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def delete_topics_of_group(self, group: str, *, cluster: str | None = None) -> None:
        """Delete the retry and the dead letter topic of a group, and what the nameservers keep about them."""
        for topic in (names.retry_topic(group), names.dlq_topic(group)):
            await self.delete_topic(topic, cluster=cluster)
            await self.delete_order_conf(topic)

    async def groups(self, cluster: str | None = None) -> list[str]:
        """All groups that the masters of a cluster, or all masters, have."""
        found: dict[str, None] = {}
        for address in await self.masters(cluster):
            found |= dict.fromkeys(await self.group_configs(address))
        return sorted(found)

    async def group_configs(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """The configurations of all groups of one broker."""
        wrapper = await self._get(
            SubscriptionGroupWrapper,
            address,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            timeout=self._long_timeout,
        )
        return wrapper.subscription_group_table

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig:
        """The configuration of a group on one broker.

        Looked up among all: to ask for one group creates it on brokers that create groups on demand.
        """
        configs = await self.group_configs(address)
        if group not in configs:
            raise GroupNotFound(
                int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), f"subscription group {group} does not exist", address
            )
        return configs[group]
