"""A store of ours in the hands of the real RocketMQ, and back again.

For each case: our store is written and closed or killed; a real broker opens the directory with the same file sizes,
and RocketMQ's Java client pulls every message; the Java client sends more to it; the broker is stopped or killed; we
open the directory again. All of that happens once a session, the cases side by side; the tests look at what was seen.
"""

import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Iterator

import pytest

from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import RealDisk
from cometmq.protocol import names
from cometmq.protocol.message_id import pack_host
from support.fleet import OwnNameserver
from support.plain_frames import answers
from support.real_rocketmq import START_SECONDS, V4, V5
from support.store_handover import (
    BATCH,
    LOOKED_UP,
    SENT,
    SENT_SIZE,
    Case,
    Life,
    Seen,
    StoreClient,
    TakenBack,
    end_all,
    look_into,
    real_broker,
    send_to,
    take_back,
    wait_registered,
    write_all,
)
from support.store_writer import (
    COMPRESSED,
    COUNT,
    GEOMETRY,
    OPEN,
    SOON,
    Planned,
    delayed_topic,
    main_topic,
)

CASES = [
    Case("async_closed", V5, "ASYNC_FLUSH", "close", "stop"),
    Case("async_killed", V5, "ASYNC_FLUSH", "kill_early", "stop"),
    Case("sync_killed", V5, "SYNC_FLUSH", "kill", "kill"),
    Case("sync_closed_49", V4, "SYNC_FLUSH", "close", "kill"),
]


@pytest.fixture(scope="session")
def _cases(rocketmq: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Life]]:
    """Everything that happens to the stores but our second opening."""
    root = tmp_path_factory.mktemp("stores")
    with contextlib.ExitStack() as stack:
        nameserver = stack.enter_context(OwnNameserver(root / "namesrv"))
        lives = [Life(case, real_broker(case, root / case.name, nameserver.address)) for case in CASES]
        write_all(lives)
        nameserver.wait_ready("answers", START_SECONDS, lambda: answers(nameserver.address))
        for life in lives:
            stack.enter_context(life.broker)
        client = stack.enter_context(StoreClient(root / "client", nameserver.address))
        for life in lives:
            wait_registered(life.broker, nameserver.address)
        for life in lives:
            look_into(client, life)
        for life in lives:
            send_to(client, life)
        end_all(lives)
        yield {life.case.name: life for life in lives}


@pytest.fixture(params=[case.name for case in CASES])
def life(request: pytest.FixtureRequest, _cases: dict[str, Life]) -> Life:
    return _cases[request.param]


# What RocketMQ sees of ours


def test_every_message_is_pulled(life: Life) -> None:
    puts = life.puts
    assert puts == COUNT if life.case.our_end == "close" else COUNT <= puts <= COUNT + OPEN
    for queue, expected in life.expected().items():
        assert expected, f"{queue} is not tested"
        for seen, each in zip(life.pulled[queue], expected, strict=True):
            assert _fields(seen) == _planned_fields(each)


def _fields(seen: Seen) -> Seen:
    """What a producer decides of a message."""
    ours = ("topic", "queue_id", "flag", "sys_flag", "body_crc", "born_timestamp", "born_host", "reconsume_times")
    return {name: seen[name] for name in (*ours, "tags", "keys", "properties", "body", "prepared_transaction_offset")}


def _planned_fields(each: Planned) -> Seen:
    return {
        "topic": each.topic,
        "queue_id": each.queue_id,
        "flag": each.flag,
        "sys_flag": each.sys_flag & ~COMPRESSED,  # the client has unpacked the body, and says so
        "body_crc": zlib.crc32(each.stored_body) & 0x7FFFFFFF,
        "born_timestamp": each.born_timestamp,
        "born_host": each.born_host.hex(),
        "reconsume_times": each.reconsume_times,
        "tags": each.properties.get("TAGS"),
        "keys": each.properties.get("KEYS"),
        "properties": dict(each.properties),
        "body": each.body,
        "prepared_transaction_offset": 0,
    }


def test_ids_and_offsets_are_those_that_were_acknowledged(life: Life) -> None:
    by_offset_id = {seen["offset_id"]: seen for line in life.pulled.values() for seen in line}
    host = pack_host("127.0.0.1", life.broker.port).hex()
    for told in life.acknowledged:
        messages = life.case.planned(told["number"])
        assert len(told["ids"]) == len(messages)
        for i, (offset_id, each) in enumerate(zip(told["ids"], messages, strict=True)):
            seen = by_offset_id[offset_id]
            assert seen["queue_offset"] == told["queue_offset"] + i
            assert (seen["store_timestamp"], seen["store_host"]) == (told["store_timestamp"], host)
            assert seen["id"] == each.properties.get("UNIQ_KEY", offset_id)
            assert (seen["topic"], seen["queue_id"], seen["body"]) == (each.topic, each.queue_id, each.body)
        assert by_offset_id[told["ids"][0]]["physical_offset"] == told["physical_offset"]
    files = {seen["physical_offset"] // int(GEOMETRY["mappedFileSizeCommitLog"]) for seen in by_offset_id.values()}
    assert len(files) >= 6


def test_messages_are_found_by_key_id_and_time(life: Life) -> None:
    topic = main_topic(life.case.name)
    everything = [seen for queue, line in life.pulled.items() if queue[0] == topic for seen in line]
    for key, found in life.by_key.items():
        matching = [seen for seen in everything if key in (seen["keys"] or "").split()]
        assert matching, f"{key} is not tested"
        assert sorted(s["offset_id"] for s in found) == sorted(s["offset_id"] for s in matching)
        assert all(s["body"] == m["body"] for s in found for m in matching if s["offset_id"] == m["offset_id"])
    for number, by_offset_id, seen in zip(LOOKED_UP, life.by_id[::2], life.by_id[1::2], strict=True):
        (each,) = life.case.planned(number)
        assert seen == by_offset_id
        assert seen["offset_id"] == life.acknowledged[number]["ids"][0]
        assert _fields(seen) == _planned_fields(each)
    times = [seen["store_timestamp"] for seen in life.pulled[topic, 0]]
    for offset, answer in life.by_time.items():
        # Of several messages of one millisecond 5.x gives the first, 4.9 any.
        assert times[answer] == times[offset]
        assert answer == times.index(times[offset]) or life.case.version == V4


def test_delayed_messages_are_delivered(life: Life) -> None:
    waiting = life.pulled[names.SCHEDULE_TOPIC, SOON - 1]
    assert len(waiting) >= 5
    assert [s["body"] for s in life.delivered] == [s["body"] for s in waiting]
    for was, now in zip(waiting, life.delivered, strict=True):
        assert (now["keys"], now["tags"], now["born_timestamp"]) == (was["keys"], was["tags"], was["born_timestamp"])
        assert now["properties"]["colour"] == was["properties"]["colour"]
        assert now["properties"]["REAL_TOPIC"] == now["topic"]
        assert now["physical_offset"] > max(s["physical_offset"] for line in life.pulled.values() for s in line)


def test_the_java_producer_goes_on_where_we_ended(life: Life) -> None:
    topic = main_topic(life.case.name)
    assert {one["status"] for one in [*life.sent, life.batch]} == {"SEND_OK"}
    assert [one["offset"] for one in life.sent] == [len(life.pulled[topic, 1]) + i for i in range(SENT)]
    assert life.batch["offset"] == len(life.pulled[topic, 2])
    for queue, line in life.pulled.items():
        assert life.pulled_at_last[queue][: len(line)] == line


#: What a broker logs about a directory that it wrote itself, on every start and at the ends of files.
USUAL = (
    r"found a illegal magic code 0x0",  # the zeros behind the last record
    r"maxPhyOffsetOfConsumeQueue\((\d+)\) >= processOffset\(\1\), truncate dirty logic files",  # equal: nothing to cut
    r"Offset not matched\. Request offset: (\d+), firstOffset: 0, lastOffset: \1, .*",  # all of a full file was read
    r"Over index file capacity: .*",
    r"Index file \[.*\] is full, trying to create another one",
    r"create mappedFile spent time\(ms\) .*",
)
AFTER_A_KILL = (r"Maybe try to build consume queue repeatedly .*",)
#: The threads that load, recover, dispatch, flush and clean a store.
STORE_THREADS = r"(main|ReputMessageService|Flush\w*|AllocateMappedFileService|CleanCommitLogService|StoreScheduled\w*)"
#: Of the same threads, but not about the store.
ELSEWHERE = r"(No resource file with|Load default|Unknown channel option|.*interrupted,.* by shutdown)"


def test_the_broker_complains_of_nothing(life: Life) -> None:
    """Its log has no line about the store that it does not write about a store of its own."""
    lines = [m for line in life.complaints() if (m := re.match(rf"\S+ \S+ (WARN|ERROR) {STORE_THREADS} - (.*)", line))]
    texts = [m[3] for m in lines if not re.match(ELSEWHERE, m[3])]
    assert "found a illegal magic code 0x0" in texts, "the log is not read"
    usual = USUAL if life.case.our_end == "close" else USUAL + AFTER_A_KILL
    assert [text for text in texts if not any(re.fullmatch(each, text) for each in usual)] == []
    assert not [
        line for line in life.complaints() if re.search(r"(Store|Log|Queue|Index)\w*Exception|BufferUnder", line)
    ]


# What we see of RocketMQ's


@pytest.fixture(scope="session")
def _taken_back(_cases: dict[str, Life]) -> Callable[[str], TakenBack]:
    """Opens each directory once; one that cannot be opened fails the tests of its own case only."""
    return functools.cache(lambda name: take_back(_cases[name]))


@pytest.fixture
def back(life: Life, _taken_back: Callable[[str], TakenBack]) -> TakenBack:
    return _taken_back(life.case.name)


def test_we_find_everything_that_the_java_client_saw(back: TakenBack) -> None:
    life = back.life
    for queue, line in life.pulled_at_last.items():
        for ours, theirs in zip(back.found[queue], line, strict=True):
            assert ours == theirs
    topic = main_topic(life.case.name)
    added = back.found[topic, 1][-SENT:]
    assert [seen["id"] for seen in added] == [one["id"] for one in life.sent]
    assert [seen["offset_id"] for seen in added] == [one["offset_id"] for one in life.sent]
    assert [seen["body"] for seen in added] == [f"added-{i}".encode().ljust(SENT_SIZE, b".") for i in range(SENT)]
    batch = back.found[topic, 2][-BATCH:]
    assert [seen["offset_id"] for seen in batch] == life.batch["offset_id"].split(",")
    assert [seen["body"] for seen in batch] == [f"batched-{i}".encode() for i in range(BATCH)]


def test_our_recovery_knows_how_the_broker_ended(back: TakenBack) -> None:
    recovered, life = back.recovered, back.life
    assert recovered.clean == (life.case.real_end == "stop")
    assert recovered.quarantined == ()
    last = max((s for line in back.found.values() for s in line), key=lambda seen: seen["physical_offset"])
    assert recovered.end == last["physical_offset"] + last["size"]


def test_the_index_of_the_broker_is_ours(back: TakenBack) -> None:
    life, topic = back.life, main_topic(back.life.case.name)
    sent = {one["id"]: seen for one, seen in zip(life.sent, back.found[topic, 1][-SENT:], strict=True)}
    assert back.by_unique_key == {unique: seen["physical_offset"] for unique, seen in sent.items()}
    everything = [seen for queue, line in back.found.items() if queue[0] == topic for seen in line]
    for key, offsets in back.by_key.items():
        assert offsets, f"{key} is not found"
        assert offsets == sorted(s["physical_offset"] for s in everything if key in (s["keys"] or "").split())


def test_we_go_on_where_the_broker_ended(back: TakenBack) -> None:
    end = back.end
    for queue, (physical_offset, queue_offset) in back.put.items():
        assert queue_offset == len(back.found[queue])
        assert physical_offset >= end
        end = physical_offset + 1
        *before, last = back.found_at_last[queue]
        assert before == back.found[queue]
        assert (last["physical_offset"], last["queue_offset"]) == (physical_offset, queue_offset)
        assert last["body"] == b"once more"
    assert back.closed_and_opened.clean


def test_the_tables_of_the_broker_are_ours(back: TakenBack) -> None:
    """RocketMQ has written topics.json anew: with ours, and those it needs itself. The others can be read too."""
    files = ConfigFiles(RealDisk(), str(back.life.folder))
    loaded = [file.path for file in files.all() if file.load() is not None]
    # The others are written by timers of the real broker, which a kill may come before.
    assert {path.rpartition("/")[2] for path in loaded} >= {"topics.json", "subscriptionGroup.json"}
    table = files.topics.load()
    assert table is not None
    ours = {topic for topic, _ in back.life.case.queues} | {delayed_topic(back.life.case.name)}
    assert ours <= table.topic_config_table.keys()
    assert table.topic_config_table[main_topic(back.life.case.name)].read_queue_nums == 3
