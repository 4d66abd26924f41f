"""Every client, with JSON and binary headers: what it sends is stored as told, and it consumes what it sent."""

from collections.abc import Callable

import pytest

from support.cluster import Cluster
from support.mq_client import ALL_CLIENTS, GO, JAVA, JAVA_BIN, NODE, OLD_JAVA, OLD_JAVA_BIN, MqClient, Seen, Told
from support.plain_frames import call
from support.server_process import wait_for

Clients = Callable[[str], MqClient]
Unique = Callable[[str], str]

COUNT = 12
#: The Node client has one form of sending.
MANY_FORMS = (JAVA, JAVA_BIN, OLD_JAVA, OLD_JAVA_BIN, GO)


def by_body(seen: list[Seen]) -> dict[str, Seen]:
    """What was consumed; no message came twice."""
    found = {one.body: one for one in seen}
    assert len(found) == len(seen), "a message came twice"
    return found


def check_offsets(told: list[Told]) -> None:
    """The queues of a new topic are filled from 0, without a gap."""
    lines: dict[int, list[int]] = {}
    for one in told:
        assert one.broker == "broker-a"
        lines.setdefault(one.queue, []).append(one.offset)
    for offsets in lines.values():
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("name", ALL_CLIENTS)
def test_what_was_sent_is_consumed_as_it_was_sent(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic, group = clients(name), cluster.make_topic(unique("Plain")), unique("CG_plain")
    told = client.send(
        cluster.nameserver, topic, COUNT, prefix="böse", tag="TagA", keys="key1 key2", props="colour:röt,shape:round"
    )
    assert [one.body for one in told] == [f"böse-{i}" for i in range(COUNT)]
    check_offsets(told)
    assert len({one.id for one in told}) == COUNT
    consumer = client.push(cluster.nameserver, group, topic)
    seen = by_body(consumer.consumed(COUNT))
    consumer.stop()
    for one in told:
        got = seen.pop(one.body)
        assert (got.topic, got.queue, got.offset, got.id) == (topic, one.queue, one.offset, one.id)
        assert (got.tag, got.keys, got.reconsumed) == ("TagA", "key1 key2", 0)
        assert got.properties["colour"] == "röt"
        assert got.properties["shape"] == "round"
    assert not seen


@pytest.mark.parametrize("name", ALL_CLIENTS)
def test_committed_offsets_are_those_of_what_was_consumed(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    """A second consumer of the group gets only what came after the first had stopped."""
    client, topic, group = clients(name), cluster.make_topic(unique("Commit"), queues=2), unique("CG_commit")
    told = client.send(cluster.nameserver, topic, COUNT, prefix="first")
    first = client.push(cluster.nameserver, group, topic)
    assert len(by_body(first.consumed(COUNT))) == COUNT
    first.stop()
    for queue in {one.queue for one in told}:
        end = cluster.max_offset(topic, queue)
        wait_for("committed", 20, lambda queue=queue, end=end: cluster.committed(group, topic, queue) == end)
    client.send(cluster.nameserver, topic, 3, prefix="second")
    second = client.push(cluster.nameserver, group, topic)
    assert set(by_body(second.consumed(3))) == {"second-0", "second-1", "second-2"}
    second.stop()


@pytest.mark.parametrize("name", MANY_FORMS)
def test_async_sends_are_all_told_and_stored(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Async"), queues=2)
    told = client.send(cluster.nameserver, topic, 50, mode="async", prefix="async")
    assert {(one.queue, one.offset) for one in told} == {
        (queue, offset) for queue in range(2) for offset in range(cluster.max_offset(topic, queue))
    }
    consumer = client.push(cluster.nameserver, unique("CG_async"), topic)
    seen = by_body(consumer.consumed(50))
    consumer.stop()
    assert {(one.body, one.queue, one.offset) for one in told} == {
        (one.body, one.queue, one.offset) for one in seen.values()
    }


@pytest.mark.parametrize("name", MANY_FORMS)
def test_oneway_sends_are_stored(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Oneway"), queues=2)
    client.send(cluster.nameserver, topic, COUNT, mode="oneway", prefix="oneway", tag="T")
    consumer = client.push(cluster.nameserver, unique("CG_oneway"), topic)
    seen = by_body(consumer.consumed(COUNT))
    consumer.stop()
    assert set(seen) == {f"oneway-{i}" for i in range(COUNT)}
    assert {one.tag for one in seen.values()} == {"T"}


@pytest.mark.parametrize("name", MANY_FORMS)
def test_batch_is_told_once_and_stored_item_by_item(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Batch"), queues=1)
    (before,) = client.send(cluster.nameserver, topic, prefix="single")
    (told,) = client.send(
        cluster.nameserver, topic, 5, mode="batch", prefix="item", tag="TagB", keys="bkey", props="colour:red"
    )
    assert (before.offset, told.offset) == (0, 1)
    assert len(told.id.split(",")) in (1, 5)  # the Go client tells one id for the whole
    if told.offset_id:
        assert len(set(told.offset_id.split(","))) == 5
    consumer = client.push(cluster.nameserver, unique("CG_batch"), topic)
    seen = by_body(consumer.consumed(6))
    consumer.stop()
    assert {body: one.offset for body, one in seen.items()} == {"single-0": 0} | {f"item-{i}": 1 + i for i in range(5)}
    for i in range(5):
        got = seen[f"item-{i}"]
        assert (got.tag, got.keys, got.properties["colour"]) == ("TagB", "bkey", "red")


@pytest.mark.parametrize("name", [JAVA, OLD_JAVA])
def test_items_of_a_java_batch_are_found_by_their_own_ids(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic = clients(name), cluster.make_topic(unique("BatchIds"), queues=1)
    (told,) = client.send(cluster.nameserver, topic, 3, mode="batch", prefix="item")
    found = [client.view(cluster.nameserver, topic, id) for id in told.offset_id.split(",")]
    assert [one.body for one in found] == ["item-0", "item-1", "item-2"]


@pytest.mark.parametrize("name", [JAVA, OLD_JAVA_BIN, GO, NODE])
def test_big_body_survives_the_compression_of_its_sender(
    cluster: Cluster, clients: Clients, unique: Unique, name: str
) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Big"), queues=1)
    (told,) = client.send(cluster.nameserver, topic, size=50_000)
    consumer = client.push(cluster.nameserver, unique("CG_big"), topic)
    (seen,) = consumer.consumed(1)
    consumer.stop()
    assert seen.body == told.body
    assert len(seen.body) == 50_000


@pytest.mark.parametrize("name", [JAVA, OLD_JAVA, GO])  # Node asks for no default topic
def test_unknown_topic_is_made_by_the_first_send(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), unique("Made")
    (told,) = client.send(cluster.nameserver, topic)
    assert told.offset == 0
    assert cluster.queues(topic) == 4, "the route is known when the send is answered"
    consumer = client.push(cluster.nameserver, unique("CG_made"), topic)
    (seen,) = consumer.consumed(1)
    consumer.stop()
    assert (seen.body, seen.queue, seen.offset) == (told.body, told.queue, 0)


@pytest.mark.parametrize(("sender", "receiver"), [(JAVA_BIN, OLD_JAVA), (OLD_JAVA_BIN, GO), (GO, JAVA), (NODE, JAVA)])
def test_one_client_consumes_what_another_one_sent(
    cluster: Cluster, clients: Clients, unique: Unique, sender: str, receiver: str
) -> None:
    topic = cluster.make_topic(unique("Mixed"), queues=2)
    told = clients(sender).send(cluster.nameserver, topic, COUNT, tag="TagA", keys="k", props="colour:blue")
    consumer = clients(receiver).push(cluster.nameserver, unique("CG_mixed"), topic)
    seen = by_body(consumer.consumed(COUNT))
    consumer.stop()
    assert {(one.body, one.queue, one.offset) for one in told} == {
        (one.body, one.queue, one.offset) for one in seen.values()
    }
    assert {(one.tag, one.keys, one.properties["colour"]) for one in seen.values()} == {("TagA", "k", "blue")}


@pytest.mark.parametrize("name", [JAVA, OLD_JAVA])
def test_message_is_found_by_id_and_by_key(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Find"), queues=2)
    told = client.send(cluster.nameserver, topic, 3, keys="alpha beta", tag="T")
    for one in told:
        for id in (one.id, one.offset_id):
            got = client.view(cluster.nameserver, topic, id)
            assert (got.body, got.queue, got.offset, got.keys) == (one.body, one.queue, one.offset, "alpha beta")
    for key in ("alpha", "beta"):
        assert {got.body for got in client.query(cluster.nameserver, topic, key)} == {one.body for one in told}


@pytest.mark.parametrize("name", [JAVA, JAVA_BIN, GO])
def test_sharding_key_chooses_one_queue(cluster: Cluster, clients: Clients, unique: Unique, name: str) -> None:
    client, topic = clients(name), cluster.make_topic(unique("Shard"), queues=4)
    told = client.send(cluster.nameserver, topic, 6, shard="order-17")
    assert len({one.queue for one in told}) == 1
    assert [one.offset for one in told] == list(range(6))


def test_heartbeats_of_every_client_are_listed(cluster: Cluster, clients: Clients, unique: Unique) -> None:
    """Each client's language and version as the broker tells them to who asks."""
    topic = cluster.make_topic(unique("Listed"), queues=1)
    for name, language in ((JAVA, "JAVA"), (OLD_JAVA_BIN, "JAVA"), (GO, "GO")):
        group = unique("CG_listed")
        consumer = clients(name).push(cluster.nameserver, group, topic)
        answer = call(cluster.address, 203, {"consumerGroup": group}).json()
        (connection,) = answer["connectionSet"]
        assert connection["language"] == language
        assert topic in answer["subscriptionTable"]
        assert answer["messageModel"] == "CLUSTERING"
        consumer.stop()
