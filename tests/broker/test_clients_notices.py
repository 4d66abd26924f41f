"""Rounds of notices as plain state: who is told, in which order, and how often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.channels import ClientChannel
from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers import Consumers
from cometmq.broker.notices import MEMBERS_A_TURN, ConsumerNotices
from cometmq.broker.store.runner import ManualRunner
from cometmq.protocol.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.errors import ConnectionLost

DATA = ConsumerData(
    group_name="G", message_model="CLUSTERING", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")]
)


class Output:
    def __init__(self):
        self.is_paused = False


class Peer:
    """Stands for a connection; remembers what it was told."""

    def __init__(self, kit):
        self._kit = kit
        self.is_open = True
        self.output = Output()
        self.fails = False

    def send_oneway(self, code, header):
        if self.fails:
            raise ConnectionLost("gone this moment")
        self._kit.told.append((self, header.consumer_group, self._kit.changes))


class Kit:
    """What the notices need of a broker's state."""

    def __init__(self):
        self.config = BrokerConfig()
        self.runner = ManualRunner()
        self.consumers = Consumers()
        self.groups = {}
        self.told = []
        self.changes = 0
        self.notices = ConsumerNotices(self)

    def join(self, group="G"):
        peer = Peer(self)
        self.changes += 1
        self.consumers.register(ClientChannel(peer, f"c{id(peer)}"), type(DATA)(**fields(DATA) | {"group_name": group}))
        return peer

    def leave(self, peer, group="G"):
        self.changes += 1
        self.consumers.unregister(peer, group)


def fields(body):
    return {name: getattr(body, name) for name in body.__struct_fields__}


@pytest.fixture
def kit():
    return Kit()


def test_changes_of_one_turn_are_one_round(kit):
    peers = [kit.join() for _ in range(10)]
    kit.runner.run()
    assert sorted(id(peer) for peer, _, _ in kit.told) == sorted(map(id, peers))


def test_a_large_group_is_told_in_pieces_with_pauses_between(kit):
    for _ in range(MEMBERS_A_TURN * 2 + 1):
        kit.join()
    kit.runner.run()
    assert len(kit.told) == MEMBERS_A_TURN
    kit.runner.advance(0.01)
    assert len(kit.told) == MEMBERS_A_TURN * 2
    kit.runner.advance(1)
    assert len(kit.told) == MEMBERS_A_TURN * 2 + 1
    assert kit.runner.timers() == 0


def test_a_change_during_a_round_puts_those_who_have_heard_behind_those_who_have_not(kit):
    peers = [kit.join() for _ in range(MEMBERS_A_TURN + 10)]
    kit.runner.run()
    kit.leave(peers[0])
    kit.runner.advance(1)
    order = [peer for peer, _, _ in kit.told]
    assert set(order[MEMBERS_A_TURN : MEMBERS_A_TURN + 10]) == {p for p in peers if p not in order[:MEMBERS_A_TURN]}
    assert order.count(peers[0]) <= 1
    assert all(order.count(peer) <= 2 for peer in peers)


def test_who_cannot_be_reached_is_passed_over_and_counted(kit):
    closed, paused, failing, good = (kit.join() for _ in range(4))
    closed.is_open = False
    paused.output.is_paused = True
    failing.fails = True
    kit.runner.run()
    assert [peer for peer, _, _ in kit.told] == [good]
    assert (kit.notices.sent, kit.notices.missed) == (1, 3)


def test_groups_do_not_hear_of_each_other(kit):
    kit.join("G")
    kit.join("H")
    kit.runner.run()
    assert sorted(group for _, group, _ in kit.told) == ["G", "H"]


def test_after_the_close_nothing_is_told_and_no_timer_is_left(kit):
    for _ in range(MEMBERS_A_TURN + 1):
        kit.join()
    kit.runner.run()
    told = len(kit.told)
    kit.notices.close()
    kit.join()
    kit.runner.advance(60)
    assert len(kit.told) == told
    assert kit.runner.timers() == 0


@given(st.lists(st.sampled_from(["join", "leave", "turn"]), max_size=60))
def test_whoever_is_there_in_the_end_has_heard_after_the_last_change(steps):
    kit = Kit()
    peers = []
    for step in steps:
        if step == "join":
            peers.append(kit.join())
        elif step == "leave" and peers:
            kit.leave(peers.pop(len(peers) // 2))
        else:
            kit.runner.turn()
    kit.runner.advance(5)
    last = kit.changes
    assert {peer for peer, _, when in kit.told if when == last} >= set(peers)
