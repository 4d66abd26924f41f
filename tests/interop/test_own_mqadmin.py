"""Our `mqadmin` and our SDK against the real Apache RocketMQ: 5.3.3 by default, 4.9.7 as a slow test.

The commands build on each other: topics and groups are made, a producer and a consumer of ours work, everything is
looked at, then changed, then removed.
"""

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cometmq.admin.__main__ import main
from support.admin_output import Printed, golden
from support.plain_frames import answers, topic_route
from support.real_rocketmq import START_SECONDS, V4, V5, RealBroker, RealNameserver
from support.server_process import wait_for
from support.working_client import WorkingClient

TOPIC, GROUP, PRODUCER = "TopicAdmin", "CG_admin", "PG_admin"


@dataclass
class Place:
    """A real nameserver and a real broker, with a client of ours at work."""

    version: str
    nameserver: str
    broker: str
    working: WorkingClient | None = None

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(main, [*arguments, "-n", self.nameserver])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def fine(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, (arguments, result.stderr)
        return result.stdout

    @property
    def receipts(self) -> list:  # type: ignore[type-arg]
        assert self.working is not None
        return self.working.receipts

    @property
    def client_id(self) -> str:
        assert self.working is not None
        return self.working.client_id


@pytest.fixture(scope="module", params=[V5, pytest.param(V4, marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, rocketmq: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(f"own-mqadmin-{request.param}")
    nameserver = RealNameserver(folder / "namesrv", version=request.param)
    patch = pytest.MonkeyPatch()
    patch.setattr("tempfile.tempdir", os.fspath(folder))
    broker = None
    try:
        nameserver.start()
        nameserver.wait_ready("answers", START_SECONDS, functools.partial(answers, nameserver.address))
        broker = started(folder, request.param, nameserver.address)
        made = Place(request.param, nameserver.address, broker.address)
        made.fine("updateTopic", "-b", broker.address, "-t", TOPIC, "-r", "4", "-w", "4")
        wait_for("the route", 30, lambda: topic_route(nameserver.address, TOPIC))
        with WorkingClient(nameserver.address, topic=TOPIC, consumer=GROUP, producer=PRODUCER) as working:
            made.working = working
            yield made
    finally:
        patch.undo()
        if broker is not None:
            broker.kill()
        nameserver.kill()


def started(folder: Path, version: str, nameserver: str) -> RealBroker:
    """A broker that runs. A port that was free may be another one's when it is bound: then with other ports."""
    # Without its timers 5.3 cannot delete a topic.
    settings = {"timerWheelEnable": "true"} if version == V5 else {}
    for attempt in range(4):
        broker = RealBroker(folder / f"broker-{attempt}", version, "broker-a", "DefaultCluster", nameserver, settings)
        broker.start()
        try:
            broker.wait_registered(nameserver)
            return broker
        except RuntimeError:
            broker.kill()
            if attempt == 3 or "ddress already in use" not in broker.tail(60):
                raise
    raise AssertionError("not reached")


def other_data(line: str) -> bool:
    """Nothing was retried here; the language of the client is another; what is said about groups without a route."""
    retried = (f"%RETRY%{GROUP} broker", f"%RETRY%{GROUP} {GROUP}")
    return f"consumerGroup={TOPIC}" in line or line.startswith(("See https", f"{TOPIC} {TOPIC}", *retried))


LOOKS: dict[str, tuple[str, ...]] = {
    "topicRoute-l": ("topicRoute", "-t", TOPIC, "-l"),
    "topicStatus": ("topicStatus", "-t", TOPIC),
    "topicClusterList": ("topicClusterList", "-t", TOPIC),
    "clusterList-m": ("clusterList", "-m"),
    "queryMsgByKey": ("queryMsgByKey", "-t", TOPIC, "-k", "key7"),
    "statsAll-t": ("statsAll", "-t", TOPIC),
}


@pytest.mark.parametrize("name", LOOKS)
def test_output_has_the_recorded_shape(place: Place, name: str) -> None:
    shown = Printed(place.fine(*LOOKS[name]), "")
    seen = {line for line in shown.lines(numbers=True) if not other_data(line)}
    assert seen == {line for line in golden(name).lines(numbers=True) if not other_data(line)}


def test_cluster_and_route_are_shown(place: Place) -> None:
    # A broker of 4.9 has no figures to tell before its first sample, and says so by an exception.
    wait_for("figures", 120, lambda: place.run("brokerStatus", "-b", place.broker).exit_code == 0)
    (row,) = json.loads(place.fine("clusterList", "--json"))
    assert (row["brokerName"], row["brokerAddr"]) == ("broker-a", place.broker)
    assert row["runtime"]["brokerVersionDesc"] == ("V5_3_3" if place.version == V5 else "V4_9_7")
    assert place.broker in place.fine("clusterList")
    route = json.loads(place.fine("topicRoute", "-t", TOPIC, "--json"))
    assert route["queueDatas"][0]["writeQueueNums"] == 4
    assert f'"brokerAddrs":{{0:"{place.broker}"' in place.fine("topicRoute", "-t", TOPIC)


def test_progress_and_connections(place: Place) -> None:
    progress = json.loads(place.fine("consumerProgress", "-g", GROUP, "--json"))
    rows = {row["qid"]: row for row in progress["queues"] if row["topic"] == TOPIC}
    assert {number: row["consumerOffset"] for number, row in rows.items()} == dict.fromkeys(range(4), 3)
    with_clients = json.loads(place.fine("consumerProgress", "-g", GROUP, "-s", "true", "--json"))
    own_ip = place.client_id.partition("@")[0]
    assert {row["clientIP"] for row in with_clients["queues"] if row["topic"] == TOPIC} == {own_ip}
    (group,) = (row for row in json.loads(place.fine("consumerProgress", "--json")) if row["group"] == GROUP)
    assert (group["count"], group["type"], group["model"]) == (1, "PUSH", "CLUSTERING")
    assert place.client_id in place.fine("consumerConnection", "-g", GROUP)
    assert place.client_id in place.fine("producerConnection", "-g", PRODUCER, "-t", TOPIC)


def test_messages_are_found_and_tracked(place: Place) -> None:
    first = place.receipts[0]
    by_place = ("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0")
    for text in (
        place.fine("queryMsgById", "-i", first.offset_message_id, "-t", TOPIC),
        place.fine("queryMsgByUniqueKey", "-i", first.message_id, "-t", TOPIC),
        place.fine(*by_place),
    ):
        assert f"UNIQ_KEY={first.message_id}" in text
        assert f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED, exceptionDesc=null]" in text
    directly = ("-g", GROUP, "-d", place.client_id)
    told = place.fine("queryMsgByUniqueKey", "-i", first.message_id, "-t", TOPIC, *directly)
    assert "consumeResult=CR_SUCCESS" in told


def test_queues_are_read(place: Place) -> None:
    printed = place.fine("printMsg", "-t", TOPIC)
    consumed = place.fine("consumeMessage", "-t", TOPIC)
    for number, receipt in enumerate(place.receipts):
        assert f"MSGID: {receipt.message_id} " in printed
        assert f"BODY: admin {number}\n" in printed
        assert f"MSGID: {receipt.message_id} " in consumed


def test_groups_offsets_and_settings_are_changed(place: Place) -> None:
    place.fine("updateSubGroup", "-c", "DefaultCluster", "-g", "OwnGroup", "-r", "5", "-d", "true")
    assert "retryMaxTimes                           =  5" in place.fine("getConsumerConfig", "-g", "OwnGroup")
    reset = place.fine("resetOffsetByTime", "-g", "OwnGroup", "-t", TOPIC, "-s", "-1")
    assert "#brokerName" in reset
    rows = json.loads(place.fine("consumerProgress", "-g", "OwnGroup", "-t", TOPIC, "--json"))
    assert rows["diffTotal"] == 0
    cloned = place.fine("cloneGroupOffset", "-s", GROUP, "-d", "OwnGroup", "-t", TOPIC)
    assert cloned.startswith("clone group offset success.")
    place.fine("updateBrokerConfig", "-b", place.broker, "-k", "fileReservedTime", "-v", "47")
    assert f"{'fileReservedTime':<50}=  47\n" in place.fine("getBrokerConfig", "-c", "DefaultCluster")
    assert "brokerVersionDesc" in place.fine("brokerStatus", "-b", place.broker)
    place.fine("deleteSubGroup", "-c", "DefaultCluster", "-g", "OwnGroup")


def test_nameserver_is_changed(place: Place) -> None:
    place.fine("updateKvConfig", "-s", "Space", "-k", "k", "-v", "v")
    place.fine("deleteKvConfig", "-s", "Space", "-k", "k")
    place.fine("updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:4")
    assert "orderConf=[broker-a:4]" in place.fine("updateOrderConf", "-t", TOPIC, "-m", "get")
    place.fine("updateOrderConf", "-t", TOPIC, "-m", "delete")
    assert "listenPort" in place.fine("getNamesrvConfig")
    assert " OK, " in place.fine("wipeWritePerm", "-b", "broker-a")
    if place.version == V5:  # since 4.9.x in some builds only
        assert " OK, " in place.fine("addWritePerm", "-b", "broker-a")


def test_topics_come_and_go(place: Place, tmp_path: Path) -> None:
    place.fine("updateTopic", "-c", "DefaultCluster", "-t", "OwnTopic", "-r", "2", "-w", "2", "-o", "true")
    wait_for("the route", 30, lambda: topic_route(place.nameserver, "OwnTopic"))
    sent = place.fine("sendMessage", "-t", "OwnTopic", "-p", "hello", "-b", "broker-a", "-i", "1")
    assert "SEND_OK" in sent
    perm = place.fine("updateTopicPerm", "-b", place.broker, "-t", "OwnTopic", "-p", "4")
    assert "update topic perm from 6 to 4" in perm
    assert "OwnTopic" in place.fine("topicList").splitlines()
    assert f"DefaultCluster {TOPIC} {GROUP}" in Printed(place.fine("topicList", "-c"), "").lines()
    place.fine("deleteTopic", "-c", "DefaultCluster", "-t", "OwnTopic")
    gone = place.run("topicRoute", "-t", "OwnTopic")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "CODE: 17  DESC: No topic route info in name server for the topic: OwnTopic" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("consumerProgress", "-g", "NoGroup"), "CODE: 17"),
        (("producerConnection", "-g", "NoGroup", "-t", TOPIC), "CODE: 1  DESC: the producer group[NoGroup] not exist"),
        (("queryMsgByKey", "-t", TOPIC, "-k", "nokey"), "CODE: 208"),
        (("updateTopic", "-c", "NoCluster", "-t", "T"), "there is no cluster 'NoCluster'"),
    ],
)
def test_failures_are_told(place: Place, arguments: tuple[str, ...], text: str) -> None:
    result = place.run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr
