"""Requests about offsets over a socket."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pull_kit import PullBroker, broker_with_topic, pull
from support.wire import Reply, Wire, connect, frame, until

QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST = 14, 15, 29, 30, 31, 32
NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


async def query(wire: Wire, group: str = "G", topic: str = "T", queue_id: int = 0, **more: object) -> Reply:
    return await wire.call(QUERY, {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more})


async def update(wire: Wire, offset: object, group: str = "G", topic: str = "T", queue_id: object = 0) -> Reply:
    keys = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return await wire.call(UPDATE, {key: value for key, value in keys.items() if value is not None})


async def test_what_was_committed_is_told(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        reply = await update(wire, 5)
        assert (reply.code, reply.remark, reply.ext) == (0, None, {})
        reply = await query(wire)
        assert (reply.code, reply.remark, reply.ext) == (0, None, {"offset": "5"})
        assert (await update(wire, 2)).code == 0
        assert (await query(wire)).ext == {"offset": "2"}


async def test_a_commit_beyond_the_queue_is_taken_as_it_is(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        assert (await update(wire, 99_999)).code == 0
        assert (await query(wire)).ext == {"offset": "99999"}


async def test_commits_are_mostly_oneway(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        keys = {"consumerGroup": "G", "topic": "T", "queueId": 1, "commitOffset": 3}
        wire.send(frame(UPDATE, keys, flag=2))
        await until(lambda: broker.state.offsets.query("G", "T", 1) == 3)
        assert (await query(wire, queue_id=1)).ext == {"offset": "3"}


async def test_a_new_group_begins_at_the_start_of_a_young_topic(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        reply = await query(wire)
        assert (reply.code, reply.remark, reply.ext) == (22, NOT_FOUND, {})  # no message yet
        await broker.filled("T", 0, b"x")
        reply = await query(wire)
        assert (reply.code, reply.ext) == (0, {"offset": "0"})
        reply = await query(wire, setZeroIfNotFound="false")
        assert (reply.code, reply.remark) == (22, "Not found, do not set to zero, maybe this group boot first")
        assert (await query(wire, setZeroIfNotFound="true")).ext == {"offset": "0"}


async def test_a_new_group_chooses_where_to_begin_once_the_head_has_left_memory(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path, memory=10_000) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, b"x" * 500)
        assert (await query(wire)).ext == {"offset": "0"}
        await broker.filled("T", 0, *[b"x" * 500] * 30)
        reply = await query(wire)
        assert (reply.code, reply.remark) == (22, NOT_FOUND)


async def test_a_new_group_chooses_where_to_begin_once_messages_have_expired(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 0, *[b"x" * 1000] * 40)
        assert (await query(wire)).ext == {"offset": "0"}
        broker.store.commit_log.files.files[0].retire()
        broker.store.queues.correct_min(broker.store.commit_log.min_offset)
        assert broker.store.min_offset("T", 0) > 0
        assert (await query(wire)).code == 22


async def test_unknown_groups_and_topics_have_no_offset_and_no_error(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        assert (await query(wire, "nobody", "nothing")).code == 22
        assert (await query(wire, queue_id=-1)).code == 22
        assert broker.state.groups.get("nobody") is None


async def test_a_store_that_cannot_be_read_is_no_reason_to_jump_to_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:

        def broken(*_: object) -> bool:
            raise OSError("the disk is gone")

        broker.store.is_hot = broken  # type: ignore[method-assign]
        wire.send(frame(QUERY, {"consumerGroup": "G", "topic": "T", "queueId": 0}, opaque=1))
        wire.send(frame(MAX, {"topic": "T", "queueId": 0}, opaque=2))
        assert (await wire.receive()).opaque == 2
        assert "the disk is gone" in caplog.text


async def test_a_pending_reset_is_what_a_group_goes_on_from_and_commits_do_not_undo_it(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        await broker.filled("T", 0, *[b"x"] * 10)
        broker.state.offsets.set_reset("G", "T", 0, 4)
        reply = await update(wire, 9)
        assert (reply.code, reply.remark) == (0, None)
        assert (await query(wire)).ext == {"offset": "4"}
        assert (await wire.call(11, pull("G", "T", 0, 9))).code == 21
        assert (await update(wire, 9)).code == 0
        assert (await query(wire)).ext == {"offset": "9"}


async def test_resets_count_for_nothing_where_they_are_switched_off(tmp_path: Path) -> None:
    off = {"useServerSideResetOffset": "false"}
    async with broker_with_topic(tmp_path, **off) as broker, connect(broker.port) as wire:
        broker.group("G")
        broker.state.offsets.set_reset("G", "T", 0, 4)
        assert (await update(wire, 9)).code == 0
        assert (await query(wire)).ext == {"offset": "9"}


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        ({"group": "nobody", "topic": "nothing"}, 26, "Group nobody not exist!"),
        ({"topic": "nothing", "queue_id": None}, 17, "Topic nothing not exist!"),
        ({"queue_id": None, "offset": None}, 29, "QueueId is null, topic is T"),
        ({"offset": None}, 29, "Offset is null, topic is T"),
        ({"offset": -1}, 29, "Offset -1 is negative, topic is T"),
        ({"queue_id": 4}, 29, "QueueId 4 is not one of topic T"),
        ({"queue_id": -1}, 29, "QueueId -1 is not one of topic T"),
    ],
)
async def test_commits_that_make_no_sense_are_refused(
    tmp_path: Path, change: dict[str, Any], code: int, remark: str
) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        reply = await update(wire, **{"offset": 5, **change})
        assert (reply.code, reply.remark) == (code, remark)
        assert broker.state.offsets.topics_of("G") == []


async def test_queues_that_a_topic_has_lost_are_still_committed(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        await broker.filled("T", 3, b"x")
        broker.topic("T", queues=2)
        assert (await update(wire, 1, queue_id=3)).code == 0
        assert (await update(wire, 1, queue_id=2)).code == 29


async def test_the_ends_of_a_queue_are_told(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        await broker.filled("T", 1, b"x", b"y")
        where = {"topic": "T", "queueId": 1}
        for code, expected in ((MAX, "2"), (MIN, "0")):
            reply = await wire.call(code, where)
            assert (reply.code, reply.remark, reply.ext) == (0, None, {"offset": expected})
        assert (await wire.call(MAX, {**where, "committed": "false"})).ext == {"offset": "2"}
        earliest = int((await wire.call(EARLIEST, where)).ext["timestamp"])
        assert earliest == broker.store.earliest_time("T", 1) > 0


async def test_a_queue_that_is_not_there_is_empty(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        for topic, queue_id in (("T", 0), ("T", -1), ("nothing", 0), ("../..", 0)):
            where = {"topic": topic, "queueId": queue_id}
            assert (await wire.call(MAX, where)).ext == {"offset": "0"}
            assert (await wire.call(MIN, where)).ext == {"offset": "0"}
            assert (await wire.call(EARLIEST, where)).ext == {"timestamp": "-1"}
            assert (await wire.call(SEARCH, {**where, "timestamp": 1})).ext == {"offset": "0"}


async def test_moments_are_found_from_both_sides(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        for _ in range(6):
            await broker.filled("T", 0, b"x")

        async def found(timestamp: int, boundary: str | None) -> int:
            keys: dict[str, object] = {"topic": "T", "queueId": 0, "timestamp": timestamp}
            reply = await wire.call(SEARCH, keys | ({} if boundary is None else {"boundaryType": boundary}))
            assert reply.code == 0
            return int(reply.ext["offset"])

        assert [await found(0, each) for each in (None, "LOWER", "UPPER")] == [0, 0, 0]
        late = 9_999_999_999_999
        assert [await found(late, each) for each in (None, "LOWER", "UPPER", "upper", "odd")] == [6, 6, 5, 5, 6]


async def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with broker_with_topic(tmp_path) as broker, connect(broker.port) as wire:
        broker.group("G")
        await update(wire, 7, queue_id=2)
    async with PullBroker(tmp_path) as broker, connect(broker.port) as wire:
        assert (await query(wire, queue_id=2)).ext == {"offset": "7"}


async def test_offsets_are_on_disk_within_their_interval(tmp_path: Path) -> None:
    interval = {"flushConsumerOffsetInterval": "50"}
    async with broker_with_topic(tmp_path, **interval) as broker, connect(broker.port) as wire:
        broker.group("G")
        broker.saved.start()
        await update(wire, 7)
        await until((tmp_path / "config/consumerOffset.json").exists)


NUMBERS = st.one_of(st.integers(-3, 10), st.sampled_from([2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**70]))
VALUES = st.one_of(NUMBERS.map(str), st.text(max_size=8), st.just("T"), st.just("G"))
KEYS = [
    "consumerGroup",
    "topic",
    "queueId",
    "commitOffset",
    "timestamp",
    "boundaryType",
    "committed",
    "setZeroIfNotFound",
]


@settings(max_examples=10)
@given(st.lists(st.tuples(st.sampled_from([14, 15, 29, 30, 31, 32]), st.dictionaries(st.sampled_from(KEYS), VALUES))))
async def test_any_values_are_answered(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, dict[str, str]]]
) -> None:
    async with broker_with_topic(tmp_path_factory.mktemp("broker")) as broker, connect(broker.port) as wire:
        broker.group("G")
        await broker.filled("T", 0, b"x")
        for code, keys in requests:
            reply = await wire.call(code, {"consumerGroup": "G", "topic": "T", "queueId": "0", **keys})
            assert reply.code in (0, 1, 17, 22, 26, 29)
            assert reply.code == 0 or reply.remark
