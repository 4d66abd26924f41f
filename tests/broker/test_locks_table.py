"""Locks on queues: who gets one, for how long, and who may give it back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.store.clock import FakeClock
from cometmq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue(topic="T", broker_name="broker-a", queue_id=number) for number in range(3)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def locks(clock):
    return QueueLocks(clock)


def test_a_free_queue_is_locked_and_others_do_not_get_it(locks):
    assert locks.lock("g", "a", QUEUES[:2]) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES) == QUEUES[2:]
    assert locks.lock("other", "b", QUEUES) == QUEUES


def test_a_lock_lasts_a_minute_from_its_renewal(locks, clock):
    locks.lock("g", "a", QUEUES)
    clock.advance(40)
    assert locks.lock("g", "a", QUEUES[:1]) == QUEUES[:1]
    clock.advance(30)
    assert locks.lock("g", "b", QUEUES) == QUEUES[1:]
    assert [locks.holder("g", queue) for queue in QUEUES] == ["a", "b", "b"]


def test_a_wall_clock_that_jumps_releases_nothing(locks, clock):
    locks.lock("g", "a", QUEUES)
    clock.set_wall(clock.wall() + 10**9)
    assert locks.lock("g", "b", QUEUES) == []


def test_only_the_holder_gives_back(locks):
    locks.lock("g", "a", QUEUES)
    locks.unlock("g", "b", QUEUES)
    locks.unlock("nobody", "a", QUEUES)
    assert len(locks) == 3
    locks.unlock("g", "a", QUEUES)
    assert len(locks) == 0
    assert locks.lock("g", "b", QUEUES) == QUEUES


def test_a_group_is_locked_while_any_lock_of_it_lives(locks, clock):
    assert not locks.is_group_locked("g")
    locks.lock("g", "a", QUEUES[:1])
    assert locks.is_group_locked("g")
    clock.advance(60)
    assert locks.is_group_locked("g")
    clock.advance(0.1)
    assert not locks.is_group_locked("g")


def test_what_has_run_out_is_forgotten(locks, clock):
    locks.lock("g", "a", QUEUES)
    clock.advance(61)
    locks.lock("h", "a", QUEUES[:1])
    assert locks.expire() == 3
    assert len(locks) == 1


def test_asking_for_nothing_leaves_nothing(locks):
    assert locks.lock("g", "a", []) == []
    assert len(locks) == 0


class Model(RuleBasedStateMachine):
    """Against the rule said in words: the holder is who locked last while nobody else's lock was alive."""

    def __init__(self):
        super().__init__()
        self.clock = FakeClock()
        self.locks = QueueLocks(self.clock)
        self.owner = {}

    @rule(client=st.sampled_from("ab"), numbers=st.sets(st.integers(0, 2)))
    def lock(self, client, numbers):
        got = self.locks.lock("g", client, [QUEUES[number] for number in sorted(numbers)])
        expected = []
        for number in sorted(numbers):
            holder, since = self.owner.get(number, (client, 0.0))
            if holder == client or self.clock.monotonic() - since > 60:
                self.owner[number] = client, self.clock.monotonic()
                expected.append(QUEUES[number])
        assert got == expected

    @rule(client=st.sampled_from("ab"), number=st.integers(0, 2))
    def unlock(self, client, number):
        self.locks.unlock("g", client, [QUEUES[number]])
        if self.owner.get(number, ("", 0))[0] == client:
            del self.owner[number]

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def expire(self):
        self.locks.expire()

    @invariant()
    def holders_agree(self):
        now = self.clock.monotonic()
        alive = {number: who for number, (who, since) in self.owner.items() if now - since <= 60}
        assert {n: self.locks.holder("g", QUEUES[n]) for n in range(3)} == {n: alive.get(n) for n in range(3)}
        assert self.locks.is_group_locked("g") == bool(alive)


Model.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestModel = Model.TestCase
