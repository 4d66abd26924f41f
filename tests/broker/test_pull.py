"""Pulls over a socket: every check in its order, every status of a read, offsets by the way, hot and cold bytes."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.broker.store.consume_queue import UNIT_SIZE, ConsumeQueue
from cometmq.broker.store.disk import RealFile
from cometmq.protocol.bodies.heartbeat import ConsumeType, MessageModel, SubscriptionData
from cometmq.protocol.record import decode_records
from support.pull_kit import COMMIT, LITE, SUBSCRIPTION, SUSPEND, PullBroker, broker_with_topic, pull
from support.wire import Reply, connect, frame, until

PULL, LITE_PULL = 11, 361
OFFSETS = {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag"}


def bodies(reply: Reply) -> list[bytes]:
    return [record.body for record in decode_records(reply.body)]


def everything(topic: str = "T", version: int = 0) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string="*", sub_version=version)


def tagged(*tags: str, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=" || ".join(tags), tags_set=list(tags))


async def refused(
    broker: PullBroker,
    keys: dict[str, object],
    code: int,
    remark: str,
    forbidden: int | None = None,
    request: int = PULL,
) -> None:
    async with connect(broker.port) as wire:
        reply = await wire.call(request, keys)
    assert (reply.code, reply.remark) == (code, remark)
    assert reply.ext == ({} if forbidden is None else {"forbiddenType": str(forbidden)})
    assert reply.body == b""


# The checks, in their order: each test breaks one rule and, where it can, all those behind it.

HOPELESS = pull("", "nowhere", 99, -5, subscription="||")
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


async def test_a_slave_that_may_not_be_read_is_busy(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, brokerRole="SLAVE", brokerPermission="2") as broker:
        await refused(broker, HOPELESS, 2, "[REJECTREQUEST]system busy, start flow control for a while")


async def test_a_broker_without_read_permission_forbids_pulls(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, brokerPermission="2", litePullMessageEnable="false") as broker:
        await refused(broker, HOPELESS, 16, "the broker[127.0.0.1] pulling message is forbidden", 1, LITE_PULL)


async def test_lite_pull_can_be_switched_off(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, litePullMessageEnable="false") as broker:
        await refused(broker, HOPELESS, 16, "the broker[127.0.0.1] for lite pull consumer is forbidden", 1, LITE_PULL)
        async with connect(broker.port) as wire:
            assert (await wire.call(PULL, pull("G", "T", 0, 0))).code == 19


async def test_an_unknown_group_is_refused_where_groups_are_not_made_on_demand(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, autoCreateSubscriptionGroup="false") as broker:
        keys = {**HOPELESS, "consumerGroup": "G"}
        await refused(broker, keys, 26, f"subscription group [G] does not exist, {FAQ}")


async def test_an_unknown_group_is_made_on_demand(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        assert (await wire.call(PULL, pull("New", "T", 0, 0))).code == 19
        assert broker.state.groups.get("New") is not None


async def test_a_disabled_group_may_not_consume(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        broker.group("G", consume_enable=False)
        keys = {**HOPELESS, "consumerGroup": "G"}
        await refused(broker, keys, 16, "subscription group no permission, G", 2)


async def test_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        keys = {**HOPELESS, "consumerGroup": "G"}
        await refused(broker, keys, 17, f"topic[nowhere] not exist, apply first please! {FAQ}")


async def test_a_topic_without_read_permission_forbids_pulls(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        broker.topic("W", perm=2)
        keys = {**HOPELESS, "consumerGroup": "G", "topic": "W"}
        await refused(broker, keys, 16, "the topic[W] pulling message is forbidden", 3)


@pytest.mark.parametrize("queue_id", [-1, 2, 2**31 - 1])
async def test_a_queue_beyond_the_read_queues_is_refused(tmp_path: Path, queue_id: int) -> None:
    async with PullBroker(tmp_path) as broker, connect(broker.port) as wire:
        broker.topic("T", write_queue_nums=4, read_queue_nums=2)
        reply = await wire.call(PULL, pull("G", "T", queue_id, 0, subscription="||"))
        peer = broker.connection()
    assert reply.code == 29
    assert reply.remark == (
        f"queueId[{queue_id}] is illegal, topic:[T] topicConfig.readQueueNums:[2] consumer:[/{peer}]"
    )


async def test_a_subscription_without_tags_is_refused(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        keys = pull("G", "T", 0, 0, subscription="||")
        await refused(broker, keys, 23, "parse the consumer's subscription failed")


@pytest.mark.parametrize("text", ["a > 3", "a > AND 3", "a betwen 1"])
async def test_sql92_is_refused_and_never_answered_unfiltered(tmp_path: Path, text: str) -> None:
    async with broker_with_topic(tmp_path) as broker:
        await broker.filled("T", 0, b"x")
        keys = pull("G", "T", 0, 0, subscription=text, expressionType="SQL92")
        await refused(broker, keys, 23, "this version filters by tag only")
        keys = pull("G", "T", 0, 0, expressionType="NOPE")
        await refused(broker, keys, 1, "The broker does not support consumer to filter message by NOPE")


async def test_a_group_that_sends_no_heartbeats_has_no_subscription(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        await refused(broker, pull("G", "T", 0, 0, 0), 24, f"the consumer's group info not exist{FAQ}")


async def test_broadcasting_can_be_forbidden_to_a_group(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G", consume_broadcast_enable=False)
        await wire.call(PULL, pull("G", "T", 0, 0))
        broker.heartbeat("G", model=MessageModel.BROADCASTING.value)
        broker.state.groups.set_readable("G", "T", False)
        await refused(broker, pull("G", "T", 0, 0, 0), 16, "the consumer group[G] can not consume by broadcast way", 4)
        # A pull that brings its subscription is not asked.
        assert (await wire.call(PULL, pull("G", "T", 0, 0))).code == 19


async def test_a_topic_can_be_forbidden_to_a_group(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        broker.state.groups.set_readable("G", "T", False)
        await wire.call(PULL, pull("G", "T", 0, 0))
        broker.heartbeat("G")
        await refused(broker, pull("G", "T", 0, 0, 0), 16, "the consumer group[G] is forbidden for topic[T]", 5)


async def test_a_topic_that_the_group_does_not_subscribe_is_refused(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await wire.call(PULL, pull("G", "T", 0, 0))
        broker.heartbeat("G", everything("U"))
        await refused(broker, pull("G", "T", 0, 0, 0), 24, f"the consumer's subscription not exist{FAQ}")


async def test_a_heartbeat_that_is_older_than_the_pull_is_not_good_enough(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await wire.call(PULL, pull("G", "T", 0, 0))
        broker.heartbeat("G", everything(version=5))
        keys = pull("G", "T", 0, 0, 0, subVersion=6)
        await refused(broker, keys, 25, "the consumer's subscription not latest")
        assert (await wire.call(PULL, pull("G", "T", 0, 0, 0, subVersion=5))).code == 19


async def test_sql92_of_a_heartbeat_is_refused(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await wire.call(PULL, pull("G", "T", 0, 0))
        broker.heartbeat("G", SubscriptionData(topic="T", sub_string="a > 3", expression_type="SQL92"))
        await refused(broker, pull("G", "T", 0, 0, 0), 23, "this version filters by tag only")


async def test_pull_consumers_can_be_rejected(tmp_path: Path) -> None:
    remark = f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}"
    async with broker_with_topic(tmp_path, rejectPullConsumerEnable="true") as broker, connect(broker.port) as wire:
        await refused(broker, pull("G", "T", 0, 0), 24, remark)
        assert (await wire.call(PULL, pull("TOOLS_CONSUMER", "T", 0, 0))).code == 19
        broker.heartbeat("G", everything(), kind=ConsumeType.ACTIVELY.value)
        assert (await wire.call(PULL, pull("G", "T", 0, 0))).code == 19
        await refused(broker, pull("G", "T", 0, 0), 24, remark)  # another connection, which is no member
        broker.heartbeat("P", everything())
        assert (await wire.call(PULL, pull("P", "T", 0, 0))).code == 19


# What a read finds


async def test_messages_come_as_they_are_stored(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 1, b"one", b"two", TAGS="a")
        reply = await wire.call(PULL, pull("G", "T", 1, 0))
        assert (reply.code, reply.remark) == (0, None)
        assert reply.ext == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "2",
            "minOffset": "0",
            "maxOffset": "2",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        records = list(decode_records(reply.body))
        assert [(record.body, record.queue_offset) for record in records] == [(b"one", 0), (b"two", 1)]
        assert broker.state.offsets.pull_offset("G", "T", 1) == 2


async def test_lite_pulls_are_pulls(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"one")
        reply = await wire.call(LITE_PULL, pull("G", "T", 0, 0, SUBSCRIPTION | SUSPEND | LITE, maxMsgBytes=2**31 - 1))
        assert bodies(reply) == [b"one"]


async def test_nobody_gets_more_messages_than_it_asked_for(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, mappedFileSizeConsumeQueue="6000") as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"%d" % number for number in range(50)])
        assert len(bodies(await wire.call(PULL, pull("G", "T", 0, 0, maxMsgNums=32)))) == 32
        assert len(bodies(await wire.call(PULL, pull("G", "T", 0, 0, maxMsgNums=2**31 - 1)))) == 50
        # The first one comes in any case: otherwise its consumer would never move on.
        for wanted in (1, 0, -1):
            assert bodies(await wire.call(PULL, pull("G", "T", 0, 3, maxMsgNums=wanted))) == [b"3"]
        assert bodies(await wire.call(PULL, pull("G", "T", 0, 3, maxMsgBytes=1))) == [b"3"]


async def test_the_limits_of_a_transfer_are_those_of_the_settings(tmp_path: Path) -> None:
    five = {"maxTransferCountOnMessageInMemory": "5"}
    async with broker_with_topic(tmp_path, **five) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"%d" % number for number in range(50)])
        assert len(bodies(await wire.call(PULL, pull("G", "T", 0, 0)))) == 5
        broker.configure(maxTransferCountOnMessageInMemory="7")
        assert len(bodies(await wire.call(PULL, pull("G", "T", 0, 0)))) == 7


@pytest.mark.parametrize(
    ("offset", "code", "status", "following"),
    [
        (3, 19, "OFFSET_OVERFLOW_ONE", 3),
        (4, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (2**62, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, 21, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_offsets_outside_a_queue_are_corrected(
    tmp_path: Path, offset: int, code: int, status: str, following: int
) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"0", b"1", b"2")
        reply = await wire.call(PULL, pull("G", "T", 0, offset))
        assert (reply.code, reply.remark) == (code, status)
        assert reply.ext.keys() == OFFSETS
        assert reply.ext["nextBeginOffset"] == str(following)
        assert (reply.ext["minOffset"], reply.ext["maxOffset"]) == ("0", "3")
        assert reply.body == b""


async def test_an_empty_queue_is_waited_for_at_its_beginning_only(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        reply = await wire.call(PULL, pull("G", "T", 0, 0))
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (19, "NO_MESSAGE_IN_QUEUE", "0")
        reply = await wire.call(PULL, pull("G", "T", 0, 7, SUBSCRIPTION | SUSPEND))
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (21, "NO_MESSAGE_IN_QUEUE", "0")


async def test_a_missing_part_of_a_queue_is_jumped_over_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        per_file = 400 // UNIT_SIZE
        await broker.filled("T", 0, *[b"x"] * (per_file + 2))
        monkeypatch.setattr(ConsumeQueue, "units", lambda queue, offset, count: b"")
        reply = await wire.call(PULL, pull("G", "T", 0, 1, SUBSCRIPTION | SUSPEND))
        assert (reply.code, reply.remark) == (19, "OFFSET_FOUND_NULL")
        assert reply.ext["nextBeginOffset"] == str(per_file)


async def test_messages_whose_log_has_expired_are_skipped(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        # 14 messages a log file, 20 units a queue file: the first queue file points to nothing but the past.
        await broker.filled("T", 0, *[b"x" * 1000] * 40)
        for file in broker.store.commit_log.files.files[:2]:
            assert file.retire()
        reply = await wire.call(PULL, pull("G", "T", 0, 0, SUBSCRIPTION | SUSPEND, maxMsgNums=4))
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (20, "MESSAGE_WAS_REMOVING", "20")


async def test_only_matching_tags_come_and_the_offset_moves_past_the_others(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        for number, tag in enumerate(("Aa", "BB", "CC", "Aa", "DD")):
            await broker.filled("T", 0, b"%d" % number, TAGS=tag)
        await broker.filled("T", 0, b"no tag")
        reply = await wire.call(PULL, pull("G", "T", 0, 0, subscription="Aa"))
        assert bodies(reply) == [b"0", b"1", b"3"]  # Aa and BB have one hash: the client tells them apart
        assert reply.ext["nextBeginOffset"] == "6"
        reply = await wire.call(PULL, pull("G", "T", 0, 0, subscription="nothing"))
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "6")
        broker.heartbeat("G", tagged("DD"))
        assert bodies(await wire.call(PULL, pull("G", "T", 0, 0, 0))) == [b"4"]


async def test_subscriptions_of_pulls_are_remembered_for_the_lag_of_their_group(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await wire.call(PULL, pull("G", "T", 0, 0, subscription="a || b"))
        data = broker.state.consumers.subscription("G", "T", with_pullers=True)
        assert data is not None
        assert data.tags_set == ["a", "b"]


async def test_a_store_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.store.get_message = lambda *_: None  # type: ignore[method-assign, assignment]
        reply = await wire.call(PULL, pull("G", "T", 0, 0))
        assert (reply.code, reply.remark) == (1, "store getMessage return null")


# Offsets by the way


async def test_a_pull_may_commit(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"0", b"1")
        await wire.call(PULL, pull("G", "T", 0, 0, SUBSCRIPTION, commitOffset=1))
        assert broker.state.offsets.query("G", "T", 0) == -1
        await wire.call(PULL, pull("G", "T", 0, 0, SUBSCRIPTION | COMMIT, commitOffset=1))
        assert broker.state.offsets.query("G", "T", 0) == 1
        await wire.call(PULL, pull("G", "T", 0, 0, SUBSCRIPTION | COMMIT, commitOffset=-1))
        assert broker.state.offsets.query("G", "T", 0) == 1


async def test_a_pending_reset_moves_the_next_pull_and_is_gone_then(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"x"] * 9)
        broker.state.offsets.set_reset("G", "T", 0, 4)
        reply = await wire.call(PULL, pull("G", "T", 0, 9, SUBSCRIPTION | COMMIT | SUSPEND, commitOffset=9))
        assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "4")
        assert (reply.ext["minOffset"], reply.ext["maxOffset"]) == ("0", "9")
        assert broker.state.offsets.query("G", "T", 0) == 4  # the commit of the old place does not undo it
        assert (await wire.call(PULL, pull("G", "T", 0, 4))).code == 0


async def test_resets_are_only_forgotten_where_they_are_switched_off(tmp_path: Path) -> None:
    off = {"useServerSideResetOffset": "false"}
    async with broker_with_topic(tmp_path, **off) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"x")
        broker.state.offsets.set_reset("G", "T", 0, 1)
        assert (await wire.call(PULL, pull("G", "T", 0, 0))).code == 0
        assert broker.state.offsets.peek_reset("G", "T", 0) is None


# Which broker to ask


async def test_a_lagging_consumer_is_sent_to_a_slave_only_where_slaves_are_read(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, memory=10_000) as broker, connect(broker.port) as wire:
        broker.group("G", which_broker_when_consume_slowly=3)
        await broker.filled("T", 0, *[b"x" * 500] * 40)
        assert (await wire.call(PULL, pull("G", "T", 0, 0, maxMsgNums=1))).ext["suggestWhichBrokerId"] == "0"
        broker.configure(slaveReadEnable="true")
        assert (await wire.call(PULL, pull("G", "T", 0, 0, maxMsgNums=1))).ext["suggestWhichBrokerId"] == "3"
        assert (await wire.call(PULL, pull("G", "T", 0, 39, maxMsgNums=1))).ext["suggestWhichBrokerId"] == "0"


async def test_a_slave_sends_clients_back_to_their_master(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker:
        await broker.filled("T", 0, b"x")
    slave = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
    async with broker_with_topic(tmp_path, **slave) as broker, connect(broker.port) as wire:
        reply = await wire.call(PULL, pull("G", "T", 0, 0, SUBSCRIPTION | COMMIT, commitOffset=1))
        assert (reply.code, reply.ext["suggestWhichBrokerId"]) == (0, "0")
        assert broker.state.offsets.query("G", "T", 0) == -1
        reply = await wire.call(PULL, pull("G", "T", 0, 1, SUBSCRIPTION | SUSPEND))
        assert (reply.code, reply.ext["suggestWhichBrokerId"]) == (20, "0")
        # A slave does not know better than the master where a queue ends.
        reply = await wire.call(PULL, pull("G", "T", 0, 9))
        assert (reply.code, reply.ext["nextBeginOffset"]) == (20, "9")


# Hot and cold


async def test_cold_messages_are_read_in_a_thread_while_others_are_served(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, memory=10_000) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"%02d" % number * 250 for number in range(40)])
        waiting: list[object] = []
        in_thread = broker.runner.in_thread
        broker.runner.in_thread = lambda *work, lane="io": waiting.append((work, lane))  # type: ignore
        async with connect(broker.port) as behind:
            behind.send(frame(PULL, pull("G", "T", 0, 0, maxMsgNums=2)))
            await until(lambda: waiting)
            hot = await wire.call(PULL, pull("G", "T", 0, 39))
            assert [body[:2] for body in bodies(hot)] == [b"39"]
            (work, lane) = waiting.pop()  # type: ignore[misc]
            assert lane == "read"
            file = broker.store.commit_log.files.files[0]
            assert file.holds == 1
            in_thread(*work, lane=lane)
            cold = await behind.receive()
            assert [body[:2] for body in bodies(cold)] == [b"00", b"01"]
            assert cold.ext["nextBeginOffset"] == "2"
            assert file.holds == 0


async def test_a_failed_read_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with_topic(tmp_path, memory=10_000) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"x" * 500] * 40)
        file = broker.store.commit_log.files.files[0]
        monkeypatch.setattr(RealFile, "read", _broken)
        reply = await wire.call(PULL, pull("G", "T", 0, 0))
        assert (reply.code, reply.remark) == (1, "OSError: the disk is gone")
        assert file.holds == 0
        assert "the disk is gone" in caplog.text


async def test_slices_between_those_of_other_queues_come_in_order(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        for number in range(12):
            size = 3 if number < 6 else 5000
            await broker.filled("T", 0, b"%02d" % number * size)
            await broker.filled("T", 1, b"between")
        for start, count in ((0, 6), (6, 3), (2, 10)):
            reply = await wire.call(PULL, pull("G", "T", 0, start, maxMsgNums=count))
            found = [body[:2] for body in bodies(reply)]
            assert found == [b"%02d" % number for number in range(start, start + len(found))]
            assert len(found) == count


async def test_no_file_is_kept_by_an_answer(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"x" * 500] * 40)
        assert (await wire.call(PULL, pull("G", "T", 0, 0))).code == 0
        assert {file.holds for file in broker.store.commit_log.files.files} == {0}


async def test_what_was_found_is_counted(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"0", b"1")
        await wire.call(PULL, pull("G", "T", 0, 0))
        await wire.call(PULL, pull("G", "T", 0, 2))
        assert (broker.state.stats.found_calls, broker.state.stats.missed_calls) == (1, 1)


# Bad input

NUMBERS = st.one_of(st.integers(-3, 60), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]))
TEXTS = st.text(max_size=12)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_any_values_are_answered(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("broker")
    async with broker_with_topic(folder) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"0", b"1", TAGS="a")
        for _ in range(20):
            keys = pull(
                data.draw(st.sampled_from(["G", "", "%RETRY%G", "é"]) | TEXTS),
                data.draw(st.sampled_from(["T", "T", "T", "../T", "TBW102"]) | TEXTS),
                data.draw(NUMBERS),
                data.draw(NUMBERS),
                data.draw(NUMBERS.map(lambda flags: flags & ~SUSPEND if -(2**31) <= flags < 2**31 else flags)),
                maxMsgNums=data.draw(NUMBERS),
                commitOffset=data.draw(NUMBERS),
                suspendTimeoutMillis=data.draw(NUMBERS),
                subscription=data.draw(st.none() | st.sampled_from(["*", "a"]) | TEXTS),
                subVersion=data.draw(NUMBERS),
                expressionType=data.draw(st.sampled_from(["TAG", "SQL92", "", None])),
                maxMsgBytes=data.draw(st.none() | NUMBERS),
            )
            reply = await wire.call(data.draw(st.sampled_from([PULL, LITE_PULL])), keys)
            assert reply.code in (0, 1, 16, 17, 19, 20, 21, 23, 24, 26, 29)
            assert reply.code == 0 or reply.remark
            if reply.code in (0, 19, 20, 21):
                assert reply.ext.keys() == OFFSETS
            assert (reply.body != b"") == (reply.code == 0)


@pytest.mark.parametrize("key", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "subVersion"])
async def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        keys = pull("G", "T", 0, 0)
        del keys[key]
        reply = await wire.call(PULL, keys)
        assert reply.code == 1
        assert key in (reply.remark or "")


def _broken(file: RealFile, position: int, length: int) -> bytes:
    raise OSError("the disk is gone")
