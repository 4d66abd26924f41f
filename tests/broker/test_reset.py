"""Moving the offsets of groups, here and on their clients, and the questions before and after it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.offsets import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
)
from support.admin_broker import AdminBroker, next_frame
from support.raw_peer import Frame

TOPIC, GROUP = "TopicTest", "G"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AdminBroker]:
    """Two queues, each with a message every minute for four minutes; the group has committed 2 in both."""
    clock = FakeClock()
    async with AdminBroker(tmp_path, clock=clock) as running:
        running.topic(TOPIC, 2)
        running.group(GROUP)
        for _ in range(4):
            await running.put(TOPIC, 2, queues=2)
            clock.set_wall(clock.wall() + 60_000)
        for queue_id in range(2):
            running.state.offsets.commit(GROUP, TOPIC, queue_id, 2)
        yield running


def start(broker: AdminBroker) -> int:
    """When the first message was stored."""
    return broker.store.earliest_time(TOPIC, 0)


def ask(**more: object) -> dict[str, object]:
    return {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", "queueId": -1, "offset": -1} | more


def offsets(answer: Frame) -> dict[int, int]:
    assert answer.code == 0, answer
    return {queue.queue_id: offset for queue, offset in ResetOffsetBody.decode(answer.body).offset_table.items()}


# Kept here


async def test_all_queues_go_to_a_moment(broker: AdminBroker) -> None:
    answer = await broker.ask(222, ask(timestamp=start(broker) + 60_000))
    assert offsets(answer) == {0: 1, 1: 1}
    # Both the committed offset and the mark for the next pull.
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 1
    assert broker.state.offsets.peek_reset(GROUP, TOPIC, 1) == 1
    # Its clients read keys that are objects.
    assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:1')


async def test_a_negative_moment_is_the_end(broker: AdminBroker) -> None:
    assert offsets(await broker.ask(222, ask())) == {0: 4, 1: 4}


async def test_one_queue_goes_to_a_moment(broker: AdminBroker) -> None:
    assert offsets(await broker.ask(222, ask(queueId=1, timestamp=0))) == {1: 0}
    assert broker.state.offsets.peek_reset(GROUP, TOPIC, 0) is None


@pytest.mark.parametrize("offset", [0, 3, 4, 5])
async def test_one_queue_goes_to_an_offset(broker: AdminBroker, offset: int) -> None:
    assert offsets(await broker.ask(222, ask(queueId=0, offset=offset))) == {0: offset}


@pytest.mark.parametrize("offset", [-2, 6, 2**62])
async def test_an_offset_outside_of_the_queue_is_refused(broker: AdminBroker, offset: int) -> None:
    answer = await broker.ask(222, ask(queueId=0, offset=offset))
    assert (answer.code, answer.remark) == (1, f"Target offset {offset} not in consume queue range [0-4]")
    assert broker.state.offsets.query(GROUP, TOPIC, 0) == 2


async def test_a_queue_that_the_topic_has_not_is_refused(broker: AdminBroker) -> None:
    answer = await broker.ask(222, ask(queueId=2, timestamp=0))
    assert answer.code == 1
    assert "2" in (answer.remark or "")


async def test_unknown_topics_and_groups_are_refused(broker: AdminBroker) -> None:
    answer = await broker.ask(222, ask(topic="unknown"))
    assert (answer.code, answer.remark) == (17, "Topic unknown does not exist")
    answer = await broker.ask(222, ask(group="unknown"))
    assert (answer.code, answer.remark) == (26, "Group unknown does not exist")


async def test_a_topic_without_queues_has_nothing_to_reset(broker: AdminBroker) -> None:
    broker.topic("empty", 0)
    answer = await broker.ask(222, ask(topic="empty"))
    assert (answer.code, answer.remark) == (1, "No queues to reset.")


@pytest.mark.parametrize("missing", ["topic", "group", "timestamp", "isForce"])
async def test_a_reset_without_a_key_is_refused_by_name(broker: AdminBroker, missing: str) -> None:
    ext = ask()
    del ext[missing]
    answer = await broker.ask(222, ext)
    assert answer.code == 1
    assert missing in (answer.remark or "")


async def test_queue_and_offset_may_be_left_out(broker: AdminBroker) -> None:
    ext = ask(timestamp=0)
    del ext["queueId"], ext["offset"]
    assert offsets(await broker.ask(222, ext)) == {0: 0, 1: 0}


# Pushed to clients


@pytest.fixture
async def classic(broker: AdminBroker) -> AdminBroker:
    await broker.state.update_config({"useServerSideResetOffset": "false"})
    return broker


async def test_online_clients_are_told_where_to_go(classic: AdminBroker) -> None:
    first = await classic.consumer(GROUP, TOPIC, client_id="c1")
    second = await classic.consumer(GROUP, TOPIC, client_id="c2")
    answer = await classic.ask(222, ask(timestamp=0))
    assert offsets(answer) == {0: 0, 1: 0}
    for client in (first, second):
        told = await next_frame(client)
        assert (told.code, told.header["flag"] & 2) == (220, 2)
        assert told.ext["group"] == GROUP
        assert told.ext["topic"] == TOPIC
        assert told.ext["timestamp"] == "0"
        assert told.ext["isForce"] == "true"
        assert ResetOffsetBody.decode(told.body) == ResetOffsetBody.decode(answer.body)
    # The clients commit what they made of it; nothing is kept here.
    assert classic.state.offsets.peek_reset(GROUP, TOPIC, 0) is None
    assert classic.state.offsets.query(GROUP, TOPIC, 0) == 2


async def test_a_cpp_client_gets_a_list(classic: AdminBroker) -> None:
    client = await classic.consumer(GROUP, TOPIC, language="CPP")
    await classic.ask(222, ask(timestamp=0))
    told = fastjson.loads((await next_frame(client)).body)
    assert told["offsetTable"][1] == {"brokerName": "broker-a", "offset": 0, "queueId": 1, "topic": TOPIC}


async def test_without_force_no_queue_goes_forward(classic: AdminBroker) -> None:
    await classic.consumer(GROUP, TOPIC)
    assert offsets(await classic.ask(222, ask(isForce="false"))) == {0: 2, 1: 2}
    assert offsets(await classic.ask(222, ask(isForce="false", timestamp=0))) == {0: 0, 1: 0}
    assert offsets(await classic.ask(222, ask())) == {0: 4, 1: 4}


async def test_a_group_that_is_not_online_cannot_be_told(classic: AdminBroker) -> None:
    answer = await classic.ask(222, ask())
    assert answer.code == 206
    assert answer.remark == (
        f"Consumer not online, so can not reset offset, Group: {GROUP} Topic: {TOPIC} Timestamp: -1"
    )


async def test_a_group_without_offsets_cannot_be_told(classic: AdminBroker) -> None:
    answer = await classic.ask(222, ask(group="fresh"))
    assert (answer.code, answer.remark) == (1, "THe consumer group <fresh> not exist")
    assert (await classic.ask(222, ask(topic="unknown"))).code == 17


async def test_a_client_that_is_too_old_cannot_be_told(classic: AdminBroker) -> None:
    await classic.consumer(GROUP, TOPIC, version=20)
    answer = await classic.ask(222, ask())
    assert answer.code == 1
    assert "version=20" in (answer.remark or "")


# Cloning


async def test_a_group_goes_on_where_another_is(broker: AdminBroker) -> None:
    answer = await broker.ask(314, {"srcGroup": GROUP, "destGroup": "copy", "topic": TOPIC, "offline": "false"})
    assert (answer.code, answer.remark) == (0, None)
    assert broker.state.offsets.queues("copy", TOPIC) == {0: 2, 1: 2}


async def test_all_topics_are_cloned_but_unknown_ones(broker: AdminBroker) -> None:
    broker.topic("second")
    for topic in ("second", "gone"):
        broker.state.offsets.commit(GROUP, topic, 0, 7)
    assert (await broker.ask(314, {"srcGroup": GROUP, "destGroup": "copy"})).code == 0
    assert sorted(broker.state.offsets.topics_of("copy")) == [TOPIC, "second"]


async def test_topics_that_an_online_group_does_not_subscribe_are_cloned_only_offline(broker: AdminBroker) -> None:
    await broker.consumer(GROUP, "another")
    ask = {"srcGroup": GROUP, "destGroup": "copy", "topic": TOPIC}
    assert (await broker.ask(314, ask)).code == 0
    assert broker.state.offsets.topics_of("copy") == []
    assert (await broker.ask(314, ask | {"offline": "true"})).code == 0
    assert broker.state.offsets.topics_of("copy") == [TOPIC]


@pytest.mark.parametrize("ext", [{}, {"srcGroup": "a"}, {"destGroup": "a"}, {"srcGroup": "a", "offline": "x"}])
async def test_cloning_needs_both_groups(broker: AdminBroker, ext: dict[str, str]) -> None:
    answer = await broker.ask(314, ext)
    assert answer.code == 1
    assert "Group" in (answer.remark or "") or "offline" in (answer.remark or "")


# Correction


async def test_the_lowest_offset_of_all_groups_is_told(broker: AdminBroker) -> None:
    offsets = broker.state.offsets
    offsets.commit("ahead", TOPIC, 0, 4)
    offsets.commit("behind", TOPIC, 0, 1)
    answer = await broker.ask(308, {"topic": TOPIC, "compareGroup": "ahead"})
    assert QueryCorrectionOffsetBody.decode(answer.body).correction_offsets == {0: 1, 1: 2}
    assert b"{0:1,1:2}" in answer.body


async def test_a_group_that_is_left_out_keeps_its_offsets(broker: AdminBroker) -> None:
    broker.state.offsets.commit("behind", TOPIC, 0, 1)
    answer = await broker.ask(308, {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": "behind,other"})
    assert QueryCorrectionOffsetBody.decode(answer.body).correction_offsets == {0: 2, 1: 2}
    assert broker.state.offsets.query("behind", TOPIC, 0) == 1


async def test_a_group_that_is_behind_needs_no_correction(broker: AdminBroker) -> None:
    broker.state.offsets.commit("compared", TOPIC, 0, 1)
    answer = await broker.ask(308, {"topic": TOPIC, "compareGroup": "compared", "filterGroups": "compared"})
    assert QueryCorrectionOffsetBody.decode(answer.body).correction_offsets == {0: 2**63 - 1, 1: 2}


async def test_a_topic_without_groups_has_no_correction(broker: AdminBroker) -> None:
    answer = await broker.ask(308, {"topic": "unknown", "compareGroup": GROUP})
    assert answer.body == b'{"correctionOffsets":{}}'
    assert (await broker.ask(308, {"topic": TOPIC})).code == 1


# Everything, as a slave asks for it


async def test_all_offsets_are_handed_out(broker: AdminBroker) -> None:
    answer = await broker.ask(43)
    table = ConsumerOffsetSerializeWrapper.decode(answer.body).offset_table
    assert table == {f"{TOPIC}@{GROUP}": {0: 2, 1: 2}}
    assert b'"TopicTest@G":{0:2,1:2}' in answer.body


async def test_offsets_of_the_delay_levels_are_handed_out(broker: AdminBroker) -> None:
    answer = await broker.ask(45)
    assert answer.code == 0
    assert DelayOffsetSerializeWrapper.decode(answer.body) == broker.state.delay.snapshot()
