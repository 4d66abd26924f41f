"""The settings of the nameserver: keys, types, text and updates from remote."""

import pytest

from cometmq.namesrv.config import OPTIONS, ConfigError, ConfigRefused, NamesrvConfig, from_sources
from cometmq.protocol import properties_text

#: What GET_NAMESRV_CONFIG of RocketMQ 5.3.3 shows, without the three keys that depend on the installation.
DEFAULTS = """\
bindAddress=0.0.0.0
clientRequestThreadPoolNums=8
clientRequestThreadPoolQueueCapacity=50000
clusterTest=false
configBlackList=configBlackList;configStorePath;kvConfigPath
defaultThreadPoolNums=16
defaultThreadPoolQueueCapacity=10000
deleteTopicWithBrokerRegistration=false
enableAllTopicList=true
enableControllerInNamesrv=false
enableShutdownGracefully=false
enableTopicList=true
listenPort=9876
needWaitForService=false
notifyMinBrokerIdChanged=false
orderMessageEnable=false
productEnvName=center
returnOrderTopicConfigToBroker=true
scanNotActiveBrokerInterval=5000
serverAsyncSemaphoreValue=64
serverCallbackExecutorThreads=0
serverChannelMaxIdleTimeSeconds=120
serverNettyWorkerGroupEnable=true
serverOnewaySemaphoreValue=256
serverPooledByteBufAllocatorEnable=true
serverSelectorThreads=3
serverSocketBacklog=1024
serverSocketRcvBufSize=0
serverSocketSndBufSize=0
serverWorkerThreads=8
shutdownWaitTimeSeconds=30
supportActingMaster=false
unRegisterBrokerQueueCapacity=3000
useEpollNativeSelector=false
waitSecondsForService=45
writeBufferHighWaterMark=0
writeBufferLowWaterMark=0
"""


def test_defaults_are_rocketmq_s() -> None:
    text = NamesrvConfig(rocketmq_home="/home/rmq").to_text()
    lines = text.splitlines(keepends=True)
    places = ("configStorePath=", "kvConfigPath=", "rocketmqHome=")
    assert "".join(line for line in lines if not line.startswith(places)) == DEFAULTS
    assert len(lines) == 40
    assert len(OPTIONS) == 41  # logDir is a key of ours, shown when it is set
    assert "rocketmqHome=/home/rmq\n" in lines


def test_text_is_sorted_by_key_and_reads_back() -> None:
    config = NamesrvConfig().with_properties({"listenPort": "1", "zzz": "unknown", "aaa": "unknown too"})
    keys = [line.partition("=")[0] for line in config.to_text().splitlines()]
    assert keys == sorted(keys)
    assert "aaa" in keys
    assert NamesrvConfig().with_properties(properties_text.loads(config.to_text())) == config


def test_files_live_in_the_home_of_the_user_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = from_sources({}, {})
    assert config.kv_config_path == "/home/me/namesrv/kvConfig.json"
    assert config.config_store_path == "/home/me/namesrv/namesrv.properties"
    assert config.rocketmq_home == ""


def test_path_of_the_file_becomes_the_store_path_and_overrides_stand_above_it() -> None:
    file = {"listenPort": "1", "bindAddress": "::1"}
    config = from_sources(file, {"listenPort": "2"}, path="/etc/namesrv.conf", rocketmq_home="/opt/rmq")
    assert config.config_store_path == "/etc/namesrv.conf"
    assert (config.listen_port, config.bind_address, config.rocketmq_home) == (2, "::1", "/opt/rmq")
    # RocketMQ writes back to the file that it was started with, whatever that file says.
    assert from_sources({"configStorePath": "/x"}, {}, path="/y").config_store_path == "/y"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), (" True ", True), ("yes", False), ("1", False), ("", False)]
)
def test_boolean_is_true_or_anything_else(text: str, value: bool) -> None:
    assert NamesrvConfig().with_properties({"enableTopicList": text}).enable_topic_list is value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("listenPort", "many"),
        ("listenPort", ""),
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("serverWorkerThreads", "3000000000"),
        ("scanNotActiveBrokerInterval", "0"),
        ("serverChannelMaxIdleTimeSeconds", "1.5"),
    ],
)
def test_bad_integer_names_key_and_value(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={text}") as caught:
        NamesrvConfig().with_properties({key: text})
    assert caught.value.remedy


def test_update_changes_what_is_dynamic_and_keeps_what_is_unknown() -> None:
    config, problems = NamesrvConfig().updated(
        {"scanNotActiveBrokerInterval": "6000", "enableTopicList": "false", "nonsense": ""}
    )
    assert problems == []
    assert (config.scan_not_active_broker_interval, config.enable_topic_list) == (6000, False)
    assert config.unknown == {"nonsense": ""}
    assert "nonsense=\n" in config.to_text()


def test_update_leaves_a_value_alone_that_does_not_parse() -> None:
    config, problems = NamesrvConfig().updated({"scanNotActiveBrokerInterval": "soon", "enableTopicList": "false"})
    assert (config.scan_not_active_broker_interval, config.enable_topic_list) == (5000, False)
    assert problems == ["scanNotActiveBrokerInterval=soon: expected an integer"]


@pytest.mark.parametrize("key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"])
def test_black_list_always_holds_these(key: str) -> None:
    config = NamesrvConfig(config_black_list="")
    with pytest.raises(ConfigRefused, match=r"^Can not update config in black list\.$") as caught:
        config.updated({key: "x", "enableTopicList": "false"})
    assert caught.value.code == 16


def test_black_list_can_be_longer() -> None:
    config = NamesrvConfig(config_black_list="enableTopicList; mine")
    for key in ("enableTopicList", "mine"):
        with pytest.raises(ConfigRefused, match="black list"):
            config.updated({key: "false"})
    assert config.updated({"enableAllTopicList": "false"})[0].enable_all_topic_list is False


@pytest.mark.parametrize("key", ["listenPort", "bindAddress", "serverWorkerThreads", "clusterTest"])
def test_known_key_that_cannot_change_at_run_time_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigRefused, match=key) as caught:
        NamesrvConfig().updated({key: "1", "enableTopicList": "false"})
    assert caught.value.code == 16
    assert "restart" in caught.value.remedy


def test_keys_without_effect_are_named_when_they_are_set() -> None:
    assert NamesrvConfig(rocketmq_home="/x").without_effect() == []
    config = NamesrvConfig().with_properties({"serverWorkerThreads": "8", "clusterTest": "true", "listenPort": "1"})
    assert config.without_effect() == ["clusterTest"]
    assert config.with_properties({"serverWorkerThreads": "9"}).without_effect() == [
        "clusterTest",
        "serverWorkerThreads",
    ]


@pytest.mark.parametrize("text", ["9_876", "٩", "1e3", "", " "])
def test_a_number_is_made_of_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an integer"):
        NamesrvConfig().with_properties({"listenPort": text})


def test_where_logs_go_cannot_be_changed_from_remote() -> None:
    with pytest.raises(ConfigRefused, match="logDir"):
        NamesrvConfig().updated({"logDir": "/tmp/x"})
    assert "logDir=/var/log\n" in NamesrvConfig(log_dir="/var/log").to_text()
