"""Messages by key, by their place in the log, and the units of a queue, as clients and operators ask for them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.handlers import query
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.index_file import ENTRIES_PER_STEP
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.stats import QueryConsumeQueueResponseBody
from cometmq.protocol.record import decode_records
from support.admin_broker import AdminBroker
from support.raw_peer import Frame
from support.store_kit import message

TOPIC = "TopicTest"
FOREVER = {"beginTimestamp": 0, "endTimestamp": 2**63 - 1}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AdminBroker]:
    async with AdminBroker(tmp_path) as running:
        running.topic(TOPIC)
        yield running


def by_key(key: str, **more: object) -> dict[str, object]:
    return {"topic": TOPIC, "key": key, "maxNum": 32, **FOREVER} | more


def bodies(answer: Frame) -> list[bytes]:
    assert answer.code == 0, answer
    return [record.body for record in decode_records(answer.body)]


# By key


async def test_a_key_finds_its_messages_in_the_order_of_the_log(broker: AdminBroker) -> None:
    for number in range(5):
        await broker.put_message(message(TOPIC, 0, b"%d" % number, KEYS=f"order{number % 2} other"))
    answer = await broker.ask(12, by_key("order1"))
    assert bodies(answer) == [b"1", b"3"]
    assert int(answer.ext["indexLastUpdatePhyoffset"]) > 0
    assert int(answer.ext["indexLastUpdateTimestamp"]) > 0
    assert answer.remark is None


async def test_a_unique_key_finds_its_message_whatever_number_was_asked_for(broker: AdminBroker) -> None:
    for number in range(3):
        await broker.put_message(message(TOPIC, 0, b"%d" % number, UNIQ_KEY="SAME"))
    assert len(bodies(await broker.ask(12, by_key("SAME", maxNum=1)))) == 1
    unique = by_key("SAME", maxNum=1) | {"_UNIQUE_KEY_QUERY": "true"}
    assert len(bodies(await broker.ask(12, unique))) == 3


async def test_times_outside_of_the_range_do_not_count(tmp_path: Path) -> None:
    clock = FakeClock()
    async with AdminBroker(tmp_path, clock=clock) as broker:
        broker.topic(TOPIC)
        await broker.put(TOPIC, KEYS="k", body=b"old")
        clock.set_wall(clock.wall() + 60_000)
        middle = clock.wall() - 30_000
        await broker.put(TOPIC, KEYS="k", body=b"new")
        assert bodies(await broker.ask(12, by_key("k", beginTimestamp=middle))) == [b"new"]
        assert bodies(await broker.ask(12, by_key("k", endTimestamp=middle))) == [b"old"]


async def test_a_key_that_nobody_has_is_answered_with_how_far_the_index_is(broker: AdminBroker) -> None:
    await broker.put(TOPIC, KEYS="k")
    answer = await broker.ask(12, by_key("unknown"))
    assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
    assert set(answer.ext) == {"indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}


async def test_an_empty_index_is_at_zero(broker: AdminBroker) -> None:
    answer = await broker.ask(12, by_key("k"))
    assert answer.code == 22
    assert answer.ext == {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}


@pytest.mark.parametrize("number", [-1, 0, 2**31 - 1])
async def test_odd_numbers_of_messages_are_bounded(broker: AdminBroker, number: int) -> None:
    await broker.put(TOPIC, 70, KEYS="k")
    answer = await broker.ask(12, by_key("k", maxNum=number))
    if number > 0:
        assert len(bodies(answer)) == 64  # maxMsgsNumBatch
    else:
        assert answer.code == 22


async def test_an_answer_never_outgrows_a_frame(broker: AdminBroker) -> None:
    large = b"x" * (3 << 20)
    for _ in range(5):
        await broker.put_message(message(TOPIC, 0, large, KEYS="large"))
    answer = await broker.ask(12, by_key("large"))
    assert answer.code == 0
    assert 1 <= len(bodies(answer)) < 5
    assert len(answer.body) <= query.MAX_ANSWER


@pytest.mark.parametrize("missing", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
async def test_a_query_without_a_key_is_refused_by_name(broker: AdminBroker, missing: str) -> None:
    ext = by_key("k")
    del ext[missing]
    answer = await broker.ask(12, ext)
    assert answer.code == 1
    assert missing in (answer.remark or "")


async def test_a_long_chain_of_one_hash_does_not_stall_the_loop(tmp_path: Path) -> None:
    """Asked for the oldest of many messages with one key, the index walks over all the others, in steps."""
    clock = FakeClock()
    async with AdminBroker(tmp_path, clock=clock, maxIndexNum="10000") as broker:
        broker.topic(TOPIC)
        await broker.put(TOPIC, body=b"oldest", KEYS="same")
        clock.set_wall(clock.wall() + 10_000)
        tickets = [broker.store.put(message(TOPIC, 0, b"x", KEYS="same")) for _ in range(3000)]
        await tickets[-1].future()
        await broker.put(TOPIC)
        end = clock.wall() - 5_000
        steps = broker.store.reading.querying(TOPIC, "same", 32, 0, end)
        assert sum(1 for _ in steps) >= 3000 // ENTRIES_PER_STEP
        assert bodies(await broker.ask(12, by_key("same", endTimestamp=end))) == [b"oldest"]


async def test_a_query_that_is_given_up_lets_its_files_go(broker: AdminBroker) -> None:
    await broker.put(TOPIC, 3, KEYS="k")
    (file,) = broker.store.commit_log.files.files
    before = file.holds
    steps = broker.store.reading.querying(TOPIC, "k", 32, 0, 2**63 - 1)
    while file.holds == before:
        next(steps)
    steps.close()
    assert file.holds == before


async def test_cold_messages_come_through_a_thread_and_are_the_same(tmp_path: Path) -> None:
    async with AdminBroker(tmp_path, accessMessageInMemoryMaxRatio="0") as broker:
        broker.topic(TOPIC)
        at = await broker.put_message(message(TOPIC, 0, b"cold", KEYS="k"))
        await broker.put(TOPIC, 1, body=b"after")
        assert bodies(await broker.ask(12, by_key("k"))) == [b"cold"]
        assert bodies(await broker.ask(33, {"offset": at})) == [b"cold"]


# By place


async def test_a_message_is_found_at_its_place(broker: AdminBroker) -> None:
    await broker.put(TOPIC, body=b"first")
    at = await broker.put_message(message(TOPIC, 1, b"second"))
    assert bodies(await broker.ask(33, {"offset": at})) == [b"second"]
    assert bodies(await broker.ask(33, {"offset": at, "topic": TOPIC})) == [b"second"]


@pytest.mark.parametrize("offset", [1, 16777215, -1, 2**63 - 1, -(2**63)])
async def test_a_place_without_a_message_is_told(broker: AdminBroker, offset: int) -> None:
    await broker.put(TOPIC)
    answer = await broker.ask(33, {"offset": offset})
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


@pytest.mark.parametrize("text", ["", "x", "9223372036854775808", None])
async def test_a_place_that_is_no_number_is_refused(broker: AdminBroker, text: str | None) -> None:
    answer = await broker.ask(33, {} if text is None else {"offset": text})
    assert answer.code == 1
    assert "offset" in (answer.remark or "")


# Units


def units(answer: Frame) -> QueryConsumeQueueResponseBody:
    assert answer.code == 0, answer
    return QueryConsumeQueueResponseBody.decode(answer.body)


async def test_units_of_a_queue_say_where_their_messages_are(broker: AdminBroker) -> None:
    await broker.put(TOPIC, 5, TAGS="TagA")
    answer = await broker.ask(321, {"topic": TOPIC, "queueId": 0, "index": 1, "count": 3})
    body = units(answer)
    assert (body.min_queue_index, body.max_queue_index) == (0, 5)
    assert body.queue_data is not None
    assert [unit.tags_code for unit in body.queue_data] == [2598919] * 3  # Java's hash of TagA
    assert body.queue_data[0].physic_offset == body.queue_data[0].physic_size
    assert not any(unit.eval for unit in body.queue_data)
    assert b"filterData" not in answer.body


async def test_units_say_what_a_group_would_take(broker: AdminBroker) -> None:
    for number in range(4):
        await broker.put_message(message(TOPIC, 0, b"x", TAGS="TagA" if number % 2 else "TagB"))
    await broker.consumer("G", TOPIC)
    ask = {"topic": TOPIC, "queueId": 0, "index": 0, "count": 4, "consumerGroup": "G"}
    body = units(await broker.ask(321, ask))
    assert body.queue_data is not None
    assert all(unit.eval for unit in body.queue_data)
    assert body.subscription_data is not None
    offline = units(await broker.ask(321, ask | {"consumerGroup": "nobody"}))
    assert offline.filter_data == f"nobody@{TOPIC} is not online!"


async def test_units_of_an_unknown_queue_are_refused(broker: AdminBroker) -> None:
    answer = await broker.ask(321, {"topic": TOPIC, "queueId": 7, "index": 0, "count": 3})
    assert (answer.code, answer.remark) == (1, f"7@{TOPIC} is not exist!")


@pytest.mark.parametrize(("index", "count"), [(-1, 3), (5, 3), (99, 3), (0, 0), (0, -5), (2**62, 2**31 - 1)])
async def test_units_outside_of_a_queue_are_none(broker: AdminBroker, index: int, count: int) -> None:
    await broker.put(TOPIC, 5)
    body = units(await broker.ask(321, {"topic": TOPIC, "queueId": 0, "index": index, "count": count}))
    assert not body.queue_data
    assert body.max_queue_index == 5


async def test_the_number_of_units_is_bounded(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MAX_UNITS", 10)
    await broker.put(TOPIC, 20)
    answer = await broker.ask(321, {"topic": TOPIC, "queueId": 0, "index": 0, "count": 2**31 - 1})
    assert len(fastjson.loads(answer.body)["queueData"]) == 10
