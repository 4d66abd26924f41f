"""Valid names, names of the system, names derived from a group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import names
from cometmq.protocol.names import InvalidName, validate_group, validate_topic

VALID = st.text("%|abcXYZ019_-", min_size=1, max_size=120)


@given(VALID)
def test_all_allowed_characters(name: str) -> None:
    validate_topic(name)
    validate_group(name)


@given(VALID, st.characters().filter(lambda char: not (char.isascii() and (char.isalnum() or char in "%|_-"))), VALID)
def test_any_other_character_is_refused(head: str, char: str, tail: str) -> None:
    for validate in (validate_topic, validate_group):
        with pytest.raises(InvalidName, match="illegal characters"):
            validate(head + char + tail)


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u3000"])
def test_blank(name: str) -> None:
    with pytest.raises(InvalidName, match=r"The specified topic is blank\.$"):
        validate_topic(name)
    with pytest.raises(InvalidName, match=r"The specified group is blank\.$"):
        validate_group(name)


@pytest.mark.parametrize(
    ("prefix", "longest"), [("", 127), ("%RETRY%", 255), ("%DLQ%", 255), ("%LMQ%", 127), ("x%RETRY%", 127)]
)
def test_length_of_a_topic(prefix: str, longest: int) -> None:
    validate_topic(prefix + "t" * (longest - len(prefix)))
    with pytest.raises(InvalidName, match=r"The specified topic is longer than topic max length\.$"):
        validate_topic(prefix + "t" * (longest + 1 - len(prefix)))


def test_length_of_a_group() -> None:
    validate_group("g" * 120)
    with pytest.raises(InvalidName, match="longer"):
        validate_group("g" * 121)
    validate_group("g" * 255, longest=255)


def test_an_invalid_name_has_a_code() -> None:
    with pytest.raises(InvalidName) as caught:
        validate_topic("a b")
    assert caught.value.code == 29
    assert str(caught.value) == ("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")


def test_a_line_break_at_the_end_is_no_part_of_a_name() -> None:
    with pytest.raises(InvalidName, match="illegal"):
        validate_topic("TopicTest\n")


def test_system_topics() -> None:
    for topic in ("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"):
        assert names.is_system_topic(topic)
    assert names.is_system_topic("rmq_sys_REVIVE_LOG_DefaultCluster")
    assert names.is_system_topic(names.TIMER_TOPIC)
    for topic in ("TopicTest", "tbw102", "%RETRY%TBW102", "RMQ_SYS_MINE"):
        assert not names.is_system_topic(topic)


def test_system_groups() -> None:
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("CID_mine")


def test_topics_that_take_no_sends() -> None:
    assert {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    } == names.SEND_FORBIDDEN_TOPICS
    assert names.SEND_FORBIDDEN_TOPICS < names.SYSTEM_TOPICS


@given(VALID)
def test_names_of_a_group(group: str) -> None:
    assert names.retry_topic(group) == "%RETRY%" + group
    assert names.dlq_topic(group) == "%DLQ%" + group
    for topic in (names.retry_topic(group), names.dlq_topic(group)):
        validate_topic(topic)
        assert names.group_of(topic) == group
    assert names.is_retry_topic(names.retry_topic(group))
    assert not names.is_retry_topic(names.dlq_topic(group))
    assert names.is_dlq_topic(names.dlq_topic(group))
    assert not names.is_dlq_topic(names.retry_topic(group))


def test_other_topics_have_no_group() -> None:
    assert names.group_of("TopicTest") is None


def test_reply_topic() -> None:
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
