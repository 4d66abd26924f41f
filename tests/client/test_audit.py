"""Loss detection: stamps of a producer, and what a checker finds out from them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import Client, MessageQueue, Producer, connect
from cometmq.client.audit import MAX_MISSING, PRODUCER, SEQUENCE, VOID, ConsumeAudit, Problem, SendAudit
from cometmq.client.errors import CometMQError
from cometmq.client.hooks import SendContext
from cometmq.client.message import ReceivedMessage
from cometmq.testing import EmbeddedBroker
from support.wire import until

Name = Callable[[str], str]
QUEUE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 0)
GAP, REPEAT, DISORDER = Problem.GAP, Problem.REPEAT, Problem.DISORDER


def message(number: int | str, *, queue: MessageQueue = QUEUE, ident: str | None = None, **more: Any) -> Any:
    properties = {PRODUCER: more.get("producer", "p"), SEQUENCE: str(number)}
    if "void" in more:
        properties[VOID] = more["void"]
    return SimpleNamespace(
        properties=properties,
        queue=queue,
        queue_offset=7,
        message_id=ident or f"id-{queue.broker_name}-{more.get('producer', 'p')}-{number}",
        reconsume_times=more.get("tried", 0),
    )


def problems(audit: ConsumeAudit, *messages: Any) -> list[list[Problem]]:
    return [[each.problem for each in audit.check(one)] for one in messages]


# The checker


def test_numbers_in_a_row_are_fine_for_each_producer_and_queue() -> None:
    audit = ConsumeAudit()
    for number in range(5):
        for queue in (QUEUE, OTHER):
            for producer in "pq":
                assert audit.check(message(number, queue=queue, producer=producer)) == []
    assert (audit.checked, audit.unstamped) == (20, 0)
    assert not audit.findings


def test_a_gap_is_told_with_the_messages_around_it() -> None:
    told = []
    audit = ConsumeAudit(told.append)
    audit.check(message(3))
    (found,) = audit.check(message(6))
    assert (found.problem, found.missing, found.previous_id, found.message_id) == (
        GAP,
        (4, 5),
        "id-broker-a-p-3",
        "id-broker-a-p-6",
    )
    assert str(found) == (
        "gap: 4 to 5 after id-broker-a-p-3, before message id-broker-a-p-6 of producer p, number 6, "
        "broker-a/T/0, offset 7"
    )
    assert told == [found] == list(audit.findings)
    assert audit.missing() == {("p", QUEUE): [4, 5]}
    assert audit.counts == {GAP: 1}


def test_what_comes_late_is_disorder_and_closes_the_gap() -> None:
    audit = ConsumeAudit()
    assert problems(audit, message(0), message(2), message(1), message(1)) == [[], [GAP], [DISORDER], [REPEAT]]
    assert audit.missing() == {}


def test_a_repeat_is_told_and_a_retry_is_none() -> None:
    audit = ConsumeAudit()
    retry = message(1, queue=MessageQueue("%RETRY%CG", "broker-a", 0))
    assert problems(audit, message(0), message(1), message(1, tried=1), retry) == [[], [], [], []]
    (found,) = audit.check(message(0))
    assert str(found) == "repeat: message id-broker-a-p-0 of producer p, number 0, broker-a/T/0, offset 7"


def test_a_message_that_two_attempts_stored_in_two_queues_is_a_repeat() -> None:
    audit = ConsumeAudit()
    assert problems(audit, message(0, ident="one"), message(0, queue=OTHER, ident="one")) == [[], [REPEAT]]


def test_void_numbers_are_no_gap() -> None:
    audit = ConsumeAudit()
    assert problems(audit, message(0), message(5, void="1-2,4-4")) == [[], [GAP]]
    assert audit.missing() == {("p", QUEUE): [3]}
    assert problems(audit, message(6, void="3-3")) == [[]], "told too late for the message before"
    assert audit.missing() == {}
    assert problems(audit, message(1), message(2, ident="id-broker-a-p-0")) == [[DISORDER], [REPEAT]]


def test_a_checker_that_begins_in_the_middle_misses_nothing_unless_it_is_told_to() -> None:
    assert problems(ConsumeAudit(), message(9)) == [[]]
    whole = ConsumeAudit(from_the_first=True)
    assert [each.missing for each in whole.check(message(2))] == [(0, 1)]


def test_a_queue_that_was_away_begins_anew() -> None:
    audit = ConsumeAudit()
    audit.check(message(0))
    audit.check(message(0, queue=OTHER))
    audit.queues_changed("Other", [])
    audit.queues_changed("T", [OTHER])
    assert problems(audit, message(7), message(7, queue=OTHER)) == [[], [GAP]]


@pytest.mark.parametrize("number", ["", "x", "-1", "٣", "9" * 16, "9" * 5000, "1.0"])
def test_stamps_that_are_none_count_as_none(number: str) -> None:
    audit = ConsumeAudit()
    assert audit.check(message(number)) == []
    assert audit.unstamped == 1


def test_wild_numbers_take_no_time_and_no_memory() -> None:
    audit = ConsumeAudit(from_the_first=True)
    found = audit.check(message(10**14, void="5-1,x,-,7-,1-99999999999999999999999," + "3-4," * 5000))
    assert [each.missing for each in found] == [(0, 2), (5, 10**14 - 1)]
    assert len(audit.missing()["p", QUEUE]) == MAX_MISSING


# The stamps


def context(queue: MessageQueue = QUEUE, **more: Any) -> SendContext:
    return SendContext(
        group="PG",
        topic="T",
        namespace="",
        message=None,
        unique_key="k",
        properties_text="",
        body_size=1,
        queue=queue,
        address="a",
        client_address="c",
        attempt=0,
        **more,
    )


def attempt(audit: SendAudit, *, fails: bool = False, queue: MessageQueue = QUEUE) -> tuple[str, str | None]:
    made = context(queue)
    audit.before_send(made)
    end(audit, made, fails=fails)
    return made.properties[SEQUENCE], made.properties.get(VOID)


def end(audit: SendAudit, made: SendContext, *, fails: bool = False) -> None:
    if fails:
        made.error = TimeoutError()
    else:
        made.receipt = SimpleNamespace()  # type: ignore[assignment]
    audit.after_send(made)


def test_failed_attempts_are_void_until_a_stored_message_has_told_it() -> None:
    audit = SendAudit("p")
    assert attempt(audit) == ("0", None)
    assert attempt(audit, fails=True) == ("1", None)
    assert attempt(audit, fails=True) == ("2", "1-1")
    assert attempt(audit, queue=OTHER) == ("0", None)
    assert attempt(audit) == ("3", "1-2")
    assert attempt(audit) == ("4", None)


def test_what_fails_while_another_message_is_on_its_way_is_told_by_the_next() -> None:
    audit = SendAudit("p")
    attempt(audit, fails=True)
    telling = context()
    audit.before_send(telling)
    assert telling.properties[VOID] == "0-0"
    assert attempt(audit, fails=True)[0] == "2"
    assert attempt(audit, fails=True)[0] == "3"
    end(audit, telling)
    assert attempt(audit) == ("4", "2-3")
    batch = context(is_batch=True)
    audit.before_send(batch)
    end(audit, batch, fails=True)
    assert batch.properties == {}
    assert attempt(audit) == ("5", None)


# Both, over real sockets


async def test_a_producer_and_a_consumer_agree(mq: Client, name: Name) -> None:
    audit, checker = SendAudit(), ConsumeAudit(from_the_first=True)
    got: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message)

    async with mq.producer(name("PG"), hooks=[audit]) as producer:
        await asyncio.gather(*(producer.send(name("T"), b"%d" % number) for number in range(200)))
        await producer.send(name("T"), b"later", delay_level=1)
        await producer.send_batch(name("T"), [b"a", b"b"])
        options: dict[str, Any] = {"start_from": "first", "hooks": [checker], "queue_listener": checker.queues_changed}
        async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, **options):
            await until(lambda: len(got) == 203)
    assert list(checker.findings) == []
    assert (checker.checked, checker.unstamped) == (200, 3)
    assert {each.properties.get(PRODUCER) for each in got} == {audit.producer_id, None}


async def test_a_broker_that_goes_away_under_a_producer_makes_no_gap() -> None:
    """Attempts fail, the application sends again, and the numbers of the failed ones are void."""
    audit, checker = SendAudit(), ConsumeAudit(from_the_first=True)
    failures: list[CometMQError] = []
    got: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        got.add(message.body)

    async def send_until_stored(producer: Producer, body: bytes) -> None:
        while True:
            try:
                await producer.send("T", body, timeout=20)
                return
            except CometMQError as error:
                failures.append(error)

    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq, mq.producer("PG", hooks=[audit], retries=0) as producer:
            restarted: asyncio.Future[None] | None = None
            for number in range(1000):
                if number == 50:
                    restarted = asyncio.ensure_future(asyncio.to_thread(broker.restart))
                await send_until_stored(producer, b"%d" % number)
                if restarted is not None and restarted.done() and failures and number > 200:
                    break
            assert restarted is not None
            await restarted
            for queue in await producer.queues("T"):  # the last word about void numbers
                await producer.send("T", b"end %d" % queue.queue_id, queue=queue)
            async with mq.push_consumer("CG", {"T": "*"}, handle, start_from="first", hooks=[checker]):
                await until(lambda: len(got) == number + 1 + 4)
    assert failures
    assert checker.missing() == {}
    assert checker.counts[DISORDER] == 0


async def test_a_lost_message_is_found(mq: Client, name: Name) -> None:
    """The stamp of a message that the broker never got: as if it had been acknowledged and lost."""
    audit, checker = SendAudit("p"), ConsumeAudit()
    got: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message)

    async with mq.producer(name("PG"), hooks=[audit]) as producer:
        first = await producer.send(name("T"), b"first")
        lost = context(first.queue)
        audit.before_send(lost)
        end(audit, lost)
        last = await producer.send(name("T"), b"last", queue=first.queue)
        async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, start_from="first", hooks=[checker]):
            await until(lambda: len(got) == 2)
    (found,) = checker.findings
    assert (found.problem, found.missing, found.queue) == (GAP, (1, 1), first.queue)
    assert (found.previous_id, found.message_id) == (first.message_id, last.message_id)
