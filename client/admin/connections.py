"""Who is connected, and what single consumers say and do when they are asked through a broker."""

import random

from cometmq.client.admin.offsets import OffsetAdmin
from cometmq.protocol.bodies.connections import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
)
from cometmq.protocol.bodies.lists import ProducerInfo, ProducerTableInfo
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.admin import GetConsumerConnectionList, GetProducerConnectionList
from cometmq.protocol.requests.callbacks import ConsumeMessageDirectly, GetConsumerRunningInfo


class ConnectionAdmin(OffsetAdmin):
    """The part of the admin client for connected clients."""

    async def consumer_connection(self, group: str, *, broker: str | None = None) -> ConsumerConnection:
        """The connected members of a consumer group. ConsumerOffline when there is none."""
        address = broker or await self._broker_of_group(group)
        header = GetConsumerConnectionList(consumer_group=group)
        return await self._get(ConsumerConnection, address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)

    async def producer_connection(
        self, group: str, topic: str | None = None, *, broker: str | None = None
    ) -> ProducerConnection:
        """The connected members of a producer group, as a broker of the topic knows them."""
        address = broker
        if address is None:
            if topic is None:
                raise TypeError("a producer group is known by its topic or by a broker: give one of them")
            address = random.choice(await self._addresses_of(topic))
        header = GetProducerConnectionList(producer_group=group)
        return await self._get(ProducerConnection, address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)

    async def producers(self, address: str) -> dict[str, list[ProducerInfo]]:
        """All producers of a broker by group (since 5.0)."""
        return (await self._get(ProducerTableInfo, address, RequestCode.GET_ALL_PRODUCER_INFO)).data

    async def running_info(
        self, group: str, client_id: str, *, with_stacks: bool = False, broker: str | None = None
    ) -> ConsumerRunningInfo:
        """What a consumer says about itself."""
        address = broker or await self._broker_of_group(group)
        header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=with_stacks)
        return await self._get(
            ConsumerRunningInfo,
            address,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            header,
            timeout=self._long_timeout,
        )

    async def consume_directly(
        self, group: str, client_id: str, topic: str, offset_message_id: str, *, broker: str
    ) -> ConsumeMessageDirectlyResult:
        """Have one consumer consume one message now. `broker` is the address of the one that has the message."""
        header = ConsumeMessageDirectly(
            consumer_group=group, client_id=client_id, msg_id=offset_message_id, topic=topic
        )
        return await self._get(
            ConsumeMessageDirectlyResult,
            broker,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout=self._long_timeout,
        )

    async def _broker_of_group(self, group: str) -> str:
        return random.choice(await self._group_addresses(group))
