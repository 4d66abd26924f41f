"""The admin client against our broker: every subject, and what it says about things that are not there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cometmq.client import Client, MessageQueue, SendReceipt, connect
from cometmq.client.admin import Admin, NoMessage, NoProgress, TrackType, UnknownBroker, UnknownCluster, version_name
from cometmq.client.errors import (
    BrokerError,
    ClientError,
    ConsumerOffline,
    GroupNotFound,
    NoNameserver,
    TopicNotFound,
)
from cometmq.client.message import ReceivedMessage
from cometmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.protocol.errors import RecordError
from cometmq.protocol.names import InvalidName
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker

Name = Callable[[str], str]


@pytest.fixture
async def admin(mq: Client) -> Admin:
    return mq.admin()


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await look():  # noqa: ASYNC110 - what is waited for happens in a broker
            await asyncio.sleep(0.02)


@pytest.fixture
async def sent(mq: Client, admin: Admin, name: Name) -> list[SendReceipt]:
    """Twelve messages in four queues of a topic of the test's own."""
    topic = name("T")
    await admin.create_topic(topic, read_queues=4, write_queues=4)
    async with mq.producer(name("P")) as producer:
        return [
            await producer.send(topic, b"%d" % n, tag="a", keys=f"key{n}", queue=MessageQueue(topic, "broker-a", n % 4))
            for n in range(12)
        ]


class Working:
    """A consumer that has consumed all twelve and committed."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.all_seen = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.seen.add(message.message_id)
        if len(self.seen) == 12:
            self.all_seen.set()


@pytest.fixture
async def group(mq: Client, admin: Admin, name: Name, sent: list[SendReceipt]) -> AsyncIterator[str]:
    handler = Working()
    group, topic = name("G"), name("T")
    async with mq.push_consumer(group, {topic: "a || b"}, handler, start_from="first", persist_interval=0.2):
        await handler.all_seen.wait()
        yield group


# Topics


async def test_topic_is_created_shown_changed_and_deleted(admin: Admin, broker: AnyBroker, name: Name) -> None:
    topic = name("T")
    assert await admin.create_topic(topic, read_queues=4, write_queues=3) == [broker.address]
    assert topic in await admin.topics()
    assert topic in await admin.topics_of_cluster("DefaultCluster")
    config = await admin.topic_config(broker.address, topic)
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm) == (topic, 4, 3, 6)
    route = await admin.topic_route(topic)
    assert route.broker_datas[0].broker_addrs == {0: broker.address}
    assert await admin.topic_clusters(topic) == ["DefaultCluster"]

    await admin.set_topic_perm(topic, 4, address=broker.address, route=route)
    assert (await admin.topic_configs(broker.address))[topic].perm == 4

    await admin.delete_topic(topic, cluster="DefaultCluster")
    with pytest.raises(TopicNotFound):
        await admin.topic_route(topic)
    assert topic not in await admin.topics()


async def test_ordered_topic_gets_its_order_configuration(admin: Admin, broker: AnyBroker, name: Name) -> None:
    topic = name("T")
    await admin.create_topic(topic, cluster="DefaultCluster", write_queues=3, order=True)
    assert await admin.order_conf(topic) == "broker-a:3"
    await admin.put_order_conf(topic, "broker-z:9;broker-a:3")
    await admin.create_topic(topic, broker=broker.address, write_queues=5, order=True)
    assert await admin.order_conf(topic) == "broker-a:5;broker-z:9"
    await admin.delete_order_conf(topic)
    assert await admin.order_conf(topic) is None


async def test_attributes_of_a_topic_are_set(admin: Admin, broker: AnyBroker, name: Name) -> None:
    await admin.create_topic(name("T"), attributes={"message.type": "FIFO"})
    assert (await admin.topic_config(broker.address, name("T"))).attributes == {"message.type": "FIFO"}


async def test_many_topics_and_groups_by_one_request(admin: Admin, broker: AnyBroker, name: Name) -> None:
    await admin.put_topics(broker.address, [TopicConfig(topic_name=name(f"T{n}")) for n in (1, 2)])
    await admin.put_groups(broker.address, [SubscriptionGroupConfig(group_name=name(f"G{n}")) for n in (1, 2)])
    assert {name("T1"), name("T2")} <= set(await admin.topic_configs(broker.address))
    assert {name("G1"), name("G2")} <= set(await admin.groups())


async def test_bad_names_are_refused_before_they_are_sent(admin: Admin, broker: AnyBroker) -> None:
    with pytest.raises(InvalidName, match="illegal characters"):
        await admin.create_topic("bad topic")
    with pytest.raises(InvalidName, match="illegal characters"):
        await admin.create_group("bad group")
    with pytest.raises(InvalidName, match="blank"):
        await admin.delete_topic_on_broker(broker.address, "")


async def test_system_topic_is_not_deleted(admin: Admin, broker: AnyBroker) -> None:
    with pytest.raises(BrokerError, match="conflict with system topic"):
        await admin.delete_topic("TBW102", cluster="DefaultCluster")


async def test_what_is_not_there_is_named(admin: Admin, broker: AnyBroker) -> None:
    with pytest.raises(UnknownCluster, match="NoCluster"):
        await admin.create_topic("T", cluster="NoCluster")
    with pytest.raises(UnknownBroker, match="broker-z"):
        await admin.master_of("broker-z")
    with pytest.raises(TopicNotFound):
        await admin.topic_stats("NoTopic")
    with pytest.raises(BrokerError):
        await admin.topic_config(broker.address, "NoTopic")
    with pytest.raises(GroupNotFound, match="NoGroup"):
        await admin.group_config(broker.address, "NoGroup")
    with pytest.raises(TopicNotFound):
        await admin.consume_stats("NoGroup")
    with pytest.raises(TopicNotFound):
        await admin.consumer_connection("NoGroup")
    with pytest.raises(ConsumerOffline):
        await admin.consumer_connection("NoGroup", broker=broker.address)
    with pytest.raises(BrokerError, match="NoProducers"):
        await admin.producer_connection("NoProducers", broker=broker.address)
    with pytest.raises(TypeError, match="topic or by a broker"):
        await admin.producer_connection("NoProducers")


async def test_topic_stats_tell_the_ends_of_queues(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    stats = await admin.topic_stats(name("T"))
    ends = {queue.queue_id: (offset.min_offset, offset.max_offset) for queue, offset in stats.offset_table.items()}
    assert ends == dict.fromkeys(range(4), (0, 3))
    assert all(offset.last_update_timestamp > 0 for offset in stats.offset_table.values())
    assert await admin.read_queues_of(name("T")) == [MessageQueue(name("T"), "broker-a", n) for n in range(4)]


# Groups


async def test_group_is_created_shown_and_deleted(admin: Admin, broker: AnyBroker, name: Name) -> None:
    group = name("G")
    assert await admin.create_group(group, retry_max_times=5, ordered=True) == [broker.address]
    config = await admin.group_config(broker.address, group)
    assert (config.group_name, config.retry_max_times, config.consume_message_orderly) == (group, 5, True)
    assert group in await admin.groups("DefaultCluster")
    await admin.delete_group(group, remove_offsets=True)
    assert group not in await admin.groups()


# Offsets


async def test_ends_and_times_of_a_queue(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    queue = MessageQueue(name("T"), "broker-a", 2)
    assert await admin.min_offset(queue) == 0
    assert await admin.max_offset(queue) == 3
    assert await admin.search_offset(queue, 0) == 0
    stored = (await admin.message_at(queue, 2)).record.store_timestamp
    assert await admin.search_offset(queue, stored) <= 2


async def test_progress_of_a_group(admin: Admin, name: Name, group: str) -> None:
    async def committed() -> bool:
        stats = await admin.consume_stats(group, name("T"))
        return all(wrapper.consumer_offset == 3 for wrapper in stats.offset_table.values())

    await until(committed)
    stats = await admin.consume_stats(group)
    rows = {(queue.topic, queue.queue_id): wrapper.broker_offset for queue, wrapper in stats.offset_table.items()}
    assert {(name("T"), n): 3 for n in range(4)}.items() <= rows.items()
    assert await admin.committed_offset(group, MessageQueue(name("T"), "broker-a", 0)) == 3


async def test_group_without_offsets_has_no_progress(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    await admin.create_group(name("G"))
    with pytest.raises(NoProgress, match="no offsets"):
        await admin.consume_stats(name("G"), route_topic=name("T"))
    assert await admin.committed_offset(name("G"), MessageQueue(name("T"), "broker-a", 0)) is None


async def test_offsets_are_reset_cloned_and_set(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    group, topic = name("G"), name("T")
    queues = [MessageQueue(topic, "broker-a", n) for n in range(4)]
    await admin.create_group(group)
    assert await admin.reset_offsets(group, topic, -1) == dict.fromkeys(queues, 3)
    assert await admin.reset_offsets(group, topic, 0) == dict.fromkeys(queues, 0)
    await admin.reset_queue_offset(group, queues[1], 2)
    assert [await admin.committed_offset(group, queue) for queue in queues] == [0, 2, 0, 0]
    with pytest.raises(GroupNotFound):
        await admin.clone_offsets(group, name("Other"), topic)
    await admin.create_group(name("Other"))
    assert await admin.clone_offsets(group, name("Other"), topic) == dict(zip(queues, (0, 2, 0, 0), strict=True))
    assert await admin.committed_offset(name("Other"), queues[1]) == 2


async def test_offsets_are_reset_the_old_way(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    group, topic = name("G"), name("T")
    queue = MessageQueue(topic, "broker-a", 1)
    await admin.create_group(group)
    moved = await admin.reset_offsets_offline(group, topic, -1)
    assert [each.reset_offset for each in moved.values()] == [3] * 4
    # Not by force: what is ahead of the group stays where it is.
    await admin.commit_offset(group, queue, 1)
    moved = await admin.reset_offsets_offline(group, topic, -1, force=False)
    assert (moved[queue].timestamp_offset, moved[queue].reset_offset) == (3, 1)
    assert await admin.committed_offset(group, queue) == 1


# Connections


async def test_members_of_groups_are_shown(admin: Admin, mq: Client, broker: AnyBroker, group: str) -> None:
    connection = await admin.consumer_connection(group)
    assert [each.client_id for each in connection.connection_set] == [mq.client_id]
    assert (connection.consume_type, connection.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    info = await admin.running_info(group, mq.client_id)
    assert info.properties["consumerGroup"] == group
    assert len(info.mq_table) >= 4
    assert "thread" in (await admin.running_info(group, mq.client_id, with_stacks=True)).jstack


async def test_producers_are_shown(admin: Admin, mq: Client, broker: AnyBroker, name: Name) -> None:
    async with mq.producer(name("P")) as producer:
        await producer.send(name("T"), b"x")
        await mq.heartbeats.beat()
        connection = await admin.producer_connection(name("P"), name("T"))
        assert [each.client_id for each in connection.connection_set] == [mq.client_id]
        assert name("P") in await admin.producers(broker.address)


async def test_consumer_that_is_asked_consumes_a_message(
    admin: Admin, mq: Client, broker: AnyBroker, name: Name, group: str, sent: list[SendReceipt]
) -> None:
    result = await admin.consume_directly(
        group, mq.client_id, name("T"), sent[0].offset_message_id, broker=broker.address
    )
    assert result.consume_result == "CR_SUCCESS"
    with pytest.raises(BrokerError):
        await admin.consume_directly(group, "nobody", name("T"), sent[0].offset_message_id, broker=broker.address)


# Messages


async def test_messages_are_found(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    topic, third = name("T"), sent[3]
    by_id = await admin.message_by_id(third.offset_message_id, topic)
    by_unique = await admin.message_by_id(third.message_id, topic)
    (by_key,) = await admin.messages_by_key(topic, "key3")
    by_place = await admin.message_at(third.queue, third.queue_offset)
    for found in (by_id, by_unique, by_key, by_place):
        assert (found.body, found.message_id, found.queue) == (b"3", third.message_id, third.queue)
        assert found.offset_message_id == third.offset_message_id
    with pytest.raises(ClientError, match="looked up"):
        await by_id.ack()


async def test_messages_that_are_not_there(admin: Admin, name: Name, sent: list[SendReceipt]) -> None:
    topic, first = name("T"), sent[0]
    with pytest.raises(NoMessage):
        await admin.messages_by_key(topic, "no-such-key")
    with pytest.raises(NoMessage):
        await admin.messages_by_unique_key(topic, "0" * 32)
    with pytest.raises(NoMessage):
        await admin.message_by_id("not an id at all", topic)
    with pytest.raises(RecordError):
        await admin.message_by_id("not an id at all")
    with pytest.raises(NoMessage, match="no message at 99"):
        await admin.message_at(first.queue, 99)
    with pytest.raises(NoMessage, match="one of"):
        await admin.view_message(first.offset_message_id, "AnotherTopic")
    with pytest.raises(TopicNotFound):
        await admin.messages_by_key("NoTopic", "key")


async def test_who_has_consumed_a_message(
    admin: Admin, mq: Client, name: Name, group: str, sent: list[SendReceipt]
) -> None:
    message = await admin.message_by_id(sent[0].offset_message_id, name("T"))

    async def is_track(of: ReceivedMessage, wanted: TrackType) -> bool:
        # A real broker also names the topic itself, as if it were a group.
        tracks = {track.group: track.type for track in await admin.message_tracks(of)}
        return tracks.get(group) == wanted

    await until(lambda: is_track(message, TrackType.CONSUMED))
    async with mq.producer(name("P2")) as producer:
        other = await producer.send(name("T"), b"other", tag="c", queue=MessageQueue(name("T"), "broker-a", 0))
    filtered = await admin.message_by_id(other.offset_message_id, name("T"))
    # A real broker tells of a message that was passed over when it has held the pull for 15 s.
    await until(lambda: is_track(filtered, TrackType.CONSUMED_BUT_FILTERED))


# Cluster and nameservers


async def test_brokers_tell_how_they_are(admin: Admin, broker: AnyBroker, name: Name) -> None:
    info = await admin.cluster_info()
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert await admin.all_addresses("DefaultCluster") == [broker.address]
    assert await admin.master_of("broker-a") == broker.address
    assert "putTps" in await admin.broker_status(broker.address)
    assert (await admin.broker_config(broker.address))["brokerName"] == "broker-a"
    await admin.update_broker_config(broker.address, {"flushConsumerOffsetInterval": "4000"})
    assert (await admin.broker_config(broker.address))["flushConsumerOffsetInterval"] == "4000"
    with pytest.raises(BrokerError):
        await admin.update_broker_config(broker.address, {"brokerName": "other"})
    with pytest.raises(BrokerError):
        await admin.broker_stats(broker.address, "NO_SUCH_STATS", "key")
    await admin.clean_expired_queues(broker.address)
    await admin.clean_unused_topics(broker.address)
    await admin.delete_expired_log_files(broker.address)
    assert (await admin.broker_consume_stats(broker.address)).broker_addr == broker.address


async def test_nameservers_keep_values(admin: Admin, broker: AnyBroker, name: Name) -> None:
    space = name("N")
    assert await admin.get_kv(space, "k") is None
    assert await admin.kv_list(space) == {}
    await admin.put_kv(space, "k", "v")
    assert await admin.get_kv(space, "k") == "v"
    assert await admin.kv_list(space) == {"k": "v"}
    await admin.delete_kv(space, "k")
    assert await admin.get_kv(space, "k") is None
    configs = await admin.nameserver_configs()
    assert list(configs) == [broker.nameserver]
    assert await admin.update_nameserver_config({"scanNotActiveBrokerInterval": "6000"}) == [broker.nameserver]


async def test_write_permission_is_taken_and_given_back() -> None:
    with EmbeddedBroker(config={"brokerName": "broker-w"}) as own:
        async with connect(own.nameserver) as mq:
            admin = mq.admin()
            await admin.create_topic("T")
            wiped = await admin.wipe_write_perm("broker-w")
            assert wiped[own.nameserver] > 0
            assert {each.perm for each in (await admin.topic_route("T")).queue_datas} == {4}
            assert await admin.add_write_perm("broker-w") == wiped
            assert {each.perm for each in (await admin.topic_route("T")).queue_datas} == {6}
            assert await admin.wipe_write_perm("nobody") == {own.nameserver: 0}


async def test_one_nameserver_down_is_told_after_the_others_were_asked(broker: AnyBroker, name: Name) -> None:
    async with connect([broker.nameserver, "127.0.0.1:1"], request_timeout=1.0) as mq:
        admin = mq.admin()
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            await admin.put_kv(name("N"), "k", "v")
        assert await admin.get_kv(name("N"), "k") == "v"


async def test_no_nameserver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("ROCKETMQ_NAMESRV_ADDR", raising=False)
    async with connect() as mq:
        with pytest.raises(NoNameserver, match="no nameserver was given"):
            await mq.admin().topics()
        with pytest.raises(NoNameserver, match="no nameserver was given"):
            await mq.admin().nameserver_configs()


@pytest.mark.parametrize(
    ("ordinal", "text"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (37, "V3_0_11"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (85, "V3_2_9"),
        (87, "V3_3_1"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (213, "V4_0_0"),
        (399, "V4_9_3"),
        (407, "V4_9_7"),
        (413, "V5_0_0"),
        (478, "V5_3_3_SNAPSHOT"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (-1, "HIGHER_VERSION"),
    ],
)
def test_versions_have_the_names_that_rocketmq_gives_them(ordinal: int, text: str) -> None:
    assert version_name(ordinal) == text
