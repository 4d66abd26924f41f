"""Heartbeats, leaving, members of a group and the check of a subscription, over real sockets."""

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.broker.handlers import clients as handlers
from cometmq.broker.store.clock import FakeClock
from cometmq.protocol.command import SerializeType
from support import golden
from support.client_broker import (
    CHECK,
    CONSUMER_LIST,
    HEART_BEAT,
    NOTIFY,
    UNREGISTER,
    ClientBroker,
    answer_of,
    asked_by_broker,
    consumes,
    heartbeat,
)
from support.raw_peer import binary_request, request
from support.wire import until


@pytest.fixture
async def broker(tmp_path):
    async with ClientBroker(tmp_path) as broker:
        yield broker


async def members(peer, group):
    answer = await answer_of(peer, request(CONSUMER_LIST, {"consumerGroup": group}))
    return json.loads(answer.body)["consumerIdList"] if answer.code == 0 else answer.remark


class TestHeartbeats:
    async def test_a_consumer_is_a_member_right_after_its_heartbeat(self, broker):
        peer = await broker.peer()
        answer = await answer_of(peer, heartbeat("me", consumes("G", T="A || B")))
        assert (answer.code, answer.remark, answer.body) == (0, None, b"")
        assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        assert await members(peer, "G") == ["me"]
        group = broker.state.consumers.get("G")
        assert (group.consume_type, group.consume_from_where) == ("CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET")
        assert group.subscriptions["T"].sub_string == "A || B"

    async def test_the_group_and_its_retry_topic_are_made_and_saved(self, broker):
        peer = await broker.peer()
        await answer_of(peer, heartbeat("me", consumes("G", T="*")))
        state = broker.state
        assert state.groups.get("G") is not None
        assert state.topics.get("%RETRY%G").write_queue_nums == 1
        assert "%RETRY%G" in state.files.topics.load().topic_config_table
        assert "G" in state.files.subscription_groups.load().subscription_group_table

    async def test_many_new_groups_are_one_write_each_of_topics_and_groups(self, broker):
        peer = await broker.peer()
        await answer_of(peer, heartbeat("me", *(consumes(f"G{number}", T="*") for number in range(200))))
        assert broker.state.topics.data_version.counter == 1
        assert broker.state.groups.data_version.counter == 1
        assert len(broker.state.consumers.table) == 200

    async def test_the_retry_topic_of_those_who_consume_in_order_is_ordered(self, broker):
        broker.topic("Ordered", order=True)
        peer = await broker.peer()
        await answer_of(peer, heartbeat("me", consumes("G", Ordered="*")))
        assert broker.state.topics.is_order("%RETRY%G")
        short = consumes("G") | {"subscriptionDataSet": []}
        await answer_of(peer, heartbeat("me", short, heartbeatFingerprint=5, withoutSub=True))
        assert broker.state.topics.is_order("%RETRY%G")
        await answer_of(peer, heartbeat("me", consumes("G", T="*")))
        assert not broker.state.topics.is_order("%RETRY%G")

    async def test_unit_mode_marks_the_retry_topic(self, broker):
        peer = await broker.peer()
        await answer_of(peer, heartbeat("me", consumes("G", T="*") | {"unitMode": True}))
        assert broker.state.topics.get("%RETRY%G").topic_sys_flag == 2

    async def test_a_group_that_may_not_be_made_is_skipped(self, tmp_path):
        async with ClientBroker(tmp_path, autoCreateSubscriptionGroup="false") as broker:
            peer = await broker.peer()
            answer = await answer_of(peer, heartbeat("me", consumes("G", T="*"), producers=("P",)))
            assert answer.code == 0
            assert await members(peer, "G") == "no consumer for this group, G"
            assert broker.state.topics.get("%RETRY%G") is None
            assert broker.state.producers.by_client_id("me") is not None

    async def test_pull_consumers_may_be_rejected(self, tmp_path):
        async with ClientBroker(tmp_path, rejectPullConsumerEnable="true") as broker:
            peer = await broker.peer()
            pulls = consumes("A", T="*") | {"consumeType": "CONSUME_ACTIVELY"}
            await answer_of(peer, heartbeat("me", pulls, consumes("B", T="*")))
            assert list(broker.state.consumers.table) == ["B"]

    async def test_producers_are_found_by_group_and_by_name(self, broker):
        peer = await broker.peer()
        await answer_of(peer, heartbeat("me", producers=("P", "CLIENT_INNER_PRODUCER", "", "p" * 256)))
        producers = broker.state.producers
        assert set(producers.table) == {"P", "CLIENT_INNER_PRODUCER"}
        (channel,) = producers.channels_of("P")
        assert (channel.client_id, channel.language, channel.version) == ("me", "JAVA", 479)
        assert producers.by_client_id("me").connection is channel.connection

    async def test_binary_headers_do_as_well(self, broker):
        peer = await broker.peer()
        frame = heartbeat("me", consumes("G", T="*"))
        await peer.send(binary_request(HEART_BEAT, {}, frame[frame.index(b'{"clientID"') :]))
        await until(lambda: broker.state.consumers.get("G"))

    async def test_go_sends_no_expression_type_and_nanoseconds(self, broker):
        peer = await broker.peer()
        data = consumes("G", version=1_794_848_472_426_000_123, T="A")
        for each in data["subscriptionDataSet"]:
            each["expressionType"] = ""
        assert (await answer_of(peer, heartbeat("me", data))).code == 0
        assert broker.state.consumers.subscription("G", "T").sub_version == 1_794_848_472_426_000_123


class TestUnchangedHeartbeats:
    async def beat(self, broker, peer, *args, **more):
        """Whether the heartbeat was told by its bytes alone."""
        requests = next(entry.handler.__self__ for entry in broker.server.dispatcher.table if entry.code == HEART_BEAT)
        before = requests.unchanged
        answer = await answer_of(peer, heartbeat(*args, **more))
        assert answer.code == 0
        return requests.unchanged > before

    async def test_the_same_bytes_only_move_the_time(self, tmp_path):
        clock = FakeClock()
        async with ClientBroker(tmp_path, clock=clock) as broker:
            peer = await broker.peer()
            args = "me", consumes("G", T="*")
            assert not await self.beat(broker, peer, *args, producers=("P",))
            clock.advance(30)
            assert await self.beat(broker, peer, *args, producers=("P",))
            (channel,) = broker.state.consumers.get("G").channels.values()
            assert channel.last_update == broker.state.producers.channels_of("P")[0].last_update == 30.0

    @pytest.mark.parametrize(
        "happens",
        [
            "unregister consumer",
            "unregister producer",
            "topic deleted",
            "group deleted",
            "another subscription",
            "expired",
        ],
    )
    async def test_they_count_in_full_when_something_has_happened_meanwhile(self, broker, happens):
        peer, other, state = await broker.peer(), await broker.peer(), broker.state
        args = "me", consumes("G", T="*")
        await self.beat(broker, peer, *args, producers=("P",))
        assert await self.beat(broker, peer, *args, producers=("P",))
        match happens:
            case "unregister consumer":
                await answer_of(peer, request(UNREGISTER, {"clientID": "me", "consumerGroup": "G"}))
            case "unregister producer":
                await answer_of(peer, request(UNREGISTER, {"clientID": "me", "producerGroup": "P"}))
            case "topic deleted":
                state.topics.delete("%RETRY%G")
            case "group deleted":
                state.groups.delete("G")
            case "another subscription":
                await self.beat(broker, other, "you", consumes("G", U="*"))
            case "expired":
                state.consumers.expire(state.clock.monotonic() + 200, 120)
        assert not await self.beat(broker, peer, *args, producers=("P",))
        assert "me" in await members(peer, "G")
        assert state.producers.by_client_id("me") is not None
        assert state.topics.get("%RETRY%G") is not None
        assert state.groups.get("G") is not None
        assert "T" in state.consumers.get("G").subscriptions

    async def test_long_ones_are_read_each_time(self, broker):
        peer = await broker.peer()
        args = "me", consumes("G", T="x" * handlers.MAX_KEPT_HEARTBEAT)
        assert not await self.beat(broker, peer, *args)
        assert not await self.beat(broker, peer, *args)


class TestSecondVersion:
    async def test_the_answers_are_those_of_rocketmq(self, broker):
        """The client's frames of a captured session, one after the other on two connections."""
        peers = {}
        pending = {}
        compared = 0
        for frame in golden.frames("heartbeat-v2"):
            if frame.link != "client-broker" or not frame.is_frame or frame.code == NOTIFY:
                continue
            if not frame.is_response and frame.code in (HEART_BEAT, UNREGISTER, CONSUMER_LIST):
                if frame.conn not in peers:
                    peers[frame.conn] = await broker.peer()
                pending[frame.conn, frame.opaque] = await answer_of(peers[frame.conn], frame.raw)
            elif (frame.conn, frame.opaque) in pending:
                answer = pending.pop((frame.conn, frame.opaque))
                assert (answer.code, answer.ext, answer.body) == (0, frame.ext, frame.body), frame.n
                compared += 1
        assert compared > 15

    async def test_a_broker_that_does_not_know_the_subscriptions_asks_for_them(self, broker):
        peer = await broker.peer()
        short = consumes("G") | {"subscriptionDataSet": []}
        for _ in range(2):
            answer = await answer_of(peer, heartbeat("me", short, heartbeatFingerprint=9, withoutSub=True))
            assert answer.ext["IS_SUB_CHANGE"] == "true"
        full = await answer_of(peer, heartbeat("me", consumes("G", T="*"), heartbeatFingerprint=9))
        assert full.ext["IS_SUB_CHANGE"] == "false"
        for _ in range(2):
            answer = await answer_of(peer, heartbeat("me", short, heartbeatFingerprint=9, withoutSub=True))
            assert answer.ext["IS_SUB_CHANGE"] == "false"
        assert "T" in broker.state.consumers.get("G").subscriptions

    async def test_another_fingerprint_is_a_change_once(self, broker):
        peer = await broker.peer()
        seen = []
        for fingerprint in (-5, -5, 6, 6):
            data = heartbeat("me", consumes("G", T="*"), heartbeatFingerprint=fingerprint)
            seen.append((await answer_of(peer, data)).ext["IS_SUB_CHANGE"])
        assert seen == ["false", "false", "true", "false"]


class TestMsgpackHeaders:
    async def test_an_announcement_is_repeated_and_then_used(self, broker):
        peer, other = await broker.peer(), await broker.peer()
        answer = await answer_of(peer, heartbeat("me", consumes("G", T="*"), ext={"hdr": "msgpack"}))
        assert answer.ext["hdr"] == "msgpack"
        assert answer.kind == 0
        await answer_of(other, heartbeat("you", consumes("G", T="*")))
        while (frame := await peer.frame()).kind == 0:
            assert frame.code == NOTIFY
        assert frame.kind == SerializeType.MSGPACK

    async def test_others_never_see_it(self, broker):
        for ext in ({}, {"hdr": "other"}, {"x": "hdr"}):
            peer = await broker.peer()
            answer = await answer_of(peer, heartbeat("me", ext=ext))
            assert "hdr" not in answer.ext
        assert all(c.kind == SerializeType.JSON for c in broker.state.producers.table.get("P", {}))


class TestNotices:
    async def test_all_members_hear_of_a_new_one_and_of_one_that_left(self, broker):
        first, second = await broker.peer(), await broker.peer()
        await first.send(heartbeat("first", consumes("G", T="*")))
        assert (await asked_by_broker(first)).ext == {"consumerGroup": "G"}
        await second.send(heartbeat("second", consumes("G", T="*")))
        notice = await asked_by_broker(first)
        assert (notice.code, notice.header["flag"]) == (NOTIFY, 2)
        await asked_by_broker(second)
        await second.send(request(UNREGISTER, {"clientID": "second", "consumerGroup": "G"}))
        assert (await asked_by_broker(first)).code == NOTIFY

    async def test_a_lost_connection_is_told_at_once(self, broker):
        first, second = await broker.peer(), await broker.peer()
        await answer_of(first, heartbeat("first", consumes("G", T="*"), producers=("P",)))
        await answer_of(second, heartbeat("second", consumes("G", T="*"), producers=("P",)))
        await until(lambda: broker.notices.sent == 3)
        await second.reset()
        await until(lambda: broker.notices.sent == 4)
        assert await members(first, "G") == ["first"]
        assert len(broker.state.producers.channels_of("P")) == 1

    async def test_a_newer_subscription_or_the_same_heartbeat_is_not_told(self, broker):
        peer = await broker.peer()
        for version in (1, 1, 2, 3):
            await answer_of(peer, heartbeat("me", consumes("G", version=version, T="*")))
        await until(lambda: broker.notices.sent)
        assert broker.notices.sent == 1

    @pytest.mark.parametrize("why", ["broadcasting", "group", "broker"])
    async def test_nobody_is_told_who_does_not_want_to_know(self, tmp_path, why):
        properties = {"notifyConsumerIdsChangedEnable": "false"} if why == "broker" else {}
        async with ClientBroker(tmp_path, **properties) as broker:
            state = broker.state
            if why == "group":
                config = state.groups.find("G")
                state.groups.update(type(config)(group_name="G", notify_consumer_ids_changed_enable=False))
            model = "BROADCASTING" if why == "broadcasting" else "CLUSTERING"
            peer = await broker.peer()
            await answer_of(peer, heartbeat("me", consumes("G", model=model, T="*")))
            # Told in order: had the first group been told, its notice would be here before the second's.
            if why == "broker":
                await members(peer, "G")
                assert broker.notices.sent == 0
                return
            await peer.send(heartbeat("me", consumes("H", T="*")))
            assert (await asked_by_broker(peer)).ext == {"consumerGroup": "H"}

    async def test_changes_may_be_gathered(self, tmp_path):
        async with ClientBroker(tmp_path, realTimeNotifyConsumerChange="false") as broker:
            later = []
            broker.state.runner.call_later = lambda seconds, callback: later.append((seconds, callback)) or Cancelled()
            peers = [await broker.peer() for _ in range(3)]
            for peer in peers:
                await answer_of(peer, heartbeat(str(id(peer)), consumes("G", T="*")))
            await members(peers[0], "G")
            assert (broker.notices.sent, [seconds for seconds, _ in later]) == (0, [15.0])
            later[0][1]()
            await until(lambda: broker.notices.sent == 3)

    async def test_a_dead_member_neither_fails_nor_delays_the_heartbeat_of_another(self, broker):
        dead, living = await broker.peer(), await broker.peer()
        await answer_of(dead, heartbeat("dead", consumes("G", T="*")))
        (connection,) = broker.state.consumers.get("G").channels
        broker.server.dispatcher.table.on_connection_lost.clear()
        connection.cut("test")
        answer = await answer_of(living, heartbeat("living", consumes("G", T="*")))
        assert answer.code == 0
        await until(lambda: broker.notices.missed == 1)

    async def test_a_new_round_takes_the_place_of_the_old_one(self, tmp_path):
        async with ClientBroker(tmp_path) as broker:
            peers = [await broker.peer() for _ in range(20)]
            for number, peer in enumerate(peers):
                await peer.send(heartbeat(f"m{number:02}", consumes("G", T="*"), opaque=number))
            await asyncio.gather(*(peer.frame() for peer in peers))
            await until(lambda: len(broker.state.consumers.get("G").channels) == 20)
            # Each is told, but not by twenty rounds of twenty.
            await until(lambda: broker.notices.sent >= 20)
            for peer in peers:
                await members(peer, "G")
            assert broker.notices.sent < 20 * 21 / 2


class Cancelled:
    def cancel(self):
        pass


class TestLeaving:
    async def test_leaving_is_by_connection_and_always_a_success(self, broker):
        one, two = await broker.peer(), await broker.peer()
        for peer in (one, two):
            await answer_of(peer, heartbeat("me", consumes("G", T="*"), producers=("P",)))
        leave = request(UNREGISTER, {"clientID": "me", "consumerGroup": "G", "producerGroup": "P"})
        assert (await answer_of(one, leave)).code == 0
        assert await members(two, "G") == ["me"]
        assert (await answer_of(one, leave)).code == 0
        assert (await answer_of(two, leave)).code == 0
        assert await members(two, "G") == "no consumer for this group, G"
        assert dict(broker.state.producers.table) == {}

    async def test_the_client_id_is_required(self, broker):
        peer = await broker.peer()
        answer = await answer_of(peer, request(UNREGISTER, {"consumerGroup": "G"}))
        assert answer.code == 1
        assert "clientID" in answer.remark

    async def test_who_falls_silent_is_taken_out_and_cut_off(self, tmp_path):
        clock = FakeClock()
        async with ClientBroker(tmp_path, clock=clock) as broker:
            silent, lively = await broker.peer(), await broker.peer()
            for peer, name in ((silent, "silent"), (lively, "lively")):
                await answer_of(peer, heartbeat(name, consumes("G", T="*"), producers=("P",)))
            clock.advance(100)
            await answer_of(lively, heartbeat("lively", consumes("G", T="*"), producers=("P",)))
            broker.housekeeping.scan()
            assert len(broker.state.consumers.get("G").channels) == 2
            clock.advance(21)
            broker.housekeeping.scan()
            await silent.closed()
            assert await members(lively, "G") == ["lively"]
            assert [each.client_id for each in broker.state.producers.channels_of("P")] == ["lively"]

    async def test_who_drops_a_group_and_lives_on_in_another_keeps_its_connection(self, tmp_path):
        clock = FakeClock()
        async with ClientBroker(tmp_path, clock=clock) as broker:
            peer = await broker.peer()
            await answer_of(peer, heartbeat("me", consumes("G", T="*"), consumes("H", T="*")))
            clock.advance(100)
            await answer_of(peer, heartbeat("me", consumes("H", T="*")))
            clock.advance(50)
            broker.housekeeping.scan()
            assert await members(peer, "H") == ["me"]
            assert await members(peer, "G") == "no consumer for this group, G"

    async def test_the_wall_clock_expires_nobody(self, tmp_path):
        clock = FakeClock()
        async with ClientBroker(tmp_path, clock=clock) as broker:
            peer = await broker.peer()
            await answer_of(peer, heartbeat("me", consumes("G", T="*")))
            clock.set_wall(clock.wall() + 10**9)
            broker.housekeeping.scan()
            assert await members(peer, "G") == ["me"]


class TestChecks:
    def body(self, kind, text):
        data = {"topic": "T", "expressionType": kind, "subString": text, "subVersion": 1}
        return json.dumps({"clientId": "me", "group": "G", "subscriptionData": data}).encode()

    @pytest.mark.parametrize(
        ("kind", "code", "remark"),
        [
            ("TAG", 0, None),
            ("", 0, None),
            ("SQL92", 23, "this version filters by tag only"),
            ("XPATH", 1, "The broker does not support consumer to filter message by XPATH"),
        ],
    )
    async def test_tags_can_be_served_and_other_languages_not_yet(self, broker, kind, code, remark):
        answer = await answer_of(await broker.peer(), request(CHECK, None, self.body(kind, "a > 1")))
        assert (answer.code, answer.remark) == (code, remark)

    async def test_nothing_to_check_is_nothing_wrong(self, broker):
        peer = await broker.peer()
        assert (await answer_of(peer, request(CHECK))).code == 0
        assert (await answer_of(peer, request(CHECK, None, b"{}"))).code == 0


BAD_HEARTBEATS = [
    b"",
    b"{nonsense",
    b"null",
    b"[]",
    b"17",
    b'"text"',
    b"{}",
    b'{"clientID":""}',
    b'{"clientID":"  "}',
    b'{"clientID":17,"consumerDataSet":7}',
    b'{"clientID":"c","consumerDataSet":{"a":1}}',
    b'{"clientID":"c","producerDataSet":[{"groupName":[1]}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":[[]]}]}]}',
    b'{"clientID":"c","heartbeatFingerprint":1e300}',
    b'{"clientID":"c","consumerDataSet":' + b"[" * 20_000,
    b'{"clientID":"' + b"x" * 2000 + b'"}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"' + b"g" * (10 << 20) + b'"}]}',
    b"\xff\xfe\x00",
]


class TestBadInput:
    @pytest.mark.parametrize("body", BAD_HEARTBEATS, ids=lambda body: repr(body[:40]))
    async def test_a_bad_heartbeat_is_refused_with_a_reason_and_registers_nobody(self, broker, body):
        peer = await broker.peer()
        answer = await answer_of(peer, request(HEART_BEAT, None, body))
        assert answer.code == 1
        assert answer.remark
        assert len(answer.remark) < 1000
        assert (dict(broker.state.consumers.table), dict(broker.state.producers.table)) == ({}, {})
        assert (await answer_of(peer, heartbeat("me"))).code == 0

    @pytest.mark.parametrize("name", ["", " ", "a b", "ä", "g" * 121, "../../etc", "a\x00b", "DEFAULT_CONSUMER"])
    async def test_groups_with_bad_names_are_skipped_and_the_others_taken(self, broker, name):
        peer = await broker.peer()
        answer = await answer_of(peer, heartbeat("me", consumes(name, T="*"), consumes("Good", T="*")))
        assert answer.code == 0
        assert list(broker.state.consumers.table) == ["Good"]
        assert broker.state.topics.get(f"%RETRY%{name}") is None

    async def test_a_long_unknown_group_is_not_sent_back(self, broker):
        answer = await answer_of(await broker.peer(), request(CONSUMER_LIST, {"consumerGroup": "g" * (1 << 20)}))
        assert answer.code == 1
        assert len(answer.remark) < 200

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=8,
        ),
        st.sampled_from(["clientID", "consumerDataSet", "producerDataSet", "heartbeatFingerprint", "withoutSub"]),
    )
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    async def test_whatever_a_field_holds_is_answered(self, broker, value, field):
        peer = await broker.peer()
        body = {"clientID": "me", "consumerDataSet": [consumes("G", T="*")]} | {field: value}
        answer = await answer_of(peer, request(HEART_BEAT, None, json.dumps(body).encode()))
        assert answer.code in (0, 1)
        assert (answer.remark is None) == (answer.code == 0)
        await peer.close()
