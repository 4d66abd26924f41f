"""Consumers that come, share, die and resume; brokers that stop, die and come back; topics that grow."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.mq_client import GO, JAVA, JAVA_BIN, OLD_JAVA, MqClient, PushConsumer, Seen, Told
from support.plain_frames import call
from support.server_process import wait_for

Clients = Callable[[str], MqClient]
Unique = Callable[[str], str]

slow = pytest.mark.slow
#: Clients notice a dead broker, find the new one and go on: several of their own periods.
RESUME_SECONDS = 90


def bodies(seen: list[Seen]) -> set[str]:
    return {one.body for one in seen}


@pytest.fixture
def second(request: pytest.FixtureRequest, tmp_path: Path, rocketmq: None) -> Iterator[Callable[[str], MqClient]]:
    """Starts a client program of its own, which the test may kill."""
    running: list[MqClient] = []

    def start(name: str) -> MqClient:
        running.append(MqClient(name, tmp_path / f"client-{len(running)}"))
        return running[-1]

    yield start
    for client in running:
        client.close()


def members(cluster: Cluster, group: str) -> int:
    answer = call(cluster.address, 38, {"consumerGroup": group})
    return len(answer.json()["consumerIdList"]) if answer.code == 0 else 0


@pytest.mark.parametrize("other", [GO, pytest.param(JAVA, marks=slow), pytest.param(OLD_JAVA, marks=slow)])
def test_two_consumers_share_the_queues_and_the_death_of_one_frees_its_share(
    cluster: Cluster, clients: Clients, second: Clients, unique: Unique, other: str
) -> None:
    """Everything is consumed, before and after the kill -9 of one of the two."""
    ns, topic, group = cluster.nameserver, cluster.make_topic(unique("Share"), queues=4), unique("CG_share")
    java, mortal = clients(JAVA), second(other)
    survivor = java.push(ns, group, topic)
    wait_for("all queues", 40, lambda: survivor.assigned() == {0, 1, 2, 3})
    victim = mortal.push(ns, group, topic)
    wait_for("half of the queues", 60, lambda: len(survivor.assigned()) == 2)
    assert members(cluster, group) == 2
    java.send(ns, topic, 40, prefix="both")

    def all_of(prefix: str) -> bool:
        return {f"{prefix}-{i}" for i in range(40)} <= bodies(survivor.consumed()) | bodies(victim.consumed())

    wait_for("both consume", 40, lambda: all_of("both"))
    assert bodies(survivor.consumed())
    wait_for("the victim has its share", 40, lambda: bodies(victim.consumed()))
    mortal.close()
    wait_for("the broker noticed", 20, lambda: members(cluster, group) == 1)
    wait_for("all queues again", 40, lambda: survivor.assigned() == {0, 1, 2, 3})
    java.send(ns, topic, 40, prefix="alone")
    wait_for("the survivor consumes all", 40, lambda: {f"alone-{i}" for i in range(40)} <= bodies(survivor.consumed()))
    survivor.stop()


def test_running_clients_see_that_a_topic_has_more_queues(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    ns, topic = cluster.nameserver, cluster.make_topic(unique("Grow"), queues=2)
    java = clients(JAVA)
    java.send(ns, topic, 2)
    consumer = java.push(ns, unique("CG_grow"), topic)
    wait_for("two queues", 30, lambda: consumer.assigned() == {0, 1})
    out, err = java.admin("updateTopic", "-b", cluster.address, "-t", topic, "-r", "4", "-w", "4", "-n", ns)
    assert "success" in out, err
    wait_for("the producer sees four", 30, lambda: java.queues(ns, topic) == {0, 1, 2, 3})
    wait_for("the consumer works on four", 30, lambda: consumer.assigned() == {0, 1, 2, 3})
    told = java.send(ns, topic, 8, prefix="grown")
    assert {one.queue for one in told} == {0, 1, 2, 3}
    assert {f"grown-{i}" for i in range(8)} <= bodies(consumer.consumed(10))
    consumer.stop()


def test_offsets_messages_and_topics_survive_a_restart(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    """A clean stop: nobody gets a message twice, and what waits for its delay still comes."""
    ns, topic, group = cluster.nameserver, cluster.make_topic(unique("Stop"), queues=3), unique("CG_stop")
    java = clients(JAVA)
    java.send(ns, topic, 9, prefix="before")
    first = java.push(ns, group, topic)
    assert len(bodies(first.consumed(9))) == 9
    first.stop()
    java.send(ns, topic, 3, prefix="unread")
    java.send(ns, topic, 1, prefix="delayed", delay=2)
    ends = [cluster.max_offset(topic, queue) for queue in range(3)]
    cluster.stop_broker()
    cluster.restart_broker()
    # The delayed message may have come already: no queue is shorter, and at most one is longer, by one.
    grown = [cluster.max_offset(topic, queue) - end for queue, end in enumerate(ends)]
    assert sorted(grown) in ([0, 0, 0], [0, 0, 1])
    wait_for("the topic is back", 30, lambda: cluster.queues(topic) == 3)
    second = clients(JAVA_BIN).push(ns, group, topic)
    seen = second.consumed(4, RESUME_SECONDS)
    second.stop()
    assert sorted(one.body for one in seen) == ["delayed-0", "unread-0", "unread-1", "unread-2"]


def flood(client: MqClient, ns: str, topic: str, ledger: list[Told], stop: threading.Event, name: str) -> None:
    """Sends until told to stop; notes what was acknowledged."""
    number = 0
    while not stop.is_set():
        sent = client.send(ns, topic, 50, prefix=f"{name}-{number}", tolerant=True, timeout=2000, pause=2)
        ledger.extend(one for one in sent if one.status == "SEND_OK")
        number += 1


def check_ledger(ledger: list[Told], consumer: PushConsumer) -> None:
    """Every acknowledged message was consumed, with the queue and the offset that its producer was told."""
    acknowledged = {one.body: one for one in ledger}

    def missing() -> set[str]:
        return acknowledged.keys() - bodies(consumer.consumed())

    wait_for("everything acknowledged is consumed", RESUME_SECONDS, lambda: not missing(), pause=0.5)
    places = {(one.body, one.queue, one.offset) for one in consumer.consumed()}
    lost = [one for one in ledger if (one.body, one.queue, one.offset) not in places]
    assert not lost


@pytest.mark.parametrize("name", [JAVA, pytest.param(GO, marks=slow)])
def test_nothing_acknowledged_is_lost_by_kill_nine_of_the_broker(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    """Producer and consumer run through two deaths of the broker."""
    ns, topic, group = cluster.nameserver, cluster.make_topic(unique("Kill"), queues=4), unique("CG_kill")
    producer, consumer = clients(JAVA_BIN), clients(name).push(ns, group, topic)
    ledger: list[Told] = []
    stop = threading.Event()
    flooding = threading.Thread(target=flood, args=(producer, ns, topic, ledger, stop, "m"))
    flooding.start()
    try:
        for death in (1, 2):
            had = len(ledger)
            wait_for(f"messages before death {death}", RESUME_SECONDS, lambda had=had: len(ledger) >= had + 100)
            cluster.kill_broker()
            cluster.restart_broker()
        had = len(ledger)
        wait_for("messages after the last death", RESUME_SECONDS, lambda: len(ledger) >= had + 100)
    finally:
        stop.set()
        flooding.join()
    check_ledger(ledger, consumer)
    # The group's offsets were written by the dead brokers: the consumer is where the queues end.
    ends = [cluster.max_offset(topic, queue) for queue in range(4)]
    wait_for(
        "committed to the end",
        40,
        lambda: [cluster.committed(group, topic, queue) for queue in range(4)] == ends,
    )
    consumer.stop()
