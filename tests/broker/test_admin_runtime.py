"""What a broker tells about itself: its table of figures, its statistics, its settings."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.config import from_sources
from cometmq.broker.handlers.runtime import readable
from cometmq.broker.store.clock import FakeClock
from cometmq.protocol import fastjson, properties_text
from cometmq.protocol.bodies.registration import KVTable
from cometmq.protocol.bodies.stats import BrokerStatsData, HARuntimeInfo
from support import golden
from support.admin_broker import AdminBroker
from support.store_kit import message

TOPIC = "TopicTest"
CLUSTER = "DefaultCluster"


#: Keys that move files, name code, or make another broker of it.
FIXED_KEYS = (
    "storePathRootDir",
    "storePathCommitLog",
    "brokerName",
    "brokerRole",
    "listenPort",
    "brokerIP1",
    "namesrvAddr",
    "filterServerNums",
    "messageStorePlugIn",
    "logDir",
    "haMasterAddress",
    "tlsKeyPath",
    "configStorePath",
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AdminBroker]:
    config = tmp_path / "broker.conf"
    config.write_text("# mine\nbrokerName=broker-a\n")
    async with AdminBroker(tmp_path / "store", clock=FakeClock(), brokerConfigPath=str(config)) as running:
        running.topic(TOPIC)
        yield running


async def info(broker: AdminBroker) -> dict[str, str]:
    answer = await broker.ask(28)
    assert answer.code == 0, answer
    assert answer.remark is None
    return KVTable.decode(answer.body).table


# The table


def recorded_table() -> dict[str, str]:
    """The table of a real broker 5.3.3."""
    (first, *_) = [each for each in golden.exchanges("admin") if each.request.code == 28 and each.response]
    assert first.response is not None
    return KVTable.decode(first.response.body).table


async def test_the_table_has_the_keys_and_formats_of_a_real_broker(broker: AdminBroker) -> None:
    await broker.put_message(message(TOPIC, 0, b"x"))
    broker.state.stats.put(TOPIC, 0, 1, 100)
    ours, recorded = await info(broker), recorded_table()
    folder = broker.store.commit_log.folder
    names = {re.sub("^commitLogDiskRatio_.*", f"commitLogDiskRatio_{folder}", key) for key in recorded}
    assert names - {"scheduleMessageOffset_3"} == set(ours)  # nothing is delayed here
    shapes = {
        "three doubles": r"\d+\.\d+ \d+\.\d+ \d+\.\d+",
        "double": r"-?\d+\.\d+(E-?\d+)?",
        "integer": r"-?\d+",
    }
    for key, value in ours.items():
        if key.endswith("Tps") and not key.startswith("timer"):
            assert re.fullmatch(shapes["three doubles"], value), (key, value)
        for name in ("integer", "double"):
            if re.fullmatch(shapes[name], recorded.get(key, "")):
                assert re.fullmatch(shapes[name], value), (key, value, f"should be a {name}")
    for key in ("runtime", "commitLogDirCapacity", "putMessageDistributeTime", "remainHowManyDataToFlush"):
        pattern = re.sub(r"[\d.]+( [KMGT]?i?B)?", "N", recorded[key])
        assert re.sub(r"[\d.]+( [KMGT]?i?B)?", "N", ours[key]) == pattern, key


async def test_the_table_counts_what_happened(broker: AdminBroker) -> None:
    clock = broker.clock
    assert isinstance(clock, FakeClock)
    stats = broker.state.stats
    for _ in range(10):
        stats.put(TOPIC, 0, 3, 300)
        stats.got("G", TOPIC, 0, 2, 200)
        stats.got_miss()
        clock.advance(1)
        stats.tick()
    stats.put_failed()
    stats.put_latency(7)
    table = await info(broker)
    assert table["putTps"] == "3.0 3.0 3.0"
    assert table["getTransferredTps"] == "2.0 2.0 2.0"
    assert table["getFoundTps"] == table["getMissTps"] == "1.0 1.0 1.0"
    assert table["getTotalTps"] == "2.0 2.0 2.0"
    assert table["msgPutTotalTodayNow"] == "30"
    assert table["msgGetTotalTodayNow"] == "20"
    assert table["putMessageTimesTotal"] == "30"
    assert table["putMessageSizeTotal"] == "3000"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["putMessageFailedTimes"] == "1"
    assert table["putMessageEntireTimeMax"] == "7"
    assert "[0~10ms]:1 " in table["putMessageDistributeTime"]
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"
    assert table["brokerVersionDesc"] == "V5_3_3"


async def test_the_table_knows_the_log_and_the_delay_levels(broker: AdminBroker) -> None:
    assert (await info(broker))["earliestMessageTimeStamp"] == "-1"
    await broker.put_message(message(TOPIC, 0, b"x"))
    await broker.put_message(message(TOPIC, 0, b"later", DELAY="3"))
    table = await info(broker)
    assert table["commitLogMinOffset"] == "0"
    assert table["commitLogMaxOffset"] == str(broker.store.commit_log.max_offset)
    assert table["earliestMessageTimeStamp"] == str(broker.clock.wall())
    assert table["scheduleMessageOffset_3"] == "0,1"
    assert "scheduleMessageOffset_2" not in table
    assert table["dispatchBehindBytes"] == "0"


async def test_sends_and_pulls_of_clients_are_counted(broker: AdminBroker) -> None:
    """Over the wire; a delayed message counts twice, under the topic of the delay and under its own."""
    clock = broker.clock
    assert isinstance(clock, FakeClock)
    send = {
        "producerGroup": "P",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
    }
    for properties in ("KEYS\1a\2", "KEYS\1b\2", "DELAY\0011\2"):
        assert (await broker.ask(10, send | {"properties": properties}, b"x")).code == 0
    clock.set_wall(clock.wall() + 5_000)
    broker.state.delay.poke()
    await broker.state.delay.settle()
    pull = {
        "consumerGroup": "G",
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 1,
        "subscription": "*",
        "expressionType": "TAG",
    }
    assert (await broker.ask(11, pull)).code == 0
    assert (await broker.ask(11, pull | {"queueOffset": 3})).code == 19
    for _ in range(10):
        broker.state.stats.tick()
    table = await info(broker)
    assert table["putMessageTimesTotal"] == "4"
    assert table["msgPutTotalTodayNow"] == "3"
    assert table["msgGetTotalTodayNow"] == "3"
    assert sum(int(count) for count in re.findall(r"\]:(\d+)", table["putMessageDistributeTime"])) == 4
    for name, key, count in (
        ("TOPIC_PUT_NUMS", TOPIC, 3),
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX", 1),
        ("GROUP_GET_NUMS", f"{TOPIC}@G", 3),
        ("QUEUE_GET_NUMS", f"{TOPIC}@0@G", 3),
        ("BROKER_PUT_NUMS", CLUSTER, 4),
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER, 3),
    ):
        answer = await broker.ask(315, {"statsName": name, "statsKey": key})
        minute = BrokerStatsData.decode(answer.body).stats_minute
        assert minute is not None
        assert minute.sum == count, name


async def test_statistics_go_with_their_topic_and_group(broker: AdminBroker) -> None:
    broker.group("G")
    broker.state.stats.put(TOPIC, 0, 1, 1)
    broker.state.stats.got("G", "other", 0, 1, 1)
    assert (await broker.ask(215, {"topic": TOPIC})).code == 0
    assert (await broker.ask(207, {"groupName": "G"})).code == 0
    assert (await broker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC})).code == 1
    assert (await broker.ask(315, {"statsName": "GROUP_GET_NUMS", "statsKey": "other@G"})).code == 1


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1250, "1.2 KiB"), (1 << 20, "1.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes_are_written_as_rocketmq_does(size: int, text: str) -> None:
    assert readable(size) == text


# One item


async def test_an_item_of_the_statistics(broker: AdminBroker) -> None:
    broker.state.stats.put(TOPIC, 0, 58, 100)
    for _ in range(10):
        broker.state.stats.tick()
    answer = await broker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC})
    minute = BrokerStatsData.decode(answer.body).stats_minute
    assert minute is not None
    assert minute.sum == 58
    assert set(fastjson.loads(answer.body)["statsDay"]) == {"avgpt", "sum", "tps"}


@pytest.mark.parametrize(("name", "key"), [("TOPIC_PUT_NUMS", "unknown"), ("NO_SUCH", TOPIC), ("", "")])
async def test_an_unknown_item_is_named(broker: AdminBroker, name: str, key: str) -> None:
    answer = await broker.ask(315, {"statsName": name, "statsKey": key})
    assert (answer.code, answer.remark) == (1, f"The stats <{name}> <{key}> not exist")


async def test_an_item_needs_a_name_and_a_key(broker: AdminBroker) -> None:
    answer = await broker.ask(315, {"statsName": "TOPIC_PUT_NUMS"})
    assert answer.code == 1
    assert "statsKey" in (answer.remark or "")


# Replication and stores that are not here


async def test_a_master_without_slaves_says_so(broker: AdminBroker) -> None:
    await broker.put(TOPIC)
    status = HARuntimeInfo.decode((await broker.ask(907)).body)
    assert status.master
    assert status.in_sync_slave_nums == 0
    assert status.master_commit_log_max_offset == broker.store.commit_log.max_offset


async def test_there_is_nothing_to_compare_queues_with(broker: AdminBroker) -> None:
    answer = await broker.ask(354, {"topic": "", "checkStoreTime": "1"})
    body = fastjson.loads(answer.body)
    assert body["checkStatus"] == 3
    assert "one kind" in body["checkResult"]


# Settings


def config_file(broker: AdminBroker) -> bytes:
    return Path(broker.state.config.broker_config_path).read_bytes()


def block_config_file(broker: AdminBroker) -> None:
    """From now on the file cannot be written."""
    path = Path(broker.state.config.broker_config_path)
    path.unlink()
    (path / "in the way").mkdir(parents=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def settings(broker: AdminBroker) -> dict[str, str]:
    return properties_text.loads((await broker.ask(26)).body)


async def test_all_keys_of_a_real_broker_are_shown_sorted_with_their_version(broker: AdminBroker) -> None:
    answer = await broker.ask(26)
    lines = answer.body.decode().splitlines()
    keys = [line.partition("=")[0] for line in lines]
    assert keys == sorted(keys)
    recorded = (golden.WIRE.parent / "broker-config-5.3.3.properties").read_text()
    assert set(properties_text.loads(recorded)) <= set(keys)
    assert json.loads(answer.ext["version"]) == {
        "counter": 0,
        "stateVersion": 0,
        "timestamp": broker.state.boot_time,
    }


async def test_a_dynamic_key_takes_effect_at_once_and_is_in_the_file(broker: AdminBroker) -> None:
    told: list[int] = []
    broker.state.on_config.append(lambda config: told.append(config.store.file_reserved_time))
    answer = await broker.ask(25, {}, b"fileReservedTime=48\nmaxMessageSize=1000\nbrokerPermission=4\n")
    assert (answer.code, answer.remark) == (0, None)
    assert broker.store.options.file_reserved_time == 48
    assert broker.state.config.broker_permission == 4
    assert told == [48]
    assert (await settings(broker))["fileReservedTime"] == "48"
    assert json.loads((await broker.ask(26)).ext["version"])["counter"] == 1
    refused = broker.store.put(message(TOPIC, 0, b"x" * 1001))
    assert (await refused.future()).status is not None
    assert refused.physical_offset == -1
    # What a restart reads.
    again = from_sources(properties_text.loads(config_file(broker)), {})
    assert again.store.file_reserved_time == 48
    assert again.broker_permission == 4
    assert again.broker_name == "broker-a"


async def test_an_unknown_key_is_kept_and_shown(broker: AdminBroker) -> None:
    assert (await broker.ask(25, {}, b"noSuchKey=1\n")).code == 0
    assert (await settings(broker))["noSuchKey"] == "1"


@pytest.mark.parametrize("key", ["brokerConfigPath", "rocketmqHome", "configBlackList"])
async def test_black_listed_keys_are_refused_in_rocketmqs_words(broker: AdminBroker, key: str) -> None:
    answer = await broker.ask(25, {}, f"fileReservedTime=1\n{key}=x\n".encode())
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert broker.state.config.store.file_reserved_time == 72


@pytest.mark.parametrize("key", FIXED_KEYS)
async def test_paths_classes_and_commands_cannot_be_set(broker: AdminBroker, key: str) -> None:
    before = config_file(broker)
    answer = await broker.ask(25, {}, f"{key}=/tmp/x;touch /tmp/owned\n".encode())
    assert answer.code == 16
    assert "black list" in (answer.remark or "") or key in (answer.remark or "")
    assert config_file(broker) == before


async def test_a_value_that_cannot_be_used_changes_nothing(broker: AdminBroker) -> None:
    assert (await broker.ask(25, {}, b"fileReservedTime=soon\n")).code == 0  # as RocketMQ answers it
    assert broker.state.config.store.file_reserved_time == 72


async def test_bodies_that_are_no_settings(broker: AdminBroker) -> None:
    assert (await broker.ask(25)).code == 0
    assert (await broker.ask(25, {}, b"\xff\xfe\xff")).code in (0, 1)
    assert (await broker.ask(25, {}, b"key=\\u12\n")).code == 1
    answer = await broker.ask(25, {}, b"k=v\n" * 100_000)
    assert answer.code == 1
    assert "limit" in (answer.remark or "")


async def test_a_change_that_cannot_be_saved_is_not_made(broker: AdminBroker) -> None:
    block_config_file(broker)
    answer = await broker.ask(25, {}, b"fileReservedTime=48\n")
    assert answer.code == 1
    assert answer.remark
    assert broker.state.config.store.file_reserved_time == 72


# Settings after a restart


async def test_without_a_configuration_file_changes_survive_a_restart_by_themselves(tmp_path: Path) -> None:
    store = tmp_path / "store"
    own = {"brokerConfigPath": str(store / "config" / "broker.properties")}
    async with AdminBroker(store, **own) as broker:
        assert (await broker.ask(25, {}, b"fileReservedTime=48\n")).code == 0
        assert (await broker.ask(25, {}, b"longPollingEnable=false\nnoSuchKey=1\nfileReservedTime=49\n")).code == 0
        # Only these: ports and addresses are decided at each start.
        kept = properties_text.loads(config_file(broker))
        assert kept == {"fileReservedTime": "49", "longPollingEnable": "false", "noSuchKey": "1"}
    async with AdminBroker(store, **own) as broker:
        shown = await settings(broker)
        assert (shown["fileReservedTime"], shown["longPollingEnable"], shown["noSuchKey"]) == ("49", "false", "1")
        assert broker.store.options.file_reserved_time == 49
        assert not broker.state.config.long_polling_enable


async def test_what_cannot_be_changed_from_remote_does_not_come_from_the_file_either(tmp_path: Path) -> None:
    store = tmp_path / "store"
    path = store / "config" / "broker.properties"
    write(path, "brokerName=other\nfileReservedTime=soon\nbrokerConfigPath=/x\nmaxMessageSize=1000\n")
    async with AdminBroker(store, brokerConfigPath=str(path)) as broker:
        assert broker.state.config.broker_name == "broker-a"
        assert broker.state.config.broker_config_path == str(path)
        assert broker.state.config.store.file_reserved_time == 72
        assert broker.state.config.store.max_message_size == 1000


# Limits for cold reads


async def test_limits_of_groups_are_kept_and_shown(broker: AdminBroker) -> None:
    empty = {
        "runtimeTable": {},
        "configTable": {},
        "cgColdReadThreshold": 3145728,
        "globalColdReadThreshold": 104857600,
        "globalAcc": 0,
    }
    assert fastjson.loads((await broker.ask(2003)).body) == empty
    assert (await broker.ask(2001, {}, b"CG_admin=1024\n")).code == 0
    assert fastjson.loads((await broker.ask(2003)).body)["configTable"] == {"CG_admin": 1024}
    assert (await broker.ask(2002, {}, b"CG_admin")).code == 0
    assert fastjson.loads((await broker.ask(2003)).body) == empty


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"g=x", 1),
        (b"g=-1", 1),
        (b"g=99999999999999999999", 1),
        (b"g=" + b"0" * 30 + b"9" * 5000, 1),
        (b"g=1024\x1f5", 1),
        (b"g=\\u1", 1),
        (b"a!=1", 29),
        (b"x" * 2000, 29),
    ],
)
async def test_bad_limits_change_nothing(broker: AdminBroker, body: bytes, code: int) -> None:
    answer = await broker.ask(2001, {}, body)
    assert answer.code == code
    assert answer.remark
    assert fastjson.loads((await broker.ask(2003)).body)["configTable"] == {}


async def test_the_log_is_read_ahead_and_in_no_other_way(broker: AdminBroker) -> None:
    answer = await broker.ask(2004, {"READ_AHEAD_MODE": 0})
    assert (answer.code, answer.remark) == (0, "set commitlog readahead mode success, mode: 0")
    assert (await broker.ask(2004, {"READ_AHEAD_MODE": 1})).code == 1
    assert (await broker.ask(2004)).code == 1
    assert (await broker.ask(2004, {"READ_AHEAD_MODE": "x"})).code == 1


# What is not here yet


@pytest.mark.parametrize("code", [60, 61, 402, 401, 323, 355, 513, 908, 1007, 3001, 3005, 200056, 22, 27, 213, 301])
async def test_what_belongs_to_later_features_is_refused(broker: AdminBroker, code: int) -> None:
    answer = await broker.ask(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
