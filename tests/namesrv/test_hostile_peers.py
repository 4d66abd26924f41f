"""Peers that mean no good: what they send is refused quickly, and everybody else is served."""

import struct
import zlib

import pytest

from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol.bodies.registration import MAX_TOPICS, MAX_UNPACKED, RegisterBrokerBody, TopicConfig
from cometmq.protocol.bodies.stats import ConsumeStats
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import BodyError
from cometmq.protocol.requests.namesrv import GetRouteInfo, QueryDataVersion, RegisterBroker, RegisterTopic
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.errors import ConnectFailed, ListenFailed

BROKER = {"broker_name": "b", "broker_addr": "127.0.0.1:1", "cluster_name": "c", "ha_server_addr": "", "broker_id": 0}


def compressed(topics: int, text: bytes = b"a 1 1 6 S") -> bytes:
    part = struct.pack(">i", len(text)) + text
    version = b'{"counter":1}'
    parts = struct.pack(">i", len(version)) + version + struct.pack(">i", topics) + part * topics
    return zlib.compress(parts + struct.pack(">i", 2) + b"[]" + struct.pack(">i", 0), 9)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (compressed(MAX_TOPICS + 1), "more than the limit of 100000 topics"),
        (compressed(1_200_000, b"topic 1 1 6 SINGLE_TAG {}"), f"more than {MAX_UNPACKED} bytes"),
    ],
)
async def test_a_small_registration_that_unpacks_to_very_many_topics(body: bytes, reason: str) -> None:
    assert len(body) < 200_000
    async with NameServer() as server, RemotingClient() as client:
        header = RegisterBroker(**BROKER, compressed=True)
        answer = await client.request(server.address, RequestCode.REGISTER_BROKER, header, body)
        assert (answer.code, reason in (answer.command.remark or "")) == (1, True)
        assert server.state.routes.topics == {}


async def test_a_registration_of_very_many_topics_in_the_plain_form() -> None:
    topics = b",".join(b'"%d":{}' % i for i in range(2 * MAX_TOPICS + 2000))
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + topics + b"}}}"
    async with NameServer() as server, RemotingClient() as client:
        answer = await client.request(server.address, RequestCode.REGISTER_BROKER, RegisterBroker(**BROKER), body)
        assert (answer.code, answer.command.remark) == (1, "RegisterBrokerBody: more than 100000 topics")


@pytest.mark.parametrize(
    ("code", "header", "size"),
    [
        (
            RequestCode.QUERY_DATA_VERSION,
            QueryDataVersion(broker_name="b", broker_addr="a", cluster_name="c", broker_id=0),
            5000,
        ),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopic(topic="t"), 300_000),
        (RequestCode.UPDATE_NAMESRV_CONFIG, None, 300_000),
    ],
)
async def test_bodies_have_a_limit_of_their_own(code: RequestCode, header: object, size: int) -> None:
    async with NameServer() as server, RemotingClient() as client:
        answer = await client.request(server.address, code, header, b"{1:" * (size // 3))  # type: ignore[arg-type]
        assert answer.code == 1
        assert f"{code.name} ({code:d}): body of {size // 3 * 3} bytes is over the limit" in (
            answer.command.remark or ""
        )
        route = await client.request(server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic="t"))
        assert route.code == 17


@pytest.mark.parametrize("text", ["t x 1 6 S", "t 1 1 99999999999 S", "t 1 1 --6 S", "t 1 1 6", "t ٣ 1 6 S"])
def test_a_topic_in_a_compressed_registration_is_looked_at(text: str) -> None:
    with pytest.raises(BodyError, match="TopicConfig"):
        TopicConfig.from_text(text)


def test_numbers_that_are_none() -> None:
    with pytest.raises(BodyError):
        ConsumeStats.decode(b'{"consumeTps":' + b"9" * 400 + b"}")
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":"\\u001f6"}}}}')


async def test_a_host_name_that_no_resolver_takes() -> None:
    with pytest.raises(ListenFailed, match=r"cannot listen on a\.\.b"):
        await NameServer(NamesrvConfig(bind_address="a..b", listen_port=0, kv_config_path="")).start()
    async with RemotingClient() as client:
        with pytest.raises(ConnectFailed, match=r"a\.\.b:1 could not be connected"):
            await client.request("a..b:1", RequestCode.GET_BROKER_CLUSTER_INFO)
