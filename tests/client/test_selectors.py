"""Selectors: the same queue as clients of other languages, and keys that stay when queues are added."""

from collections import Counter

from cometmq.client.message import Message
from cometmq.client.producer import selectors
from cometmq.client.queues import MessageQueue

QUEUES = [MessageQueue("T", f"broker-{name}", number) for name in "ab" for number in range(4)]
MESSAGE = Message(b"x")


def test_the_hash_of_java() -> None:
    # "Hello".hashCode() is 69609650, "polygenelubricants".hashCode() is Integer.MIN_VALUE.
    assert selectors.java_hash(QUEUES, MESSAGE, "Hello") == QUEUES[69609650 % 8]
    assert selectors.java_hash(QUEUES, MESSAGE, "polygenelubricants") == QUEUES[2**31 % 8]
    # "order-3".hashCode() is -1207111308: Java takes the absolute value of the remainder.
    assert selectors.hash_code("order-3") == -1207111308
    assert selectors.java_hash(QUEUES, MESSAGE, "order-3") == QUEUES[1207111308 % 8]


def test_the_hash_of_go() -> None:
    # FNV-1a of "foobar" in 32 bits is 0xbf9cf968, by its authors' test vectors.
    assert selectors.go_hash(QUEUES, MESSAGE, "foobar") == QUEUES[0xBF9CF968 % 8]
    assert {selectors.go_hash(QUEUES, MESSAGE, None) for _ in range(200)} == set(QUEUES)


def test_consistent_hash_moves_keys_only_to_new_queues() -> None:
    keys = [f"key-{number}" for number in range(2000)]
    more = [*QUEUES, MessageQueue("T", "broker-c", 0), MessageQueue("T", "broker-c", 1)]
    moved = 0
    for key in keys:
        before = selectors.consistent_hash(QUEUES, MESSAGE, key)
        after = selectors.consistent_hash(more, MESSAGE, key)
        if before != after:
            moved += 1
            assert after.broker_name == "broker-c"
    assert 0.1 < moved / len(keys) < 0.3, "two of ten queues get about a fifth"
    shares = Counter(selectors.consistent_hash(QUEUES, MESSAGE, key) for key in keys)
    assert min(shares.values()) > len(keys) / len(QUEUES) / 2


def test_machine_room_prefers_its_rooms() -> None:
    queues = [MessageQueue("T", "room1@a", 0), MessageQueue("T", "room2@b", 0)]
    select = selectors.machine_room(["room2"])
    assert {select(queues, MESSAGE, None) for _ in range(5)} == {queues[1]}
    assert {selectors.machine_room(["room9"])(queues, MESSAGE, None) for _ in range(8)} <= set(queues)
