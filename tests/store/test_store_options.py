"""Options of a store: RocketMQ's keys and defaults, checked values."""

import dataclasses
import os

import pytest

from cometmq.broker.store.errors import OptionError
from cometmq.broker.store.options import DYNAMIC_KEYS, KEYS, BrokerRole, FlushDiskType, StoreOptions
from cometmq.protocol import properties_text

#: What an operator finds when nothing is configured.
DEFAULTS = {
    "mappedFileSizeCommitLog": "1073741824",
    "mappedFileSizeConsumeQueue": "6000000",
    "enableConsumeQueueExt": "false",
    "mappedFileSizeConsumeQueueExt": "50331648",
    "mapperFileSizeBatchConsumeQueue": "13800000",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": "500",
    "flushCommitLogThoroughInterval": "10000",
    "flushIntervalConsumeQueue": "1000",
    "flushConsumeQueueLeastPages": "2",
    "flushConsumeQueueThoroughInterval": "60000",
    "syncFlushTimeout": "5000",
    "slaveTimeout": "3000",
    "putMessageTimeout": "8000",
    "maxMessageSize": "4194304",
    "deleteWhen": "04",
    "fileReservedTime": "72",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
    "cleanFileForciblyEnable": "true",
    "deleteFileBatchMax": "10",
    "deleteCommitLogFilesInterval": "100",
    "destroyMapedFileIntervalForcibly": "120000",
    "redeleteHangedFileInterval": "120000",
    "accessMessageInMemoryMaxRatio": "40",
    "maxFilterMessageSize": "16000",
    "travelCqFileNumWhenGetMessage": "1",
    "messageIndexEnable": "true",
    "messageIndexSafe": "false",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "maxMsgsNumBatch": "64",
    "defaultQueryMaxNum": "32",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "flushDelayOffsetInterval": "10000",
    "timerWheelEnable": "true",
    "timerPrecisionMs": "1000",
    "timerMaxDelaySec": "259200",
    "timerRollWindowSlot": "172800",
    "osPageCacheBusyTimeOutMills": "1000",
    "offsetCheckInSlave": "false",
    "duplicationEnable": "false",
    "enableLmq": "false",
    "enableMultiDispatch": "false",
    "maxLmqConsumeQueueNum": "20000",
    "autoMessageVersionOnTopicLen": "true",
    "enabledAppendPropCRC": "false",
    "forceVerifyPropCRC": "false",
    "checkCRCOnRecover": "true",
    "readUnCommitted": "false",
    "pullBatchMaxMessageCount": "160",
    "totalReplicas": "1",
    "inSyncReplicas": "1",
    "minInSyncReplicas": "1",
}

#: And where we differ from RocketMQ on purpose.
OUR_DEFAULTS = {
    "flushCommitLogLeastPages": "0",
    "maxTransferBytesOnMessageInMemory": str(4 * 1024**2),
    "maxTransferCountOnMessageInMemory": "4096",
    "maxTransferBytesOnMessageInDisk": str(1024**2),
    "maxTransferCountOnMessageInDisk": "4096",
}


@pytest.mark.parametrize(("key", "value"), (DEFAULTS | OUR_DEFAULTS).items())
def test_default(key, value):
    assert StoreOptions().to_properties()[key] == value


def test_what_is_shown_can_be_read():
    options = StoreOptions(flush_disk_type=FlushDiskType.SYNC_FLUSH, enable_lmq=True, max_index_num=77)
    text = properties_text.dumps(options.to_properties())
    assert StoreOptions.from_properties(properties_text.loads(text)) == options


def test_values_of_every_kind():
    options = StoreOptions.from_properties(
        {
            "mappedFileSizeCommitLog": " 1048576 ",
            "flushDiskType": "SYNC_FLUSH",
            "brokerRole": "SLAVE",
            "enableLmq": "TRUE",
            "messageIndexEnable": "false",
            "deleteWhen": "04;16",
            "storePathRootDir": "/data/store",
        }
    )
    assert options.mapped_file_size_commit_log == 1024**2
    assert options.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert options.is_sync_flush
    assert options.broker_role is BrokerRole.SLAVE
    assert options.enable_lmq is True
    assert options.message_index_enable is False
    assert options.delete_hours == {4, 16}
    assert options.root == "/data/store"
    assert not StoreOptions().is_sync_flush


def test_keys_of_others_are_passed_over():
    assert StoreOptions.from_properties({"listenPort": "10911", "transientStorePoolEnable": "maybe"}) == StoreOptions()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mappedFileSizeCommitLog", "1G", "an integer"),
        ("mappedFileSizeCommitLog", "0", "from 1"),
        ("mappedFileSizeCommitLog", "-5", "from 1"),
        ("mappedFileSizeCommitLog", str(2**31), "to 2147483647"),
        ("flushIntervalCommitLog", "", "an integer"),
        ("flushIntervalCommitLog", "1_000", "an integer"),
        ("flushIntervalCommitLog", "\u0661", "an integer"),
        ("enableLmq", "yes", "true or false"),
        ("flushDiskType", "sync_flush", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("brokerRole", "NOPE", "ASYNC_MASTER or SYNC_MASTER or SLAVE"),
        ("deleteWhen", "24", "hours"),
        ("deleteWhen", "4,5", "hours"),
        ("accessMessageInMemoryMaxRatio", "101", "to 100"),
        ("maxIndexNum", "1", "from 2"),
    ],
)
def test_a_wrong_value_is_named(key, value, expected):
    with pytest.raises(OptionError, match=expected) as caught:
        StoreOptions.from_properties({key: value})
    assert caught.value.key == key
    assert f"{key}={value}" in str(caught.value)
    assert caught.value.remedy


def test_a_silly_message_size_is_left_as_it_was():
    assert StoreOptions.from_properties({"maxMessageSize": "9"}).max_message_size == 4 * 1024**2
    assert StoreOptions.from_properties({"maxMessageSize": "10"}).max_message_size == 10


@pytest.mark.parametrize(
    ("configured", "file_size"), [(6000, 6000), (6001, 6020), (1, 20), (20, 20), (39, 40), (6_000_000, 6_000_000)]
)
def test_queue_files_hold_whole_units(configured, file_size):
    options = StoreOptions(mapped_file_size_consume_queue=configured)
    assert options.consume_queue_file_size == file_size


def test_the_length_of_an_index_file():
    assert StoreOptions().index_file_size == 420_000_040
    assert StoreOptions(max_hash_slot_num=1000, max_index_num=4000).index_file_size == 84_040


@pytest.mark.parametrize(
    ("key", "name", "values"),
    [
        ("diskMaxUsedSpaceRatio", "disk_max_used_ratio", {5: 0.10, 10: 0.10, 75: 0.75, 95: 0.95, 99: 0.95}),
        ("diskSpaceCleanForciblyRatio", "disk_clean_forcibly_ratio", {0: 0.30, 30: 0.30, 60: 0.60, 85: 0.85, 99: 0.85}),
        ("diskSpaceWarningLevelRatio", "disk_warning_ratio", {0: 0.35, 35: 0.35, 80: 0.80, 90: 0.90, 99: 0.90}),
    ],
)
def test_ratios_stay_in_their_bounds(key, name, values):
    for percent, ratio in values.items():
        assert getattr(StoreOptions.from_properties({key: str(percent)}), name) == ratio


def test_hours():
    assert StoreOptions().delete_hours == {4}
    assert StoreOptions(delete_when="").delete_hours == frozenset()
    assert StoreOptions(delete_when=" 00 ;23; ").delete_hours == {0, 23}


def test_the_store_is_in_the_home_directory_by_default(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert StoreOptions().root == os.path.join("/home/somebody", "store")


def test_every_option_has_a_key_and_no_key_stands_twice():
    fields = dataclasses.fields(StoreOptions)
    assert len(KEYS) == len(fields)
    assert set(StoreOptions().to_properties()) == set(KEYS)


def test_geometry_never_changes_on_the_run():
    fixed = {
        *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"),
        *("storePathRootDir", "flushDiskType", "brokerRole"),
    }
    assert not fixed & DYNAMIC_KEYS
    assert {"fileReservedTime", "deleteWhen", "flushIntervalCommitLog", "maxMessageSize"} <= DYNAMIC_KEYS


def test_options_do_not_change():
    options = StoreOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.enable_lmq = True
    changed = options.updated({"fileReservedTime": "48"})
    assert (options.file_reserved_time, changed.file_reserved_time) == (72, 48)
