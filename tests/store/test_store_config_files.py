"""The tables under config/: RocketMQ's layout to the byte, backups, and what a crash leaves."""

import errno
import os
import re
import threading

import msgspec
import pytest

from cometmq.broker.store import pretty_json
from cometmq.broker.store.config_files import (
    BloomFilterData,
    ConfigFiles,
    ConsumerFilterData,
    ConsumerFilters,
    ConsumerOrderInfo,
    FilterDataMapByTopic,
    LmqConsumerOffsets,
    OrderInfo,
    TopicQueueMappings,
    TransactionMetrics,
)
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import ConfigDamaged
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.protocol import fastjson
from cometmq.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    CustomizedRetryPolicy,
    DataVersion,
    DelayOffsetSerializeWrapper,
    GroupRetryPolicy,
    LogicQueueMappingItem,
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TimerCheckpoint,
    TimerMetric,
    TimerMetrics,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMappingDetail,
)
from support import golden_store

VERSION = DataVersion(counter=2, timestamp=1700000000000)


@pytest.fixture(params=["real", "fake"])
def place(request, tmp_path):
    if request.param == "real":
        return RealDisk(), f"{tmp_path}/store"
    return FakeDisk(), "/data/store"


def golden_configs():
    for name in golden_store.NAMES:
        for path in sorted(golden_store.files(name)):
            if path.startswith("config/"):
                yield pytest.param(name, path, id=f"{name}-{path}")


GOLDEN_CONFIGS = list(golden_configs())


def file_of(configs, path):
    name = os.path.basename(path).removesuffix(".bak")
    return next(file for file in configs.all() if file.path.endswith(f"/{name}"))


#: Fields that 5.x has and 4.9 has not: a file of 4.9 is written anew with them.
NEW_LINES = re.compile(
    rb'\t*"(attributes|stateVersion|consumeMessageOrderly|consumeTimeoutMinute|groupSysFlag|forbiddenTable)":[^\n]*\n'
    rb'|\t*"groupRetryPolicy":\{\n\t*"type":"CUSTOMIZED"\n\t*\},\n'
    rb'|\t"dataVersion":\{\n\t\t"counter":0,\n\t\t"stateVersion":0,\n\t\t"timestamp":0\n\t\},\n'
)


class TestGolden:
    @pytest.mark.parametrize(("name", "path"), GOLDEN_CONFIGS)
    def test_reads_and_writes_the_same_bytes(self, name, path):
        content = golden_store.files(name)[path]
        disk = FakeDisk()
        file = file_of(ConfigFiles(disk, "/s"), path)
        disk.write_file(file.path, content, backup=False)
        table = file.load()
        assert table is not None
        written = file.encode(table)
        if name.endswith("49") and written != content:
            written = NEW_LINES.sub(b"", written)
        assert written == content

    @pytest.mark.parametrize(("name", "path"), [config for config in GOLDEN_CONFIGS if ".json" in config.values[1]])
    def test_the_layout_holds_for_whatever_is_in_the_file(self, name, path):
        content = golden_store.files(name)[path]
        assert pretty_json.dumps(fastjson.loads(content)) == content

    def test_there_are_files_of_every_kind(self):
        kinds = {os.path.basename(path) for name in golden_store.NAMES for path in golden_store.files(name)}
        known = {os.path.basename(file.path) for file in ConfigFiles(FakeDisk(), "/s").all()}
        # Nobody had static topics or modes of consumption.
        assert known - kinds == {"topicQueueMapping.json", "messageRequestMode.json"}

    def test_what_is_in_them(self):
        disk = FakeDisk()
        for name in ("clean", "special"):
            for path, content in golden_store.files(name).items():
                if path.startswith("config/"):
                    disk.write_file(f"/{name}/{path}", content, backup=False)
        clean, special = ConfigFiles(disk, "/clean"), ConfigFiles(disk, "/special")
        assert clean.consumer_offsets.load().offset_table["StoreRetry@CG_store"] == {0: 3, 1: 3}
        assert clean.delay_offsets.load().offset_table == {1: 7, 2: 1, 18: 0}
        assert clean.topics.load().topic_config_table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
        assert special.topics.load().topic_config_table["BatchCqTopic"].attributes == {"queue.type": "BatchCQ"}
        assert special.lmq_consumer_offsets.load().offset_table["ExtTopic@CG_ext1"] == {0: 21}
        filters = special.consumer_filters.load().filter_data_by_topic["ExtTopic"].group_filter_data
        assert filters["CG_ext2"].expression == "a > 10"
        assert filters["CG_ext2"].bloom_filter_data == BloomFilterData(bit_num=112, bit_pos=[67, 108, 83])
        assert special.subscription_groups.load().subscription_group_table["TOOLS_CONSUMER"].retry_max_times == 16
        assert special.timer_metrics.load().timing_count["RecallTopic"].count == 1
        assert special.timer_check.load().last_timer_queue_offset == 3


class TestLayout:
    def test_maps_with_integer_keys_stand_on_one_line(self):
        table = ConsumerOffsetSerializeWrapper(
            data_version=VERSION,
            group_topic_map={"groupA": ["TopicTest", "Other"]},
            offset_table={"TopicTest@groupA": {0: 250, 1: 251}, "Other@groupA": {}},
        )
        assert pretty_json.dumps(table).decode() == (
            "{\n"
            '\t"dataVersion":{\n'
            '\t\t"counter":2,\n'
            '\t\t"stateVersion":0,\n'
            '\t\t"timestamp":1700000000000\n'
            "\t},\n"
            '\t"groupTopicMap":{\n'
            '\t\t"groupA":["TopicTest","Other"]\n'
            "\t},\n"
            '\t"offsetTable":{\n'
            '\t\t"TopicTest@groupA":{0:250,1:251\n'
            "\t\t},\n"
            '\t\t"Other@groupA":{}\n'
            "\t}\n"
            "}"
        )

    def test_lists_of_java_stand_item_by_item(self):
        info = OrderInfo(attempt_id="id", offset_list=[100, 1], offset_consumed_count={100: 2}, pop_time=5)
        table = ConsumerOrderInfo(table={"topic@group": {0: info}})
        assert pretty_json.dumps(table).decode() == (
            "{\n"
            '\t"table":{\n'
            '\t\t"topic@group":{0:{\n'
            '\t\t\t\t"a":"id",\n'
            '\t\t\t\t"cm":0,\n'
            '\t\t\t\t"l":0,\n'
            '\t\t\t\t"o":[\n'
            "\t\t\t\t\t100,\n"
            "\t\t\t\t\t1\n"
            "\t\t\t\t],\n"
            '\t\t\t\t"oc":{100:2\n'
            "\t\t\t\t},\n"
            '\t\t\t\t"ot":{},\n'
            '\t\t\t\t"popTime":5\n'
            "\t\t\t}\n"
            "\t\t}\n"
            "\t}\n"
            "}"
        )

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({}, "{}"),
            ([], "[]"),
            ({"a": None}, "{}"),
            ({"a": None, "b": True}, '{\n\t"b":true\n}'),
            ({"a": [1, "x", None, 2.0]}, '{\n\t"a":[1,"x",null,2.0]\n}'),
            ({'q"\\\n': "é☃"}, '{\n\t"q\\"\\\\\\n":"é☃"\n}'),
            ({1: {"a": 1}}, '{1:{\n\t\t"a":1\n\t}\n}'),
        ],
    )
    def test_small_things(self, value, text):
        assert pretty_json.dumps(value).decode() == text

    def test_what_has_no_form_is_refused(self):
        with pytest.raises(TypeError, match="cannot hold a object"):
            pretty_json.dumps({"a": object()})


#: A table of each file with everything in it.
TABLES = {
    "topics": TopicConfigSerializeWrapper(
        data_version=VERSION,
        topic_config_table={
            "t": TopicConfig(topic_name="t", attributes={"queue.type": "BatchCQ"}, order=True, perm=7),
            "名": TopicConfig(topic_name="名"),
        },
    ),
    "topic_queue_mappings": TopicQueueMappings(
        data_version=VERSION,
        topic_queue_mapping_info_map={
            "static": TopicQueueMappingDetail(
                bname="broker-a",
                curr_id_map={0: 1},
                hosted_queues={0: [LogicQueueMappingItem(bname="broker-a"), LogicQueueMappingItem(gen=1)]},
                topic="static",
                total_queues=2,
            )
        },
    ),
    "subscription_groups": SubscriptionGroupWrapper(
        data_version=VERSION,
        forbidden_table={"g": {"t": 3}},
        subscription_group_table={
            "g": SubscriptionGroupConfig(
                group_name="g",
                group_retry_policy=GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[1000, 5000])),
                subscription_data_set=[SimpleSubscriptionData(topic="t", expression="*", version=1)],
            )
        },
    ),
    "consumer_offsets": ConsumerOffsetSerializeWrapper(
        data_version=VERSION, group_topic_map={"g": ["t"]}, offset_table={"t@g": {0: 2**62, 15: 0}}
    ),
    "lmq_consumer_offsets": LmqConsumerOffsets(
        data_version=VERSION, lmq_offset_table={"%LMQ%a@g": 5}, offset_table={"t@g": {0: 1}}
    ),
    "delay_offsets": DelayOffsetSerializeWrapper(data_version=VERSION, offset_table={1: 10, 18: 0}),
    "consumer_filters": ConsumerFilters(
        filter_data_by_topic={
            "t": FilterDataMapByTopic(
                topic="t",
                group_filter_data={
                    "g": ConsumerFilterData(
                        bloom_filter_data=BloomFilterData(bit_num=112, bit_pos=[1, 2, 3]),
                        born_time=1,
                        client_version=2,
                        consumer_group="g",
                        dead=True,
                        dead_time=3,
                        expression="a > 1 AND b = '\u2603'",
                        expression_type="SQL92",
                        topic="t",
                    )
                },
            )
        }
    ),
    "consumer_order_info": ConsumerOrderInfo(
        table={
            "t@g": {
                3: OrderInfo(
                    attempt_id="x",
                    commit_offset_bit=5,
                    invisible_time=60_000,
                    last_consume_timestamp=1,
                    offset_list=[10, 1, 2],
                    offset_consumed_count={10: 1},
                    offset_next_visible_time={12: 1_700_000_000_000},
                    pop_time=9,
                )
            }
        }
    ),
    "message_request_modes": MessageRequestModeSerializeWrapper(
        message_request_mode_map={
            "t": {
                "g": SetMessageRequestModeRequestBody(topic="t", consumer_group="g", mode="POP", pop_share_queue_num=-1)
            }
        }
    ),
    "timer_metrics": TimerMetrics(data_version=VERSION, timing_count={"t": TimerMetric(count=3, time_stamp=4)}),
    "transaction_metrics": TransactionMetrics(
        data_version=VERSION, transaction_count={"名": TimerMetric(count=3, time_stamp=4)}
    ),
    "timer_check": TimerCheckpoint(last_read_time_ms=1, last_timer_log_flush_pos=2, counter=7),
}


class TestTables:
    def test_every_file_has_one(self):
        assert set(TABLES) == set(vars(ConfigFiles(FakeDisk(), "/s")))

    @pytest.mark.parametrize("name", TABLES)
    def test_come_back(self, place, name):
        disk, root = place
        file = getattr(ConfigFiles(disk, root), name)
        assert file.load() is None
        file.save(TABLES[name])
        assert file.path.startswith(f"{root}/config/")
        assert file.load() == TABLES[name]
        file.save(TABLES[name])
        assert file.load() == TABLES[name]
        assert disk.exists(f"{file.path}.bak") is (name != "timer_check")

    def test_metrics_are_compact_and_ascii(self):
        configs = ConfigFiles(FakeDisk(), "/s")
        assert configs.transaction_metrics.encode(TABLES["transaction_metrics"]) == (
            b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1700000000000},'
            b'"transactionCount":{"\\u540d":{"count":3,"timeStamp":4}}}'
        )

    def test_the_timer_check_has_its_full_length(self):
        data = ConfigFiles(FakeDisk(), "/s").timer_check.encode(TABLES["timer_check"])
        assert len(data) == 4096
        assert data[:16] == bytes(7) + b"\1" + bytes(7) + b"\2"


class TestReading:
    """As fastjson reads: what is unknown is passed over, what is missing keeps its default."""

    def load(self, name, text):
        disk = FakeDisk()
        file = getattr(ConfigFiles(disk, "/s"), name)
        disk.write_file(file.path, text.encode(), backup=False)
        return file.load()

    def test_unknown_and_missing_fields(self):
        table = self.load("topics", '{"future":{"x":[1]},"topicConfigTable":{"t":{"perm":4,"later":null}}}')
        config = table.topic_config_table["t"]
        assert (config.perm, config.read_queue_nums, config.attributes) == (4, 16, {})
        assert table.data_version == DataVersion()

    @pytest.mark.parametrize(
        "text",
        [
            '{"offsetTable":{1:10,2:0\n\t}}',
            '{"offsetTable":{"1":10,"2":0}}',
            '{"offsetTable":{1:"10",2:0},}',
            "{offsetTable:{1:10,2:0}}",
            '\ufeff{"offsetTable":{1:10,2:0}}'.lstrip("\ufeff"),
        ],
    )
    def test_integer_keys_in_every_form(self, text):
        assert self.load("delay_offsets", text).offset_table == {1: 10, 2: 0}

    def test_references_are_followed(self):
        text = (
            '{"topicConfigTable":{"a":{"attributes":{"k":"v"},"topicName":"a"},'
            '"b":{"attributes":{"$ref":"$.topicConfigTable.a.attributes"},"topicName":"b"}}}'
        )
        assert self.load("topics", text).topic_config_table["b"].attributes == {"k": "v"}


class TestDamage:
    def test_a_missing_file_is_taken_from_the_backup(self, place):
        disk, root = place
        file = ConfigFiles(disk, root).delay_offsets
        disk.write_file(f"{file.path}.bak", b'{"offsetTable":{1:5}}', backup=False)
        assert file.load().offset_table == {1: 5}

    @pytest.mark.parametrize("content", [b"", b"\n", bytes(100)])
    def test_an_empty_file_is_as_good_as_none(self, place, content):
        disk, root = place
        file = ConfigFiles(disk, root).delay_offsets
        disk.write_file(file.path, content, backup=False)
        assert file.load() is None
        disk.write_file(f"{file.path}.bak", b'{"offsetTable":{1:5}}', backup=False)
        assert file.load().offset_table == {1: 5}

    @pytest.mark.parametrize("content", [b"{", b"[]", b"garbage", b'{"offsetTable":{"a":1}}', b"\xff\xfe{}", b"{}}"])
    def test_a_damaged_file_is_set_aside_for_its_backup(self, place, content):
        disk, root = place
        file = ConfigFiles(disk, root).delay_offsets
        disk.write_file(file.path, content, backup=False)
        disk.write_file(f"{file.path}.bak", b'{"offsetTable":{1:5}}', backup=False)
        assert file.load().offset_table == {1: 5}
        assert disk.read_file(f"{file.path}.broken") == content
        # The next write does not make the damaged one the backup.
        file.save(DelayOffsetSerializeWrapper(offset_table={1: 6}))
        assert file.load().offset_table == {1: 6}
        assert b"1:5" in disk.read_file(f"{file.path}.bak")

    @pytest.mark.parametrize("backup", [None, b"", b"also garbage"])
    def test_damage_without_a_good_backup_is_told(self, place, backup):
        disk, root = place
        file = ConfigFiles(disk, root).delay_offsets
        disk.write_file(file.path, b"garbage", backup=False)
        if backup is not None:
            disk.write_file(f"{file.path}.bak", backup, backup=False)
        with pytest.raises(ConfigDamaged) as caught:
            file.load()
        assert caught.value.path == file.path
        assert caught.value.remedy
        assert disk.read_file(file.path) == b"garbage"

    def test_a_damaged_backup_alone_is_told(self, place):
        disk, root = place
        file = ConfigFiles(disk, root).delay_offsets
        disk.write_file(f"{file.path}.bak", b"garbage", backup=False)
        with pytest.raises(ConfigDamaged, match=r"\.bak"):
            file.load()

    def test_a_power_loss_leaves_the_old_table_or_the_new_one(self):
        disk = FakeDisk()
        disk.make_dirs("/s/config", sync=True)
        file = ConfigFiles(disk, "/s").consumer_offsets
        tables = [
            ConsumerOffsetSerializeWrapper(offset_table={f"t{n}@g": dict.fromkeys(range(8), n) for n in range(size)})
            for size in (3, 200, 100)
        ]
        ends = []
        for table in tables:
            file.save(table)
            ends.append(len(disk.operations))
        for at in range(len(disk.operations) + 1):
            done = sum(end <= at for end in ends)
            for seed in range(8):
                left = ConfigFiles(disk.crash(seed, at), "/s").consumer_offsets.load()
                assert left in [None, *tables][done : done + 2]

    @pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_dir"])
    def test_a_failed_write_leaves_the_old_table(self, operation):
        disk = FakeDisk()
        file = ConfigFiles(disk, "/s").delay_offsets
        old, new = (DelayOffsetSerializeWrapper(offset_table={1: value}) for value in (1, 2))
        file.save(old)
        disk.fail_next(operation, errno.ENOSPC)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.save(new)
        assert file.load() in (old, new)
        assert (file.load() == new) is (operation == "sync_dir")
        file.save(new)
        assert file.load() == new

    def test_every_flipped_byte_is_survived(self):
        content = golden_store.files("special")["config/lmqConsumerOffset.json"]
        for position in range(0, len(content), 3):
            disk = FakeDisk()
            file = ConfigFiles(disk, "/s").lmq_consumer_offsets
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            disk.write_file(file.path, bytes(flipped), backup=False)
            disk.write_file(f"{file.path}.bak", content, backup=False)
            assert isinstance(file.load(), LmqConsumerOffsets)


def test_two_threads_that_save_do_not_mix(tmp_path):
    file = ConfigFiles(RealDisk(), str(tmp_path)).delay_offsets
    tables = [DelayOffsetSerializeWrapper(offset_table=dict.fromkeys(range(1, count), count)) for count in (5, 500)]
    failures = []

    def save(table):
        try:
            for _ in range(15):
                file.save(table)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert file.load() in tables
    assert sorted(os.listdir(tmp_path / "config")) == ["delayOffset.json", "delayOffset.json.bak"]


def test_structs_declare_their_fields_in_the_order_of_the_file():
    for kind in (LmqConsumerOffsets, ConsumerFilterData, OrderInfo, BloomFilterData, TopicQueueMappings):
        names = [field.encode_name for field in msgspec.structs.fields(kind)]
        assert names == sorted(names)


class TestRewriting:
    def test_entries_that_stay_keep_their_text_and_the_file_is_the_same(self):
        rewriter = pretty_json.Rewriter()
        table = {f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(5)}
        for change in (
            {},
            {"T3": TopicConfig(topic_name="T3", order=True)},
            {"New\n": TopicConfig(topic_name="New\n", attributes={"a": "b"})},
        ):
            table = table | change
            wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
            assert rewriter.dumps(wrapper) == pretty_json.dumps(wrapper)
        del table["T1"]
        wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
        assert rewriter.dumps(wrapper) == pretty_json.dumps(wrapper)

    @pytest.mark.parametrize("table", [{}, {"G": {}}, {"G": {"T": 4}}])
    def test_maps_of_other_things_are_written_as_ever(self, table):
        wrapper = SubscriptionGroupWrapper(forbidden_table=table)
        assert pretty_json.Rewriter().dumps(wrapper) == pretty_json.dumps(wrapper)
