"""Who is connected, how far groups are, and what clients are asked through the broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from cometmq.broker.handlers import client_calls
from cometmq.broker.store.clock import FakeClock
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.connections import ConsumerConnection, ProducerConnection
from cometmq.protocol.bodies.lists import GroupList, ProducerTableInfo, TopicList
from cometmq.protocol.bodies.message_queue import MessageQueue
from cometmq.protocol.bodies.offsets import GetConsumerStatusBody
from cometmq.protocol.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    TopicStatsTable,
)
from cometmq.protocol.message_id import encode_message_id
from cometmq.protocol.record import decode_records
from support.admin_broker import AdminBroker, next_frame
from support.raw_peer import Frame, request, response
from support.store_kit import message

TOPIC, GROUP = "TopicTest", "G"
_T = TypeVar("_T")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AdminBroker]:
    """Two queues with three messages each, a minute apart; the group has consumed one of queue 0."""
    clock = FakeClock()
    async with AdminBroker(tmp_path, clock=clock) as running:
        running.topic(TOPIC, 2)
        running.group(GROUP)
        for _ in range(3):
            await running.put(TOPIC, 2, queues=2)
            clock.set_wall(clock.wall() + 60_000)
        running.state.offsets.commit(GROUP, TOPIC, 0, 1)
        yield running


def by_id(table: dict[MessageQueue, _T]) -> dict[int, _T]:
    return {queue.queue_id: value for queue, value in table.items()}


async def refused(broker: AdminBroker, code: int, ext: dict[str, object], *missing: str) -> None:
    """Without one of its keys a request is refused, and the remark names the key."""
    for name in missing:
        answer = await broker.ask(code, {key: value for key, value in ext.items() if key != name})
        assert answer.code == 1, name
        assert name in (answer.remark or ""), answer.remark


# Connections


async def test_the_members_of_a_consumer_group(broker: AdminBroker) -> None:
    client = await broker.consumer(GROUP, TOPIC, client_id="192.0.2.2@1", language="GO", version=317)
    answer = await broker.ask(203, {"consumerGroup": GROUP})
    body = ConsumerConnection.decode(answer.body)
    (connection,) = body.connection_set
    assert connection.client_addr == "{}:{}".format(*client.address)
    assert (connection.client_id, connection.language, connection.version) == ("192.0.2.2@1", "GO", 317)
    assert body.consume_type == "CONSUME_PASSIVELY"
    assert body.message_model == "CLUSTERING"
    assert body.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert set(body.subscription_table) == {TOPIC}


async def test_a_group_without_members_is_not_online(broker: AdminBroker) -> None:
    answer = await broker.ask(203, {"consumerGroup": "AdmCons"})
    assert (answer.code, answer.remark) == (206, "the consumer group[AdmCons] not online")
    await refused(broker, 203, {"consumerGroup": GROUP}, "consumerGroup")


async def test_the_members_of_a_producer_group(broker: AdminBroker) -> None:
    client = await broker.producer("PG")
    body = ProducerConnection.decode((await broker.ask(204, {"producerGroup": "PG"})).body)
    assert [each.client_addr for each in body.connection_set] == ["{}:{}".format(*client.address)]
    answer = await broker.ask(204, {"producerGroup": "NoGroup"})
    assert (answer.code, answer.remark) == (1, "the producer group[NoGroup] not exist")
    await refused(broker, 204, {"producerGroup": GROUP}, "producerGroup")


async def test_all_producers(broker: AdminBroker) -> None:
    client = await broker.producer("PG")
    (info,) = ProducerTableInfo.decode((await broker.ask(328)).body).data["PG"]
    assert info.remote_ip == "/{}:{}".format(*client.address)
    assert info.last_update_timestamp == broker.clock.wall()
    assert (info.client_id, info.language) == ("p1", "JAVA")


async def test_a_broker_without_producers(broker: AdminBroker) -> None:
    assert (await broker.ask(328)).body == b'{"data":{}}'


# Who consumes what


async def test_groups_of_a_topic_are_those_online_and_those_with_offsets(broker: AdminBroker) -> None:
    await broker.consumer("online", TOPIC)
    await broker.consumer(GROUP, TOPIC, client_id="c2")
    groups = GroupList.decode((await broker.ask(300, {"topic": TOPIC})).body).group_list
    # RocketMQ names the topic itself too while somebody is online.
    assert sorted(groups) == [GROUP, "online"]
    assert (await broker.ask(300, {"topic": "unknown"})).body == b'{"groupList":[]}'
    await refused(broker, 300, {"topic": TOPIC}, "topic")


async def test_topics_of_a_group(broker: AdminBroker) -> None:
    body = TopicList.decode((await broker.ask(343, {"group": GROUP})).body)
    assert (body.topic_list, body.broker_addr) == ([TOPIC], broker.state.address)
    assert TopicList.decode((await broker.ask(343, {"group": "unknown"})).body).topic_list == []
    await refused(broker, 343, {"group": GROUP}, "group")


async def test_the_subscription_of_a_group(broker: AdminBroker) -> None:
    await broker.consumer(GROUP, TOPIC)
    body = QuerySubscriptionResponseBody.decode((await broker.ask(345, {"group": GROUP, "topic": TOPIC})).body)
    assert (body.group, body.topic) == (GROUP, TOPIC)
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == "*"
    none = await broker.ask(345, {"group": "unknown", "topic": TOPIC})
    assert none.body == b'{"group":"unknown","topic":"TopicTest"}'
    await refused(broker, 345, {"group": GROUP, "topic": TOPIC}, "group", "topic")


# How far


async def test_the_ends_of_the_queues_of_a_topic(broker: AdminBroker) -> None:
    answer = await broker.ask(202, {"topic": TOPIC})
    table = by_id(TopicStatsTable.decode(answer.body).offset_table)
    assert set(table) == {0, 1}
    last = broker.clock.wall() - 60_000
    assert fastjson.loads(answer.body)["topicPutTps"] == 0.0
    assert [(each.min_offset, each.max_offset, each.last_update_timestamp) for each in table.values()] == [
        (0, 3, last),
        (0, 3, last),
    ]


async def test_an_empty_queue_was_never_written(broker: AdminBroker) -> None:
    broker.topic("empty", 1)
    (ends,) = TopicStatsTable.decode((await broker.ask(202, {"topic": "empty"})).body).offset_table.values()
    assert (ends.min_offset, ends.max_offset, ends.last_update_timestamp) == (0, 0, 0)


async def test_an_unknown_topic_has_no_queues(broker: AdminBroker) -> None:
    answer = await broker.ask(202, {"topic": "unknown"})
    assert answer.code == 17
    assert "unknown" in (answer.remark or "")
    await refused(broker, 202, {"topic": TOPIC}, "topic")


def progress(answer: Frame) -> dict[int, tuple[int, int, int]]:
    assert answer.code == 0, answer
    table = by_id(ConsumeStats.decode(answer.body).offset_table)
    return {key: (each.broker_offset, each.consumer_offset, each.pull_offset) for key, each in table.items()}


async def test_how_far_a_group_is(broker: AdminBroker) -> None:
    broker.state.offsets.pulled(GROUP, TOPIC, 0, 3)
    answer = await broker.ask(208, {"consumerGroup": GROUP})
    assert progress(answer) == {0: (3, 1, 3), 1: (3, 0, 0)}
    table = by_id(ConsumeStats.decode(answer.body).offset_table)
    assert table[0].last_timestamp == broker.store.message_time(TOPIC, 0, 0)
    assert table[1].last_timestamp == 0


async def test_how_far_a_group_is_in_some_topics(broker: AdminBroker) -> None:
    broker.topic("second", 1)
    broker.state.offsets.commit(GROUP, "second", 0, 0)
    whole = ConsumeStats.decode((await broker.ask(208, {"consumerGroup": GROUP})).body)
    assert {queue.topic for queue in whole.offset_table} == {TOPIC, "second"}
    assert progress(await broker.ask(208, {"consumerGroup": GROUP, "topic": "second"})) == {0: (0, 0, 0)}
    some = ConsumeStats.decode((await broker.ask(208, {"consumerGroup": GROUP, "topicList": f"{TOPIC};gone;"})).body)
    assert {queue.topic for queue in some.offset_table} == {TOPIC}
    assert progress(await broker.ask(208, {"consumerGroup": "unknown"})) == {}
    await refused(broker, 208, {"consumerGroup": GROUP}, "consumerGroup")


async def test_a_topic_that_the_members_left_does_not_count(broker: AdminBroker) -> None:
    await broker.consumer(GROUP, "another")
    assert progress(await broker.ask(208, {"consumerGroup": GROUP})) == {}


async def test_how_far_all_groups_are(broker: AdminBroker) -> None:
    broker.state.offsets.pulled(GROUP, TOPIC, 0, 2)
    body = ConsumeStatsList.decode((await broker.ask(317, {"isOrder": "false"})).body)
    assert body.broker_addr == broker.state.address
    stats = {group: each for entry in body.consume_stats_list for group, each in entry.items()}
    assert len(stats[GROUP]) == 1
    assert set(stats) == set(broker.state.groups.table)
    assert (body.total_diff, body.total_inflight_diff) == (5, 1)


async def test_how_far_groups_are_in_ordered_topics(broker: AdminBroker) -> None:
    broker.topic("ordered", 1, order=True)
    broker.state.offsets.commit(GROUP, "ordered", 0, 0)
    body = ConsumeStatsList.decode((await broker.ask(317, {"isOrder": "true"})).body)
    (found,) = [each for entry in body.consume_stats_list for stats in entry.values() for each in stats]
    assert {queue.topic for queue in found.offset_table} == {"ordered"}
    assert (await broker.ask(317, {"isOrder": "maybe"})).code == 1
    await refused(broker, 317, {"isOrder": "true"}, "isOrder")


async def test_many_queues_are_walked_over_with_pauses(broker: AdminBroker) -> None:
    """Somebody else is served while the answer for thousands of queues is made."""
    broker.topic("wide", 20_000)
    broker.state.offsets.commit(GROUP, "wide", 0, 0)
    other = await broker.peer()
    slow = asyncio.create_task(broker.ask(208, {"consumerGroup": GROUP, "topic": "wide"}))
    served = 0
    while not slow.done():
        await other.ask(request(343, {"group": GROUP}))
        served += 1
    assert len(ConsumeStats.decode((await slow).body).offset_table) == 20_000
    assert served > 1


async def test_how_old_the_messages_are_that_a_group_has_to_consume(broker: AdminBroker) -> None:
    answer = await broker.ask(303, {"topic": TOPIC, "group": GROUP})
    spans = {
        each.message_queue.queue_id: each
        for each in QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
        if each.message_queue
    }
    now = broker.clock.wall()
    first = now - 180_000
    assert (spans[0].min_time_stamp, spans[0].max_time_stamp) == (first, now - 60_000)
    assert spans[0].consume_time_stamp == first
    assert spans[0].delay_time == 120_000
    # Nothing is committed: everything is still to come.
    assert spans[1].consume_time_stamp == first
    assert spans[1].delay_time == 180_000
    assert spans[0].min_time_stamp_str == "2023-11-14#22:13:20:000"


async def test_the_age_of_an_empty_queue(broker: AdminBroker) -> None:
    broker.topic("empty", 1)
    (span,) = QueryConsumeTimeSpanBody.decode(
        (await broker.ask(303, {"topic": "empty", "group": GROUP})).body
    ).consume_time_span_set
    assert (span.min_time_stamp, span.max_time_stamp, span.delay_time) == (-1, -1, 0)
    assert (await broker.ask(303, {"topic": "unknown", "group": GROUP})).code == 17
    await refused(broker, 303, {"topic": TOPIC, "group": GROUP}, "topic", "group")


# Asking clients


async def test_the_running_info_is_the_clients_own_answer(broker: AdminBroker) -> None:
    client = await broker.consumer(GROUP, TOPIC, client_id="c1")
    ext = {"consumerGroup": GROUP, "clientId": "c1", "jstackEnable": "false", "AccessKey": "a", "Signature": "s"}
    asked = asyncio.create_task(broker.ask(307, ext))
    question = await next_frame(client)
    assert question.code == 307
    # The operator's credentials are not the client's business.
    assert question.ext == {"consumerGroup": GROUP, "clientId": "c1", "jstackEnable": "false"}
    body = b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"commitOffset":1}},"anything":1}'
    await client.send(response(question.opaque, 0, body, remark="not set any response code", extFields={"k": "v"}))
    answer = await asked
    assert (answer.code, answer.remark, answer.body, answer.ext) == (0, None, body, {"k": "v"})


async def test_what_a_client_refuses_is_passed_on(broker: AdminBroker) -> None:
    client = await broker.consumer(GROUP, TOPIC, client_id="c1")
    asked = asyncio.create_task(broker.ask(307, {"consumerGroup": GROUP, "clientId": "c1"}))
    await client.send(response((await next_frame(client)).opaque, 1, remark="no such group here"))
    answer = await asked
    assert (answer.code, answer.remark) == (1, "no such group here")


@pytest.mark.parametrize(("group", "client"), [(GROUP, "other"), ("unknown", "c1")])
async def test_a_client_that_is_not_online_cannot_be_asked(broker: AdminBroker, group: str, client: str) -> None:
    await broker.consumer(GROUP, TOPIC, client_id="c1")
    answer = await broker.ask(307, {"consumerGroup": group, "clientId": client})
    assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <{client}> not online")
    await refused(broker, 307, {"consumerGroup": GROUP, "clientId": "c1"}, "consumerGroup", "clientId")


async def test_a_client_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_calls, "CALL_TIMEOUT", 0.05)
    async with AdminBroker(tmp_path) as broker:
        await broker.consumer(GROUP, TOPIC, client_id="c1")
        answer = await broker.ask(307, {"consumerGroup": GROUP, "clientId": "c1"})
        assert answer.code == 207
        assert (answer.remark or "").startswith("consumer <G> <c1> Timeout: ")


async def test_a_client_that_leaves_while_it_is_asked(broker: AdminBroker) -> None:
    client = await broker.consumer(GROUP, TOPIC, client_id="c1")
    asked = asyncio.create_task(broker.ask(307, {"consumerGroup": GROUP, "clientId": "c1"}))
    await next_frame(client)
    await client.close()
    answer = await asked
    assert answer.code == 1
    assert (answer.remark or "").startswith("invoke consumer <G> <c1> Exception: ")


async def test_one_client_consumes_one_message_directly(broker: AdminBroker) -> None:
    client = await broker.consumer(GROUP, TOPIC, client_id="c1")
    at = await broker.put_message(message(TOPIC, 1, b"again"))
    name = encode_message_id(broker.state.store_host, at)
    ext = {"consumerGroup": GROUP, "clientId": "c1", "msgId": name, "topic": TOPIC}
    asked = asyncio.create_task(broker.ask(309, ext))
    question = await next_frame(client)
    assert question.ext == ext | {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    (record,) = decode_records(question.body)
    assert record.body == b"again"
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
    await client.send(response(question.opaque, 0, result))
    assert (await asked).body == result


@pytest.mark.parametrize("name", ["", "x", "7F0000010000297300000000000FFFFF", "7F" * 500, "G" * 32])
async def test_a_message_that_is_not_there_cannot_be_consumed(broker: AdminBroker, name: str) -> None:
    await broker.consumer(GROUP, TOPIC, client_id="c1")
    answer = await broker.ask(309, {"consumerGroup": GROUP, "clientId": "c1", "msgId": name})
    assert answer.code == 1
    assert answer.remark


async def test_nobody_can_consume_for_a_client_that_is_not_online(broker: AdminBroker) -> None:
    name = encode_message_id(broker.state.store_host, 0)
    answer = await broker.ask(309, {"consumerGroup": GROUP, "clientId": "c1", "msgId": name})
    assert (answer.code, answer.remark) == (1, "The Consumer <G> <c1> not online")


async def test_the_offsets_of_clients_are_gathered(broker: AdminBroker) -> None:
    clients = {name: await broker.consumer(GROUP, TOPIC, client_id=name) for name in ("c1", "c2", "bad")}
    asked = asyncio.create_task(broker.ask(223, {"topic": TOPIC, "group": GROUP}))
    queue = MessageQueue(broker_name="broker-a", queue_id=0, topic=TOPIC)
    for number, (name, client) in enumerate(clients.items()):
        question = await next_frame(client)
        assert (question.code, question.ext) == (221, {"topic": TOPIC, "group": GROUP})
        body = GetConsumerStatusBody(message_queue_table={queue: number}).encode() if name != "bad" else b"no json"
        await client.send(response(question.opaque, 0, body))
    table = GetConsumerStatusBody.decode((await asked).body).consumer_table
    assert table == {"c1": {queue: 0}, "c2": {queue: 1}}


async def test_the_offsets_of_one_client(broker: AdminBroker) -> None:
    await broker.consumer(GROUP, TOPIC, client_id="c1")
    second = await broker.consumer(GROUP, TOPIC, client_id="c2")
    asked = asyncio.create_task(broker.ask(223, {"topic": TOPIC, "group": GROUP, "clientAddr": "c2"}))
    question = await next_frame(second)
    await second.send(response(question.opaque, 0, b'{"messageQueueTable":{}}'))
    assert GetConsumerStatusBody.decode((await asked).body).consumer_table == {"c2": {}}


async def test_a_group_without_members_has_no_offsets_to_tell(broker: AdminBroker) -> None:
    answer = await broker.ask(223, {"topic": TOPIC, "group": "unknown"})
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [unknown]")
    await refused(broker, 223, {"topic": TOPIC, "group": GROUP}, "topic", "group")
