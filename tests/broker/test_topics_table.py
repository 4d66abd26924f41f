"""The table of topics: how topics come to be, change and go, its version and its file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker import attributes
from cometmq.broker.attributes import AttributeRefused
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.topics import FLAG_UNIT, FLAG_UNIT_SUB, TopicTable, WantedTopic
from cometmq.protocol.bodies import DataVersion, TopicConfig
from support import golden_store

CONFIG = BrokerConfig(broker_name="broker-a")

#: What RocketMQ 5.3.3 makes at its first start: queues and permission.
BORN_WITH = {
    "SELF_TEST_TOPIC": (1, 6),
    "TBW102": (8, 7),
    "BenchmarkTest": (1024, 6),
    "DefaultCluster": (16, 7),
    "broker-a": (1, 7),
    "OFFSET_MOVED_EVENT": (1, 6),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "rmq_sys_wheel_timer": (1, 6),
}


class Kit:
    def __init__(self, config=CONFIG, disk=None):
        self.clock = FakeClock()
        self.disk = disk or FakeDisk(self.clock)
        self.config = config
        self.table = self.opened()
        self.told = []
        self.table.on_changed.append(lambda topic: self.told.append(topic.topic_name))

    def opened(self):
        table = TopicTable(self.config, ConfigFiles(self.disk, "/store").topics, self.clock)
        table.load()
        return table


@pytest.fixture
def kit():
    return Kit()


def topic(name="T", queues=4, perm=6, **more):
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, **more)


class TestSystemTopics:
    def test_a_first_start_has_what_rocketmq_has(self, kit):
        table = kit.table.table
        assert {name: (each.write_queue_nums, each.perm) for name, each in table.items()} == BORN_WITH

    def test_they_do_not_count_as_changes(self, kit):
        assert kit.table.data_version.counter == 0
        assert kit.table.data_version.timestamp == kit.clock.wall()

    def test_without_auto_creation_there_is_no_template(self):
        kit = Kit(BrokerConfig(broker_name="b", auto_create_topic_enable=False))
        assert kit.table.get("TBW102") is None
        assert kit.table.is_system("TBW102")

    def test_the_cluster_and_broker_topics_may_be_closed(self):
        kit = Kit(BrokerConfig(broker_name="b", cluster_topic_enable=False, broker_topic_enable=False))
        assert [kit.table.table[name].perm for name in ("DefaultCluster", "b")] == [1, 1]

    def test_the_trace_topic_is_made_when_asked_for(self):
        kit = Kit(BrokerConfig(broker_name="b", trace_topic_enable=True, msg_trace_topic_name="MyTrace"))
        assert kit.table.table["MyTrace"].write_queue_nums == 1
        assert kit.table.is_system("MyTrace")

    @pytest.mark.parametrize("name", ["broker-a", "DefaultCluster", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_other"])
    def test_system_topics_are_known_by_name(self, kit, name):
        assert kit.table.is_system(name)
        assert not kit.table.is_system(f"x{name}")

    def test_what_the_file_says_of_a_system_topic_counts(self, kit):
        kit.table.update(topic("TBW102", 32, 7))
        assert kit.opened().table["TBW102"].write_queue_nums == 32

    def test_a_file_with_the_template_stops_being_one_without_auto_creation(self, kit):
        kit.table.save()
        kit.config = BrokerConfig(broker_name="broker-a", auto_create_topic_enable=False)
        table = kit.opened()
        assert table.table["TBW102"].perm == 6
        assert table.create_for_send("New", "TBW102", 4) is None


class TestForSends:
    def test_a_topic_has_the_queues_of_the_client_but_not_more_than_the_template(self, kit):
        assert kit.table.create_for_send("A", "TBW102", 4).write_queue_nums == 4
        assert kit.table.create_for_send("B", "TBW102", 100).read_queue_nums == 8
        assert kit.table.create_for_send("C", "TBW102", -3).read_queue_nums == 0

    def test_it_inherits_all_but_the_right_to_be_inherited_from(self, kit):
        kit.table.update(topic("Tmpl", 3, 5, topic_filter_type="MULTI_TAG"))
        made = kit.table.create_for_send("A", "Tmpl", 4)
        assert (made.perm, made.topic_filter_type, made.order) == (4, "MULTI_TAG", False)

    def test_unit_mode_is_marked(self, kit):
        assert kit.table.create_for_send("A", "TBW102", 1, unit_mode=True).topic_sys_flag == FLAG_UNIT
        assert kit.table.create_for_send("%RETRY%g", "TBW102", 1, unit_mode=True).topic_sys_flag == FLAG_UNIT_SUB

    def test_an_unknown_or_closed_template_gives_nothing(self, kit):
        kit.table.update(topic("Closed", 4, 6))
        assert kit.table.create_for_send("A", "Nobody", 4) is None
        assert kit.table.create_for_send("A", "Closed", 4) is None
        assert kit.table.get("A") is None

    def test_auto_creation_may_be_switched_off_and_on(self, kit):
        kit.table.configure(BrokerConfig(broker_name="broker-a", auto_create_topic_enable=False))
        assert kit.table.create_for_send("A", "TBW102", 4) is None
        kit.table.configure(CONFIG)
        assert kit.table.create_for_send("A", "TBW102", 4) is not None

    def test_an_existing_topic_is_returned_and_nothing_is_written(self, kit):
        made = kit.table.create_for_send("A", "TBW102", 4)
        version = kit.table.data_version
        assert kit.table.create_for_send("A", "Nobody", 9) is made
        assert kit.table.data_version is version


class TestInternal:
    def test_a_retry_topic_is_made_once(self, kit):
        made = kit.table.create_internal("%RETRY%g", 1)
        assert (made.write_queue_nums, made.perm, made.order) == (1, 6, False)
        assert kit.table.create_internal("%RETRY%g", 5) is made
        assert kit.told == ["%RETRY%g"]

    def test_order_changes_only_when_it_is_given(self, kit):
        kit.table.create_internal("%RETRY%g", 1, order=True)
        assert kit.table.create_internal("%RETRY%g", 1).order
        assert not kit.table.create_internal("%RETRY%g", 1, order=False).order

    def test_many_are_one_version_and_one_write(self, kit):
        made = kit.table.create_all([WantedTopic(f"%RETRY%g{i}", 1) for i in (1, 2, 1)])
        assert [each.topic_name for each in made] == ["%RETRY%g1", "%RETRY%g2", "%RETRY%g1"]
        assert kit.table.data_version.counter == 1
        assert kit.told == ["%RETRY%g1", "%RETRY%g2"]


class TestChanging:
    def test_each_change_is_a_new_version_on_disk_before_it_counts(self, kit):
        kit.clock.advance(5)
        assert kit.table.update(topic("T"))
        version = DataVersion(counter=1, state_version=0, timestamp=kit.clock.wall())
        assert kit.table.data_version == version
        saved = ConfigFiles(kit.disk, "/store").topics.load()
        assert (saved.data_version, saved.topic_config_table["T"]) == (version, topic("T"))

    def test_what_is_so_already_is_no_change(self, kit):
        kit.table.update(topic("T"))
        assert not kit.table.update(topic("T"))
        assert kit.table.data_version.counter == 1
        assert kit.told == ["T"]

    def test_a_write_that_fails_changes_nothing(self, kit):
        version = kit.table.data_version
        kit.disk.fail_next("write_file", times=5)
        for change in (
            lambda: kit.table.update(topic("T")),
            lambda: kit.table.create_for_send("T", "TBW102", 4),
            lambda: kit.table.create_internal("T", 4),
            lambda: kit.table.delete("TBW102"),
            lambda: kit.table.mark_order_topics(["TBW102"]),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                change()
        assert (kit.table.get("T"), kit.table.data_version, kit.told) == (None, version, [])
        assert kit.table.update(topic("T"))

    def test_topics_outlive_the_process(self, kit):
        kit.table.update(topic("T", attributes={"+queue.type": "BatchCQ"}))
        kit.disk.kill()
        table = kit.opened()
        assert table.table == kit.table.table
        assert table.data_version == kit.table.data_version
        assert table.is_batch("T")

    def test_a_deleted_topic_is_gone_for_the_store_too(self, kit):
        kit.table.update(topic("T", attributes={"+queue.type": "BatchCQ"}))
        assert (kit.table.exists("T"), kit.table.is_batch("T")) == (True, True)
        assert kit.table.delete("T")
        assert (kit.table.exists("T"), kit.table.is_batch("T")) == (False, False)
        assert not kit.table.delete("T")
        assert kit.table.data_version.counter == 2
        assert kit.told == ["T"]
        assert "T" not in kit.opened().table

    def test_the_nameserver_can_mark_topics_as_ordered_and_not_unmark_them(self, kit):
        kit.table.update_all([topic("A"), topic("B", order=True)])
        kit.table.mark_order_topics(["A", "B", "Unknown"])
        assert [kit.table.is_order(name) for name in ("A", "B", "Unknown")] == [True, True, False]
        assert kit.table.data_version.counter == 2
        kit.table.mark_order_topics(["A"])
        kit.table.mark_order_topics([])
        assert kit.table.is_order("B")
        assert kit.table.data_version.counter == 2

    def test_a_list_is_all_or_nothing(self, kit):
        with pytest.raises(AttributeRefused):
            kit.table.update_all([topic("A"), topic("B", attributes={"+no.such": "1"})])
        assert kit.table.get("A") is None
        assert [each.topic_name for each in kit.table.update_all([topic("A"), topic("A"), topic("B")])] == ["A", "B"]
        assert kit.table.data_version.counter == 1


class TestAttributes:
    def test_they_are_added_changed_and_taken_away(self, kit):
        kit.table.update(topic("T", attributes={"+message.type": "FIFO", "+queue.type": "SimpleCQ"}))
        kit.table.update(topic("T", attributes={"+message.type": "DELAY"}))
        assert kit.table.table["T"].attributes == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
        kit.table.update(topic("T", attributes={"-message.type": ""}))
        assert kit.table.table["T"].attributes == {"queue.type": "SimpleCQ"}

    def test_a_change_without_attributes_keeps_them(self, kit):
        kit.table.update(topic("T", attributes={"+message.type": "FIFO"}))
        assert kit.table.update(topic("T", 9))
        assert kit.table.table["T"].attributes == {"message.type": "FIFO"}

    @pytest.mark.parametrize(
        ("current", "changes", "why"),
        [
            (None, {"-message.type": ""}, "only add attribute is supported while creating topic. key: message.type"),
            ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
            ({}, {"+no.such": "1"}, "unsupported key: no.such"),
            ({}, {"+queue.type": "BatchCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
            ({"queue.type": "x"}, {"-queue.type": ""}, "attempt to update an unchangeable attribute. key: queue.type"),
            (None, {"+queue.type": "Other"}, "value is not in set: [BatchCQ, SimpleCQ]"),
            (None, {"+reserve.time": "1"}, "reserve.time needs tiered storage, which this broker does not have"),
            ({"message.type": "x"}, {"+message.type": "FIFO", "-message.type": ""}, "alter duplication key. key: "),
            ({}, {"message.type": "FIFO"}, "wrong format key: essage.type"),
            ({}, {"+": "1"}, "kv string format wrong."),
            ({}, {"": ""}, "kv string format wrong."),
        ],
    )
    def test_what_may_not_be_is_refused_with_rocketmqs_words(self, current, changes, why):
        with pytest.raises(AttributeRefused) as refused:
            attributes.alter(current, changes)
        assert str(refused.value).startswith(why)
        assert refused.value.code == 1

    @pytest.mark.parametrize(
        ("text", "changes"),
        [
            (None, {}),
            ("", {}),
            ("+message.type=FIFO", {"+message.type": "FIFO"}),
            ("+a=b,+c=d,-e", {"+a": "b", "+c": "d", "-e": ""}),
            ("+a=b=c", {"+a": "b=c"}),
        ],
    )
    def test_the_text_of_a_request(self, text, changes):
        assert attributes.parse(text) == changes

    @pytest.mark.parametrize("text", ["a=b", "-a=b", "+a", "a", "+a=1,+a=2", "-a,-a"])
    def test_text_that_is_refused(self, text):
        with pytest.raises(AttributeRefused):
            attributes.parse(text)

    @given(st.text(), st.none() | st.dictionaries(st.text(), st.text()))
    def test_any_text_is_taken_or_refused(self, text, current):
        try:
            result = attributes.alter(current, attributes.parse(text))
        except AttributeRefused:
            return
        assert set(result) <= set(current or {}) | {"queue.type", "cleanup.policy", "message.type"}


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_files_of_rocketmq_are_read_and_written_to_the_same_bytes(name):
    content = golden_store.files(name)["config/topics.json"]
    disk = FakeDisk()
    file = ConfigFiles(disk, "/store").topics
    disk.write_file(file.path, content, backup=False)
    kit = Kit(disk=disk)
    saved = file.load()
    assert kit.table.data_version == saved.data_version
    assert {name: kit.table.table[name] for name in saved.topic_config_table} == saved.topic_config_table
    added = kit.table.table.keys() - saved.topic_config_table.keys()
    if name.endswith("49"):
        # 4.9 has fewer system topics, and makes the one of half messages when the first comes.
        assert added <= {each for each in BORN_WITH if each.startswith(("rmq_sys_", "RMQ_SYS_TRANS_"))}
        return
    assert not added
    kit.table.save()
    assert disk.read_file(file.path) == content
