"""The table of consumer groups: defaults, groups on first use, what is forbidden, and its file."""

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupTable
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.protocol import names
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.protocol.names import InvalidName
from support import golden_store


class Kit:
    def __init__(self, config=None, disk=None):
        self.clock = FakeClock()
        self.disk = disk or FakeDisk(self.clock)
        self.config = config or BrokerConfig()
        self.file = ConfigFiles(self.disk, "/store").subscription_groups
        self.table = self.opened()

    def opened(self):
        table = GroupTable(self.config, ConfigFiles(self.disk, "/store").subscription_groups, self.clock)
        table.load()
        return table


@pytest.fixture
def kit():
    return Kit()


def group(name="G", **more):
    return SubscriptionGroupConfig(group_name=name, **more)


class TestFirstUse:
    def test_every_broker_has_the_built_in_groups(self, kit):
        assert kit.table.table.keys() == names.BUILT_IN_GROUPS
        assert kit.table.data_version.counter == 0

    def test_a_group_is_made_with_rocketmqs_defaults_and_saved(self, kit):
        made = kit.table.find("G")
        assert made == group("G")
        assert (made.retry_max_times, made.retry_queue_nums, made.which_broker_when_consume_slowly) == (16, 1, 1)
        assert kit.table.data_version.counter == 1
        assert kit.opened().get("G") == made

    def test_many_are_one_write(self, kit):
        found = kit.table.find_all(["A", "bad name", "B", "A"])
        assert found == [group("A"), None, group("B"), group("A")]
        assert kit.table.data_version.counter == 1

    @pytest.mark.parametrize("name", ["", " ", "a b", "g" * 121, "ä", "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "a+b"])
    def test_names_that_are_not_allowed_make_no_group(self, kit, name):
        assert kit.table.find(name) is None
        with pytest.raises(InvalidName):
            kit.table.update(group(name))
        assert kit.table.data_version.counter == 0

    def test_the_longest_name(self, kit):
        assert kit.table.find("g" * 120) is not None

    def test_nothing_is_made_when_that_is_switched_off(self):
        kit = Kit(BrokerConfig(auto_create_subscription_group=False))
        assert kit.table.find("G") is None
        assert kit.table.find("CID_RMQ_SYS_G") is not None
        assert kit.table.find("TOOLS_CONSUMER") is not None
        kit.table.configure(BrokerConfig(auto_create_subscription_group=False, enable_create_sys_group=False))
        assert kit.table.find("CID_RMQ_SYS_H") is None

    def test_a_write_that_fails_makes_no_group(self, kit):
        kit.disk.fail_next("write_file")
        with pytest.raises(OSError, match="Input/output error"):
            kit.table.find("G")
        assert kit.table.get("G") is None
        assert kit.table.find("G") is not None


class TestChanging:
    def test_a_change_is_saved_and_no_change_is_none(self, kit):
        assert kit.table.update(group(retry_max_times=3))
        assert not kit.table.update(group(retry_max_times=3))
        assert kit.table.update(group(retry_max_times=4))
        assert kit.table.data_version.counter == 2
        assert kit.opened().table["G"].retry_max_times == 4

    def test_a_list_is_all_or_nothing(self, kit):
        with pytest.raises(InvalidName):
            kit.table.update_all([group("A"), group("b c")])
        assert kit.table.get("A") is None
        assert kit.table.update_all([group("A"), group("B"), group("B")]) == [group("A"), group("B")]

    def test_a_deleted_group_is_gone_with_what_it_was_forbidden(self, kit):
        kit.table.find("G")
        kit.table.set_readable("G", "T", False)
        assert kit.table.delete("G")
        assert not kit.table.delete("G")
        again = kit.opened()
        assert (again.get("G"), dict(again.forbidden)) == (None, {})


class TestForbidden:
    def test_a_group_can_be_kept_from_a_topic(self, kit):
        assert kit.table.set_readable("G", "T", False)
        assert kit.table.is_forbidden("G", "T")
        assert not kit.table.is_forbidden("G", "U")
        assert not kit.table.is_forbidden("H", "T")
        assert kit.table.snapshot().forbidden_table == {"G": {"T": 4}}
        assert kit.opened().is_forbidden("G", "T")

    def test_allowing_one_topic_leaves_the_others_forbidden_and_is_saved(self, kit):
        kit.table.set_readable("G", "T", False)
        kit.table.set_readable("G", "U", False)
        assert kit.table.set_readable("G", "T", True)
        assert not kit.table.set_readable("G", "T", True)
        again = kit.opened()
        assert (again.is_forbidden("G", "T"), again.is_forbidden("G", "U")) == (False, True)
        kit.table.set_readable("G", "U", True)
        assert kit.opened().forbidden == {}


#: Those whose brokers had groups of their own.
WITH_GROUPS = [name for name in golden_store.NAMES if "config/subscriptionGroup.json" in golden_store.files(name)]


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_files_of_rocketmq_are_read_and_written_to_the_same_bytes(name):
    content = golden_store.files(name)["config/subscriptionGroup.json"]
    disk = FakeDisk()
    kit = Kit(disk=disk)
    disk.write_file(kit.file.path, content, backup=False)
    table = kit.opened()
    saved = kit.file.load()
    assert table.data_version == saved.data_version
    assert {each: table.table[each] for each in saved.subscription_group_table} == saved.subscription_group_table
    if not name.endswith("49"):
        table.save()
        assert disk.read_file(kit.file.path) == content
