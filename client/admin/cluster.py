"""Brokers as a whole: what they run with, how they are doing, and what they are asked to clean."""

from collections.abc import Mapping

from cometmq.client.admin.connections import ConnectionAdmin
from cometmq.protocol.bodies.config import ConfigText
from cometmq.protocol.bodies.registration import KVTable
from cometmq.protocol.bodies.stats import BrokerStatsData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.admin import ViewBrokerStats


class ClusterAdmin(ConnectionAdmin):
    """The part of the admin client for brokers."""

    async def broker_status(self, address: str) -> dict[str, str]:
        """The figures of a running broker: `putTps`, `commitLogMaxOffset`, ..."""
        return (await self._get(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO)).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """All keys of a broker's configuration."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        return ConfigText.decode(answer.body).properties

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change keys of a running broker's configuration."""
        body = ConfigText(properties=dict(values)).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """A figure over a day, an hour and a minute: `TOPIC_PUT_NUMS` of a topic, `GROUP_GET_NUMS` of `topic@group`."""
        header = ViewBrokerStats(stats_name=name, stats_key=key)
        return await self._get(BrokerStatsData, address, RequestCode.VIEW_BROKER_STATS_DATA, header)

    async def clean_expired_queues(self, address: str) -> None:
        """Have a broker delete consume queues whose messages are gone."""
        await self._ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout=self._long_timeout)

    async def clean_unused_topics(self, address: str) -> None:
        """Have a broker delete consume queues of topics that it no longer has."""
        await self._ask(address, RequestCode.CLEAN_UNUSED_TOPIC, timeout=self._long_timeout)

    async def delete_expired_log_files(self, address: str) -> None:
        """Have a broker delete files of its log that are past their time."""
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG, timeout=self._long_timeout)
