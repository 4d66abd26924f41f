"""Replies over real sockets: pushed to who waits for them, stored beside, and what is said when nobody waits."""

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.channels import ClientChannel
from cometmq.broker.handlers import reply
from cometmq.broker.producers import Producers
from cometmq.protocol.properties import decode_properties, parse_properties
from support.raw_peer import RawPeer, request, response
from support.small_broker import SmallBroker

REPLY_V2, PUSH = 325, 326
TOPIC = "DefaultCluster_REPLY_TOPIC"
TEXT = "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{}\x02UNIQ_KEY\x01C0\x02TTL\x018000\x02CORRELATION_ID\x01id-1\x02"


@pytest.fixture(params=["true", "false"], ids=["stored", "not-stored"])
async def broker(tmp_path: Path, request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    async with SmallBroker(tmp_path, [reply.rows], storeReplyMessageEnable=request.param) as running:
        running.state.producers = Producers()
        yield running


def frame(text: str, body: bytes = b"the answer", **changes: str) -> bytes:
    keys = {
        "a": "PG_reply",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    } | changes
    return request(REPLY_V2, keys, body, opaque=7, version=479)


async def waiting_client(broker: SmallBroker, name: str) -> RawPeer:
    """A client that the broker knows as a producer."""
    peer = await broker.peer()
    assert (await peer.ask(request(29999, opaque=1))).code == 3, "an answer: the broker has the connection"
    (connection,) = [each for each in broker.server.connections if each.remote_address == peer.address]
    broker.state.producers.register(ClientChannel(connection, name), "PG")
    return peer


async def test_a_reply_reaches_the_client_that_waits(broker: SmallBroker) -> None:
    waiting = await waiting_client(broker, "asker")
    replier = await broker.peer()
    replier.write(frame(TEXT.format("asker")))
    pushed = await waiting.frame()
    assert (pushed.code, pushed.body) == (PUSH, b"the answer")
    ext = pushed.ext
    properties = parse_properties(ext.pop("properties"))
    assert properties.pop("PUSH_REPLY_TIME") == ext.pop("storeTimestamp")
    assert properties == parse_properties(TEXT.format("asker")) | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert ext == {
        "producerGroup": "PG_reply",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": f"127.0.0.1:{replier.address[1]}",
        "storeHost": broker.state.address,
    }
    await waiting.send(response(pushed.opaque))
    answer = await replier.frame()
    assert (answer.code, answer.remark) == (0, None)
    stored = broker.records(TOPIC)
    if broker.config.store_reply_message_enable:
        (record,) = stored
        assert record.body == b"the answer"
        assert decode_properties(record.properties) == properties
        assert answer.ext["msgId"] == record.message_id
    else:
        assert stored == []
        assert answer.ext["msgId"] == "0"
    assert {key: answer.ext[key] for key in ("queueId", "queueOffset", "TRACE_ON", "MSG_REGION")} == {
        "queueId": "0",
        "queueOffset": "0",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
    }


async def test_nobody_waits(broker: SmallBroker) -> None:
    replier = await broker.peer()
    answer = await replier.ask(frame(TEXT.format("gone")))
    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <gone> not found.")
    assert len(broker.records(TOPIC)) == broker.config.store_reply_message_enable, "it is stored all the same"


async def test_a_reply_that_does_not_say_to_whom(broker: SmallBroker) -> None:
    replier = await broker.peer()
    answer = await replier.ask(frame("MSG_TYPE\x01reply\x02"))
    assert answer.code == 1
    assert "REPLY_TO_CLIENT" in (answer.remark or "")


async def test_the_client_refuses_the_reply_or_goes_away(broker: SmallBroker) -> None:
    waiting = await waiting_client(broker, "asker")
    replier = await broker.peer()
    replier.write(frame(TEXT.format("asker")))
    pushed = await waiting.frame()
    await waiting.send(response(pushed.opaque, 1, remark="no more"))
    answer = await replier.frame()
    assert (answer.code, answer.remark) == (1, "push reply message to asker fail: it answered 1 no more")
    replier.write(frame(TEXT.format("asker")))
    await waiting.frame()
    await waiting.close()
    answer = await asyncio.wait_for(replier.frame(), 10)
    assert answer.code == 1
    assert (answer.remark or "").startswith("push reply message to asker fail: ")


@pytest.mark.parametrize(("changes", "code"), [({"b": "a b"}, 29), ({"e": "9"}, 29), ({"b": "SELF_TEST_TOPIC"}, 16)])
async def test_a_reply_is_checked_like_a_send(broker: SmallBroker, changes: dict[str, str], code: int) -> None:
    replier = await broker.peer()
    answer = await replier.ask(frame(TEXT.format("x"), **changes))
    assert answer.code == code
    assert answer.ext == {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
