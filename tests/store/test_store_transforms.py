"""What happens to a message before it is put: limits of topics, inner batches, delay levels, timers."""

import msgspec
import pytest

from cometmq.broker.store.message import Message, PutStatus, Refusal, merge_wrapper, waits, wrapper_pairs
from cometmq.broker.store.transforms import (
    CheckInnerBatch,
    DivertDelayed,
    RefuseTimers,
    SimpleTopics,
    TransformList,
    check_topic,
    default_transforms,
)
from cometmq.protocol import names, sysflag
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.properties import decode_properties, encode_properties

LEVELS = DelayLevels.parse()


def message(topic: str = "T", sys_flag: int = 0, verbatim: bool = False, **properties: str) -> Message:
    return Message(topic, 3, b"body", encode_properties(properties), sys_flag=sys_flag, verbatim=verbatim)


def run(each: Message, *batch_topics: str) -> Message | Refusal:
    return TransformList(default_transforms(SimpleTopics(frozenset(batch_topics)), LEVELS)).run(each)


def properties(result: Message | Refusal) -> dict[str, str]:
    assert isinstance(result, Message), result
    return decode_properties(result.properties)


@pytest.mark.parametrize(
    ("topic", "legal"),
    [
        ("t" * 127, True),
        ("t" * 128, False),
        ("%RETRY%" + "g" * 248, True),
        ("%RETRY%" + "g" * 249, False),
        ("%DLQ%" + "g" * 123, False),
        ("ä" * 63, True),
        ("ä" * 64, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a/b", False),
        ("a\0b", False),
        ("a\nb", False),
        ("%LMQ%x", True),
    ],
)
def test_topics_are_limited_in_bytes_and_are_names_of_directories(topic: str, legal: bool) -> None:
    refusal = check_topic(topic, 0)
    assert (refusal is None) is legal
    if refusal is not None:
        assert refusal.status is PutStatus.MESSAGE_ILLEGAL


def test_queue_ids_are_not_negative() -> None:
    assert check_topic("T", 0) is None
    assert check_topic("T", -1) is not None
    assert check_topic("T", 1 << 31) is not None


def test_a_message_without_wishes_is_passed_on_as_it_is() -> None:
    plain = message(TAGS="TagA", KEYS="k", WAIT="true")
    assert run(plain) is plain


# Inner batches


def test_an_inner_batch_goes_to_a_batch_topic_only() -> None:
    inner = message(sys_flag=sysflag.INNER_BATCH, INNER_NUM="3")
    assert run(inner, "T") is inner
    refusal = run(inner)
    assert isinstance(refusal, Refusal)
    assert refusal.status is PutStatus.MESSAGE_ILLEGAL
    assert "BatchCQ" in refusal.remark


@pytest.mark.parametrize("number", ["0", "-1", "x", "32768", None])
def test_an_inner_batch_says_how_many_it_is(number: str | None) -> None:
    properties = {} if number is None else {"INNER_NUM": number}
    assert isinstance(run(message(sys_flag=sysflag.INNER_BATCH, **properties), "T"), Refusal)


def test_a_count_without_the_flag_is_refused() -> None:
    refusal = CheckInnerBatch(SimpleTopics(frozenset({"T"})))(message(INNER_NUM="2"))
    assert isinstance(refusal, Refusal)
    assert refusal.status is PutStatus.MESSAGE_ILLEGAL


# Delay levels


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("19", 18), ("2147483647", 18)])
def test_a_delayed_message_waits_in_the_queue_of_its_level(asked: str, level: int) -> None:
    result = run(message(KEYS="k", DELAY=asked))
    assert isinstance(result, Message)
    assert (result.topic, result.queue_id) == (names.SCHEDULE_TOPIC, level - 1)
    assert properties(result) == {"KEYS": "k", "DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert result.body == b"body"


@pytest.mark.parametrize("asked", ["0", "-3", "soon", "2147483648"])
def test_no_level_is_no_delay(asked: str) -> None:
    plain = message(DELAY=asked)
    assert run(plain) is plain


def test_a_level_wins_over_timers() -> None:
    result = run(message(DELAY="2", TIMER_DELAY_SEC="5", TIMER_DELAY_MS="5", TIMER_DELIVER_MS="5"))
    assert properties(result) == {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "3"}


def test_half_messages_are_not_delayed_but_committed_ones_are() -> None:
    divert = DivertDelayed(LEVELS)
    for state in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK):
        half = message(sys_flag=state, DELAY="1")
        assert divert(half) is half
    committed = divert(message(sys_flag=sysflag.TRANSACTION_COMMIT, DELAY="1"))
    assert isinstance(committed, Message)
    assert committed.topic == names.SCHEDULE_TOPIC
    assert committed.sys_flag == sysflag.TRANSACTION_COMMIT


def test_what_was_delivered_is_not_delayed_again() -> None:
    delivered = message(verbatim=True, DELAY="1", REAL_TOPIC="T", REAL_QID="3")
    assert run(delivered) is delivered


def test_of_a_property_that_stands_twice_the_last_one_counts() -> None:
    twice = Message("T", 0, b"", b"DELAY\x011\x02TAGS\x01a\x02DELAY\x013\x02")
    result = run(twice)
    assert isinstance(result, Message)
    assert result.queue_id == 2
    assert result.properties == b"DELAY\x013\x02TAGS\x01a\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"


# Timers


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_timer_is_refused_never_forgotten(name: str) -> None:
    refusal = run(message(**{name: "60"}))
    assert isinstance(refusal, Refusal)
    assert refusal.status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    assert name in refusal.remark


@pytest.mark.parametrize(
    "each",
    [
        message(TIMER_DELAY_SEC="1", TIMER_OUT_MS="17"),
        message(names.TIMER_TOPIC, TIMER_DELAY_SEC="1"),
        message(sys_flag=sysflag.TRANSACTION_PREPARED, TIMER_DELAY_SEC="1"),
        message(verbatim=True, TIMER_DELAY_SEC="1"),
        message(TIMER_DEL_UNIQKEY="T+1"),
    ],
)
def test_a_timer_that_was_dealt_with_is_stored(each: Message) -> None:
    assert RefuseTimers()(each) is each


# The list


class _Stamp:
    """Adds its letter to the body of every message."""

    wakes_on: tuple[bytes, ...] = ()

    def __init__(self, letter: bytes) -> None:
        self._letter = letter

    def __call__(self, message: Message) -> Message | Refusal:
        return msgspec.structs.replace(message, body=(message.body or b"") + self._letter)


def test_transforms_run_in_order_and_can_be_added() -> None:
    transforms = TransformList([_Stamp(b"a")])
    transforms.append(_Stamp(b"c"))
    transforms.insert(1, _Stamp(b"b"))
    result = transforms.run(message())
    assert isinstance(result, Message)
    assert result.body == b"bodyabc"
    assert transforms.always
    assert len(transforms.transforms) == 3


def test_a_list_knows_the_names_that_wake_it() -> None:
    transforms = TransformList(default_transforms(SimpleTopics(), LEVELS))
    assert set(transforms.needles) == {b"INNER_NUM\x01", b"TIMER_DEL", b"DELAY\x01"}
    assert not transforms.always


# Properties that decide


def test_waiting_is_the_rule() -> None:
    assert waits(message())
    assert waits(message(WAIT="true"))
    assert not waits(message(WAIT="false"))
    assert waits(message(WAIT="falsehood"))
    assert waits(Message("T", 0, b"", b"WAIT\x01false\x02WAIT\x01true\x02"))
    assert not waits(msgspec.structs.replace(message(WAIT="true"), wait=False))
    assert waits(msgspec.structs.replace(message(WAIT="false"), wait=True))


def test_an_item_gets_what_it_lacks_from_the_wrapper() -> None:
    wrapper = wrapper_pairs(b"CLUSTER\x01c\x02UNIQ_KEY\x01w\x02WAIT\x01true\x02EMPTY\x01\x02")
    assert merge_wrapper(b"UNIQ_KEY\x01own\x02", wrapper) == b"UNIQ_KEY\x01own\x02CLUSTER\x01c\x02WAIT\x01true\x02"
    assert merge_wrapper(b"a\x01b", wrapper[:1]) == b"a\x01b\x02CLUSTER\x01c\x02"
    assert merge_wrapper(b"", wrapper[:1]) == b"CLUSTER\x01c\x02"
    assert merge_wrapper(b"x\x01CLUSTER\x02", wrapper[:1]) == b"x\x01CLUSTER\x02CLUSTER\x01c\x02"
    full = b"WAIT\x01no\x02CLUSTER\x01d\x02UNIQ_KEY\x01own\x02"
    assert merge_wrapper(full, wrapper) is full
