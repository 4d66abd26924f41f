"""A broker and its nameservers: what it tells them, when, and what happens when they are not there."""

import gc
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.config import from_sources
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol.bodies.registration import KVTable, TopicConfig
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.topics import CreateTopic
from cometmq.remoting.address import parse_address
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.dispatch import LATER, HandlerTable, Request, Response, Result
from cometmq.remoting.server import Server, ServerOptions
from support import broker_calls, golden
from support.raw_peer import RawPeer, request
from support.server_process import free_port
from support.wire import until


class Recorder:
    """A nameserver that only writes down what it is told."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[tuple[int, dict[str, str], bytes, bool]] = []
        self.answer = Response()
        #: Whether registrations are left without an answer.
        self.holds = False
        self._held: list[Request[Any]] = []
        table = HandlerTable()
        codes = (
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        )
        for code in codes:
            table.add(code, self._record)
        self.server = Server(table, ServerOptions(host="127.0.0.1", port=port))

    def _record(self, request: Request[Any]) -> Result:
        self.requests.append((request.code, dict(request.ext), request.body, request.is_oneway))
        if self.holds:
            self._held.append(request)
            return LATER
        if request.code == RequestCode.QUERY_DATA_VERSION:
            return Response(ext={"changed": "false"})
        return self.answer if request.code == RequestCode.REGISTER_BROKER else Response()

    def let_go(self) -> None:
        self.holds = False
        for held in self._held:
            held.reply(self.answer)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.address[1]}"

    def of(self, code: RequestCode) -> list[tuple[dict[str, str], Any]]:
        """Headers and bodies of the requests of a code."""
        return [(ext, json.loads(body) if body else None) for c, ext, body, _ in self.requests if c == code]

    @property
    def registrations(self) -> list[tuple[dict[str, str], Any]]:
        return self.of(RequestCode.REGISTER_BROKER)


@asynccontextmanager
async def recorder(port: int = 0) -> AsyncIterator[Recorder]:
    recording = Recorder(port)
    async with recording.server:
        yield recording


@asynccontextmanager
async def broker(folder: Path, nameservers: str, **settings: str) -> AsyncIterator[Broker]:
    keys = {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "namesrvAddr": nameservers,
        "storePathRootDir": str(folder),
        "mappedFileSizeCommitLog": str(1 << 20),
    }
    async with Broker(from_sources({**keys, **settings}, {})) as running:
        yield running


def topic(name: str, **fields: Any) -> TopicConfig:
    return TopicConfig(topic_name=name, **{"read_queue_nums": 4, "write_queue_nums": 4, **fields})


def table_of(body: Any) -> dict[str, Any]:
    table: dict[str, Any] = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    return table


class TestWhatIsSent:
    async def test_equals_the_capture_of_a_real_broker(self, tmp_path: Path) -> None:
        """Up to times: a full one at the start, an incremental one for a new topic, a farewell."""
        captured = [f for f in golden.frames("broker-registration-json") if not f.is_response]
        registrations = [f for f in captured if f.code == RequestCode.REGISTER_BROKER]
        full = registrations[0]
        increment = next(f for f in registrations if len(table_of(json.loads(f.body))) == 1)
        farewell = next(f for f in captured if f.code == RequestCode.UNREGISTER_BROKER)

        port = free_port()
        async with recorder() as nameserver:
            async with broker(tmp_path, nameserver.address, listenPort=str(port)) as running:
                running.state.topics.update(topic("RegTopicA"))
                await until(lambda: len(nameserver.registrations) == 2)
            ours = [*nameserver.registrations, *nameserver.of(RequestCode.UNREGISTER_BROKER)]

        for frame, (ext, body) in zip((full, increment, farewell), ours, strict=True):
            expected_ext = {key: placed(value, port) for key, value in frame.ext.items()}
            assert timeless(ext, "bodyCrc32") == timeless(expected_ext, "bodyCrc32")
            expected_body = json.loads(frame.body) if frame.body else None
            assert timeless(body, "timestamp") == timeless(expected_body, "timestamp")
        first, second = (body["topicConfigSerializeWrapper"]["dataVersion"] for _, body in ours[:2])
        assert second["counter"] == first["counter"] + 1

    async def test_bytes_of_the_body_are_in_the_order_of_rocketmq(self, tmp_path: Path) -> None:
        captured = next(f for f in golden.frames("broker-registration-json") if f.code == RequestCode.REGISTER_BROKER)
        async with recorder() as nameserver, broker(tmp_path, nameserver.address):
            (_, ours) = nameserver.registrations[0]
        theirs = json.loads(captured.body)
        assert list(ours) == list(theirs)
        assert list(ours["topicConfigSerializeWrapper"]) == list(theirs["topicConfigSerializeWrapper"])

    async def test_acting_masters_send_signs_of_life_oneway(self, tmp_path: Path) -> None:
        captured = next(
            f for f in golden.frames("broker-registration-heartbeat") if f.code == 322 and not f.is_response
        )
        settings = {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": "100"}
        async with recorder() as nameserver, broker(tmp_path, nameserver.address, **settings) as running:
            await until(lambda: len(nameserver.of(RequestCode.QUERY_DATA_VERSION)) >= 3)
            ext, body = nameserver.of(RequestCode.QUERY_DATA_VERSION)[0]
            assert all(oneway for code, _, _, oneway in nameserver.requests if code == 322)
            assert captured.is_oneway
            assert ext == {**captured.ext, "brokerAddr": running.address}
            assert timeless(body, "timestamp") == timeless(json.loads(captured.body), "timestamp")
            (header, _) = nameserver.registrations[0]
            assert header["heartbeatTimeoutMillis"] == "10000"
            assert header["enableActingMaster"] == "true"

    async def test_topics_of_one_turn_go_together(self, tmp_path: Path) -> None:
        async with recorder() as nameserver, broker(tmp_path, nameserver.address) as running:
            for number in range(5):
                running.state.topics.update(topic(f"T{number}"))
            await until(lambda: len(nameserver.registrations) == 2)
            _, body = nameserver.registrations[1]
            assert sorted(table_of(body)) == [f"T{number}" for number in range(5)]
            version = body["topicConfigSerializeWrapper"]["dataVersion"]
            assert version["counter"] == running.state.topics.data_version.counter

    @pytest.mark.parametrize(("permission", "expected"), [(6, 6), (4, 4), (2, 2), (0, 0)])
    async def test_permission_of_the_broker_masks_that_of_its_topics(
        self, tmp_path: Path, permission: int, expected: int
    ) -> None:
        async with (
            recorder() as nameserver,
            broker(tmp_path, nameserver.address, brokerPermission=str(permission)) as running,
        ):
            running.state.topics.update(topic("T"))
            await until(lambda: len(nameserver.registrations) == 2)
            assert table_of(nameserver.registrations[1][1])["T"]["perm"] == expected
            whole = table_of(nameserver.registrations[0][1])["TBW102"]["perm"]
            assert whole == (7 if permission == 6 else 7 & permission)

    async def test_changed_permission_is_told_at_once_with_a_new_version(self, tmp_path: Path) -> None:
        async with recorder() as nameserver, broker(tmp_path, nameserver.address) as running:
            await running.state.update_config({"brokerPermission": "4"})
            await until(lambda: len(nameserver.registrations) == 2)
            first, second = (body["topicConfigSerializeWrapper"] for _, body in nameserver.registrations)
            assert len(second["topicConfigTable"]) == len(first["topicConfigTable"])
            assert {config["perm"] & 2 for config in second["topicConfigTable"].values()} == {0}
            assert second["dataVersion"]["counter"] > first["dataVersion"]["counter"]

    async def test_long_tables_may_go_in_parts(self, tmp_path: Path) -> None:
        settings = {"enableSplitRegistration": "true", "splitRegistrationSize": "5"}
        async with recorder() as nameserver, broker(tmp_path, nameserver.address, **settings) as running:
            parts = [body["topicConfigSerializeWrapper"] for _, body in nameserver.registrations]
            assert {name for part in parts for name in part["topicConfigTable"]} == set(running.state.topics.table)
            assert max(len(part["topicConfigTable"]) for part in parts) == 5
            versions = [part["dataVersion"]["counter"] for part in parts]
            assert versions == sorted(set(versions))

    async def test_single_topics_may_go_by_a_request_of_their_own(self, tmp_path: Path) -> None:
        settings = {"enableSingleTopicRegister": "true"}
        async with recorder() as nameserver, broker(tmp_path, nameserver.address, **settings) as running:
            running.state.topics.update(topic("T", write_queue_nums=3))
            await until(lambda: nameserver.of(RequestCode.REGISTER_TOPIC_IN_NAMESRV))
            ((ext, body),) = nameserver.of(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
            assert ext == {"topic": "T"}
            (queues,) = body["queueDatas"]
            assert (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"]) == ("broker-a", 4, 3)

    async def test_a_deleted_topic_is_not_told(self, tmp_path: Path) -> None:
        async with recorder() as nameserver, broker(tmp_path, nameserver.address) as running:
            running.state.topics.update(topic("T"))
            await until(lambda: len(nameserver.registrations) == 2)
            running.state.topics.delete("T")
            running.state.topics.update(topic("U"))
            await until(lambda: len(nameserver.registrations) == 3)
            assert list(table_of(nameserver.registrations[2][1])) == ["U"]


class TestAnswers:
    async def test_topics_with_an_order_configuration_are_marked(self, tmp_path: Path) -> None:
        async with recorder() as nameserver, broker(tmp_path, nameserver.address) as running:
            running.state.topics.update(topic("Ordered"))
            nameserver.answer = Response(body=KVTable(table={"Ordered": "broker-a:4", "Elsewhere": "b:1"}).encode())
            running.state.topics.update(topic("Other"))
            await until(lambda: running.state.topics.is_order("Ordered"))
            assert not running.state.topics.is_order("Other")

    async def test_a_refusal_is_logged_and_tried_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.registration.RETRY", 0.01)
        caplog.set_level(logging.INFO)
        async with recorder() as nameserver:
            nameserver.answer = Response(1, remark="register broker failed")
            async with broker(tmp_path, nameserver.address):
                await until(lambda: len(nameserver.registrations) >= 3)
                complaints = [r for r in caplog.records if "register broker failed" in r.getMessage()]
                assert len(complaints) == 1
                nameserver.answer = Response()
                await until(lambda: any("registered with" in r.getMessage() for r in caplog.records))


class TestNameserversThatComeAndGo:
    async def test_every_nameserver_is_told(self, tmp_path: Path) -> None:
        async with recorder() as one, recorder() as two:
            async with broker(tmp_path, f"{one.address};{two.address};{one.address}"):
                assert (len(one.registrations), len(two.registrations)) == (1, 1)
            assert len(one.of(RequestCode.UNREGISTER_BROKER)) == len(two.of(RequestCode.UNREGISTER_BROKER)) == 1

    async def test_one_that_is_down_delays_nobody_and_gets_everything_when_it_is_back(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.registration.RETRY", 0.05)
        port = free_port()
        async with recorder() as up, broker(tmp_path, f"127.0.0.1:{port};{up.address}") as running:
            assert len(up.registrations) == 1
            running.state.topics.update(topic("T"))
            await until(lambda: len(up.registrations) == 2)
            async with recorder(port) as down:
                await until(lambda: down.registrations)
                assert "T" in table_of(down.registrations[0][1])
                assert "TBW102" in table_of(down.registrations[0][1])
        complaints = [r for r in caplog.records if "cannot register" in r.getMessage()]
        assert len(complaints) == 1
        assert str(port) in complaints[0].getMessage()

    async def test_one_that_was_restarted_knows_the_broker_again_soon(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RocketMQ's broker leaves it in the dark until its next period, half a minute."""
        monkeypatch.setattr("cometmq.broker.registration.RETRY", 0.05)
        port = free_port()
        config = NamesrvConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path="", config_store_path="")
        first = NameServer(config)
        await first.start()
        async with broker(tmp_path, f"127.0.0.1:{port}"), RemotingClient() as client:
            assert await broker_calls.route(client, first.address, "TBW102")
            await first.close()
            async with NameServer(config) as second, RemotingClient() as other:
                await broker_calls.routed(other, second.address, "TBW102")

    async def test_without_a_nameserver_it_runs_all_the_same(self, tmp_path: Path) -> None:
        async with broker(tmp_path, "") as running, RemotingClient() as client:
            await broker_calls.sent(client, running.address, "T", b"x")

    async def test_a_silent_one_does_not_hold_up_the_start_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.registration.FIRST_WAIT", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with broker(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}") as running:
                assert running.address


class TestWithOurNameserver:
    async def test_routes_follow_topics_at_once(self, tmp_path: Path) -> None:
        async with NameServer() as nameserver, broker(tmp_path, nameserver.address) as running, RemotingClient() as c:
            await broker_calls.sent(c, running.address, "New", b"x")
            route = await broker_calls.routed(c, nameserver.address, "New")
            assert [(q.broker_name, q.read_queue_nums, q.perm) for q in route.queue_datas] == [("broker-a", 4, 6)]

    async def test_topic_is_known_when_its_first_message_is_answered(self, tmp_path: Path) -> None:
        """Go's consumers give up at once when a nameserver does not know their topic."""
        async with NameServer() as nameserver, broker(tmp_path, nameserver.address) as running, RemotingClient() as c:
            for number in range(20):
                await broker_calls.sent(c, running.address, f"T{number}", b"x")
                assert await broker_calls.route(c, nameserver.address, f"T{number}")

    async def test_first_message_that_is_refused_waits_for_no_nameserver(self, tmp_path: Path) -> None:
        async with NameServer() as nameserver, broker(tmp_path, nameserver.address) as running:
            peer = await RawPeer.open(parse_address(running.address))
            half = {"producerGroup": "P", "topic": "Half", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
            half |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
            half["properties"] = "TRAN_MSG\x01true\x02"
            assert (await peer.ask(request(10, half, b"x"))).code == 16
            await peer.close()
            gc.collect()  # a coroutine that nobody awaited would be a warning, which is an error here

    async def test_topic_is_known_when_its_creation_is_answered(self, tmp_path: Path) -> None:
        async with NameServer() as nameserver, broker(tmp_path, nameserver.address) as running, RemotingClient() as c:
            for number in range(10):
                header = CreateTopic(
                    topic=f"T{number}",
                    default_topic="TBW102",
                    read_queue_nums=2,
                    write_queue_nums=2,
                    perm=6,
                    topic_filter_type="SINGLE_TAG",
                    order=False,
                )
                code = RequestCode.UPDATE_AND_CREATE_TOPIC
                assert (await c.request(running.address, code, header)).code == 0
                assert await broker_calls.route(c, nameserver.address, f"T{number}")

    async def test_silent_nameserver_does_not_hold_up_a_message_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.registration.ANNOUNCE_WAIT", 0.2)
        async with recorder() as nameserver, broker(tmp_path, nameserver.address) as running, RemotingClient() as c:
            nameserver.holds = True
            await broker_calls.sent(c, running.address, "T", b"x")
            assert len(nameserver.registrations) == 2
            await broker_calls.sent(c, running.address, "T", b"x")
            nameserver.let_go()

    async def test_after_its_end_nobody_is_sent_to_it(self, tmp_path: Path) -> None:
        async with NameServer() as nameserver, RemotingClient() as client:
            async with broker(tmp_path, nameserver.address):
                assert await broker_calls.route(client, nameserver.address, "TBW102")
            assert await broker_calls.route(client, nameserver.address, "TBW102") is None

    async def test_asked_for_its_version_it_sends_only_what_is_new(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.config.BrokerConfig.register_period", property(lambda _: 0.05))
        async with recorder() as nameserver, broker(tmp_path, nameserver.address, forceRegister="false"):
            await until(lambda: len(nameserver.of(RequestCode.QUERY_DATA_VERSION)) >= 3)
            assert len(nameserver.registrations) == 1

    async def test_by_default_it_registers_again_each_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cometmq.broker.config.BrokerConfig.register_period", property(lambda _: 0.05))
        async with recorder() as nameserver, broker(tmp_path, nameserver.address):
            await until(lambda: len(nameserver.registrations) >= 3)
            assert nameserver.of(RequestCode.QUERY_DATA_VERSION) == []


def placed(value: str, port: int) -> str:
    """Addresses of the capture on the ports of this test."""
    return value.replace("10711", str(port)).replace("10712", str(port + 1))


def timeless(value: Any, key: str) -> Any:
    """A value without the times, and without what follows from them."""
    if isinstance(value, dict):
        return {name: timeless(item, key) for name, item in value.items() if name != key}
    return value
