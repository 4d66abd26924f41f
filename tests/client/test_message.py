"""Messages: what may be sent, and what is said about the rest."""

from datetime import UTC, datetime, timedelta

import pytest

from cometmq.client.errors import InvalidMessage
from cometmq.client.message import Message, SendReceipt, SendStatus
from cometmq.client.queues import MessageQueue


def test_properties_of_a_message() -> None:
    message = Message(
        b"x", tag="t", keys=["a", "b"], properties={"mine": "1"}, sharding_key="s", wait_store_ok=False, buyer_id="b"
    )
    assert message.property_map() == {
        "mine": "1",
        "TAGS": "t",
        "KEYS": "a b",
        "__SHARDINGKEY": "s",
        "BUYER_ID": "b",
        "WAIT": "false",
    }


def test_a_body_is_bytes() -> None:
    with pytest.raises(TypeError, match=r"encode the text, for example body.encode"):
        Message("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not dict"):
        Message({})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": timedelta(seconds=1), "delay_level": 1},
        {"delay_level": -1},
        {"deliver_at": datetime(2030, 1, 1)},
        {"properties": {"KEYS": "x"}},
        {"properties": {"": "x"}},
        {"properties": {"x": ""}},
        {"properties": {"x": "a\x02b"}},
    ],
)
def test_what_cannot_be_sent(options: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage):
        Message(b"x", **options)  # type: ignore[arg-type]


def test_values_of_properties_are_text() -> None:
    with pytest.raises(TypeError, match="text"):
        Message(b"x", properties={"n": 1})  # type: ignore[dict-item]


def test_delivery_time() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message(b"x", deliver_at=moment).delivery_time == moment
    assert Message(b"x").delivery_time is None


def test_a_receipt_is_the_line_that_operators_grep_for() -> None:
    receipt = SendReceipt(SendStatus.SEND_OK, "ID", "OFFSET", MessageQueue("orders", "broker-a", 3), 7)
    assert str(receipt) == "SEND_OK msgId=ID, offsetMsgId=OFFSET, queue=broker-a/orders/3, offset=7"
