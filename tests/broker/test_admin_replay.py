"""The requests of the real mqadmin 5.3.3, as they were captured, get answers of the shape that the real broker gave.

A shape is what stays of a JSON text without its values: keys and types. Where our broker was given the data of the
recorded one, the values are compared too. What we answer in another way is in `OWN_WAY`, each with its reason.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.message import Message
from cometmq.protocol import fastjson, properties_text
from cometmq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.protocol.properties import encode_properties, parse_properties
from cometmq.protocol.record import Record, decode_records
from support import golden
from support.admin_broker import AdminBroker
from support.raw_peer import Frame, RawPeer, request, response

#: The requests of this test; the others of the capture are played where their handlers are tested.
CODES = {12, 25, 26, 28, 33, 202, 203, 204, 208, 222, 300, 307, 315, 317, 321, 328, 354, 907, 2001, 2002, 2003, 2004}
#: These look for messages that were sent long after the first ten, which are all that our broker has.
OTHER_MESSAGES = {"queryMsgById-directly", "queryMsgByUniqueKey-directly", "queryMsgById-resend", "queryMsgById-format"}
EXCHANGES = [
    exchange
    for exchange in golden.exchanges("admin")
    if exchange.request.link == "admin-broker"
    and exchange.request.dir == "c2s"
    and exchange.request.code in CODES
    and exchange.response is not None
    and not (exchange.request.code in (12, 33) and exchange.request.cmd in OTHER_MESSAGES)
]

#: Code -> why the shape of our answer is another one.
OWN_WAY = {
    # Without RocksDB there is nothing to compare, and the answer says so; the real one answers "in progress".
    354: {"checkResult": "text", "checkStatus": "int"},
}
#: Keys of the runtime info that depend on the place of the log and on what waits.
DEPENDS = ("commitLogDiskRatio_", "scheduleMessageOffset_")

TOPIC, GROUP = "TopicAdmin", "CG_admin"
#: Bytes of each of the first ten recorded messages; the first went to queue 2 of 4.
SIZE, FIRST_QUEUE, QUEUES = 246, 2, 4
RECORDED_AT = 1794847365314


def recorded_messages() -> dict[int, Record]:
    """Those of the first ten messages that somebody queried, by their number."""
    found = {}
    for exchange in EXCHANGES:
        if exchange.request.code in (12, 33) and exchange.response is not None and exchange.response.code == 0:
            for record in decode_records(exchange.response.body):
                number, rest = divmod(record.physical_offset, SIZE)
                if number < 10 and not rest:
                    found[number] = record
    return found


def message_like(number: int, recorded: dict[int, Record]) -> Message:
    """The message that the recorded broker had at this place."""
    known = recorded.get(number) or recorded[0]
    properties = parse_properties(known.properties.decode())
    if number not in recorded:
        properties |= {"KEYS": f"key{number}", "n": str(number), "UNIQ_KEY": f"U{number:031d}"}
    body = f"admin {number}".encode()
    queue_id = (FIRST_QUEUE + number) % QUEUES
    return Message(TOPIC, queue_id, body, encode_properties(properties), born_timestamp=known.born_timestamp)


def heartbeat(client_id: str) -> bytes:
    subscriptions = [
        SubscriptionData(topic=TOPIC, sub_string="TagA", tags_set=["TagA"], code_set=[2598919], sub_version=1),
        SubscriptionData(topic=f"%RETRY%{GROUP}", sub_string="*", sub_version=1),
    ]
    consumer = ConsumerData(
        group_name=GROUP,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_data_set=subscriptions,
    )
    producers = [ProducerData(group_name="PG_admin"), ProducerData(group_name="CLIENT_INNER_PRODUCER")]
    return HeartbeatData(client_id=client_id, consumer_data_set=[consumer], producer_data_set=producers).encode()


async def answer_running_info(client: RawPeer, body: bytes) -> None:
    """A consumer that tells what the recorded one told."""
    while True:
        question = await client.reader.readexactly(8)
        length, word = struct.unpack(">II", question)
        header = json.loads((await client.reader.readexactly(length - 4))[: word & 0xFFFFFF])
        if header["code"] == 307:
            await client.send(response(header["opaque"], 0, body, remark="not set any response code"))


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AdminBroker]:
    """A broker with what the recorded one had: topics, groups, the first ten messages, a client."""
    clock = FakeClock(wall=RECORDED_AT)
    async with AdminBroker(tmp_path, clock=clock, brokerConfigPath=str(tmp_path / "broker.conf")) as running:
        for topic in (TOPIC, "AdmTopic", "AdmTopic2", "AdmFifo", f"%RETRY%{GROUP}"):
            running.topic(topic, 1 if topic.startswith("%") else QUEUES)
        for group in (GROUP, "AdmCons", "AdmGroup"):
            running.group(group)
        recorded = recorded_messages()
        for number in range(10):
            await running.put_message(message_like(number, recorded))
            running.state.stats.put(TOPIC, number % QUEUES, 1, SIZE)
            running.state.stats.got(GROUP, TOPIC, number % QUEUES, 1, SIZE)
        running.state.stats.put("SCHEDULE_TOPIC_XXXX", 2, 1, SIZE)  # a retry that waited
        for queue_id in range(QUEUES):
            running.state.offsets.commit(GROUP, TOPIC, queue_id, 2)
        running.state.offsets.commit(GROUP, f"%RETRY%{GROUP}", 0, 0)
        infos = [each for each in EXCHANGES if each.request.code == 307]
        assert infos[0].response is not None
        tasks = []
        for client_id in sorted({each.request.ext["clientId"] for each in infos}):
            client = await running.peer()
            await client.send(request(34, {}, heartbeat(client_id)))
            tasks.append(asyncio.create_task(answer_running_info(client, infos[0].response.body)))
        while len(getattr(running.state.consumers.get(GROUP), "channels", ())) < len(tasks):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        yield running
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
                await task


def shape(value: Any) -> Any:
    """Keys and types. Tables whose keys are data have one shape for all values, lists one for all items."""
    if isinstance(value, dict):
        if value and all(not isinstance(key, str) for key in value):
            return {"a queue": merged(value.values())}
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [merged(value)]
    names = {bool: "bool", int: "int", float: "float", str: "text"}
    return names.get(type(value), str(type(value)))


def merged(values: Any) -> Any:
    shapes = [shape(value) for value in values]
    return max(shapes, key=lambda each: len(str(each)), default=None)


def keys_of_data(body: Any, *path: str) -> Any:
    """A body in which the keys of a table that are data do not count."""
    *rest, last = path
    inner = body
    for name in rest:
        inner = inner[name]
    inner[last] = list(inner[last].values())
    return body


def comparable(code: int, body: bytes) -> Any:
    """A body of which equal shapes are expected."""
    if code in (12, 33):
        return [shape(properties_of(record)) for record in decode_records(body)][:1]
    if code == 26:
        return "properties" if properties_text.loads(body) else None
    if not body:
        return None
    value = fastjson.loads(body)
    match code:
        case 28:
            names = sorted(key for key in value["table"] if not key.startswith(DEPENDS))
            return {"table": names}
        case 203:
            value = keys_of_data(value, "subscriptionTable")
        case 317:
            value["consumeStatsList"] = [stats for group in value["consumeStatsList"] for stats in group.values()]
        case 328:
            value = keys_of_data(value, "data")
        case 300:
            return {"groupList": "a list"} if isinstance(value["groupList"], list) else value
        case 307:
            return sorted(value)  # what the client says is passed on as it is
    return shape(value)


def properties_of(record: Record) -> dict[str, str]:
    return dict(parse_properties(record.properties.decode()))


async def check(peer: RawPeer, exchange: golden.Exchange) -> None:
    sent, recorded = exchange.request, exchange.response
    assert sent.raw is not None
    assert recorded is not None
    answer = await peer.ask(sent.raw)
    assert answer.opaque == sent.opaque
    assert answer.code == recorded.code, answer.remark
    if recorded.code != 0:
        assert answer.remark == (recorded.header or {}).get("remark")
    elif sent.code != 2004:  # there the remark is the answer
        assert answer.remark is None
    assert set(answer.ext) == set(recorded.ext)
    if recorded.code == 0:
        expected = OWN_WAY.get(sent.code) or comparable(sent.code, recorded.body)
        assert comparable(sent.code, answer.body) == expected


async def test_all_answers_have_the_recorded_shape(broker: AdminBroker) -> None:
    """In the order of the recording, on one broker."""
    peer = await broker.peer()
    failed = []
    for exchange in EXCHANGES:
        try:
            await check(peer, exchange)
        except AssertionError as error:
            failed.append(f"{exchange.request} of {exchange.request.cmd}: {error}")
    assert not failed, "\n".join(failed)
    assert len(EXCHANGES) == 106


async def replay(broker: AdminBroker, cmd: str, code: int, number: int = 0) -> tuple[Frame, golden.Frame]:
    """Our answer and the recorded one to a request of a command."""
    exchange = [each for each in EXCHANGES if (each.request.cmd, each.request.code) == (cmd, code)][number]
    assert exchange.request.raw is not None
    assert exchange.response is not None
    return await (await broker.peer()).ask(exchange.request.raw), exchange.response


# Where the data are equal


@pytest.mark.parametrize(("cmd", "code"), [("queryMsgById", 33), ("queryMsgByKey", 12), ("queryMsgByUniqueKey", 12)])
async def test_queried_messages_are_those_of_the_recording(broker: AdminBroker, cmd: str, code: int) -> None:
    ours, recorded = await replay(broker, cmd, code)
    assert recorded.code == 0
    (own,), (other,) = list(decode_records(ours.body)), list(decode_records(recorded.body))
    for name in ("topic", "queue_id", "queue_offset", "physical_offset", "body", "flag", "reconsume_times"):
        assert getattr(own, name) == getattr(other, name), name
    assert properties_of(own) == properties_of(other)


async def test_units_of_a_queue_are_those_of_the_recording(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "queryCq", 321)
    assert fastjson.loads(ours.body)["queueData"] == fastjson.loads(recorded.body)["queueData"]


async def test_a_reset_to_before_the_first_message_is_that_of_the_recording(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "resetOffsetByTime", 222)
    assert fastjson.loads(ours.body) == fastjson.loads(recorded.body)


async def test_the_state_of_replication_is_that_of_the_recording(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "haStatus", 907)
    own, other = fastjson.loads(ours.body), fastjson.loads(recorded.body)
    assert own.pop("masterCommitLogMaxOffset") == 10 * SIZE
    del other["masterCommitLogMaxOffset"]
    assert own == other


async def test_subscriptions_are_those_of_the_recording(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "consumerConnection", 203)
    own, other = fastjson.loads(ours.body), fastjson.loads(recorded.body)
    for table in (own, other):
        del table["connectionSet"]
        for each in table["subscriptionTable"].values():
            del each["subVersion"]
    assert own == other


async def test_consumers_of_a_topic_are_those_of_the_recording_but_the_topic_itself(broker: AdminBroker) -> None:
    for exchange in EXCHANGES:
        if exchange.request.code != 300:
            continue
        assert exchange.request.raw is not None
        assert exchange.response is not None
        ours = await (await broker.peer()).ask(exchange.request.raw)
        expected = set(fastjson.loads(exchange.response.body)["groupList"]) - {exchange.request.ext["topic"]}
        assert set(fastjson.loads(ours.body)["groupList"]) == expected, exchange.request


async def test_limits_of_cold_reads_are_those_of_the_recording(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "getColdDataFlowCtrInfo", 2003)
    assert ours.body == recorded.body


async def test_the_configuration_has_the_recorded_keys(broker: AdminBroker) -> None:
    ours, recorded = await replay(broker, "getBrokerConfig", 26)
    assert set(properties_text.loads(recorded.body)) <= set(properties_text.loads(ours.body))
    assert set(json.loads(ours.ext["version"])) == set(json.loads(recorded.ext["version"]))
