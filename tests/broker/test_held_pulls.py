"""Held pulls by themselves: no socket, no store, a clock that is moved and turns that are stepped."""

import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import pytest

from cometmq.broker.held_pulls import BUCKET, LONGEST, RECHECK, WAKES_A_TURN, HeldPull, HeldPulls
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.reading import MessageFilter, TagFilter
from cometmq.broker.store.runner import ManualRunner
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.properties import encode_properties
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import NO_ANSWER, Request


class Asked:
    """A request as far as it matters here."""

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self.replies: list[object] = []

    def reply(self, response: object) -> None:
        self.replies.append(response)


class Kit:
    """Held pulls and what they are connected with."""

    def __init__(self, **options: Any) -> None:
        self.runner = ManualRunner()
        self.ends: dict[tuple[str, int], int] = {}
        self.held = HeldPulls(
            self.runner.clock, self.runner, lambda topic, queue_id: self.ends.get((topic, queue_id), 0), **options
        )
        self.executed: list[Asked] = []
        self.held.execute = lambda request: self.executed.append(cast(Asked, request))

    def hold(
        self,
        topic: str = "T",
        queue_id: int = 0,
        offset: int = 0,
        wanted: MessageFilter | None = None,
        seconds: float = 15.0,
        connection: object = None,
    ) -> Asked:
        asked = Asked(connection or object())
        request = cast("Request[Any]", asked)
        self.held.hold(HeldPull(request, (topic, queue_id), offset, wanted), seconds)
        return asked

    def arrive(self, topic: str = "T", queue_id: int = 0, offset: int = 0, tag: str = "", **more: Any) -> None:
        self.ends[topic, queue_id] = offset + 1
        self.held.arrived([arrival(topic, queue_id, offset, tag, **more)])
        self.runner.run()

    @property
    def is_empty(self) -> bool:
        held = self.held
        return not (held.count or held._by_queue or held._by_connection or any(held._by_bucket.values()) or held._woken)


def arrival(
    topic: str, queue_id: int, offset: int, tag: str = "", properties: bytes = b"", **more: Any
) -> DispatchRequest:
    return DispatchRequest(
        topic, queue_id, 0, 100, tags_code(tag), 0, offset, None, None, more.get("sys_flag", 0), 0, properties,
        more.get("batch_size", 1),
    )  # fmt: skip


def tags(*names: str) -> TagFilter:
    return TagFilter([tags_code(name) for name in names])


def test_an_arrival_wakes_who_waits_for_that_queue_and_nobody_else() -> None:
    kit = Kit()
    first, second = kit.hold(), kit.hold()
    others = [kit.hold(queue_id=1), kit.hold("U")]
    kit.arrive()
    assert kit.executed == [first, second]
    assert kit.held.count == len(others)
    assert not any(asked.replies for asked in others)


def test_a_message_before_the_offset_wakes_nobody() -> None:
    kit = Kit()
    waiting = kit.hold(offset=7)
    kit.arrive(offset=6)
    assert kit.executed == []
    kit.arrive(offset=7)
    assert kit.executed == [waiting]


def test_an_inner_batch_reaches_as_far_as_its_last_message() -> None:
    kit = Kit()
    waiting = kit.hold(offset=7)
    kit.arrive(offset=5, batch_size=3)
    assert kit.executed == [waiting]


def test_tags_are_matched_before_anybody_is_woken() -> None:
    kit = Kit()
    wants_a, wants_b = kit.hold(wanted=tags("Aa")), kit.hold(wanted=tags("CC"))
    wants_all = kit.hold()
    kit.arrive(tag="BB")  # the hash of Aa
    assert kit.executed == [wants_a, wants_all]
    kit.arrive(offset=1, tag="CC")
    assert kit.executed == [wants_a, wants_all, wants_b]


def test_a_filter_by_properties_sees_them_before_anybody_is_woken() -> None:
    class ByColour:
        needs_record = True

        def matches_unit(self, tags_code: int, ext: object) -> bool:
            return True

        def matches_record(self, properties: bytes) -> bool:
            return b"red" in properties

    kit = Kit()
    waiting = kit.hold(wanted=ByColour())
    kit.arrive(properties=b"colour\x01blue")
    assert kit.executed == []
    kit.arrive(offset=1, properties=b"colour\x01red")
    assert kit.executed == [waiting]


def test_messages_of_no_queue_wake_nobody() -> None:
    kit = Kit()
    kit.hold()
    kit.arrive(sys_flag=0x4)
    assert kit.executed == []


def test_light_queues_are_woken_by_the_records_that_are_in_them() -> None:
    properties = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "3,0"})
    kit = Kit(multi_dispatch=True)
    waiting = kit.hold("%LMQ%a", offset=3)
    ahead = kit.hold("%LMQ%b", offset=1)
    kit.arrive(properties=properties)
    assert kit.executed == [waiting]
    assert kit.held.count == 1
    assert not ahead.replies


def test_who_waits_behind_unwanted_messages_is_looked_at_again_after_five_seconds() -> None:
    kit = Kit()
    waiting = kit.hold(wanted=tags("a"))
    kit.arrive(tag="b")
    kit.runner.advance(RECHECK - 0.1)
    assert kit.executed == []
    newcomer = kit.hold(offset=1, wanted=tags("a"))
    kit.runner.advance(0.2)
    assert kit.executed == [waiting]
    assert not newcomer.replies
    assert kit.held.count == 1


def test_patience_ends_not_early_and_not_much_too_late() -> None:
    kit = Kit()
    short, long = kit.hold(seconds=1.0), kit.hold(seconds=15.0)
    kit.runner.advance(0.99)
    assert kit.executed == []
    kit.runner.advance(0.01 + BUCKET)
    assert kit.executed == [short]
    kit.runner.advance(13.89)
    assert kit.executed == [short]
    kit.runner.advance(0.2)
    assert kit.executed == [short, long]
    assert kit.is_empty


@pytest.mark.parametrize("seconds", [0.0, -5.0, -(2.0**63)])
def test_no_patience_is_answered_in_the_next_moment(seconds: float) -> None:
    kit = Kit()
    asked = kit.hold(seconds=seconds)
    kit.runner.advance(BUCKET)
    assert kit.executed == [asked]


def test_endless_patience_has_an_end() -> None:
    kit = Kit()
    asked = kit.hold(seconds=2.0**60)
    kit.runner.advance(LONGEST - 1)
    assert kit.executed == []
    kit.runner.advance(1 + BUCKET)
    assert kit.executed == [asked]


def test_a_shorter_patience_that_comes_later_is_not_overlooked() -> None:
    kit = Kit()
    kit.hold(seconds=15.0)
    short = kit.hold(seconds=1.0)
    kit.runner.advance(1.2)
    assert kit.executed == [short]
    assert kit.runner.timers() == 1


def test_a_client_that_leaves_takes_its_pulls_with_it() -> None:
    kit = Kit()
    leaving, staying = object(), object()
    gone = [kit.hold(queue_id=number, connection=leaving) for number in range(3)]
    kept = kit.hold(connection=staying)
    kit.held.drop_connection(cast(Connection, leaving))
    assert [asked.replies for asked in gone] == [[NO_ANSWER]] * 3
    assert kit.held.count == 1
    kit.arrive()
    assert kit.executed == [kept]
    kit.runner.advance(20)
    assert kit.executed == [kept]
    assert kit.is_empty
    kit.held.drop_connection(cast(Connection, leaving))


def test_many_woken_pulls_do_not_hold_up_the_loop() -> None:
    kit = Kit()
    for _ in range(WAKES_A_TURN * 2 + 1):
        kit.hold()
    kit.held.arrived([arrival("T", 0, 0)])
    assert kit.executed == []
    for turn in (1, 2):
        kit.runner.turn()
        assert len(kit.executed) == WAKES_A_TURN * turn
    kit.runner.turn()
    assert len(kit.executed) == WAKES_A_TURN * 2 + 1
    assert kit.is_empty


@pytest.mark.parametrize("wake", [HeldPulls.wake_all, HeldPulls.close])
def test_all_can_be_woken(wake: Callable[[HeldPulls], None]) -> None:
    kit = Kit()
    asked = [kit.hold(queue_id=number, wanted=tags("a")) for number in range(5)]
    kit.arrive(tag="b")
    wake(kit.held)
    kit.runner.run()
    assert kit.executed == asked
    assert kit.is_empty


def test_a_topic_can_be_woken() -> None:
    kit = Kit()
    asked = [kit.hold("T", 0), kit.hold("T", 1)]
    kit.hold("U", 0)
    kit.held.wake_topic("T")
    kit.runner.run()
    assert kit.executed == asked


def test_nothing_is_left_after_the_end() -> None:
    kit = Kit()
    kit.hold(wanted=tags("a"))
    kit.arrive(tag="b")
    kit.held.close()
    kit.runner.run()
    assert kit.held.is_closed
    assert kit.runner.timers() == 0


def test_there_is_a_limit() -> None:
    kit = Kit(limit=2)
    kit.hold()
    assert not kit.held.is_full
    kit.hold()
    assert kit.held.is_full


def test_fifty_thousand_held_pulls_cost_memory_and_no_work() -> None:
    kit = Kit()
    connections = [object() for _ in range(1000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50_000):
            kit.hold(queue_id=number, connection=connections[number % 1000])
        each = (tracemalloc.get_traced_memory()[0] - before) / 50_000
    finally:
        tracemalloc.stop()
    assert each < 1500
    # Time goes by and messages come for others: nothing is called but the one timer, at the end of their patience.
    assert kit.runner.timers() == 1
    calls = 0

    def counted(callback: Callable[[], None]) -> None:
        nonlocal calls
        calls += 1

    kit.runner.call_soon = counted  # type: ignore[method-assign]
    for number in range(14):
        kit.held.arrived([arrival("other", number, 0)])
        kit.runner.advance(1.0)
    assert calls == 0
    assert kit.executed == []
    assert kit.held.count == 50_000
    for connection in connections:
        kit.held.drop_connection(cast(Connection, connection))
    assert kit.is_empty


def test_pulls_that_were_woken_leave_nothing_behind() -> None:
    kit = Kit()
    connection = object()
    for offset in range(1000):
        kit.hold(offset=offset, connection=connection)
        kit.arrive(offset=offset)
    assert len(kit.executed) == 1000
    assert kit.is_empty
    assert kit.runner.timers() <= 1
    assert len(kit.held._by_bucket) <= 1
