"""The real mqadmin against a broker prints what it printed for the real one.

The commands run once a session, many of them side by side in one JVM, in stages that build on each other: topics and
groups are made, a producer and a consumer work, everything is looked at, then changed, then removed. Each test judges
one output against the recorded one, or against what was sent. See `support.admin_output` for what does not count.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.admin_output import Printed, golden
from support.cluster import OURS, Cluster
from support.mq_client import JAVA, MqClient, PushConsumer, Told
from support.server_process import wait_for

Clients = Callable[[str], MqClient]
TOPIC, GROUP, PRODUCER = "TopicAdmin", "CG_admin", "PG_admin"
MESSAGES = 12


@dataclass
class Office:
    """Everything that was printed, by name of the recorded output or by a name of our own."""

    cluster: Cluster
    client: MqClient
    folder: Path
    consumer: PushConsumer | None = None
    told: list[Told] = field(default_factory=list)
    printed: dict[str, Printed] = field(default_factory=dict)

    def run(self, name: str, *arguments: str) -> None:
        self.printed[name] = Printed(*self.client.admin(*arguments, "-n", self.cluster.nameserver))

    def run_all(self, commands: dict[str, tuple[str, ...]]) -> None:
        """Side by side."""
        started = {
            name: self.client.start_admin(*arguments, "-n", self.cluster.nameserver)
            for name, arguments in commands.items()
        }
        for name, handle in started.items():
            self.printed[name] = Printed(*self.client.end_admin(handle))

    def work(self) -> None:
        """A consumer of one tag, and messages that it gets."""
        ns = self.cluster.nameserver
        self.consumer = self.client.push(ns, GROUP, TOPIC, expression="TagA", max=1)
        for number in range(MESSAGES):
            self.told += self.client.send(
                ns,
                TOPIC,
                group=PRODUCER,
                prefix=f"admin{number}",
                tag="TagA",
                keys=f"key{number}",
                props=f"n:{number}",
                queue=number % 4,
            )
        assert len(self.consumer.consumed(MESSAGES)) == MESSAGES
        wait_for("committed", 30, self._committed)

    def _committed(self) -> bool:
        assert self.consumer is not None
        self.consumer.persist()  # by itself only 10 s after its start
        return all(self.cluster.committed(GROUP, TOPIC, queue) == MESSAGES // 4 for queue in range(4))


def make(office: Office) -> None:
    broker = office.cluster.address
    topics, groups = office.folder / "topics.json", office.folder / "groups.json"
    topics.write_text(json.dumps([{"topicName": f"AdmList{i}", "readQueueNums": 2} for i in (1, 2)]))
    groups.write_text(json.dumps([{"groupName": f"AdmListGroup{i}"} for i in (1, 2)]))
    office.run_all(
        {
            "updateTopic-own": ("updateTopic", "-b", broker, "-t", TOPIC, "-r", "4", "-w", "4"),
            "updateTopic": ("updateTopic", "-b", broker, "-t", "AdmTopic", "-r", "4", "-w", "4"),
            "updateTopic-cluster": ("updateTopic", "-c", "DefaultCluster", "-t", "AdmTopic2", "-o", "true"),
            "updateSubGroup": ("updateSubGroup", "-b", broker, "-g", "AdmGroup", "-r", "5", "-q", "1"),
            "updateSubGroup-cluster": ("updateSubGroup", "-c", "DefaultCluster", "-g", "AdmGroup2", "-d", "true"),
            "updateTopicList": ("updateTopicList", "-b", broker, "-f", str(topics)),
            "updateSubGroupList": ("updateSubGroupList", "-b", broker, "-f", str(groups)),
        }
    )
    for topic in (TOPIC, "AdmTopic", "AdmTopic2", "AdmList1", "AdmList2"):
        wait_for(f"the route of {topic}", 20, lambda topic=topic: office.cluster.queues(topic))


def look(office: Office) -> None:
    broker, first = office.cluster.address, office.told[0]
    assert office.consumer is not None
    office.run_all(
        {
            "topicList": ("topicList",),
            "topicList-c": ("topicList", "-c"),
            "topicRoute": ("topicRoute", "-t", TOPIC),
            "topicRoute-l": ("topicRoute", "-t", TOPIC, "-l"),
            "topicRoute-unknown": ("topicRoute", "-t", "NoSuchTopic"),
            "topicStatus": ("topicStatus", "-t", TOPIC),
            "topicClusterList": ("topicClusterList", "-t", TOPIC),
            "allocateMQ": ("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2,10.0.0.3"),
            "clusterList": ("clusterList",),
            "clusterList-m": ("clusterList", "-m"),
        }
    )
    office.run_all(
        {
            "brokerStatus": ("brokerStatus", "-b", broker),
            "brokerStatus-cluster": ("brokerStatus", "-c", "DefaultCluster"),
            "getBrokerConfig": ("getBrokerConfig", "-b", broker),
            "consumerProgress": ("consumerProgress",),
            "consumerProgress-g": ("consumerProgress", "-g", GROUP),
            "consumerProgress-unknown": ("consumerProgress", "-g", "NoGroup"),
            "consumerConnection": ("consumerConnection", "-g", GROUP),
            "consumerConnection-unknown": ("consumerConnection", "-g", "NoGroup"),
            "producerConnection": ("producerConnection", "-g", PRODUCER, "-t", TOPIC),
            "producerConnection-unknown": ("producerConnection", "-g", "NoGroup", "-t", TOPIC),
            "producer": ("producer", "-b", broker),
            "getConsumerConfig": ("getConsumerConfig", "-g", "AdmGroup"),
        }
    )
    office.run_all(
        {
            "queryMsgById": ("queryMsgById", "-i", first.offset_id, "-t", TOPIC),
            "queryMsgById-unknown": ("queryMsgById", "-i", first.offset_id[:24] + "00FFFFFF", "-t", TOPIC),
            "queryMsgByKey": ("queryMsgByKey", "-t", TOPIC, "-k", "key7"),
            "queryMsgByKey-none": ("queryMsgByKey", "-t", TOPIC, "-k", "nokey"),
            "queryMsgByUniqueKey": ("queryMsgByUniqueKey", "-t", TOPIC, "-i", office.told[7].id),
            "queryMsgByUniqueKey-none": ("queryMsgByUniqueKey", "-t", TOPIC, "-i", "C0000202" + "0" * 24),
            "queryMsgByOffset": ("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"),
            "queryCq": ("queryCq", "-t", TOPIC, "-q", "2", "-i", "0", "-c", "3", "-b", broker),
            "printMsg": ("printMsg", "-t", TOPIC, "-d", "true"),
            "printMsgByQueue": ("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "1", "-p", "true"),
            "consumeMessage": ("consumeMessage", "-t", TOPIC, "-g", "AdmCons", "-c", "2"),
            "statsAll": ("statsAll",),
            "statsAll-t": ("statsAll", "-a", "-t", TOPIC),
            "brokerConsumeStats": ("brokerConsumeStats", "-b", broker),
        }
    )
    # The broker asks the consumer, and mqadmin waits 5 s for its answer: one after the other, with nothing beside it.
    unique = ("queryMsgByUniqueKey", "-i", first.id, "-t", TOPIC)
    office.run("queryMsgByUniqueKey-directly", *unique, "-g", GROUP, "-d", office.consumer.id)
    office.run("consumerStatus-i", "consumerStatus", "-g", GROUP, "-i", office.consumer.id)


def change(office: Office) -> None:
    broker = office.cluster.address
    send = ("sendMessage", "-t", "AdmTopic", "-p", "hello admin", "-k", "ak", "-c", "atag", "-b", "broker-a", "-i", "1")
    update = ("updateBrokerConfig", "-b", broker, "-k")
    office.run_all(
        {
            "sendMessage": send,
            "sendMessage-any": ("sendMessage", "-t", "AdmTopic", "-p", "hello any"),
            "checkMsgSendRT": ("checkMsgSendRT", "-t", "AdmTopic", "-a", "5", "-s", "64"),
            "cloneGroupOffset": ("cloneGroupOffset", "-s", GROUP, "-d", "AdmGroup", "-t", TOPIC, "-o", "true"),
            "resetOffsetByTime": ("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "1700000000000"),
            "updateBrokerConfig": (*update, "flushConsumerOffsetInterval", "-v", "4000"),
            "updateBrokerConfig-forbidden": (*update, "brokerConfigPath", "-v", "x"),
            "cleanExpiredCQ": ("cleanExpiredCQ", "-b", broker),
            "cleanUnusedTopic": ("cleanUnusedTopic", "-b", broker),
            "deleteExpiredCommitLog": ("deleteExpiredCommitLog", "-b", broker),
        }
    )
    office.run_all(
        {
            "skipAccumulatedMessage": ("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC),
            "updateBrokerConfig-unknown-key": (*update, "noSuchKey", "-v", "1"),
            "getBrokerConfig-after": ("getBrokerConfig", "-b", broker),
            "updateTopicPerm": ("updateTopicPerm", "-b", broker, "-t", "AdmTopic", "-p", "4"),
        }
    )


def remove(office: Office) -> None:
    office.run("updateTopicPerm-cluster", "updateTopicPerm", "-c", "DefaultCluster", "-t", "AdmTopic", "-p", "6")
    office.run_all(
        {
            "deleteTopic": ("deleteTopic", "-c", "DefaultCluster", "-t", "AdmTopic"),
            "deleteTopic-system": ("deleteTopic", "-c", "DefaultCluster", "-t", "TBW102"),
            "deleteSubGroup": ("deleteSubGroup", "-b", office.cluster.address, "-g", "AdmGroup"),
            "deleteSubGroup-cluster": ("deleteSubGroup", "-c", "DefaultCluster", "-g", "AdmGroup2"),
        }
    )
    office.run("topicRoute-deleted", "topicRoute", "-t", "AdmTopic")


@pytest.fixture(scope="module")
def office(_cluster: Cluster, clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Office:
    _cluster.restart_broker()
    made = Office(_cluster, clients(JAVA), tmp_path_factory.mktemp("office"))
    make(made)
    made.work()
    look(made)
    change(made)
    remove(made)
    assert made.consumer is not None
    made.consumer.stop()
    return made


#: Outputs that are equal whatever the numbers.
EQUAL = [
    "updateTopic",
    "updateTopicPerm",
    "updateTopicPerm-cluster",
    "updateTopicList",
    "updateSubGroup",
    "updateSubGroupList",
    "topicRoute",
    "topicRoute-l",
    "topicRoute-unknown",
    "topicStatus",
    "topicClusterList",
    "clusterList",
    "clusterList-m",
    "consumerProgress-g",
    "consumerProgress-unknown",
    "consumerConnection",
    "consumerConnection-unknown",
    "producerConnection",
    "producerConnection-unknown",
    "getConsumerConfig",
    "queryMsgById",
    "queryMsgById-unknown",
    "queryMsgByKey",
    "queryMsgByKey-none",
    "queryMsgByUniqueKey",
    "queryMsgByUniqueKey-none",
    "queryMsgByUniqueKey-directly",
    "queryMsgByOffset",
    "queryCq",
    "sendMessage",
    "sendMessage-any",
    "cloneGroupOffset",
    "resetOffsetByTime",
    "skipAccumulatedMessage",
    "updateBrokerConfig-unknown-key",
    "updateBrokerConfig-forbidden",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "deleteExpiredCommitLog",
    "deleteTopic",
    "deleteTopic-system",
    "deleteSubGroup",
    "deleteSubGroup-cluster",
    "statsAll-t",
    "brokerConsumeStats",
]


def other_data(line: str) -> bool:
    """What is in one of the two only, and may be.

    RocketMQ tells the topic's own name as a group that consumes it; ours does not. Nothing was retried here. The broker
    of the session knows the groups of other tests.
    """
    if f"consumerGroup={TOPIC}" in line or line.startswith(("See https", f"{TOPIC} {TOPIC}")):
        return True
    return " broker-a <n> <n> <n> <n> " in line and not line.startswith(TOPIC)


@pytest.mark.parametrize("name", EQUAL)
def test_output_equals_the_recorded_one(office: Office, name: str) -> None:
    printed, recorded = office.printed[name], golden(name)
    assert printed.cause == recorded.cause, printed.err
    seen = {line for line in printed.lines(numbers=True) if not other_data(line)}
    assert seen == {line for line in recorded.lines(numbers=True) if not other_data(line)}, printed.err


def test_topic_list_names_every_topic(office: Office) -> None:
    topics = office.printed["topicList"].lines()
    assert {TOPIC, "AdmTopic", "AdmTopic2", "AdmList1", f"%RETRY%{GROUP}", "TBW102", "BenchmarkTest"} <= topics
    rows = office.printed["topicList-c"].lines()
    assert f"DefaultCluster {TOPIC} {GROUP}" in rows
    assert "#Cluster Name #Topic #Consumer Group" in rows


def test_allocation_shares_out_every_queue(office: Office) -> None:
    shares = json.loads(office.printed["allocateMQ"].out)["result"]
    assert [len(shares[f"10.0.0.{i}"]) for i in (1, 2, 3)] == [2, 1, 1]
    assert {queue["queueId"] for share in shares.values() for queue in share} == {0, 1, 2, 3}


def keys_of(printed: Printed, separator: str) -> set[str]:
    out = re.sub(r"^\d+\.\d+\.\d+\.\d+:\d+ ", "", printed.out, flags=re.MULTILINE)  # of a whole cluster
    lines = (line for line in out.splitlines() if separator in line and not line.startswith("="))
    keys = {line.partition(separator)[0].split()[-1] for line in lines}
    # One figure for each folder of the log and each delay level that was used.
    return {key for key in keys if not key.startswith(("commitLogDiskRatio_", "scheduleMessageOffset_"))}


def test_broker_status_has_every_figure(office: Office) -> None:
    assert keys_of(golden("brokerStatus"), ":") - keys_of(office.printed["brokerStatus"], ":") == set()
    assert keys_of(golden("brokerStatus"), ":") - keys_of(office.printed["brokerStatus-cluster"], ":") == set()
    figures = dict(line.split(":", 1) for line in office.printed["brokerStatus"].out.splitlines() if ":" in line)
    status = {key.strip(): value.strip() for key, value in figures.items()}
    assert int(status["msgPutTotalTodayNow"]) >= MESSAGES
    assert int(status["msgGetTotalTodayNow"]) >= MESSAGES
    assert status["brokerVersionDesc"] == "V5_3_3"


def test_broker_config_shows_every_key_of_the_file(office: Office) -> None:
    config = dict(
        (part.strip() for part in line.split("=", 1))
        for line in office.printed["getBrokerConfig"].out.splitlines()
        if "=" in line and not line.startswith("=")
    )
    assert (config["brokerName"], config["brokerClusterName"]) == ("broker-a", "DefaultCluster")
    assert config["listenPort"] == str(office.cluster.broker.port)
    assert config["mappedFileSizeCommitLog"] == str(16 * 1024 * 1024)


def test_config_update_is_told_and_shown(office: Office) -> None:
    assert office.printed["updateBrokerConfig"].lines() == {"update broker config success, <address>"}
    after = office.printed["getBrokerConfig-after"].lines()
    assert "flushConsumerOffsetInterval = 4000" in after


def test_topic_of_a_cluster_with_order_configuration(office: Office) -> None:
    lines = office.printed["updateTopic-cluster"].lines()
    assert "create topic to <address> success." in lines
    assert "set cluster orderConf. isOrder=true, orderConf=[broker-a:8]" in lines


def test_group_of_a_cluster_is_made(office: Office) -> None:
    lines = office.printed["updateSubGroup-cluster"].lines()
    assert any(line.startswith("create subscription group to <address> success.") for line in lines)
    assert any("groupName=AdmGroup2" in line and "consumeBroadcastEnable=true" in line for line in lines)


def test_producers_are_listed(office: Office) -> None:
    lines = {line for line in office.printed["producer"].lines(numbers=True) if f"({PRODUCER})" in line}
    assert lines == {line for line in golden("producer").lines(numbers=True) if f"({PRODUCER})" in line}


def test_progress_lists_every_group(office: Office) -> None:
    printed = office.printed["consumerProgress"]
    (row,) = (line.split() for line in printed.out.splitlines() if line.startswith(GROUP))
    assert row[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]


def test_progress_of_a_group_counts_its_messages(office: Office) -> None:
    rows = [line.split() for line in office.printed["consumerProgress-g"].out.splitlines() if line.startswith(TOPIC)]
    assert sorted(row[:6] for row in rows) == [
        [TOPIC, "broker-a", str(queue), str(MESSAGES // 4), str(MESSAGES // 4), "0"] for queue in range(4)
    ]


def test_messages_are_printed(office: Office) -> None:
    printed = office.printed["printMsg"].out
    for one in office.told:
        assert one.id in printed
        assert f"BODY: {one.body}" in printed
    by_queue = office.printed["printMsgByQueue"].out
    assert {one.id for one in office.told if one.id in by_queue} == {one.id for one in office.told if one.queue == 1}
    recorded = {line for line in golden("printMsg").lines(numbers=True) if "KEYS=key<n>" in line}
    assert recorded == {line for line in office.printed["printMsg"].lines(numbers=True) if line.startswith("MSGID")}


def test_stats_of_all_topics(office: Office) -> None:
    lines = office.printed["statsAll"].lines(numbers=True)
    assert golden("statsAll").out.splitlines()[0].split() == office.printed["statsAll"].out.splitlines()[0].split()
    assert any(line.startswith(f"{TOPIC} {GROUP} <n>") for line in lines)


def test_consumer_status_comes_from_the_client(office: Office) -> None:
    """The broker asks the consumer and passes on what it says."""
    printed = office.printed["consumerStatus-i"]
    for text in ("#Consumer Properties#", "PROP_CONSUME_TYPE", TOPIC, "#Consumer Offset#"):
        assert text in printed.out, printed.err


def test_send_round_trips_are_measured(office: Office) -> None:
    printed = office.printed["checkMsgSendRT"]
    assert printed.out.count("true") == 5
    assert "Avg RT:" in printed.out


def test_consumed_messages_are_shown(office: Office) -> None:
    assert "MSGID:" in office.printed["consumeMessage"].out


def test_deleted_topic_has_no_route(office: Office) -> None:
    cause = office.printed["topicRoute-deleted"].cause
    assert cause is not None
    assert cause[0] == 17


def test_nothing_of_it_makes_our_broker_stumble(office: Office) -> None:
    if office.cluster.kind == OURS:
        assert "Traceback" not in office.cluster.broker.stdout + office.cluster.broker.stderr
