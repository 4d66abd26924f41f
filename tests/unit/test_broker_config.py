"""The settings of the broker: keys, defaults, text and updates from remote."""

import dataclasses
import re
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig, ConfigError, ConfigRefused, from_sources, local_address
from cometmq.broker.config_keys import WITHOUT_MEANING
from cometmq.broker.store.options import KEYS as STORE_KEYS
from cometmq.broker.store.options import StoreOptions
from cometmq.options import UNKNOWN_LIMIT, options_of
from cometmq.protocol import properties_text

#: What GET_BROKER_CONFIG of RocketMQ 5.3.3 shows.
REAL = properties_text.loads((Path(__file__).parents[1] / "data" / "broker-config-5.3.3.properties").read_bytes())

#: Keys whose value was set for that broker, depends on the machine, or differs on purpose.
SET_THERE = {
    "bitMapLengthConsumeQueueExt",
    "brokerIP1",
    "brokerIP2",
    "brokerName",
    "diskMaxUsedSpaceRatio",
    "enablePropertyFilter",
    "haListenPort",
    "listenPort",
    "mappedFileSizeCommitLog",
    "messageDelayLevel",
    "namesrvAddr",
    "recallMessageEnable",
    "registerNameServerPeriod",
    "rocketmqHome",
    "storePathCommitLog",
    "storePathRootDir",
    "transactionCheckInterval",
    "transactionTimeOut",
}
OURS = {
    "flushCommitLogLeastPages",
    "maxTransferBytesOnMessageInDisk",
    "maxTransferBytesOnMessageInMemory",
    "maxTransferCountOnMessageInDisk",
    "maxTransferCountOnMessageInMemory",
}


def test_every_key_of_a_real_broker_is_known_and_shown() -> None:
    shown = BrokerConfig().to_properties()
    assert REAL.keys() <= shown.keys()
    # What the specification has of later versions, and nothing else.
    assert shown.keys() - REAL.keys() == {"enableSplitMetadata", "popPollingMapExpireTimeSeconds", "splitMetadataSize"}
    assert list(shown) == sorted(shown)


def test_defaults_are_rocketmq_s_but_where_we_say_so() -> None:
    shown = BrokerConfig().to_properties()
    different = {key for key, text in REAL.items() if shown[key] != text}
    assert different == SET_THERE | OURS


def test_no_key_is_declared_twice() -> None:
    own, store = options_of(BrokerConfig).keys(), STORE_KEYS.keys()
    assert not own & store
    assert not WITHOUT_MEANING.keys() & (own | store)


def test_the_settings_of_a_real_broker_are_taken_as_they_are() -> None:
    config = BrokerConfig().with_properties(REAL)
    assert config.to_properties() | REAL == config.to_properties()
    assert config.broker_name == "broker-a"
    assert config.store.mapped_file_size_commit_log == 64 * 1024**2
    assert config.unknown == {}
    assert BrokerConfig().with_properties(properties_text.loads(config.to_text())) == config


def test_who_it_is_follows_from_the_machine() -> None:
    import socket

    config = BrokerConfig()
    assert config.broker_name == socket.gethostname()
    assert config.broker_ip1 == config.broker_ip2 == local_address()


def test_address_for_slaves_follows_the_address_for_clients() -> None:
    assert from_sources({"brokerIP1": "10.0.0.1"}, {}).broker_ip2 == "10.0.0.1"
    assert from_sources({"brokerIP1": "10.0.0.1", "brokerIP2": "10.0.0.2"}, {}).broker_ip2 == "10.0.0.2"


def test_role_decides_about_the_id() -> None:
    assert from_sources({"brokerId": "7"}, {}).broker_id == 0
    assert from_sources({"brokerId": "7", "brokerRole": "SLAVE"}, {}).broker_id == 7
    with pytest.raises(ConfigError, match="brokerId=0: expected a number above 0, because brokerRole is SLAVE"):
        from_sources({"brokerRole": "SLAVE"}, {})


def test_port_of_replication_is_the_next_one_unless_told() -> None:
    assert from_sources({"listenPort": "20911"}, {}).ha_port == 20912
    assert from_sources({"listenPort": "20911", "haListenPort": "5"}, {}).to_properties()["haListenPort"] == "5"
    assert from_sources({"listenPort": "0"}, {}).ha_port == 0


def test_period_of_registration_has_limits() -> None:
    texts = ("1", "20000", "99999")
    periods = [from_sources({"registerNameServerPeriod": text}, {}).register_period for text in texts]
    assert periods == [10.0, 20.0, 60.0]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("listenPort", "many", "an integer"),
        ("listenPort", "65536", "from 0 to 65535"),
        ("brokerPermission", "8", "from 0 to 7"),
        ("autoCreateTopicEnable", "yes", "true or false"),
        ("flushDiskType", "SOMETIMES", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("mappedFileSizeCommitLog", "1G", "an integer"),
        ("deleteWhen", "25", "hours"),
        ("brokerName", " ", "a name"),
    ],
)
def test_bad_value_names_key_and_value(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={text}: expected .*{expected}") as caught:
        from_sources({key: text}, {})
    assert caught.value.remedy


def test_old_spellings_are_taken() -> None:
    config = BrokerConfig().with_properties({"pollNameServerInteval": "7000"})
    assert config.update_name_server_addr_period == 7000
    assert "pollNameServerInteval" not in config.to_properties()


def test_update_changes_what_is_dynamic_and_keeps_what_is_unknown() -> None:
    config, problems = BrokerConfig().updated(
        {"autoCreateTopicEnable": "false", "fileReservedTime": "48", "brokerPermission": "4", "noSuchKey": "1"}
    )
    assert problems == []
    assert config.auto_create_topic_enable is False
    assert config.store.file_reserved_time == 48
    assert (config.is_readable, config.is_writable) == (True, False)
    assert config.unknown == {"noSuchKey": "1"}


def test_update_leaves_a_value_alone_that_does_not_parse() -> None:
    config, problems = BrokerConfig().updated({"fileReservedTime": "long", "brokerPermission": "9", "traceOn": "false"})
    assert config.store.file_reserved_time == 72
    assert (config.broker_permission, config.trace_on) == (6, False)
    assert problems == [
        "fileReservedTime=long: expected an integer",
        "brokerPermission=9: expected an integer from 0 to 7",
    ]


@pytest.mark.parametrize("key", ["configBlackList", "brokerConfigPath", "configStorePath", "rocketmqHome"])
def test_black_list_always_holds_these(key: str) -> None:
    with pytest.raises(ConfigRefused, match=r"^Can not update config in black list\.$") as caught:
        BrokerConfig(config_black_list="").updated({key: "x", "traceOn": "false"})
    assert caught.value.code == 16


@pytest.mark.parametrize(
    "key",
    [
        "storePathRootDir",
        "storePathCommitLog",
        "listenPort",
        "brokerName",
        "namesrvAddr",
        "logDir",
        "flushDiskType",
        "messageStorePlugIn",
        "sendMessageThreadPoolNums",
        # of other versions of RocketMQ: a path, a class or a command once the file is read by one
        "filterServerNums",
        "storePathEpochFile",
        "authenticationProvider.class",
        "transactionalMessageCheckListenerClass",
        "tls.server.keyPath",
        "haMasterAddress",
        "kvConfigPath",
    ],
)
def test_key_that_cannot_change_at_run_time_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigRefused, match=key) as caught:
        BrokerConfig().updated({key: "1", "traceOn": "false"})
    assert caught.value.code == 16


def test_no_path_may_change_at_run_time() -> None:
    config = BrokerConfig()
    dynamic = [key for key in config.to_properties() if config.is_dynamic(key)]
    assert not [key for key in dynamic if "path" in key.lower() or "dir" in key.lower() or "home" in key.lower()]


def test_keys_without_effect_are_named_when_they_are_set() -> None:
    config = BrokerConfig(rocketmq_home="/x")
    assert config.without_effect() == []
    changed = config.with_properties(
        {"sendMessageThreadPoolNums": "64", "useReentrantLockWhenPutMessage": "true", "enablePropertyFilter": "true"}
    )
    assert changed.without_effect() == ["enablePropertyFilter", "sendMessageThreadPoolNums"]
    assert changed.to_properties()["sendMessageThreadPoolNums"] == "64"


@pytest.mark.parametrize("kind", [BrokerConfig, StoreOptions])
def test_key_has_an_effect_only_when_something_reads_it(kind: type) -> None:
    root = Path(__file__).parents[2]
    code = "\n".join(path.read_text() for path in (root / "broker").rglob("*.py"))
    read = set(re.findall(r"\.([a-z0-9_]+)\b", code))
    effective = {field.name for field in options_of(kind).values() if field.metadata["effect"]}
    idle = {field.name for field in options_of(kind).values() if not field.metadata["effect"]}
    assert effective - read == set()
    assert not any(field.metadata["dynamic"] for field in options_of(kind).values() if field.name in idle)


def test_paths_of_the_store_are_shown_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    shown = BrokerConfig().to_properties()
    assert (shown["storePathRootDir"], shown["storePathCommitLog"]) == ("/home/me/store", "/home/me/store/commitlog")


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerConfig().trace_on = False  # type: ignore[misc]


def test_unknown_keys_of_remote_updates_have_a_limit_together() -> None:
    config, _ = BrokerConfig().updated({"noSuchKey": "x" * (UNKNOWN_LIMIT // 2)})
    with pytest.raises(ConfigRefused, match="characters of unknown keys"):
        config.updated({"noSuchKey2": "x" * (UNKNOWN_LIMIT // 2)})
    # What a file has beyond it is its owner's business, and other keys can still be changed.
    full = BrokerConfig().with_properties({"noSuchKey": "x" * (2 * UNKNOWN_LIMIT)})
    assert full.updated({"traceOn": "false"})[0].trace_on is False


@pytest.mark.parametrize("key", ["regionId", "brokerClusterName", "brokerName", "brokerIP1"])
@pytest.mark.parametrize("text", ["a\x01b", "a\x02b", "a\nb", "\x7f"])
def test_texts_that_would_break_every_message_are_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match="control characters"):
        BrokerConfig().with_properties({key: text})
    config, problems = BrokerConfig().updated({"regionId": text})
    assert config.region_id == "DefaultRegion"
    assert len(problems) == 1


@pytest.mark.parametrize("host", ["", " ", "10.0.0.1:10911", "http://host", "a b", "a,b", "[::1]", "1:2:3"])
@pytest.mark.parametrize("key", ["brokerIP1", "brokerIP2"])
def test_an_address_that_no_client_could_use_is_refused(key: str, host: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_sources({key: host}, {})


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1%eth0", "broker.example", "my_host", "bücher.example"])
def test_addresses_and_names_are_taken(host: str) -> None:
    assert from_sources({"brokerIP1": host}, {}).broker_ip1 == host
