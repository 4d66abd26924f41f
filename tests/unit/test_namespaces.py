"""Namespaces of both versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.namespaces import (
    namespace_fields,
    namespace_of,
    unwrap,
    unwrap_any,
    wrap,
    wrapped_retry_topic,
)

NAMESPACES = st.text("abcMQ_INST019-", min_size=1, max_size=12)
NAMES = st.tuples(st.sampled_from(["", "%RETRY%", "%DLQ%"]), st.text("abcXYZ019_-", min_size=1, max_size=12)).map(
    "".join
)


@pytest.mark.parametrize(
    ("plain", "wire"),
    [
        ("T", "MQ_INST_X%T"),
        ("%RETRY%G", "%RETRY%MQ_INST_X%G"),
        ("%DLQ%G", "%DLQ%MQ_INST_X%G"),
    ],
)
def test_names_on_the_wire(plain: str, wire: str) -> None:
    assert wrap("MQ_INST_X", plain) == wire
    assert wrap("MQ_INST_X", wire) == wire
    assert unwrap("MQ_INST_X", wire) == plain
    assert unwrap("MQ_INST_X", plain) == plain
    assert unwrap("MQ_INST_Y", wire) == wire
    assert unwrap_any(wire) == plain
    assert unwrap_any(plain) == plain
    assert namespace_of(wire) == "MQ_INST_X"
    assert namespace_of(plain) == ""


@pytest.mark.parametrize(
    "name",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "CID_RMQ_SYS_TRANS",
        "%RETRY%CID_RMQ_SYS_TRANS",
        "",
        "%RETRY%",
    ],
)
def test_names_of_the_system_stay(name: str) -> None:
    assert wrap("MQ_INST_X", name) == name
    assert unwrap("MQ_INST_X", name) == name
    assert unwrap_any(name) == name
    assert namespace_of(name) == ""


@given(NAMES)
def test_no_namespace_changes_nothing(name: str) -> None:
    assert wrap("", name) == name
    assert unwrap("", name) == name


@given(NAMESPACES, NAMES)
def test_wrapping_is_undone_and_idempotent(namespace: str, name: str) -> None:
    wire = wrap(namespace, name)
    assert wrap(namespace, wire) == wire
    assert unwrap(namespace, wire) == name
    assert unwrap_any(wire) == name
    assert namespace_of(wire) == namespace


def test_light_message_queues_have_no_namespace() -> None:
    assert namespace_of("%LMQ%one") == ""
    assert unwrap_any("%LMQ%one") == "%LMQ%one"


def test_retry_topic_of_a_group() -> None:
    assert wrapped_retry_topic("MQ_INST_X", "G") == "%RETRY%MQ_INST_X%G" == wrap("MQ_INST_X", "%RETRY%G")
    assert wrapped_retry_topic("", "G") == "%RETRY%G"


def test_fields_of_version_2() -> None:
    assert namespace_fields("ns1") == {"nsd": "true", "ns": "ns1"}
    assert namespace_fields("") == {}
