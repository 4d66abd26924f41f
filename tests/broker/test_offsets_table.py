"""The table of consumer offsets: RocketMQ's rules, and RocketMQ's file."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.tables import SavedTable
from cometmq.protocol import fastjson

NAMES = st.text("abcXYZ%|_-09", min_size=1, max_size=8)


def offsets_in(folder: Path, **options: bool | int) -> ConsumerOffsets:
    return ConsumerOffsets(ConfigFiles(RealDisk(), str(folder)), FakeClock(), **options)  # type: ignore[arg-type]


def saved(folder: Path, offsets: ConsumerOffsets, runner: ManualRunner) -> SavedTable[Any]:
    """What a broker saves its offsets with."""
    file = ConfigFiles(RealDisk(), str(folder)).consumer_offsets
    return SavedTable[Any](file, offsets.snapshot, runner, lambda: 5.0, lambda: offsets.changes)


def content(folder: Path, name: str = "consumerOffset.json") -> dict[str, object]:
    value = fastjson.loads((folder / "config" / name).read_bytes())
    assert isinstance(value, dict)
    return value


def test_what_was_never_committed_is_minus_one(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 0, 5)
    assert offsets.query("G", "T", 0) == 5
    assert offsets.query("G", "T", 1) == -1
    assert offsets.query("G", "U", 0) == -1
    assert offsets.query("H", "T", 0) == -1


def test_a_smaller_offset_overwrites_a_larger_one_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 3, 50, "192.0.2.1:5")
    with caplog.at_level(logging.WARNING):
        offsets.commit("G", "T", 3, 20, "192.0.2.1:5")
    assert offsets.query("G", "T", 3) == 20
    assert "192.0.2.1:5 of group G goes back in T/3, from 50 to 20" in caplog.text


def test_the_data_version_moves_once_in_so_many_commits(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path, version_step=10)
    for number in range(9):
        offsets.commit("G", "T", 0, number)
    assert offsets.data_version.counter == 0
    offsets.commit("G", "T", 0, 9)
    assert offsets.data_version.counter == 1
    assert offsets.data_version.timestamp == FakeClock().wall()


def test_groups_of_a_topic_and_topics_of_a_group_are_found(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    for group, topic in (("G", "T"), ("G", "U"), ("H", "T")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("G") == ["T", "U"]
    assert offsets.groups_of("T") == ["G", "H"]
    assert dict(offsets.queues("G", "U")) == {0: 1}
    assert offsets.topics_of("nobody") == []
    assert offsets.groups_of("nothing") == []


def test_a_clone_starts_where_its_source_is(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 0, 11)
    offsets.commit("G", "T", 1, 12)
    offsets.clone("G", "H", "T")
    offsets.commit("G", "T", 0, 13)
    assert dict(offsets.queues("H", "T")) == {0: 11, 1: 12}


def test_a_reset_is_taken_once_and_moves_the_committed_offset(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 0, 40)
    offsets.set_reset("G", "T", 0, 7)
    assert offsets.query("G", "T", 0) == 7
    assert offsets.peek_reset("G", "T", 0) == 7
    assert offsets.peek_reset("G", "T", 1) is None
    assert offsets.take_reset("G", "T", 1) is None
    assert offsets.take_reset("G", "T", 0) == 7
    assert offsets.take_reset("G", "T", 0) is None
    assert offsets.peek_reset("G", "T", 0) is None


def test_a_group_takes_all_that_it_has_with_it(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    for group in ("G", "H"):
        offsets.commit(group, "T", 0, 1)
        offsets.pulled(group, "T", 0, 2)
        offsets.set_reset(group, "T", 0, 3)
    offsets.remove_group("G")
    assert offsets.query("G", "T", 0) == -1
    assert offsets.pull_offset("G", "T", 0) == -1
    assert offsets.peek_reset("G", "T", 0) is None
    assert offsets.topics_of("G") == []
    assert offsets.groups_of("T") == ["H"]
    assert (offsets.query("H", "T", 0), offsets.pull_offset("H", "T", 0), offsets.peek_reset("H", "T", 0)) == (3, 2, 3)


def test_a_topic_takes_the_offsets_of_all_groups_with_it(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    for topic in ("T", "U"):
        offsets.commit("G", topic, 0, 1)
        offsets.pulled("G", topic, 0, 2)
        offsets.set_reset("G", topic, 0, 3)
    offsets.remove_topic("T")
    assert offsets.query("G", "T", 0) == -1
    assert offsets.pull_offset("G", "T", 0) == -1
    assert offsets.peek_reset("G", "T", 0) is None
    assert offsets.topics_of("G") == ["U"]
    assert offsets.query("G", "U", 0) == 3


def test_only_offsets_that_nobody_needs_expire(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("live", "T", 0, 5)
    offsets.commit("gone", "T", 0, 5)
    offsets.commit("gone", "T", 1, 10)
    offsets.commit("behind", "T", 0, 5)
    offsets.commit("behind", "T", 1, 11)
    removed = offsets.clean_expired(lambda group, _: group == "live", lambda topic, queue_id: 10)
    assert removed == [("gone", "T")]
    assert sorted(offsets.groups_of("T")) == ["behind", "live"]


def test_the_file_is_the_one_that_rocketmq_writes(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("CG_store", "%RETRY%CG_store", 0, 6)
    offsets.commit("CG_store", "StoreRetry", 0, 3)
    offsets.commit("CG_store", "StoreRetry", 1, 3)
    offsets.save()
    text = (tmp_path / "config/consumerOffset.json").read_bytes()
    assert b'"%RETRY%CG_store@CG_store":{0:6\n\t\t}' in text
    assert content(tmp_path)["groupTopicMap"] == {"CG_store": ["%RETRY%CG_store", "StoreRetry"]}
    again = offsets_in(tmp_path)
    again.load()
    assert again.snapshot() == offsets.snapshot()


def test_the_file_of_a_real_broker_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/consumerOffset.json").write_bytes(
        b'{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1794848764409},\n\t"groupTopicMap":{},\n\t'
        b'"offsetTable":{\n\t\t"%RETRY%CG@CG":{0:6\n\t\t},\n\t\t"T@CG":{0:3,1:99999999\n\t\t}\n\t}\n}'
    )
    offsets = offsets_in(tmp_path)
    offsets.load()
    assert offsets.data_version.counter == 3
    assert dict(offsets.queues("CG", "T")) == {0: 3, 1: 99999999}  # nothing is clamped
    assert offsets.topics_of("CG") == ["%RETRY%CG", "T"]


def test_a_damaged_file_gives_way_to_its_bak(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 0, 1)
    offsets.save()
    offsets.commit("G", "T", 0, 2)
    offsets.save()
    path = tmp_path / "config/consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"T@G":{0:')
    again = offsets_in(tmp_path)
    again.load()
    assert again.query("G", "T", 0) == 1


def test_a_key_without_its_separator_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/consumerOffset.json").write_bytes(b'{"offsetTable":{"strange":{0:1},"T@G":{0:2}}}')
    offsets = offsets_in(tmp_path)
    offsets.load()
    assert offsets.query("G", "T", 0) == 2
    assert "'strange'" in caplog.text


def test_light_groups_have_a_table_and_a_file_of_their_own(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path, lmq=True)
    offsets.commit("%LMQ%one", "%LMQ%one", 0, 4)
    offsets.commit("G", "T", 2, 5)
    assert offsets.query("%LMQ%one", "%LMQ%one", 7) == 4  # a light queue has no ids
    assert dict(offsets.queues("%LMQ%one", "%LMQ%one")) == {0: 4}
    assert offsets.topics_of("%LMQ%one") == ["%LMQ%one"]
    assert offsets.groups_of("%LMQ%one") == ["%LMQ%one"]
    offsets.save()
    assert not (tmp_path / "config/consumerOffset.json").exists()
    assert content(tmp_path, "lmqConsumerOffset.json")["lmqOffsetTable"] == {"%LMQ%one@%LMQ%one": 4}
    again = offsets_in(tmp_path, lmq=True)
    again.load()
    assert (again.query("%LMQ%one", "%LMQ%one", 0), again.query("G", "T", 2)) == (4, 5)
    again.remove_group("%LMQ%one")
    assert again.query("%LMQ%one", "%LMQ%one", 0) == -1


def test_a_snapshot_does_not_change_afterwards(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("G", "T", 0, 1)
    taken = offsets.snapshot()
    offsets.commit("G", "T", 0, 2)
    offsets.commit("G", "U", 0, 2)
    assert taken.offset_table == {"T@G": {0: 1}}
    assert taken.group_topic_map == {"G": ["T"]}


def test_offsets_are_saved_by_time_and_only_when_they_changed(tmp_path: Path) -> None:
    path = tmp_path / "config/consumerOffset.json"
    runner = ManualRunner()
    offsets = offsets_in(tmp_path)
    table = saved(tmp_path, offsets, runner)
    table.start()
    runner.advance(5.1)
    assert not path.exists()
    offsets.commit("G", "T", 0, 8)
    runner.advance(4.8)
    assert not path.exists()
    runner.advance(0.2)
    assert content(tmp_path)["offsetTable"] == {"T@G": {0: 8}}
    path.unlink()
    runner.advance(20.0)
    assert not path.exists()
    offsets.remove_topic("T")
    table.close()
    assert content(tmp_path)["offsetTable"] == {}


@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20))
def test_whatever_is_committed_comes_back_from_disk(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("offsets")
    try:
        offsets = offsets_in(folder)
        expected = {}
        for group, topic, queue_id, offset in commits:
            offsets.commit(group, topic, queue_id, offset)
            expected[group, topic, queue_id] = offset
        offsets.save()
        json.loads(json.dumps(content(folder)))
        again = offsets_in(folder)
        again.load()
        for (group, topic, queue_id), offset in expected.items():
            assert again.query(group, topic, queue_id) == offset
    finally:
        shutil.rmtree(folder)
