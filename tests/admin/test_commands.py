"""`mqadmin` against our broker: what it prints has the shape of the recorded output, and what it does is done."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from cometmq.testing import EmbeddedBroker
from support.admin_output import Printed, golden
from support.working_client import WorkingClient

Run = Callable[..., Result]
TOPIC, GROUP, PRODUCER = "TopicAdmin", "CG_admin", "PG_admin"


@pytest.fixture(scope="module")
def working(mqadmin: Run, broker: EmbeddedBroker) -> Iterator[WorkingClient]:
    made = mqadmin("updateTopic", "-b", broker.address, "-t", TOPIC, "-r", "4", "-w", "4")
    assert made.exit_code == 0, made.stderr
    with WorkingClient(broker.nameserver, topic=TOPIC, consumer=GROUP, producer=PRODUCER) as client:
        yield client


def printed(result: Result) -> Printed:
    assert result.exit_code == 0, result.stderr
    return Printed(result.stdout, result.stderr)


def other_data(line: str) -> bool:
    """RocketMQ tells the topic's own name as a group that consumes it; ours does not. Nothing was retried here."""
    retried = (f"%RETRY%{GROUP} broker", f"%RETRY%{GROUP} {GROUP}")
    return f"consumerGroup={TOPIC}" in line or line.startswith(("See https", f"{TOPIC} {TOPIC}", *retried))


def same_shape(result: Result, name: str) -> None:
    """The lines are the recorded ones but for the numbers."""
    seen = {line for line in printed(result).lines(numbers=True) if not other_data(line)}
    assert seen == {line for line in golden(name).lines(numbers=True) if not other_data(line)}


LOOKS: dict[str, tuple[str, ...]] = {
    "topicRoute": ("topicRoute", "-t", TOPIC),
    "topicRoute-l": ("topicRoute", "-t", TOPIC, "-l"),
    "topicStatus": ("topicStatus", "-t", TOPIC),
    "topicClusterList": ("topicClusterList", "-t", TOPIC),
    "clusterList": ("clusterList",),
    "clusterList-m": ("clusterList", "-m"),
    "consumerProgress": ("consumerProgress",),
    "consumerProgress-g": ("consumerProgress", "-g", GROUP),
    "consumerProgress-gs": ("consumerProgress", "-g", GROUP, "-s", "true"),
    "producerConnection": ("producerConnection", "-g", PRODUCER, "-t", TOPIC),
    "queryMsgByKey": ("queryMsgByKey", "-t", TOPIC, "-k", "key7"),
    "queryMsgByOffset": ("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"),
    "statsAll-t": ("statsAll", "-t", TOPIC),
}


@pytest.mark.parametrize("name", LOOKS)
def test_output_has_the_recorded_shape(mqadmin: Run, working: WorkingClient, name: str) -> None:
    result = mqadmin(*LOOKS[name])
    python = result.stdout.replace("PYTHON", "JAVA")
    shown = Printed(python.replace("192.0.2.2", _own_ip(working)), "")
    assert result.exit_code == 0, result.stderr
    seen = {_placed(line, working) for line in shown.lines(numbers=True) if not other_data(line)}
    assert seen == {
        line.replace("192.0.2.2", "<ip>") for line in golden(name).lines(numbers=True) if not other_data(line)
    }


def _own_ip(working: WorkingClient) -> str:
    return working.client_id.partition("@")[0]


def _placed(line: str, working: WorkingClient) -> str:
    return line.replace(_own_ip(working), "<ip>")


def test_messages_are_found_by_both_ids(mqadmin: Run, working: WorkingClient) -> None:
    first = working.receipts[0]
    same_shape(mqadmin("queryMsgById", "-i", first.offset_message_id, "-t", TOPIC), "queryMsgById")
    same_shape(mqadmin("queryMsgByUniqueKey", "-i", first.message_id, "-t", TOPIC), "queryMsgByUniqueKey")
    # As scripts for 4.9 call it.
    assert f"UNIQ_KEY={first.message_id}" in mqadmin("queryMsgById", "-i", first.offset_message_id).stdout
    both = mqadmin("queryMsgById", "-i", f"{first.offset_message_id},{working.receipts[1].message_id}", "-t", TOPIC)
    assert both.stdout.count("OffsetID:") == 2


def test_body_is_saved_and_printed(mqadmin: Run, working: WorkingClient) -> None:
    result = mqadmin("queryMsgById", "-i", working.receipts[3].offset_message_id, "-t", TOPIC, "-f", "UTF-8")
    path = next(line.split()[-1] for line in result.stdout.splitlines() if line.startswith("Message Body Path"))
    assert Path(path).read_bytes() == b"admin 3"
    assert "Message Body:        admin 3\n" in result.stdout


def test_consumer_consumes_a_message_when_it_is_told_to(mqadmin: Run, working: WorkingClient) -> None:
    first = working.receipts[0]
    before = working.consumed.count(first.message_id)
    arguments = ("-t", TOPIC, "-g", GROUP, "-d", working.client_id)
    for command, message_id in (
        ("queryMsgById", first.offset_message_id),
        ("queryMsgByUniqueKey", first.message_id),
    ):
        same_shape(mqadmin(command, "-i", message_id, *arguments), "queryMsgByUniqueKey-directly")
    assert working.consumed.count(first.message_id) == before + 2


def test_message_is_sent_again(mqadmin: Run, working: WorkingClient) -> None:
    result = mqadmin("queryMsgById", "-i", working.receipts[5].offset_message_id, "-t", TOPIC, "-s", "true")
    assert "prepare resend msg. originalMsgId=" in result.stdout
    assert "SendResult [sendStatus=SEND_OK, msgId=" in result.stdout
    found = json.loads(mqadmin("queryMsgByKey", "-t", TOPIC, "-k", "key5", "--json").stdout)
    assert [each["body"] for each in found] == ["admin 5", "admin 5"]
    assert found[1]["properties"]["n"] == "5"


def test_connections_of_consumers(mqadmin: Run, working: WorkingClient) -> None:
    lines = printed(mqadmin("consumerConnection", "-g", GROUP)).lines()
    assert "#ClientId #ClientAddr #Language #Version" in lines
    assert "<client> <address> PYTHON V5_3_3" in {line.replace("JAVA", "PYTHON") for line in lines}
    assert f"{TOPIC} TagA" in lines
    assert {"ConsumeType: CONSUME_PASSIVELY", "MessageModel: CLUSTERING"} <= lines


def test_messages_are_printed(mqadmin: Run, working: WorkingClient) -> None:
    result = mqadmin("printMsg", "-t", TOPIC, "-s", "TagA")
    for number, receipt in enumerate(working.receipts):
        assert f"MSGID: {receipt.message_id} MessageExt [brokerName=broker-a" in result.stdout
        assert f"BODY: admin {number}\n" in result.stdout
    assert result.stdout.count("-" * 56) == 4
    nobody = mqadmin("printMsg", "-t", TOPIC, "-d", "false")
    assert "BODY: NOT PRINT BODY" in nobody.stdout
    none = mqadmin("printMsg", "-t", TOPIC, "-s", "NoSuchTag")
    assert "no matched msg. status=NO_MATCHED_MSG" in none.stdout
    assert "MSGID" not in none.stdout


def test_messages_of_one_queue_are_printed_and_counted(mqadmin: Run, working: WorkingClient) -> None:
    one = ("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "3")
    bodies = [line.rpartition("BODY: ")[2] for line in mqadmin(*one, "-p", "true", "-d", "true").stdout.splitlines()]
    assert bodies[:3] == ["admin 3", "admin 7", "admin 11"]  # a message that was sent again may follow
    assert mqadmin(*one, "-f", "true").stdout == f"Tag: {'TagA':<30} Count: {len(bodies)}\n"
    assert mqadmin(*one).stdout == ""


def test_messages_are_consumed_by_the_tool(mqadmin: Run, working: WorkingClient) -> None:
    result = mqadmin("consumeMessage", "-t", TOPIC, "-b", "broker-a", "-i", "2", "-o", "1", "-c", "1")
    assert "The oldler 1 message will be provided" in result.stdout
    assert result.stdout.count("MSGID") == 1
    begin = mqadmin("consumeMessage", "-t", TOPIC, "-s", "2020-01-01#00:00:00:000", "-d", "2020-01-02#00:00:00:000")
    assert "MSGID" not in begin.stdout or begin.stdout.count("MSGID") <= 4  # the first message of each queue at most
    everything = json.loads(mqadmin("consumeMessage", "-t", TOPIC, "--json").stdout)
    assert {receipt.message_id for receipt in working.receipts} <= {each["msgId"] for each in everything}


def test_topics_are_listed_with_their_groups(mqadmin: Run, working: WorkingClient) -> None:
    topics = mqadmin("topicList").stdout.splitlines()
    assert {TOPIC, f"%RETRY%{GROUP}", "TBW102"} <= set(topics)
    rows = printed(mqadmin("topicList", "-c")).lines()
    assert f"DefaultCluster {TOPIC} {GROUP}" in rows
    assert not any("%RETRY%" in row for row in rows)


def test_queues_are_shared_out(mqadmin: Run, working: WorkingClient) -> None:
    shares = json.loads(mqadmin("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2,10.0.0.3").stdout)["result"]
    assert [len(shares[f"10.0.0.{number}"]) for number in (1, 2, 3)] == [2, 1, 1]
    assert {queue["queueId"] for share in shares.values() for queue in share} == {0, 1, 2, 3}


def test_offsets_of_a_group_at_work_are_reset(mqadmin: Run, working: WorkingClient) -> None:
    back = ("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "1700000000000")
    same_shape(mqadmin(*back), "resetOffsetByTime")
    same_shape(mqadmin("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC), "skipAccumulatedMessage")


@pytest.mark.slow
def test_consumer_goes_back_when_its_offsets_are_reset(mqadmin: Run, working: WorkingClient) -> None:
    """It takes its time, as Java's does: 10 s for what is under way."""
    before = len(working.consumed)
    assert mqadmin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0").exit_code == 0
    deadline = time.monotonic() + 90
    while len(working.consumed) < before + 12 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(working.consumed) >= before + 12


def test_one_queue_is_reset_by_name_or_address_of_its_broker(mqadmin: Run, broker: EmbeddedBroker) -> None:
    mqadmin("updateTopic", "-b", broker.address, "-t", "ResetOne", "-r", "2", "-w", "2")
    mqadmin("updateSubGroup", "-b", broker.address, "-g", "ResetGroup")
    for _ in range(3):
        sent = mqadmin("sendMessage", "-t", "ResetOne", "-p", "x", "-b", "broker-a", "-i", "1")
        assert sent.exit_code == 0, sent.stderr
    for where, offset in (("broker-a", "2"), (broker.address, "1")):
        arguments = ("-g", "ResetGroup", "-t", "ResetOne", "-s", "-1", "-b", where, "-q", "1", "-o", offset)
        assert f"reset consumer offset to {offset}\n" in mqadmin("resetOffsetByTime", *arguments).stdout
    to_end = ("-g", "ResetGroup", "-t", "ResetOne", "-s", "-1", "-b", "broker-a", "-q", "1")
    assert "reset consumer offset to 3\n" in mqadmin("resetOffsetByTime", *to_end).stdout
    rows = json.loads(mqadmin("consumerProgress", "-g", "ResetGroup", "-t", "ResetOne", "--json").stdout)
    assert rows["diffTotal"] == 0
    assert {row["qid"]: row["consumerOffset"] for row in rows["queues"]}[1] == 3
    mqadmin("updateSubGroup", "-b", broker.address, "-g", "CloneGroup")
    old_flag = mqadmin("resetOffsetByTime", "-g", "ResetGroup", "-t", "ResetOne", "-s", "now", "-c")
    assert old_flag.exit_code == 0, old_flag.stderr
    cloned = mqadmin("cloneGroupOffset", "-s", "ResetGroup", "-d", "CloneGroup", "-t", "ResetOne")
    assert cloned.stdout == (
        "clone group offset success. srcGroup[ResetGroup], destGroup=[CloneGroup], topic[ResetOne]\n"
    )


def test_topic_with_everything(mqadmin: Run, broker: EmbeddedBroker) -> None:
    made = mqadmin(
        *("updateTopic", "-c", "DefaultCluster", "-b", broker.address, "-t", "Every", "-r", "3", "-w", "2", "-p", "6"),
        *("-o", "true", "-u", "true", "-s", "true", "-a", "+message.type=FIFO"),
    )
    assert made.stdout.splitlines() == [
        f"create topic to {broker.address} success.",
        "set broker orderConf. isOrder=true, orderConf=[broker-a:2]",  # -b wins over -c
        "TopicConfig [topicName=Every, readQueueNums=3, writeQueueNums=2, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=3, order=true, attributes={+message.type=FIFO}]",
    ]
    route = json.loads(mqadmin("topicRoute", "-t", "Every", "--json").stdout)
    assert route["queueDatas"][0]["readQueueNums"] == 3
    assert "orderConf=[broker-a:2]" in mqadmin("updateOrderConf", "-t", "Every", "-m", "get").stdout
    perm = mqadmin("updateTopicPerm", "-b", broker.address, "-t", "Every", "-p", "4")
    assert perm.stdout.startswith(f"update topic perm from 6 to 4 in {broker.address} success.\nTopicConfig [")
    equal = mqadmin("updateTopicPerm", "-b", broker.address, "-t", "Every", "-p", "4")
    assert equal.stdout == "new perm equals to the old one!\n"


def test_topics_and_groups_come_from_files(mqadmin: Run, broker: EmbeddedBroker, tmp_path: Path) -> None:
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text(json.dumps([{"topicName": f"FromFile{n}", "readQueueNums": 2} for n in (1, 2)]))
    groups.write_text(json.dumps([{"groupName": f"FromFile{n}", "retryMaxTimes": 3} for n in (1, 2)]))
    same_shape(mqadmin("updateTopicList", "-b", broker.address, "-f", str(topics)), "updateTopicList")
    same_shape(mqadmin("updateSubGroupList", "-b", broker.address, "-f", str(groups)), "updateSubGroupList")
    assert {"FromFile1", "FromFile2"} <= set(mqadmin("topicList").stdout.splitlines())
    assert "retryMaxTimes                           =  3" in mqadmin("getConsumerConfig", "-g", "FromFile2").stdout


def test_groups_are_made_and_removed(mqadmin: Run, broker: EmbeddedBroker) -> None:
    policy = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}'
    made = mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "AdmGroup", "-d", "true", "-p", policy)
    assert "customizedRetryPolicy=CustomizedRetryPolicy{next=[1000, 5000]}" in made.stdout
    assert "consumeBroadcastEnable                  =  true" in mqadmin("getConsumerConfig", "-g", "AdmGroup").stdout
    same_shape(mqadmin("deleteSubGroup", "-b", broker.address, "-g", "AdmGroup", "-r", "true"), "deleteSubGroup")
    assert mqadmin("getConsumerConfig", "-g", "AdmGroup").exit_code == 1
    mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "AdmGroup2")
    deleted = mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", "AdmGroup2")
    assert printed(deleted).lines() == {
        "delete subscription group [AdmGroup2] from broker [<address>] in cluster [DefaultCluster] success."
    }


def test_broker_tells_and_takes_settings(mqadmin: Run, broker: EmbeddedBroker) -> None:
    key, value = "flushConsumerOffsetInterval", "4321"
    changed = mqadmin("updateBrokerConfig", "-b", broker.address, "-k", key, "-v", value)
    assert changed.stdout == f"update broker config success, {broker.address}\n"
    config = mqadmin("getBrokerConfig", "-c", "DefaultCluster").stdout
    assert config.startswith(f"============Master: {broker.address}============\n")
    assert f"{key:<50}=  {value}\n" in config
    status = mqadmin("brokerStatus", "-c", "DefaultCluster").stdout
    assert f"{broker.address:<24} brokerVersionDesc               : V5_3_3\n" in status


def test_nameserver_tells_and_takes_values(mqadmin: Run, broker: EmbeddedBroker) -> None:
    assert mqadmin("updateKvConfig", "-s", "Space", "-k", "k", "-v", "v").exit_code == 0
    assert mqadmin("deleteKvConfig", "-s", "Space", "-k", "k").exit_code == 0
    changed = mqadmin("updateNamesrvConfig", "-k", "scanNotActiveBrokerInterval", "-v", "6000")
    assert changed.stdout == (
        f"update name server config success![{broker.nameserver}]\nscanNotActiveBrokerInterval : 6000\n"
    )
    assert f"{'scanNotActiveBrokerInterval':<50}=  6000\n" in mqadmin("getNamesrvConfig").stdout


def test_write_permission_goes_and_comes_by_name_or_address(mqadmin: Run) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-w"}) as own:
        wiped = mqadmin("wipeWritePerm", "-b", own.address, nameserver=own.nameserver)
        assert wiped.stdout.startswith(f"wipe write perm of broker[broker-w] in name server[{own.nameserver}] OK, ")
        added = mqadmin("addWritePerm", "-b", "broker-w", nameserver=own.nameserver)
        assert added.stdout.startswith(f"add write perm of broker[broker-w] in name server[{own.nameserver}] OK, ")


def test_store_is_checked(mqadmin: Run, tmp_path: Path) -> None:
    with EmbeddedBroker(store=tmp_path, config={"mappedFileSizeCommitLog": 1024 * 1024}) as own:
        sent = mqadmin("sendMessage", "-t", "Checked", "-p", "hello", nameserver=own.nameserver)
        assert sent.exit_code == 0, sent.stderr
        running = mqadmin("checkStore", str(tmp_path), nameserver=None)
        assert running.exit_code == 1
    result = mqadmin("checkStore", str(tmp_path), nameserver=None)
    assert result.exit_code == 0, result.stderr
    assert "records 1" in result.stdout
    assert result.stdout.endswith("sound\n")
    assert json.loads(mqadmin("checkStore", str(tmp_path), "--json", nameserver=None).stdout)["sound"] is True
    log = next((tmp_path / "commitlog").iterdir())
    with open(log, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 20)
    broken = mqadmin("checkStore", str(tmp_path), nameserver=None)
    assert broken.exit_code == 1
    assert "DEFECT" in broken.stdout
    assert "defects; python -m cometmq.broker.store check --repair" in broken.stderr


def test_sent_message_is_traced_when_asked(mqadmin: Run, broker: EmbeddedBroker) -> None:
    mqadmin("updateTopic", "-b", broker.address, "-t", "RMQ_SYS_TRACE_TOPIC", "-r", "1", "-w", "1")
    sent = json.loads(mqadmin("sendMessage", "-t", "Traced", "-p", "x", "-m", "true", "--json").stdout)
    deadline = time.monotonic() + 60
    found = mqadmin("queryMsgByKey", "-t", "RMQ_SYS_TRACE_TOPIC", "-k", sent[0]["msgId"])
    while found.exit_code and time.monotonic() < deadline:
        time.sleep(0.05)
        found = mqadmin("queryMsgByKey", "-t", "RMQ_SYS_TRACE_TOPIC", "-k", sent[0]["msgId"])
    assert found.exit_code == 0, found.stderr


def test_id_that_a_producer_made_up_leads_to_no_other_file(mqadmin: Run, tmp_path: Path) -> None:
    """The file with the body is named by a property, and properties are what producers like."""
    from cometmq.admin.commands.messages import body_folder, save_body
    from cometmq.client.admin.queries import looked_up
    from cometmq.protocol.record import Record

    properties = b"UNIQ_KEY\x01../../../evil\x02"
    record = Record(1, 0, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"body", "T", properties)
    path = save_body(looked_up(record, "broker-a"))
    assert Path(path).parent == Path(body_folder())
    assert Path(path).read_bytes() == b"body"
