"""Brokers stay known to an admin client for as long as it asks about queues, whatever the routes of its members are."""

import pytest

from cometmq.client import MessageQueue, connect
from cometmq.client.errors import NoBroker, TopicNotFound
from support.fake_cluster import FakeCluster

QUEUE = MessageQueue("T", "broker-a", 0)


async def test_brokers_outlive_a_refresh_of_the_routes() -> None:
    async with FakeCluster("broker-a") as cluster, connect(cluster.nameserver) as mq:
        admin = mq.admin()
        cluster["broker-a"].max_offset = 7
        for _ in range(3):
            assert await admin.max_offset(QUEUE) == 7
            await mq._refresh_routes()
        assert len(cluster.asked) == 1, "what is known is not asked for again"


async def test_a_broker_that_was_forgotten_is_looked_for_again() -> None:
    async with FakeCluster("broker-a") as cluster, connect(cluster.nameserver) as mq:
        admin = mq.admin()
        await admin.topic_route("T")  # learnt by the way, so a refresh forgets it
        await mq._refresh_routes()
        assert not mq.routes.brokers.has("broker-a")
        assert await admin.max_offset(QUEUE) == 0


async def test_nobody_to_be_found() -> None:
    async with FakeCluster("broker-a") as cluster, connect(cluster.nameserver) as mq:
        cluster.known.clear()
        with pytest.raises(NoBroker, match="broker-a"):
            await mq.admin().max_offset(QUEUE)
        cluster.missing.add("U")
        with pytest.raises(TopicNotFound):
            await mq.admin().max_offset(MessageQueue("U", "broker-a", 0))
