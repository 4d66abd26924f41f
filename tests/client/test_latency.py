"""Latency fault tolerance: how long a slow broker is spared, and which queue is chosen meanwhile."""

import pytest

from cometmq.client.producer.choice import QueueChoice
from cometmq.client.producer.latency import TABLE_4, TABLE_5, Latencies, table_of
from cometmq.client.routes import TopicRoute, route_of
from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData


def route(*brokers: str, queues: int = 2) -> TopicRoute:
    data = TopicRouteData(
        broker_datas=[BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}, cluster="C") for name in brokers],
        queue_datas=[
            QueueData(broker_name=name, perm=6, read_queue_nums=queues, write_queue_nums=queues) for name in brokers
        ],
    )
    return route_of("T", data)


@pytest.mark.parametrize(
    ("latency", "pause_5", "pause_4"),
    [(10, 0, 0), (50, 0, 0), (549, 0, 0), (550, 2000, 30_000), (1000, 2000, 60_000), (16_000, 30_000, 600_000)],
)
def test_the_tables_of_both_generations(latency: int, pause_5: int, pause_4: int) -> None:
    assert TABLE_5.pause(latency) == pause_5
    assert TABLE_4.pause(latency) == pause_4


def test_isolation_is_the_pause_of_a_very_slow_broker() -> None:
    assert TABLE_5.pause(TABLE_5.isolated) == 10_000
    assert TABLE_4.pause(TABLE_4.isolated) == 600_000


def test_presets_and_own_tables() -> None:
    assert table_of(None) is TABLE_5
    assert table_of("4.x") is TABLE_4
    assert table_of(([1, 2], [10, 20])).pause(2) == 20
    with pytest.raises(ValueError, match="presets"):
        table_of("3.x")
    with pytest.raises(ValueError, match="two rows of one length"):
        table_of(([1, 2], [10]))


def test_a_slow_broker_is_avoided_and_comes_back() -> None:
    latencies = Latencies(TABLE_5)
    choice = QueueChoice(latencies)
    both = route("a", "b")
    latencies.update("a", 0.6, now=100.0)
    assert {choice.choose(both, 101.0).broker_name for _ in range(20)} == {"b"}
    assert {choice.choose(both, 102.1).broker_name for _ in range(20)} == {"a", "b"}


def test_all_brokers_bad_still_gives_a_queue() -> None:
    latencies = Latencies(TABLE_5)
    choice = QueueChoice(latencies)
    both = route("a", "b")
    for name in ("a", "b"):
        latencies.update(name, 0.1, now=0.0, isolate=True, reachable=False)
    assert {choice.choose(both, 1.0).broker_name for _ in range(20)} == {"a", "b"}


def test_a_reachable_broker_is_better_than_one_that_is_not() -> None:
    latencies = Latencies(TABLE_5)
    choice = QueueChoice(latencies)
    latencies.update("a", 0.1, now=0.0, isolate=True, reachable=False)
    latencies.update("b", 0.6, now=0.0)
    assert {choice.choose(route("a", "b"), 1.0).broker_name for _ in range(20)} == {"b"}


def test_round_robin_visits_every_queue_and_avoids_the_broker_of_the_last_attempt() -> None:
    choice = QueueChoice()
    both = route("a", "b", queues=3)
    chosen = [choice.choose(both, 0.0) for _ in range(6)]
    assert sorted(chosen) == sorted(both.publish)
    assert {choice.choose(both, 0.0, avoid="a").broker_name for _ in range(20)} == {"b"}
    assert {choice.choose(route("a"), 0.0, avoid="a").broker_name for _ in range(5)} == {"a"}, "there is no other"
