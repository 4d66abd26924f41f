"""Directories that the real RocketMQ wrote: each opens, and every message of its manifest is found, in every way."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.reading import GetStatus
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.transforms import SimpleTopics
from cometmq.protocol import sysflag
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.message_id import decode_message_id
from cometmq.protocol.properties import decode_properties, find
from cometmq.protocol.record import Record, decode_record, decode_records
from support import golden_store
from support.golden_store import GoldenMessage
from support.store_kit import record_at


def open_golden(name: str, folder: Path) -> Store:
    runner = ManualRunner(FakeClock(wall=1_794_900_000_000))
    topics = SimpleTopics(golden_store.BATCH_TOPICS.get(name, frozenset()))
    store = Store(folder, golden_store.options(name), runner=runner, clock=runner.clock, topics=topics)
    store.open()
    return store


@pytest.fixture(params=golden_store.NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Store]]:
    store = open_golden(request.param, golden_store.unpack(request.param, tmp_path))
    yield request.param, store
    store.close()


def check(record: Record, told: GoldenMessage) -> None:
    """The stored record against what the Java client showed."""
    assert record.topic == told.topic
    assert record.queue_id == told.queue_id
    assert record.physical_offset == told.physical_offset
    assert record.born_timestamp == told.born_time
    assert record.store_timestamp == told.store_time
    assert record.reconsume_times == told.reconsume_times
    assert record.prepared_transaction_offset == told.prepared_offset
    assert f"{record.born_address[0]}:{record.born_address[1]}" == told.born_host
    assert f"{record.store_address[0]}:{record.store_address[1]}" == told.store_host
    properties = {name: value for name, value in told.properties.items() if name not in ("MIN_OFFSET", "MAX_OFFSET")}
    if told.in_inner_batch:
        # The client takes such a record apart; the message is one of its items.
        base = int(record.property_map()["INNER_BASE"])
        item = decode_batch(record.body)[told.queue_offset - base]
        assert hashlib.sha1(item.body).hexdigest() == told.body_sha1
        assert decode_properties(item.properties) == properties
        return
    assert record.size == told.store_size
    assert record.queue_offset == told.queue_offset
    assert record.flag == told.flag
    assert record.body_crc == told.body_crc
    assert hashlib.sha1(record.body).hexdigest() == told.body_sha1
    # The 5.x client clears the bit when it has unpacked the body, the 4.9 one does not.
    assert record.sys_flag == sysflag.without_compression(told.sys_flag)
    assert record.property_map() == properties


def plain(found: memoryview | bytes) -> Record:
    return decode_record(found, decompress=True)


def test_queues_have_the_offsets_that_the_real_broker_told(golden: tuple[str, Store]) -> None:
    name, store = golden
    for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
        assert store.min_offset(topic, queue_id) == queue.min_offset, (topic, queue_id)
        assert store.max_offset(topic, queue_id) == queue.max_offset, (topic, queue_id)
        if queue.messages:
            assert store.earliest_time(topic, queue_id) == queue.earliest


def test_every_message_is_found_by_queue_offset(golden: tuple[str, Store]) -> None:
    name, store = golden
    for told in golden_store.manifest(name).messages:
        result = store.get_message("g", told.topic, told.queue_id, told.queue_offset, 1)
        assert result is not None
        assert result.status is GetStatus.FOUND
        check(plain(result.read()), told)
        assert result.buffers()[0] == result.read()
        result.release()


def test_every_message_is_found_by_physical_offset_and_message_id(golden: tuple[str, Store]) -> None:
    name, store = golden
    for told in golden_store.manifest(name).messages:
        record = record_at(store, told.physical_offset)
        if told.message_id is not None:
            assert record.message_id == told.message_id
            assert decode_message_id(told.message_id).physical_offset == told.physical_offset
        found = store.message_at(told.physical_offset)
        assert found is not None
        check(plain(found.read()), told)
        found.release()


def test_every_message_is_found_by_its_keys(golden: tuple[str, Store]) -> None:
    name, store = golden
    asked = 0
    for told in golden_store.manifest(name).messages:
        record = record_at(store, told.physical_offset)
        # What the record is indexed by: for an inner batch the keys of the whole.
        unique = find(record.properties, b"UNIQ_KEY")
        keys = (find(record.properties, b"KEYS") or b"").decode().split(" ")
        for key in [unique.decode() if unique else "", *keys]:
            if not key:
                continue
            result = store.query(told.topic, key, 64, record.store_timestamp - 1000, record.store_timestamp + 1000)
            offsets = [part.start for part in result.ranges]
            assert offsets == sorted(offsets)
            if len(offsets) < 64:
                assert told.physical_offset in offsets, (told.topic, key)
            asked += 1
            result.release()
    assert asked >= len(golden_store.manifest(name).messages)


def test_queries_give_what_the_real_broker_gave(golden: tuple[str, Store]) -> None:
    name, store = golden
    answered = 0
    for query in golden_store.manifest(name).queries:
        result = store.query(query.topic, query.key, 64)
        if query.error is None:
            answered += 1
            # The real client drops records that only have the same hash; so do we here.
            mine = []
            for part in result.ranges:
                properties = decode_record(part.buffers()[0]).property_map()
                if query.key in [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]:
                    mine.append(part.start)
            assert set(query.physical_offsets) <= set(mine)
        result.release()
    if name != "special":
        assert answered


def test_every_message_is_found_by_time(golden: tuple[str, Store]) -> None:
    name, store = golden
    for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
        for timestamp, offset in queue.searches:
            found = store.offset_by_time(topic, queue_id, timestamp)
            if not name.endswith("49"):
                assert found == offset, (topic, queue_id, timestamp)
            elif not any(told.in_inner_batch for told in queue.messages):
                # 4.9 takes any of several messages of a millisecond; 5.x, and we, take the first.
                younger = [told.queue_offset for told in queue.messages if told.store_time >= timestamp]
                assert found == min(younger, default=queue.max_offset), (topic, queue_id, timestamp)
        for told in queue.messages:
            found = store.offset_by_time(topic, queue_id, told.store_time)
            assert found <= told.queue_offset
            assert store.message_time(topic, queue_id, found) == told.store_time


def test_pulls_give_whole_queues(golden: tuple[str, Store]) -> None:
    name, store = golden
    for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
        if any(told.in_inner_batch for told in queue.messages):
            continue
        offset = queue.min_offset
        seen = []
        while offset < queue.max_offset:
            result = store.get_message("g", topic, queue_id, offset, 32)
            assert result is not None
            seen += [record.queue_offset for record in decode_records(result.read())]
            offset = result.next_begin_offset
            result.release()
        assert seen == [told.queue_offset for told in queue.messages]


def test_opening_and_closing_changes_no_message(golden: tuple[str, Store], tmp_path: Path) -> None:
    name, store = golden
    store.start()
    store.close()
    before = golden_store.files(name)
    for path, content in before.items():
        if path.startswith("commitlog/"):
            here = tmp_path / "store" / path
            if here.exists():
                assert here.read_bytes() == content, path
            else:
                assert not any(content), path
    again = open_golden(name, tmp_path / "store")
    try:
        assert again.watermarks.appended == store.watermarks.appended
        for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
            assert again.max_offset(topic, queue_id) == queue.max_offset
    finally:
        again.close()


def test_queues_and_index_are_built_anew_from_the_log_alone(golden: tuple[str, Store], tmp_path: Path) -> None:
    name, store = golden
    store.close()
    root = tmp_path / "store"
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue", ignore_errors=True)
    shutil.rmtree(root / "consumequeue_ext", ignore_errors=True)
    shutil.rmtree(root / "index")
    again = open_golden(name, root)
    try:
        for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
            assert again.min_offset(topic, queue_id) == queue.min_offset, topic
            assert again.max_offset(topic, queue_id) == queue.max_offset, topic
        for told in golden_store.manifest(name).messages[::7]:
            if told.unique_key and not told.in_inner_batch:
                found = again.message_by_unique_key(told.topic, told.unique_key)
                assert found is not None, told
                found.release()
    finally:
        again.close()
