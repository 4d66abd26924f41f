"""Ways of consuming: concurrently, in order, by tag, all by broadcast, by pulling; retries and delays."""

import itertools
from collections.abc import Callable

import pytest

from support.cluster import Cluster
from support.mq_client import GO, JAVA, JAVA_BIN, NODE, OLD_JAVA, OLD_JAVA_BIN, MqClient, Seen
from support.plain_frames import create_topic
from support.server_process import wait_for

Clients = Callable[[str], MqClient]
Unique = Callable[[str], str]

slow = pytest.mark.slow
#: The heavy cases: one client by default, the others with the slow ones.
JAVA_FIRST = [JAVA, *(pytest.param(name, marks=slow) for name in (JAVA_BIN, OLD_JAVA, OLD_JAVA_BIN))]


def bodies(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{i}" for i in range(count)]


@pytest.mark.parametrize("name", [*JAVA_FIRST, GO])
def test_orderly_consumer_waits_for_the_failing_message(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    """Each message fails twice: its queue stands still meanwhile, and the order within the queue is kept."""
    client, topic = clients(name), cluster.make_topic(unique("Orderly"), queues=2)
    for queue in range(2):
        client.send(cluster.nameserver, topic, 3, prefix=f"q{queue}", queue=queue)
    consumer = client.push(cluster.nameserver, unique("CG_orderly"), topic, orderly=True, fail=2, suspend=50)
    seen = consumer.consumed(18)
    consumer.stop()
    assert len(seen) == 18
    for queue in range(2):
        line = [one for one in seen if one.queue == queue]
        assert [one.body for one in line] == [body for body in bodies(f"q{queue}", 3) for _ in range(3)]
        assert {one.topic for one in line} == {topic}, "an orderly message is not sent back"


@pytest.mark.parametrize("name", [JAVA, pytest.param(OLD_JAVA, marks=slow), GO, NODE])
def test_tags_with_equal_hash_codes_are_told_apart(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    """`Aa` and `BB` have one hash code: the broker lets both pass, the client drops the wrong one."""
    client, topic = clients(name), cluster.make_topic(unique("Tags"), queues=1)
    for tag in ("Aa", "BB", "C", "D"):
        client.send(cluster.nameserver, topic, 3, prefix=tag, tag=tag)
    consumer = client.push(cluster.nameserver, unique("CG_tags"), topic, expression="Aa || D")
    client.send(cluster.nameserver, topic, 2, prefix="late", tag="BB")
    client.send(cluster.nameserver, topic, 1, prefix="last", tag="D")
    seen = consumer.consumed(7)
    consumer.stop()
    assert sorted(one.body for one in seen) == sorted([*bodies("Aa", 3), *bodies("D", 3), "last-0"])


@pytest.mark.parametrize("name", [*JAVA_FIRST, GO, NODE])
def test_broadcast_reaches_every_consumer(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Broadcast"), queues=2), unique("CG_all")
    consumers = [client.push(cluster.nameserver, group, topic, broadcast=True) for _ in range(2)]
    client.send(cluster.nameserver, topic, 10, prefix="all")
    for consumer in consumers:
        assert sorted(one.body for one in consumer.consumed(10)) == sorted(bodies("all", 10))
        consumer.stop()
    assert cluster.committed(group, topic, 0) is None, "broadcasting clients keep their offsets themselves"


@pytest.mark.parametrize("name", [*JAVA_FIRST, pytest.param(GO, marks=slow), pytest.param(NODE, marks=slow)])
def test_failed_message_is_retried_and_consumed(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Retry"), queues=2), unique("CG_retry")
    create_topic(cluster.address, f"%RETRY%{group}", 1)  # else Go learns of it by its next look at routes, after 30 s
    (told,) = client.send(cluster.nameserver, topic, prefix="bad", tag="T", keys="k", props="colour:red")
    failures = 1 if name == NODE else 2  # Node gives up after the first retry
    consumer = client.push(cluster.nameserver, group, topic, fail=failures)
    seen = consumer.consumed(failures + 1)
    consumer.stop()
    assert [(one.body, one.reconsumed) for one in seen] == [("bad-0", times) for times in range(failures + 1)]
    for one in seen:
        assert (one.tag, one.keys, one.properties["colour"]) == ("T", "k", "red")
        assert one.topic == topic
    if name != NODE:  # tells the id of each stored copy
        assert {one.id for one in seen} == {told.id}
        assert seen[2].properties["RETRY_TOPIC"] == topic
    # The first retry comes after level 3, a second here; the stored times are the broker's.
    for before, after in itertools.pairwise(seen):
        assert after.stored - before.stored >= 1000


@pytest.mark.parametrize("name", [*JAVA_FIRST, pytest.param(GO, marks=slow)])
def test_message_that_fails_too_often_goes_to_the_dead_letter_queue(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Dead"), queues=1), unique("CG_dead")
    create_topic(cluster.address, f"%RETRY%{group}", 1)
    (told,) = client.send(cluster.nameserver, topic, prefix="dead", tag="T", keys="k")
    consumer = client.push(cluster.nameserver, group, topic, fail=99, max=2)
    assert len(consumer.consumed(3)) == 3
    dead = f"%DLQ%{group}"
    wait_for("the dead letter", 20, lambda: cluster.queues(dead) == 1 and cluster.max_offset(dead, 0) == 1)
    # The dead letter queue has permission to write only; mqadmin gives it the other one before somebody reads it.
    assert len(consumer.consumed(0)) == 3, "nobody gets a dead message"
    consumer.stop()
    create_topic(cluster.address, dead, 1)
    java = clients(JAVA)
    answer = wait_for(
        "the dead letter is read",
        20,
        lambda: (found := java.pull(cluster.nameserver, unique("CG_reader"), dead, 0, 0))["messages"] and found,
    )
    (letter,) = answer["messages"]
    assert (letter.body, letter.tag, letter.keys, letter.id) == (told.body, "T", "k", told.id)
    assert letter.properties["RETRY_TOPIC"] == topic
    assert letter.properties["ORIGIN_MESSAGE_ID"]
    assert letter.reconsumed == 3


@pytest.mark.parametrize("name", [JAVA, OLD_JAVA_BIN, pytest.param(GO, marks=slow), NODE])
def test_delay_levels(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    """Level 1 is one second here, level 2 two; a level above the last is the last."""
    client, topic = clients(name), cluster.make_topic(unique("Delay"), queues=1)
    consumer = client.push(cluster.nameserver, unique("CG_delay"), topic)
    for level in (2, 1, 40):
        client.send(cluster.nameserver, topic, prefix=f"level{level}", delay=level, tag="T")
    seen = {one.body: one for one in consumer.consumed(3)}
    consumer.stop()
    for body, seconds in (("level1-0", 1), ("level2-0", 2), ("level40-0", 1)):
        one = seen[body]
        assert one.topic == topic
        assert one.tag == "T"
        # A level waits from the first store; the delivered record is stored anew. Lateness is not judged here.
        assert one.stored - one.born >= 1000 * seconds - 20
    assert seen["level1-0"].stored < seen["level2-0"].stored


def check_line(seen: list[Seen], queue: int, offsets: list[int]) -> None:
    assert [(one.queue, one.offset) for one in seen] == [(queue, offset) for offset in offsets]


@pytest.mark.parametrize("name", JAVA_FIRST)
def test_lite_pull_polls_seeks_and_commits(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Lite"), queues=1), unique("CG_lite")
    client.send(cluster.nameserver, topic, 10, prefix="lite", tag="A")
    consumer = client.lite(cluster.nameserver, group, topic)
    check_line(consumer.poll(10), 0, list(range(10)))
    consumer.commit()
    assert consumer.committed(0) == 10
    consumer.seek(0, 7)
    check_line(consumer.poll(3), 0, [7, 8, 9])
    client.send(cluster.nameserver, topic, 2, prefix="more", tag="B")
    check_line(consumer.poll(2), 0, [10, 11])
    consumer.commit()
    consumer.stop()  # the client tells the broker now, or at most 10 s after its start
    wait_for("committed", 20, lambda: cluster.committed(group, topic, 0) == 12)
    second = client.lite(cluster.nameserver, group, topic)
    client.send(cluster.nameserver, topic, 1, prefix="later")
    check_line(second.poll(1), 0, [12])
    second.stop()


@pytest.mark.parametrize("name", JAVA_FIRST)
def test_lite_pull_of_assigned_queues(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Assign"), queues=2), unique("CG_assign")
    for queue in range(2):
        client.send(cluster.nameserver, topic, 4, prefix=f"q{queue}", queue=queue)
    consumer = client.lite(cluster.nameserver, group, topic, assign=True)
    for queue in range(2):
        consumer.seek(queue, 1)
    seen = consumer.poll(6)
    consumer.stop()
    assert sorted((one.queue, one.offset, one.body) for one in seen) == [
        (queue, offset, f"q{queue}-{offset}") for queue in range(2) for offset in (1, 2, 3)
    ]


@pytest.mark.parametrize("name", JAVA_FIRST)
def test_old_pull_consumer_sees_queue_ends_and_statuses(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Pull"), queues=1), unique("CG_pull")
    ns = cluster.nameserver
    client.send(ns, topic, 5, prefix="a", tag="A")
    client.send(ns, topic, 5, prefix="b", tag="B")
    found = client.pull(ns, group, topic, 0, 2, max=4)
    assert (found["status"], found["next"], found["min"], found["max"]) == ("FOUND", 6, 0, 10)
    check_line(found["messages"], 0, [2, 3, 4, 5])
    found = client.pull(ns, group, topic, 0, 0, expression="B")
    assert [one.body for one in found["messages"]] == bodies("b", 5)
    assert client.pull(ns, group, topic, 0, 0, expression="Z")["status"] == "NO_MATCHED_MSG"
    assert client.pull(ns, group, topic, 0, 10)["status"] == "NO_NEW_MSG"
    beyond = client.pull(ns, group, topic, 0, 99)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)
    offsets = client.offsets(ns, group, topic, 0, store=7, time=found["messages"][2].stored)
    assert (offsets["min"], offsets["max"]) == (0, 10)
    assert offsets["earliest"] <= found["messages"][0].stored
    assert 0 <= offsets["at"] <= 7
    assert wait_for("stored", 10, lambda: cluster.committed(group, topic, 0) == 7)


def test_go_pulls_from_an_offset(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    go, topic = clients(GO), cluster.make_topic(unique("GoPull"), queues=1)
    go.send(cluster.nameserver, topic, 5, prefix="a")
    found = go.pull(cluster.nameserver, unique("CG_gopull"), topic, 0, 1, max=3, broker="broker-a")
    assert (found["status"], found["next"]) == ("FOUND", 4)
    assert [one.body for one in found["messages"]] == ["a-1", "a-2", "a-3"]


@pytest.mark.parametrize("name", JAVA_FIRST)
def test_request_gets_its_reply(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Request"), queues=1)
    replier = client.push(cluster.nameserver, unique("CG_reply"), topic, reply=True)
    # A reply goes to registered producers, and a new one may be registered a moment after its first request.
    answer = wait_for(
        "a reply",
        60,
        lambda: (got := client.request(cluster.nameserver, topic, "ping", millis=5000)).get("reply") and got,
    )
    replier.stop()
    assert answer["reply"] == "reply to ping"
