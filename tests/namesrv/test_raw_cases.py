"""Odd and broken requests: ours answers or closes as the real nameserver 5.3.3 did when it was asked the same.

The differences that we want are in `OWN_WAY`, each with its reason. In all cases the language of the answer, the
version, the order of maps and lists, and the time do not count.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol import fastjson, properties_text
from cometmq.protocol.bodies.registration import DataVersion, RegisterBrokerBody, TopicConfig
from cometmq.protocol.bodies.registration import TopicConfigAndMappingSerializeWrapper as Topics
from support import golden
from support.wire import Reply, Wire, connect, frame, plain

CASES = {case.case: case for case in golden.raw_cases("raw-cases") if case.target == "namesrv"}

#: Cases whose answer is another one here: code and remark (None: any text of our own).
OWN_WAY: dict[str, tuple[int, str | None]] = {
    # RocketMQ waits for twelve bytes before it looks at the first frame. We answer at once.
    "first-10-bytes-only": (3, " request type 0 not supported"),
    # Java tells the class and the line of its exception.
    "query-data-version": (1, None),
}
#: A request without opaque: Java answers under a number of its own, which nobody can match.
ANY_OPAQUE = {"header-empty-json", "first-10-bytes-only"}
#: Settings that belong to the installation.
PLACES = {"configStorePath", "kvConfigPath", "rocketmqHome", "listenPort"}

PROBE = 29999


def recorded_topics() -> list[str]:
    """The topics of the broker that was registered while the cases were recorded."""
    ((_, body, _),) = CASES["topic-list"].answers
    return list(fastjson.loads(body)["topicList"])


def broker_of_the_recording() -> bytes:
    """Its registration, as its routes in the recording show it."""
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in recorded_topics()}
    table["TBW102"] = TopicConfig(topic_name="TBW102", perm=7, read_queue_nums=8, write_queue_nums=8)
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=Topics(data_version=DataVersion(counter=1), topic_config_table=table)
    ).encode()
    header = {
        "brokerName": "broker-a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": 0,
        "enableActingMaster": "false",
    }
    return frame(103, header, body)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=0, kv_config_path=str(tmp_path / "kv.json"), config_store_path=str(tmp_path / "namesrv.properties")
    )
    async with NameServer(config) as running:
        yield running


async def replies_until_probe(wire: Wire) -> list[Reply]:
    """What came before the answer to a request that is known to be answered; EOFError when the peer closed."""
    wire.send(frame(PROBE, opaque=78))
    replies = []
    while (reply := await wire.receive()).opaque != 78:
        replies.append(reply)
    return replies


def body_of(case: str, body: bytes) -> object:
    if case == "namesrv-config":
        return {key: value for key, value in properties_text.loads(body).items() if key not in PLACES}
    return plain(fastjson.loads(body)) if body else None


async def check(case: golden.RawCase, port: int) -> None:
    async with connect(port) as wire:
        wire.send(case.sent)
        if case.closed:
            await wire.closed()
            assert not case.answers
            return
        expected = 1 if case.case in OWN_WAY else len(case.answers)
        replies = [await wire.receive() for _ in range(expected)]
        assert await replies_until_probe(wire) == [], "more answers than in the recording"
    if case.case in OWN_WAY:
        (reply,) = replies
        code, remark = OWN_WAY[case.case]
        assert reply.code == code
        assert reply.remark
        assert remark in (None, reply.remark)
        assert "java" not in reply.remark.lower()
        return
    for reply, (header, body, _) in zip(replies, case.answers, strict=True):
        assert (reply.code, reply.remark) == (header["code"], header.get("remark"))
        assert reply.ext == header.get("extFields", {})
        assert case.case in ANY_OPAQUE or reply.opaque == header["opaque"]
        assert body_of(case.case, reply.body) == body_of(case.case, body)


async def test_all_cases_in_their_order(server: NameServer) -> None:
    """In one go: some of them build on others, as in the recording."""
    done = []
    async with connect(server.port) as broker:
        broker.send(broker_of_the_recording())
        assert (await broker.receive()).code == 0
        for name, case in CASES.items():
            assert case.cut is None
            try:
                await check(case, server.port)
            except (AssertionError, EOFError, TimeoutError) as error:
                raise AssertionError(f"case {name}: {error!r}") from error
            done.append(name)
        broker.send(frame(105, {"topic": "TBW102"}))
        assert (await broker.receive()).code == 0, "the broker of the recording is untouched"
    assert len(done) == len(CASES) == 49


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.closed])
async def test_bad_frame_closes_only_its_own_connection(server: NameServer, name: str) -> None:
    async with connect(server.port) as other, connect(server.port) as wire:
        assert await replies_until_probe(other) == []
        wire.send(CASES[name].sent)
        await wire.closed()
        assert await replies_until_probe(other) == []


@pytest.mark.parametrize("name", ["route-tbw102", "kv-put-null", "unknown-code"])
async def test_case_byte_by_byte(server: NameServer, name: str) -> None:
    """However the bytes are cut into packets, the answer is the same."""
    async with connect(server.port) as broker, connect(server.port) as wire:
        broker.send(broker_of_the_recording())
        await broker.receive()
        for byte in CASES[name].sent:
            wire.send(bytes((byte,)))
            await wire.flush()
        reply = await wire.receive()
    ((header, body, _),) = CASES[name].answers
    assert (reply.code, reply.remark, body_of(name, reply.body)) == (
        header["code"],
        header.get("remark"),
        body_of(name, body),
    )
