"""What nameservers keep besides routes: KV config, order configurations, their own configuration, write permissions.

Nameservers do not talk to each other: what is written goes to all of them, and the last failure is raised when all
were tried.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.client.admin.queues import QueueAdmin
from cometmq.client.errors import BrokerError, OffsetNotFound
from cometmq.protocol.bodies.config import ConfigText
from cometmq.protocol.bodies.registration import KVTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.namesrv import (
    AddWritePerm,
    AddWritePermAnswer,
    DeleteKvConfig,
    GetKvConfig,
    GetKvConfigAnswer,
    GetKvList,
    PutKvConfig,
    WipeWritePerm,
    WipeWritePermAnswer,
)
from cometmq.remoting.errors import TransportError

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class NameserverAdmin(QueueAdmin):
    """The part of the admin client for nameservers."""

    # KV config

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value in a namespace."""
        await self._tell_nameservers(RequestCode.PUT_KV_CONFIG, PutKvConfig(namespace, key, value))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """A value of a namespace; None when there is none."""
        try:
            answer = await self._ask_nameserver(RequestCode.GET_KV_CONFIG, GetKvConfig(namespace, key))
        except OffsetNotFound:  # QUERY_NOT_FOUND
            return None
        return answer.header(GetKvConfigAnswer).value

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace."""
        try:
            answer = await self._ask_nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, GetKvList(namespace))
        except OffsetNotFound:  # QUERY_NOT_FOUND
            return {}
        return KVTable.decode(answer.body).table

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Remove a value of a namespace."""
        await self._tell_nameservers(RequestCode.DELETE_KV_CONFIG, DeleteKvConfig(namespace, key))

    # Order configurations

    async def order_conf(self, topic: str) -> str | None:
        """The order configuration of a topic: `broker-a:4;broker-b:4`."""
        return await self.get_kv(ORDER_NAMESPACE, topic)

    async def put_order_conf(self, topic: str, text: str) -> None:
        await self.put_kv(ORDER_NAMESPACE, topic, text)

    async def delete_order_conf(self, topic: str) -> None:
        await self.delete_kv(ORDER_NAMESPACE, topic)

    # Their configuration

    async def nameserver_configs(self) -> dict[str, dict[str, str]]:
        """Address -> configuration of each nameserver."""
        answers = await self._tell_nameservers(RequestCode.GET_NAMESRV_CONFIG)
        return {address: ConfigText.decode(answer.body).properties for address, answer in answers.items()}

    async def update_nameserver_config(self, values: Mapping[str, str]) -> list[str]:
        """Change the configuration of all nameservers; their addresses."""
        body = ConfigText(properties=dict(values)).encode()
        return list(await self._tell_nameservers(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))

    # Write permission

    async def wipe_write_perm(self, broker_name: str) -> dict[str, int | BrokerError | TransportError]:
        """Take the write permission of all topics of a broker away. Nameserver -> topics changed, or what went wrong.

        It lasts until the broker registers its topics in a new version.
        """
        outcomes = await self._every_nameserver(RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePerm(broker_name))
        return {
            address: outcome
            if isinstance(outcome, BrokerError | TransportError)
            else outcome.header(WipeWritePermAnswer).wipe_topic_count
            for address, outcome in outcomes.items()
        }

    async def add_write_perm(self, broker_name: str) -> dict[str, int | BrokerError | TransportError]:
        """Give the write permission of all topics of a broker back."""
        outcomes = await self._every_nameserver(RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePerm(broker_name))
        return {
            address: outcome
            if isinstance(outcome, BrokerError | TransportError)
            else outcome.header(AddWritePermAnswer).add_topic_count
            for address, outcome in outcomes.items()
        }
