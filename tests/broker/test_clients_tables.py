"""Who is connected: members of consumer and producer groups, as plain state."""

import logging

import pytest

from cometmq.broker.channels import ClientChannel
from cometmq.broker.consumers import Consumers
from cometmq.broker.producers import Producers
from cometmq.protocol.bodies import ConsumerData, SubscriptionData


class Peer:
    """Stands for a connection: only its identity counts here."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


P, Q, R = Peer("p:1"), Peer("q:2"), Peer("r:3")


def channel(peer, client_id=None, now=0.0):
    return ClientChannel(peer, client_id or f"client-{peer}", "GO", 1, now)


def wants(group="G", model="CLUSTERING", version=1, **topics):
    topics = topics or {"T": "*"}
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=text, sub_version=version) for topic, text in topics.items()
        ]
        + [SubscriptionData(topic=f"%RETRY%{group}", sub_string="*", sub_version=1)],
    )


class Watched(Consumers):
    def __init__(self):
        super().__init__()
        self.told = []
        self.on_changed.append(lambda group: self.told.append((group.name, len(group.channels))))


@pytest.fixture
def consumers():
    return Watched()


class TestMembers:
    def test_a_new_member_changes_the_group_and_the_same_heartbeat_does_not(self, consumers):
        assert consumers.register(channel(P), wants())
        assert not consumers.register(channel(P, now=30.0), wants())
        assert consumers.register(channel(Q), wants())
        group = consumers.get("G")
        assert group.client_ids() == ["client-p:1", "client-q:2"]
        assert group.channels[P].last_update == 30.0
        assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert consumers.told == [("G", 1), ("G", 2)]

    def test_a_client_with_two_connections_is_named_once_and_leaves_one_by_one(self, consumers):
        consumers.register(channel(P, "me"), wants())
        consumers.register(channel(Q, "me"), wants())
        assert consumers.get("G").client_ids() == ["me"]
        assert consumers.unregister(P, "G")
        assert consumers.get("G").client_ids() == ["me"]

    def test_with_its_last_member_a_group_is_forgotten(self, consumers):
        consumers.register(channel(P), wants())
        assert consumers.unregister(P, "G")
        assert not consumers.unregister(P, "G")
        assert consumers.get("G") is None
        assert consumers.told[-1] == ("G", 0)
        assert consumers.groups_of(P) == frozenset()

    def test_a_lost_connection_leaves_all_its_groups(self, consumers):
        for name in ("G", "H"):
            consumers.register(channel(P), wants(name))
        consumers.register(channel(Q), wants("G"))
        assert consumers.groups_of(P) == {"G", "H"}
        assert consumers.connection_lost(P) == ["G", "H"]
        assert consumers.connection_lost(P) == []
        assert list(consumers.table) == ["G"]

    def test_the_silent_ones_are_taken_out_and_nobody_is_told(self, consumers):
        consumers.register(channel(P, now=0.0), wants())
        consumers.register(channel(Q, now=50.0), wants())
        consumers.told.clear()
        assert consumers.expire(120.0, 120.0) == []
        assert [gone.connection for gone in consumers.expire(121.0, 120.0)] == [P]
        assert [gone.connection for gone in consumers.expire(500.0, 120.0)] == [Q]
        assert (consumers.get("G"), consumers.told) == (None, [])

    def test_a_member_that_only_drops_a_group_expires_there(self, consumers):
        consumers.register(channel(P, now=0.0), wants("G"))
        consumers.register(channel(P, now=0.0), wants("H"))
        consumers.register(channel(P, now=100.0), wants("H"))
        consumers.expire(150.0, 120.0)
        assert consumers.groups_of(P) == {"H"}

    def test_lookups(self, consumers):
        consumers.register(channel(P, "me"), wants("G", T="A || B"))
        assert consumers.find_channel("G", "me").connection is P
        assert consumers.find_channel("G", "you") is None
        assert consumers.find_channel("H", "me") is None
        assert consumers.groups_of_topic("T") == ["G"]
        assert consumers.groups_of_topic("U") == []
        assert consumers.subscription("G", "T").sub_string == "A || B"
        assert consumers.subscription("G", "U") is None
        assert consumers.subscription("H", "T") is None


class TestSubscriptions:
    def test_topics_that_come_or_go_are_a_change(self, consumers):
        consumers.register(channel(P), wants(T="*"))
        assert consumers.register(channel(P), wants(T="*", U="*"))
        assert consumers.register(channel(P), wants(U="*"))
        assert set(consumers.get("G").subscriptions) == {"U", "%RETRY%G"}

    def test_a_newer_version_replaces_and_is_no_change(self, consumers):
        consumers.register(channel(P), wants(T="A", version=5))
        assert not consumers.register(channel(P), wants(T="B", version=6))
        assert consumers.subscription("G", "T").sub_string == "B"
        assert not consumers.register(channel(P), wants(T="C", version=6))
        assert not consumers.register(channel(P), wants(T="C", version=4))
        assert consumers.subscription("G", "T").sub_string == "B"

    def test_a_heartbeat_without_subscriptions_leaves_them(self, consumers):
        consumers.register(channel(P), wants(T="A"))
        short = ConsumerData(group_name="G", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
        assert not consumers.register(channel(P, now=9.0), short, without_sub=True)
        assert consumers.subscription("G", "T").sub_string == "A"
        assert consumers.get("G").channels[P].last_update == 9.0

    def test_the_generation_grows_when_the_same_heartbeat_could_do_something_else(self, consumers):
        consumers.register(channel(P), wants(T="A"))
        group = consumers.get("G")
        steps = [
            (lambda: consumers.register(channel(P), wants(T="A")), False),
            (lambda: consumers.register(channel(Q), wants(T="A")), False),
            (lambda: consumers.register(channel(P), wants(T="A"), fingerprint=7), True),
            (lambda: consumers.register(channel(P), wants(T="B", version=2), fingerprint=7), True),
            (lambda: consumers.register(channel(P), wants(U="B"), fingerprint=7), True),
            (lambda: consumers.register(channel(P), wants(U="B", model="BROADCASTING"), fingerprint=7), True),
            (lambda: consumers.register(channel(P, "new"), wants(U="B", model="BROADCASTING"), fingerprint=7), True),
        ]
        for step, (do, grows) in enumerate(steps):
            before = group.generation
            do()
            assert (group.generation > before) == grows, step

    def test_pulls_of_those_without_heartbeats_are_remembered_for_a_while(self, consumers):
        seen = SubscriptionData(topic="T", sub_string="*")
        consumers.remember_puller("G", "T", seen, 10.0)
        assert consumers.subscription("G", "T") is None
        assert consumers.subscription("G", "T", with_pullers=True) is seen
        consumers.remember_puller("G", "T", seen, 100.0)
        consumers.expire_pullers(650.0, 600.0)
        assert consumers.subscription("G", "T", with_pullers=True) is seen
        consumers.expire_pullers(701.0, 600.0)
        assert consumers.subscription("G", "T", with_pullers=True) is None


class TestDifferentSubscriptions:
    def complaints(self, caplog):
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return [text for text in texts if "different subscriptions" in text]

    def test_two_members_that_differ_are_logged_once_with_both_sides(self, consumers, caplog):
        consumers.register(channel(P, "first"), wants(T="TagA"))
        consumers.register(channel(Q, "second"), wants(T="TagB", U="*", version=2))
        for version in range(3, 8):
            consumers.register(channel(P, "first"), wants(T="TagA", version=version))
            consumers.register(channel(Q, "second"), wants(T="TagB", U="*", version=version))
        (text,) = self.complaints(caplog)
        assert "group G" in text
        assert "second[q:2] wants T: 'TagB' (TAG), U: '*' (TAG)" in text
        assert "first[p:1] wants T: 'TagA' (TAG)" in text

    def test_equal_members_are_not_logged_whatever_their_versions_and_order(self, consumers, caplog):
        consumers.register(channel(P), wants(T="*", U="A"))
        consumers.register(channel(Q), wants(version=99, U="A", T="*"))
        consumers.register(channel(R), wants(version=50, U="A", T="*"))
        assert self.complaints(caplog) == []

    def test_a_single_member_may_change_its_mind(self, consumers, caplog):
        consumers.register(channel(P), wants(T="A"))
        consumers.register(channel(P), wants(T="B", version=2))
        assert self.complaints(caplog) == []

    def test_a_rolling_change_is_logged_and_another_one_later_again(self, consumers, caplog):
        for number, text in enumerate("AAB", 1):
            consumers.register(channel((P, Q, P)[number - 1]), wants(T=text, version=number))
        consumers.register(channel(Q), wants(T="B", version=4))
        assert len(self.complaints(caplog)) == 1
        consumers.register(channel(P), wants(T="C", version=5))
        assert len(self.complaints(caplog)) == 2

    def test_who_has_left_is_not_compared_with(self, consumers, caplog):
        consumers.register(channel(P), wants(T="A"))
        consumers.register(channel(Q), wants(T="A"))
        consumers.unregister(P, "G")
        consumers.register(channel(Q), wants(T="B", version=2))
        assert self.complaints(caplog) == []

    def test_the_log_is_bounded(self, consumers, caplog):
        consumers.register(channel(P), wants(T="A"))
        for number in range(100):
            consumers.register(channel(Q), wants(T=f"B{number}", version=number + 2))
        assert 1 < len(self.complaints(caplog)) <= 16


class TestProducers:
    def test_members_come_and_go(self):
        producers = Producers()
        assert producers.register(channel(P, "a"), "G")
        assert not producers.register(channel(P, "a", now=5.0), "G")
        assert producers.register(channel(Q, "b"), "G")
        assert [each.client_id for each in producers.channels_of("G")] == ["a", "b"]
        assert producers.get("G", P).last_update == 5.0
        assert producers.unregister(P, "G")
        assert not producers.unregister(P, "G")
        assert not producers.unregister(P, "H")
        assert producers.connection_lost(Q) == ["G"]
        assert (dict(producers.table), producers.channels_of("G")) == ({}, [])

    def test_a_client_is_found_by_its_name_until_its_last_group_is_gone(self):
        producers = Producers()
        producers.register(channel(P, "a"), "G")
        producers.register(channel(P, "a"), "H")
        producers.unregister(P, "H")
        assert producers.by_client_id("a").connection is P
        producers.unregister(P, "G")
        assert producers.by_client_id("a") is None

    def test_a_client_that_came_back_is_found_on_its_new_connection(self):
        producers = Producers()
        producers.register(channel(P, "a"), "G")
        producers.register(channel(Q, "a"), "G")
        assert producers.by_client_id("a").connection is Q
        producers.connection_lost(P)
        assert producers.by_client_id("a").connection is Q

    def test_a_client_that_takes_another_name_is_found_by_that(self):
        producers = Producers()
        producers.register(channel(P, "a"), "G")
        producers.register(channel(P, "b"), "G")
        assert producers.by_client_id("a") is None
        assert producers.by_client_id("b").connection is P

    def test_the_silent_ones_are_taken_out(self):
        producers = Producers()
        producers.register(channel(P, "a", now=0.0), "G")
        producers.register(channel(Q, "b", now=50.0), "G")
        assert [gone.client_id for gone in producers.expire(130.0, 120.0)] == ["a"]
        assert producers.groups_of(Q) == {"G"}
        assert producers.groups_of(P) == frozenset()
