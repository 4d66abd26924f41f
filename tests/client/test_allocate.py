"""Strategies: shares as Java, Go and we must agree on them, and that nothing is lost or given twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consumer.allocate import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Sticky,
    Strategy,
    _md5,
)
from cometmq.client.queues import MessageQueue


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, number) for number in range(count)]


def shares(strategy: Strategy, these: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy("g", client, these, clients)] for client in clients]


CLIENTS = ["10.0.0.1@A", "10.0.0.1@B", "10.0.0.1@C"]


@pytest.mark.parametrize(
    ("strategy", "count", "members", "expected"),
    [
        (Averagely(), 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (Averagely(), 10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (Averagely(), 2, 3, [[0], [1], []]),
        (AveragelyByCircle(), 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    ],
)
def test_shares_as_in_the_table(strategy: Strategy, count: int, members: int, expected: list[list[int]]) -> None:
    assert shares(strategy, queues(count), [f"c{number}" for number in range(members)]) == expected


def test_consistent_hash_has_the_vectors_of_java() -> None:
    assert _md5("10.0.0.1@A-0") == 2601033215
    assert _md5(str(queues(1)[0])) == 1987926524
    assert shares(ConsistentHash(), queues(8), CLIENTS) == [[3, 4], [0, 5, 6], [1, 2, 7]]


def test_machine_room() -> None:
    near = queues(8, "room1@a")
    assert shares(MachineRoom(["room1"]), [*near, *queues(3, "room2@b"), *queues(2, "nowhere")], CLIENTS) == [
        [0, 1, 6],
        [2, 3, 7],
        [4, 5],
    ]


def test_machine_room_nearby() -> None:
    strategy = MachineRoomNearby(Averagely(), lambda queue: queue.broker_name[0], lambda client: client[0])
    clients = ["a1", "a2", "b1"]
    these = [*queues(4, "a"), *queues(2, "b"), *queues(3, "c")]
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    given_out = [[(queue.broker_name, queue.queue_id) for queue in strategy("g", c, these, clients)] for c in clients]
    assert given_out == [
        [("a", 0), ("a", 1), ("c", 0)],
        [("a", 2), ("a", 3), ("c", 1)],
        [("b", 0), ("b", 1), ("c", 2)],
    ]
    with pytest.raises(ValueError, match="no machine room"):
        MachineRoomNearby(Averagely(), lambda _: "", lambda _: "x")("g", "a1", these, clients)


def test_by_config_gives_what_the_user_says() -> None:
    other = MessageQueue("Other", "broker-a", 9)
    strategy = ByConfig([*queues(2), other])
    assert strategy("g", "c", queues(8), ["x"]) == queues(2)
    assert strategy("g", "c", [other], ["x"]) == [other]


@pytest.mark.parametrize("strategy", [Averagely(), AveragelyByCircle(), ConsistentHash(), Sticky()])
@given(count=st.integers(0, 40), members=st.integers(1, 12))
def test_every_queue_has_exactly_one_owner(strategy: Strategy, count: int, members: int) -> None:
    clients = sorted(f"10.0.0.{number}@{number * 7}" for number in range(members))
    given_out = [queue for client in clients for queue in strategy("g", client, queues(count), clients)]
    assert sorted(given_out) == queues(count)
    assert strategy("g", "a stranger", queues(count), clients) == []


@given(count=st.integers(1, 40), members=st.integers(2, 10))
def test_sticky_shares_are_equal(count: int, members: int) -> None:
    clients = [f"c{number}" for number in range(members)]
    sizes = [len(share) for share in shares(Sticky(), queues(count), clients)]
    assert max(sizes) - min(sizes) <= 1


def test_sticky_moves_few_queues_when_somebody_joins() -> None:
    these = queues(64)

    def moved(strategy: Strategy) -> int:
        before = {queue: c for c in CLIENTS for queue in strategy("g", c, these, CLIENTS)}
        clients = sorted([*CLIENTS, "10.0.0.1@D"])
        after = {queue: c for c in clients for queue in strategy("g", c, these, clients)}
        return sum(before[queue] != after[queue] for queue in these)

    assert moved(Sticky()) <= 30 < moved(Averagely())
