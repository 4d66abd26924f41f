"""Offsets: how far groups and queues are, and moving groups to another place."""

from collections.abc import Mapping

import msgspec

from cometmq.client.admin.errors import NoProgress
from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.errors import TopicNotFound
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names
from cometmq.protocol.bodies.message_queue import MessageQueue as WireQueue
from cometmq.protocol.bodies.offsets import ResetOffsetBody
from cometmq.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, OffsetWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.admin import GetBrokerConsumeStats, GetConsumeStats, ResetOffset


class MovedOffset(msgspec.Struct, frozen=True):
    """How the offset of a group was moved in a queue."""

    broker_offset: int
    consumer_offset: int
    #: What the queue has at that time.
    timestamp_offset: int
    reset_offset: int


class OffsetAdmin(GroupAdmin):
    """The part of the admin client for offsets."""

    # Groups

    async def consume_stats(
        self, group: str, topic: str | None = None, *, route_topic: str | None = None
    ) -> ConsumeStats:
        """How far a group is in all its queues, or in those of one topic. NoProgress when there is nothing to tell."""
        table: dict[WireQueue, OffsetWrapper] = {}
        tps = 0.0
        for address in await self._group_addresses(group, topic, route_topic):
            stats = await self.consume_stats_on(address, group, topic)
            table |= stats.offset_table
            tps += stats.consume_tps
        if not table:
            raise NoProgress(
                f"the group {group} has no offsets{f' in {topic}' if topic else ''}: "
                "nobody has consumed in it, or it is broadcast to its members"
            )
        return ConsumeStats(offset_table=table, consume_tps=tps)

    async def consume_stats_on(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """How far a group is on one broker."""
        header = GetConsumeStats(consumer_group=group, topic=topic)
        return await self._get(ConsumeStats, address, RequestCode.GET_CONSUME_STATS, header, timeout=self._long_timeout)

    async def _group_addresses(self, group: str, topic: str | None = None, route_topic: str | None = None) -> list[str]:
        """The brokers of a group: those of its retry topic, or of the topic when it has none."""
        if route_topic is not None:
            return await self._addresses_of(route_topic)
        try:
            return await self._addresses_of(names.retry_topic(group))
        except TopicNotFound:
            if topic is None:
                raise
            return await self._addresses_of(topic)

    async def broker_consume_stats(self, address: str, *, ordered_only: bool = False) -> ConsumeStatsList:
        """How far all groups of a broker are."""
        return await self._get(
            ConsumeStatsList,
            address,
            RequestCode.GET_BROKER_CONSUME_STATS,
            GetBrokerConsumeStats(is_order=ordered_only),
            timeout=50.0,
        )

    # Moving a group

    async def reset_offsets(
        self, group: str, topic: str, timestamp: int, *, force: bool = True, route_topic: str | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to the messages stored at a time (milliseconds; -1: to the end). The new offsets.

        Consumers that run go on from there. Without `force` queues that are behind that time are left alone. Brokers
        of 4.x answer ConsumerOffline when nobody consumes: then `reset_offsets_offline` does it.
        """
        offsets: dict[MessageQueue, int] = {}
        header = ResetOffset(group=group, topic=topic, timestamp=timestamp, is_force=force)
        for address in await self._addresses_of(route_topic or topic):
            offsets |= await self._reset(address, header)
        return offsets

    async def reset_queue_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Move a group to an offset of one queue."""
        address = await self._master_for(queue)
        await self.commit_offset(group, queue, offset)
        await self._reset(
            address,
            ResetOffset(
                group=group,
                topic=queue.topic,
                timestamp=0,
                is_force=True,
                queue_id=queue.queue_id,
                offset=offset,
            ),
        )

    async def _reset(self, address: str, header: ResetOffset) -> dict[MessageQueue, int]:
        body = await self._get(
            ResetOffsetBody, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, timeout=self._long_timeout
        )
        return {MessageQueue.from_wire(queue): offset for queue, offset in body.offset_table.items()}

    async def reset_offsets_offline(
        self, group: str, topic: str, timestamp: int, *, force: bool = True
    ) -> dict[MessageQueue, MovedOffset]:
        """Move a group that nobody consumes in, queue by queue: for brokers that cannot do it themselves."""
        moved: dict[MessageQueue, MovedOffset] = {}
        for address in await self._addresses_of(topic):
            stats = await self.consume_stats_on(address, group, topic)
            known = {MessageQueue.from_wire(queue): wrapper for queue, wrapper in stats.offset_table.items()}
            if not known:  # never consumed
                ends = await self.topic_stats(topic)
                known = {
                    MessageQueue.from_wire(queue): OffsetWrapper(broker_offset=offset.max_offset)
                    for queue, offset in ends.offset_table.items()
                }
            for queue, wrapper in sorted(known.items()):
                at_time = await self._place_of(queue, timestamp)
                target = at_time if force or at_time <= wrapper.consumer_offset else wrapper.consumer_offset
                if target == at_time:
                    await self.commit_offset(group, queue, target)
                moved[queue] = MovedOffset(wrapper.broker_offset, wrapper.consumer_offset, at_time, target)
        return moved

    async def _place_of(self, queue: MessageQueue, timestamp: int) -> int:
        return await (self.max_offset(queue) if timestamp < 0 else self.search_offset(queue, timestamp))

    async def clone_offsets(self, source: str, target: str, topic: str) -> Mapping[MessageQueue, int]:
        """Give a group the offsets of another one in a topic. The offsets."""
        cloned: dict[MessageQueue, int] = {}
        for address in await self._addresses_of(topic):
            stats = await self.consume_stats_on(address, source, topic)
            for wire_queue, wrapper in stats.offset_table.items():
                queue = MessageQueue.from_wire(wire_queue)
                await self.commit_offset(target, queue, wrapper.consumer_offset)
                cloned[queue] = wrapper.consumer_offset
        return cloned
