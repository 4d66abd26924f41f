"""A nameserver on real sockets: every request code, liveness by connections, and the frames of real brokers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.files import FileDamaged
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.handlers import handler_table
from cometmq.namesrv.server import EMBEDDED, NameServer
from cometmq.namesrv.state import NamesrvState
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.bodies.static_topic import TopicQueueMappingInfo
from cometmq.protocol.checksum import crc32
from cometmq.protocol.codec import encode_request
from cometmq.protocol.command import SerializeType
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.remoting.dispatch import HandlerTable, Request, Response
from cometmq.remoting.errors import ListenFailed
from cometmq.remoting.server import Server, ServerOptions
from support import golden
from support.wire import Reply, Wire, connect, frame, plain, until

V1 = DataVersion(counter=1, state_version=0, timestamp=1000)


def registration(
    name: str = "broker-a",
    id_: int = 0,
    topics: tuple[str, ...] = ("T1", "T2"),
    *,
    version: DataVersion = V1,
    perm: int = 6,
    **ext: object,
) -> tuple[dict[str, object], bytes]:
    """The ext and the body of a REGISTER_BROKER."""
    table = {topic: TopicConfig(topic_name=topic, perm=perm, read_queue_nums=4, write_queue_nums=4) for topic in topics}
    wrapper = TopicConfigAndMappingSerializeWrapper(data_version=version, topic_config_table=table)
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
    header = {
        "brokerName": name,
        "brokerAddr": f"{name}-{id_}:10911",
        "clusterName": "C",
        "haServerAddr": f"{name}-{id_}:10912",
        "brokerId": id_,
        "enableActingMaster": "false",
        "compressed": "false",
        "bodyCrc32": crc32(body),
    }
    return {**header, **ext}, body


async def register(wire: Wire, *args: Any, **options: Any) -> Reply:
    reply = await wire.call(103, *registration(*args, **options))
    assert (reply.code, reply.remark) == (0, None)
    return reply


async def topics_of(wire: Wire) -> set[str]:
    reply = await wire.call(206)
    assert reply.code == 0
    return set(reply.json()["topicList"])


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Every test ends with the tasks and file descriptors that it began with."""
    fds = count_fds()
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert count_fds() <= fds


@pytest.fixture
async def server(clock: FakeClock) -> AsyncIterator[NameServer]:
    async with NameServer(clock=clock) as running:
        yield running


@pytest.fixture
async def wire(server: NameServer) -> AsyncIterator[Wire]:
    async with connect(server.port) as connection:
        yield connection


def with_config(**options: Any) -> NameServer:
    return NameServer(replace(EMBEDDED, **options))


# Registration


async def test_registered_broker_is_in_routes_and_cluster_info(wire: Wire) -> None:
    reply = await register(wire)
    assert (reply.ext, reply.body, reply.version) == ({}, b"", 479)
    route = await wire.call(105, {"topic": "T1"})
    assert (route.code, route.remark, route.ext) == (0, None, {})
    assert route.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"broker-a-0:10911"},"brokerName":"broker-a","cluster":"C",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    info = await wire.call(106)
    assert info.body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"broker-a-0:10911"},"brokerName":"broker-a","cluster":"C",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"C":["broker-a"]}}'
    )


@pytest.mark.parametrize(
    ("version", "ext", "standard"),
    [
        (479, {}, True),
        (401, {}, True),
        (399, {}, False),
        (317, {}, False),
        (317, {"acceptStandardJsonOnly": "true"}, True),
        (317, {"acceptStandardJsonOnly": "false"}, False),
        (0, {}, False),
    ],
)
async def test_dialect_of_a_route_follows_version_and_wish(
    wire: Wire, version: int, ext: dict[str, str], standard: bool
) -> None:
    await register(wire)
    reply = await wire.call(105, {"topic": "T1", **ext}, version=version)
    assert (b'{"0":"broker' in reply.body, b'{0:"broker' in reply.body) == (standard, not standard)


async def test_answer_has_the_header_type_of_the_request(wire: Wire) -> None:
    await register(wire)
    wire.send(encode_request(SerializeType.ROCKETMQ, 105, 5, GetRouteInfo("T1")))
    reply = await wire.receive()
    assert (reply.kind, reply.opaque, reply.code) == (1, 5, 0)
    assert reply.json()["queueDatas"]


async def test_crc_is_checked_unless_it_is_zero(wire: Wire) -> None:
    ext, body = registration()
    reply = await wire.call(103, {**ext, "bodyCrc32": 1}, body)
    assert (reply.code, reply.remark) == (1, "crc32 not match")
    assert await topics_of(wire) == set()
    assert (await wire.call(103, {**ext, "bodyCrc32": 0}, body)).code == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"topicConfigSerializeWrapper":7}', b"\xff\xfe", b"{" * 100_000])
async def test_bad_body_is_answered_and_changes_nothing(wire: Wire, body: bytes) -> None:
    ext, _ = registration()
    reply = await wire.call(103, {**ext, "bodyCrc32": 0}, body)
    assert reply.code == 1
    assert "RegisterBrokerBody" in (reply.remark or "")
    assert (await wire.call(106)).json() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


@pytest.mark.parametrize("key", ["brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"])
async def test_missing_key_is_named(wire: Wire, key: str) -> None:
    ext, body = registration()
    del ext[key]
    reply = await wire.call(103, ext, body)
    assert reply.code == 1
    assert key in (reply.remark or "")


async def test_old_broker_sends_the_bare_topic_table(wire: Wire) -> None:
    ext, _ = registration(bodyCrc32=0)
    body = TopicConfigSerializeWrapper(
        data_version=V1, topic_config_table={name: TopicConfig(topic_name=name) for name in ("O1", "O2")}
    ).encode()
    assert (await wire.call(103, ext, body, version=36)).code == 0
    assert await topics_of(wire) == {"O1", "O2"}
    assert (await wire.call(103, ext, body, version=37)).code == 0, "since 3.0.11 it is wrapped once more"
    assert await topics_of(wire) == {"O1", "O2"}


@pytest.mark.parametrize("version", [407, 413, 479])
async def test_compressed_body_has_mappings_since_5(wire: Wire, version: int) -> None:
    wrapper = TopicConfigAndMappingSerializeWrapper(
        data_version=V1,
        topic_config_table={name: TopicConfig(topic_name=name) for name in ("T1", "T2")},
        topic_queue_mapping_info_map={"T1": TopicQueueMappingInfo(bname="broker-a", topic="T1", total_queues=3)},
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode_compressed(version=version)
    ext, _ = registration(compressed="true", bodyCrc32=crc32(body))
    assert (await wire.call(103, ext, body, version=version)).code == 0
    route = (await wire.call(105, {"topic": "T1"})).json()
    assert ("topicQueueMappingByBroker" in route) == (version >= 413)


async def test_registration_without_body(wire: Wire) -> None:
    ext, _ = registration(bodyCrc32=0)
    assert (await wire.call(103, ext)).code == 0
    assert list((await wire.call(106)).json()["brokerAddrTable"]) == ["broker-a"]


async def test_first_registration_with_one_topic_is_refused(wire: Wire) -> None:
    reply = await wire.call(103, *registration(topics=("T1",)))
    assert (reply.code, reply.remark) == (1, "register broker failed")
    await register(wire)
    await register(wire, topics=("T3",), version=DataVersion(counter=2))
    assert await topics_of(wire) == {"T1", "T2", "T3"}


async def test_slave_is_told_its_master(wire: Wire) -> None:
    await register(wire)
    reply = await register(wire, id_=1)
    assert reply.ext == {"masterAddr": "broker-a-0:10911", "haServerAddr": "broker-a-0:10912"}


async def test_order_conf_goes_to_brokers_and_into_routes() -> None:
    async with with_config(order_message_enable=True) as server, connect(server.port) as wire:
        assert (await register(wire)).body == b""
        await wire.call(105, {"topic": "T1"})
        await wire.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"})
        assert (await register(wire)).body == b'{"table":{"T1":"broker-a:4"}}'
        assert (await wire.call(105, {"topic": "T1"})).json()["orderTopicConf"] == "broker-a:4"
        assert "orderTopicConf" not in (await wire.call(105, {"topic": "T2"})).json()
        await wire.call(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"})
        assert "orderTopicConf" not in (await wire.call(105, {"topic": "T1"})).json()
        assert (await register(wire)).body == b'{"table":{}}'


async def test_order_conf_is_kept_from_brokers_when_told_so() -> None:
    async with with_config(return_order_topic_config_to_broker=False) as server, connect(server.port) as wire:
        await wire.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"})
        assert (await register(wire)).body == b""
        assert "orderTopicConf" not in (await wire.call(105, {"topic": "T1"})).json(), "orderMessageEnable is off"


async def test_topics_are_pruned_when_told_so() -> None:
    async with with_config(delete_topic_with_broker_registration=True) as server, connect(server.port) as wire:
        await register(wire)
        await register(wire, topics=("T2", "T3"), version=DataVersion(counter=2))
        assert await topics_of(wire) == {"T2", "T3"}


# Routes


async def test_unknown_topic(wire: Wire) -> None:
    reply = await wire.call(105, {"topic": "nope"})
    assert (reply.code, reply.body) == (17, b"")
    assert reply.remark == (
        "No topic route info in name server for the topic: nope\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


async def test_warm_up(clock: FakeClock) -> None:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path="", config_store_path="", need_wait_for_service=True
    )
    async with NameServer(config, clock=clock) as server, connect(server.port) as wire:
        await register(wire)
        clock.now += 44
        reply = await wire.call(105, {"topic": "T1"})
        assert (reply.code, reply.remark) == (1, "name server not ready")
        clock.now += 2
        assert (await wire.call(105, {"topic": "T1"})).code == 0


async def test_zones(wire: Wire) -> None:
    await register(wire, "broker-a", __ZONE_NAME="z1")
    await register(wire, "broker-b", __ZONE_NAME="z2")

    async def names(version: int = 479, **ext: str) -> list[str]:
        reply = await wire.call(105, {"topic": "T1", **ext}, version=version)
        assert reply.code == 0
        assert (b'{"0":' in reply.body) == (version >= 401)
        return sorted(data["brokerName"] for data in reply.json()["brokerDatas"])

    assert await names() == ["broker-a", "broker-b"]
    assert await names(__ZONE_MODE="true", __ZONE_NAME="Z1") == ["broker-a"]
    assert await names(317, __ZONE_MODE="true", __ZONE_NAME="z2") == ["broker-b"]
    assert await names(__ZONE_MODE="false", __ZONE_NAME="z1") == ["broker-a", "broker-b"]
    assert await names(__ZONE_MODE="true", __ZONE_NAME=" ") == ["broker-a", "broker-b"]
    assert await names(__ZONE_MODE="true") == ["broker-a", "broker-b"]
    assert (await wire.call(105, {"topic": "nope", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"})).code == 17
    far = await wire.call(105, {"topic": "T1", "__ZONE_MODE": "true", "__ZONE_NAME": "z3"})
    assert far.json() == {"brokerDatas": [], "queueDatas": [], "filterServerTable": {}}


async def test_acting_master() -> None:
    async with with_config(support_acting_master=True) as server, connect(server.port) as wire:
        await register(wire, id_=1, enableActingMaster="true")
        assert (await wire.call(105, {"topic": "T1"})).json()["brokerDatas"][0]["brokerAddrs"] == {
            "0": "broker-a-1:10911"
        }


# Tools


async def test_member_group(wire: Wire) -> None:
    await register(wire)
    reply = await wire.call(901, {"clusterName": "C", "brokerName": "broker-a"})
    assert reply.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"broker-a-0:10911"},"brokerName":"broker-a","cluster":"C"}}'
    )
    unknown = await wire.call(901, {"clusterName": "C", "brokerName": "x"})
    assert (unknown.code, unknown.json()["brokerMemberGroup"]["brokerAddrs"]) == (0, {})


async def test_lists(wire: Wire) -> None:
    await register(wire)
    assert await topics_of(wire) == {"T1", "T2"}
    assert (await wire.call(224, {"cluster": "C"})).json() == {"topicList": ["T1", "T2"]}
    assert (await wire.call(224, {"cluster": "x"})).body == b'{"topicList":[]}'
    assert (await wire.call(304)).json() == {"brokerAddr": "broker-a-0:10911", "topicList": ["C", "broker-a"]}
    for code in (311, 312, 313):
        assert (await wire.call(code)).body == b'{"topicList":[]}'


async def test_lists_can_be_switched_off_at_run_time(wire: Wire) -> None:
    assert (await wire.call(318, body=b"enableTopicList=false\nenableAllTopicList=false\n")).code == 0
    for code in (206, 224, 311, 312, 313):
        reply = await wire.call(code, {"cluster": "C"})
        assert (code, reply.code, reply.remark) == (code, 1, "disable")
    assert (await wire.call(304)).code == 0


async def test_write_permission(wire: Wire) -> None:
    await register(wire, perm=7)

    async def perm() -> int:
        value = (await wire.call(105, {"topic": "T1"})).json()["queueDatas"][0]["perm"]
        assert isinstance(value, int)
        return value

    assert (await wire.call(205, {"brokerName": "broker-a"})).ext == {"wipeTopicCount": "2"}
    assert await perm() == 5
    await register(wire, perm=7)
    assert await perm() == 5, "the version is the same"
    assert (await wire.call(327, {"brokerName": "broker-a"})).ext == {"addTopicCount": "2"}
    assert await perm() == 6
    assert (await wire.call(205, {"brokerName": "x"})).ext == {"wipeTopicCount": "0"}


async def test_topic_is_registered_and_deleted_by_hand(wire: Wire) -> None:
    await register(wire)
    body = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":2,"writeQueueNums":2}]}'
    assert (await wire.call(217, {"topic": "N"}, body)).code == 0
    assert (await wire.call(105, {"topic": "N"})).json()["queueDatas"][0]["readQueueNums"] == 2
    assert (await wire.call(217, {"topic": "M"}, body.replace(b"broker-a", b"broker-x"))).code == 0
    assert (await wire.call(217, {"topic": "M"})).code == 0
    assert (await wire.call(105, {"topic": "M"})).code == 17
    assert (await wire.call(216, {"topic": "N", "clusterName": "x"})).code == 0
    assert (await wire.call(105, {"topic": "N"})).code == 0
    assert (await wire.call(216, {"topic": "N", "clusterName": "C"})).code == 0
    assert (await wire.call(105, {"topic": "N"})).code == 17
    assert (await wire.call(216, {"topic": "T1"})).code == 0
    assert await topics_of(wire) == {"T2"}


async def test_kv(wire: Wire) -> None:
    key = {"namespace": "n", "key": "k"}
    missing = await wire.call(101, key)
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: n Key: k")
    assert (await wire.call(219, {"namespace": "n"})).remark == "No config item, Namespace: n"
    assert (await wire.call(100, {**key, "value": "ü=1;2"})).code == 0
    assert (await wire.call(101, key)).ext == {"value": "ü=1;2"}
    assert (await wire.call(219, {"namespace": "n"})).json() == {"table": {"k": "ü=1;2"}}
    for ext in ({}, {"namespace": "n"}, {"key": "k"}):
        reply = await wire.call(100, ext)
        assert (reply.code, reply.remark) == (1, "namespace or key is null")
    assert (await wire.call(102, key)).code == 0
    assert (await wire.call(102, key)).code == 0
    assert (await wire.call(101, key)).code == 22
    await wire.call(100, {**key, "value": "again"})
    assert (await wire.call(100, key)).code == 0, "a key without a value"
    assert (await wire.call(101, key)).code == 22


async def test_kv_and_config_survive_a_restart(tmp_path: Path) -> None:
    kv, store = tmp_path / "kv.json", tmp_path / "conf" / "namesrv.properties"
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(kv), config_store_path=str(store)
    )
    async with NameServer(config) as server, connect(server.port) as wire:
        await wire.call(100, {"namespace": "n", "key": "k", "value": "v"})
        assert (await wire.call(318, body=b"orderMessageEnable=true\nmine=x y\n")).code == 0
        assert server.config.order_message_enable
        text = (await wire.call(319)).body
    assert kv.read_bytes() == b'{"configTable":{"n":{"k":"v"}}}'
    assert store.read_bytes() == text
    assert b"mine=x y\n" in text
    assert b"orderMessageEnable=true\n" in text
    async with NameServer(config) as server, connect(server.port) as wire:
        assert (await wire.call(101, {"namespace": "n", "key": "k"})).ext == {"value": "v"}


async def test_config_update_is_refused(server: NameServer, wire: Wire) -> None:
    for body, remark in {
        b"enableTopicList=false\nkvConfigPath=/tmp/x\n": "Can not update config in black list.",
        b"enableTopicList=false\nrocketmqHome=/x\n": "Can not update config in black list.",
        b"enableTopicList=false\nlistenPort=1\nbindAddress=::\n": (
            "Can not update config at run time: bindAddress, listenPort"
        ),
    }.items():
        reply = await wire.call(318, body=body)
        assert (reply.code, reply.remark) == (16, remark)
    assert server.config == EMBEDDED
    for body in (b"a=\\u12", b"\xff\xfe=1"):
        reply = await wire.call(318, body=body)
        assert (reply.code, reply.remark) == (1, "string2Properties error")
    assert (await wire.call(318)).code == 0
    assert (await wire.call(318, body=b"scanNotActiveBrokerInterval=soon\nnonsense")).code == 0
    assert server.config.scan_not_active_broker_interval == 5000
    assert "nonsense=" in (await wire.call(319)).body.decode().splitlines()


async def test_store_that_cannot_be_written_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        config_store_path=str(blocked / "namesrv.properties"),
    )
    async with NameServer(config) as server, connect(server.port) as wire:
        reply = await wire.call(318, body=b"enableTopicList=false")
        assert reply.code == 1
        assert "file" in (reply.remark or "")
        assert server.config.enable_topic_list


async def test_every_code_has_a_permission_and_others_are_not_supported(wire: Wire) -> None:
    table = handler_table(NamesrvState(EMBEDDED, clock=lambda: 0.0), lambda changes: None)
    codes = {entry.code for entry in table}
    assert codes == {
        *range(100, 107),
        *(205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904),
    }
    assert all(entry.permission is not None for entry in table)
    for code in (0, 10, 34, 905, 1005, 29999):
        reply = await wire.call(code)
        assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


# Liveness


async def test_query_data_version(wire: Wire) -> None:
    ext = {"brokerName": "broker-a", "brokerAddr": "broker-a-0:10911", "clusterName": "C", "brokerId": 0}
    unknown = await wire.call(322, ext, V1.encode())
    assert (unknown.code, unknown.ext, unknown.body) == (0, {"changed": "true"}, b"")
    await register(wire)
    same = await wire.call(322, ext, V1.encode())
    assert (same.ext, same.body) == ({"changed": "false"}, b'{"counter":1,"stateVersion":0,"timestamp":1000}')
    other = await wire.call(322, ext, DataVersion(counter=9).encode())
    assert (other.ext, other.body) == ({"changed": "true"}, same.body)
    assert (await wire.call(322, ext)).ext == {"changed": "true"}
    bad = await wire.call(322, ext, b'{"timestamp":1,"counter":{"value":0}}')
    assert bad.code == 1
    assert "counter" in (bad.remark or "")


@pytest.mark.parametrize("sign", ["heartbeat", "query", "registration"])
async def test_signs_of_life(server: NameServer, wire: Wire, clock: FakeClock, sign: str) -> None:
    await register(wire, heartbeatTimeoutMillis=10_000)
    clock.now += 9
    ext = {"brokerName": "broker-a", "brokerAddr": "broker-a-0:10911", "clusterName": "C"}
    if sign == "heartbeat":
        assert (await wire.call(904, ext)).code == 0
    elif sign == "query":
        await wire.call(322, {**ext, "brokerId": 0}, V1.encode())
    else:
        await register(wire, heartbeatTimeoutMillis=10_000)
    clock.now += 9
    server.scan()
    assert await topics_of(wire) == {"T1", "T2"}
    clock.now += 2
    server.scan()
    assert not server.state.routes.brokers
    await wire.closed()


async def test_heartbeats_may_be_oneway(wire: Wire) -> None:
    ext = {"brokerName": "x", "brokerAddr": "x:1", "clusterName": "C"}
    wire.send(frame(904, ext, opaque=1, flag=2) + frame(322, {**ext, "brokerId": 0}, b"broken", opaque=2, flag=2))
    wire.send(frame(103, {}, opaque=3, flag=2) + frame(206, opaque=4))
    assert (await wire.receive()).opaque == 4, "no oneway request is answered, not even a broken one"


async def test_silent_broker_is_removed_and_its_connection_closed_by_the_timer() -> None:
    async with with_config(scan_not_active_broker_interval=1) as server, connect(server.port) as wire:
        await register(wire, heartbeatTimeoutMillis=1)
        await wire.closed()
        assert not server.state.routes.brokers


async def test_broker_is_gone_with_its_connection(server: NameServer, wire: Wire) -> None:
    async with connect(server.port) as broker:
        await register(broker)
        assert await topics_of(wire) == {"T1", "T2"}
    await until(lambda: not server.state.routes.brokers)
    assert (await wire.call(105, {"topic": "T1"})).code == 17
    assert (await wire.call(106)).json() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_broker_that_registered_again_outlives_its_old_connection(server: NameServer, wire: Wire) -> None:
    async with connect(server.port) as new:
        async with connect(server.port) as old:
            await register(old)
            await register(new)
            count = server.connection_count
        await until(lambda: server.connection_count < count)
        assert await topics_of(wire) == {"T1", "T2"}
    await until(lambda: not server.state.routes.brokers)


async def test_client_connections_come_and_go_without_harm(server: NameServer, wire: Wire) -> None:
    await register(wire)
    for _ in range(5):
        async with connect(server.port) as client:
            assert (await client.call(105, {"topic": "T1"})).code == 0
    assert await topics_of(wire) == {"T1", "T2"}


async def test_unregistration_by_request(wire: Wire) -> None:
    await register(wire)
    await register(wire, id_=1)
    ext = {"brokerName": "broker-a", "brokerAddr": "broker-a-0:10911", "clusterName": "C", "brokerId": 0}
    assert (await wire.call(104, ext)).code == 0
    assert (await wire.call(106)).json()["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"1": "broker-a-1:10911"}
    assert (await wire.call(104, {**ext, "brokerAddr": "broker-a-1:10911", "brokerId": 1})).code == 0
    assert await topics_of(wire) == set()


# Calls to brokers


class Peer:
    """A broker that listens for NOTIFY_MIN_BROKER_ID_CHANGE."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        table = HandlerTable()
        table.add(905, self._hear)
        self.server = Server(table, ServerOptions(host="127.0.0.1"))

    def _hear(self, request: Request[Any]) -> Response:
        assert request.is_oneway
        self.heard.put_nowait(request.ext)
        return Response()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.address[1]}"

    async def next(self) -> dict[str, str]:
        async with asyncio.timeout(10):
            return await self.heard.get()


async def test_brokers_are_told_of_a_new_lowest_id() -> None:
    first, second = Peer(), Peer()
    async with contextlib.AsyncExitStack() as stack:
        for peer in (first, second):
            await stack.enter_async_context(peer.server)
        server = await stack.enter_async_context(with_config(notify_min_broker_id_changed=True))
        async with connect(server.port) as one, connect(server.port) as two:
            await register(one, id_=2, enableActingMaster="true", brokerAddr=first.address)
            await register(two, id_=1, enableActingMaster="true", brokerAddr=second.address)
            assert await first.next() == {
                "minBrokerId": "1",
                "minBrokerAddr": second.address,
                "haBrokerAddr": "broker-a-1:10912",
            }
            assert second.heard.empty(), "the newcomer knows"
            gone = {"brokerName": "broker-a", "brokerAddr": second.address, "clusterName": "C", "brokerId": 1}
            await two.call(104, gone)
            assert await first.next() == {
                "minBrokerId": "2",
                "minBrokerAddr": first.address,
                "offlineBrokerAddr": second.address,
            }


async def test_brokers_are_told_of_a_lost_connection_but_not_of_our_own_end() -> None:
    first, second = Peer(), Peer()
    async with first.server, second.server:
        async with with_config(notify_min_broker_id_changed=True) as server, connect(server.port) as one:
            async with connect(server.port) as two:
                await register(one, id_=2, enableActingMaster="true", brokerAddr=first.address)
                await register(two, id_=1, enableActingMaster="true", brokerAddr=second.address)
                await first.next()
            assert (await first.next())["offlineBrokerAddr"] == second.address
            await register(one, id_=3, enableActingMaster="true", brokerAddr=second.address)
            await server.close()
        assert first.heard.empty()
        assert second.heard.empty()


async def test_nobody_is_told_unless_the_key_is_set(server: NameServer, wire: Wire) -> None:
    peer = Peer()
    async with peer.server:
        await register(wire, id_=2, enableActingMaster="true", brokerAddr=peer.address)
        await register(wire, id_=1, enableActingMaster="true", brokerAddr="127.0.0.1:1")
        assert (await wire.call(318, body=b"notifyMinBrokerIdChanged=true")).code == 0
        await register(wire, id_=0, enableActingMaster="true")
        assert (await peer.next())["minBrokerId"] == "0", "only the last change"


async def test_broker_that_cannot_be_told_does_no_harm(server: NameServer, wire: Wire) -> None:
    await wire.call(318, body=b"notifyMinBrokerIdChanged=true")
    await register(wire, id_=2, brokerAddr="127.0.0.1:1")
    await register(wire, id_=1, brokerAddr="not an address")
    await register(wire, id_=0)
    assert await topics_of(wire) == {"T1", "T2"}


# Start and stop


async def test_close_twice_and_without_start() -> None:
    server = NameServer()
    await server.close()
    async with NameServer() as server:
        await server.close()


async def test_two_side_by_side() -> None:
    async with NameServer() as one, NameServer() as two:
        assert one.port != two.port
        async with connect(one.port) as wire, connect(two.port) as other:
            await register(wire)
            assert await topics_of(other) == set(), "nameservers know nothing of each other"


async def test_taken_port_says_so() -> None:
    async with NameServer() as one:
        two = with_config(listen_port=one.port)
        with pytest.raises(ListenFailed, match=str(one.port)):
            await two.start()
        await two.close()


async def test_damaged_kv_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(b"{")
    server = with_config(kv_config_path=str(path))
    with pytest.raises(FileDamaged, match=r"kv\.json"):
        await server.start()
    await server.close()


async def test_keys_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with with_config(server_worker_threads=99, cluster_test=True):
        pass
    lines = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert lines == ["these keys have no effect here: clusterTest, serverWorkerThreads"]


# Frames of real brokers


@pytest.mark.parametrize("name", [name for name in golden.names() if name.startswith("broker-registration")])
async def test_captured_brokers_get_the_captured_answers(server: NameServer, name: str) -> None:
    """Up to the language, our version number for the one of 4.9, and the order of maps and lists."""
    compared = 0
    async with connect(server.port) as wire:
        for exchange in golden.exchanges(name):
            request, captured = exchange.request, exchange.response
            assert request.raw is not None
            assert request.whole
            wire.send(request.raw)
            if request.is_oneway:
                continue
            reply = await wire.receive()
            if captured is None:  # the capture ends before its answer
                continue
            compared += 1
            assert reply.opaque == request.opaque
            assert reply.kind == captured.is_binary, str(request)
            assert (reply.code, reply.remark) == (captured.code, captured.header.get("remark")), str(request)
            assert reply.ext == captured.ext, str(request)
            assert bool(reply.body) == bool(captured.body), str(request)
            if captured.body:
                assert reply.json() == plain(fastjson.loads(captured.body)), str(request)
    assert compared >= 3


async def test_captured_slave_gets_the_captured_answers(server: NameServer) -> None:
    async with connect(server.port) as master, connect(server.port) as slave:
        await register(
            master, clusterName="DefaultCluster", brokerAddr="127.0.0.1:10311", haServerAddr="127.0.0.1:10312"
        )
        compared = 0
        for exchange in golden.exchanges("ha-metadata"):
            request, captured = exchange.request, exchange.response
            if "namesrv" not in request.link or captured is None or request.raw is None:
                continue
            slave.send(request.raw)
            reply = await slave.receive()
            assert (reply.code, reply.ext) == (captured.code, captured.ext)
            assert plain(fastjson.loads(reply.body or b"{}")) == plain(fastjson.loads(captured.body or b"{}"))
            compared += 1
        assert compared >= 5


async def test_a_new_scan_interval_counts_at_once() -> None:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path="",
        config_store_path="",
        scan_not_active_broker_interval=3_600_000,
    )
    scanned = asyncio.Event()
    async with NameServer(config) as server:
        server.scan = scanned.set  # type: ignore[method-assign]
        await server.state.update_config({"scanNotActiveBrokerInterval": "10"})
        async with asyncio.timeout(10):
            await scanned.wait()
