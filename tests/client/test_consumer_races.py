"""What happens between two steps of a consumer: waits that are cancelled, queues that go while they are worked on."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer.line import Line
from cometmq.client.message import ReceivedMessage
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]


class Source:
    """A queue with one message, of which the line sees that it is there."""

    level = 0
    is_ordered = False
    in_line = False

    def __init__(self) -> None:
        self.ready: deque[ReceivedMessage] = deque([object()])  # type: ignore[list-item]


async def settle_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_waiter_that_is_cancelled_after_it_was_woken_passes_it_on() -> None:
    line = Line()
    first, second = asyncio.create_task(line.wait()), asyncio.create_task(line.wait())
    await settle_loop()
    line.enter(Source())
    first.cancel()
    async with asyncio.timeout(5):
        await second
    assert first.cancelled() or first.done()


async def test_waits_with_a_timeout_leave_nothing_behind() -> None:
    line = Line()
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await line.wait()
    assert not line._waiters


async def test_a_cancelled_iteration_leaves_its_slot_and_its_message_to_another(mq: Client, name: Name) -> None:
    async with (
        mq.producer(name("PG")) as producer,
        mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer,
    ):
        await producer.send(name("T"), b"1")
        held = await anext(consumer)
        waiters = [asyncio.ensure_future(anext(consumer)) for _ in range(3)]
        await until(lambda: len(consumer._unsettled.waiters) == 3)
        # The first gets the slot and waits for a message, the second waits for the slot still.
        await held.ack()
        await until(lambda: len(consumer.line._waiters) == 1)
        waiters[0].cancel()
        await until(lambda: len(consumer.line._waiters) == 1 and waiters[0].done())
        # The second is woken by a message and cancelled before it runs.
        waiters[1].cancel()
        await producer.send(name("T"), b"2")
        async with asyncio.timeout(30):
            message = await waiters[2]
        assert message.body == b"2"
        await message.ack()
        assert not consumer._unsettled.waiters


class Handling:
    """A handler that stays inside until it may go, and knows how many are inside at once."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.inside = 0
        self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go.wait()
        finally:
            self.inside -= 1


async def filled(mq: Client, topic: str, count: int) -> None:
    async with mq.producer(f"PG_{topic}"[:100]) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, sharding_key="one")


async def test_an_ordered_queue_that_leaves_begins_no_other_message(mq: Client, name: Name) -> None:
    await filled(mq, name("T"), 5)
    handling = Handling()
    async with mq.push_consumer(
        name("CG"), {name("T"): "*"}, handling, ordered=True, start_from="first", rebalance_interval=60
    ) as consumer:
        await until(lambda: handling.inside == 1)
        assignment = next(each for each in consumer.assignments.values() if each.taken)
        await until(lambda: len(assignment.ready) == 4)
        dropping = asyncio.create_task(consumer.rebalance.drop(assignment))
        await settle_loop()
        assert not dropping.done(), "it waits for the handler"
        handling.go.set()
        await dropping
        assert handling.seen == [b"0"]
        await until(lambda: consumer.offsets_store.known(assignment.queue) is None)
    # The next owner begins behind what was done.
    handling = Handling()
    handling.go.set()
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handling, ordered=True):
        await until(lambda: len(handling.seen) == 4)
    assert handling.seen == [b"1", b"2", b"3", b"4"]


async def test_an_ordered_queue_that_restarts_waits_for_its_handler(mq: Client, name: Name) -> None:
    await filled(mq, name("T"), 3)
    handling = Handling()
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handling, ordered=True, start_from="first") as consumer:
        await until(lambda: handling.inside == 1)
        assignment = next(each for each in consumer.assignments.values() if each.taken)
        consumer.restart_queue(assignment, 1)
        # A rebalance in the middle must not begin with the offset of before.
        await consumer.rebalance.round()
        assert handling.inside == 1
        handling.go.set()
        await until(lambda: len(handling.seen) == 3)
    assert handling.seen == [b"0", b"1", b"2"]
    assert handling.most == 1


async def test_a_reset_survives_a_rebalance_at_the_same_time(mq: Client, name: Name) -> None:
    await filled(mq, name("T"), 4)
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, start_from="first") as consumer:
        await until(lambda: len(seen) == 4)
        queue = next(queue for queue in consumer.assignments if consumer.offsets_store.known(queue) == 4)
        await asyncio.gather(consumer.reset_offsets(name("T"), {queue: 2}), consumer.rebalance.round())
        await until(lambda: len(seen) >= 6)
        assert seen[4:6] == [b"2", b"3"]


async def test_a_lock_that_comes_while_others_are_renewed_stays(
    mq: Client, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(mq, name("T"), 1)
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, Handling(), ordered=True, close_timeout=0) as consumer:
        await until(lambda: len([queue for queue in consumer.assignments if queue.topic == name("T")]) == 4)
        late = consumer.assignments.popitem()
        lock = consumer.rebalance.lock

        async def slow_lock(*arguments: object) -> object:
            locked = await lock(*arguments)  # type: ignore[arg-type]
            consumer.assignments[late[0]] = late[1]
            return locked

        monkeypatch.setattr(consumer.rebalance, "lock", slow_lock)
        await consumer.rebalance.renew_locks()
        assert all(each.locked_at is not None for each in consumer.assignments.values())


async def test_a_close_leaves_no_lock_behind(broker: AnyBroker, name: Name) -> None:
    """Whenever it comes: while the queues are being locked, or later."""
    async with connect(broker.nameserver) as mq:
        await filled(mq, name("T"), 1)
        for number in range(12):
            async with mq.push_consumer(name("CG"), {name("T"): "*"}, Handling(), ordered=True, close_timeout=0.0):
                await asyncio.sleep(number * 0.002)
    async with connect(broker.nameserver) as other:
        handling = Handling()
        handling.go.set()
        async with other.push_consumer(name("CG"), {name("T"): "*"}, handling, ordered=True, start_from="first") as own:
            await until(lambda: len([queue for queue in own.assignments if queue.topic == name("T")]) == 4)


async def test_a_handler_that_never_returns_holds_the_close_up_for_close_timeout_only(
    mq: Client, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(mq, name("T"), 1)
    handling = Handling()
    consumer = mq.push_consumer(name("CG"), {name("T"): "*"}, handling, start_from="first", close_timeout=0.1)
    async with consumer:
        await until(lambda: handling.inside == 1)
    assert "did not finish within 0.1 s" in caplog.text
    assert "never settled: it comes again" in caplog.text
    assert handling.inside == 0
    again = Handling()
    again.go.set()
    async with mq.push_consumer(f"{name('CG')}", {name("T"): "*"}, again, start_from="first"):
        await until(lambda: again.seen == [b"0"])


async def test_a_cancelled_block_neither_acknowledges_nor_sends_back(mq: Client, name: Name) -> None:
    await filled(mq, name("T"), 1)
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
        message = await anext(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), message.process():
                await asyncio.Event().wait()
        assert message in consumer._unsettled
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
        again = await anext(consumer)
        assert (again.body, again.reconsume_times) == (b"0", 0)
        await again.ack()
