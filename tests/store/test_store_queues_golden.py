"""Consume queues and index files of real RocketMQ directories: read right, and written anew to the same bytes."""

import functools
import struct
from typing import NamedTuple

import pytest

from cometmq.broker.store.batch_consume_queue import BATCH_UNIT, BatchConsumeQueue
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.consume_queue import UNIT, Boundary, ConsumeQueue
from cometmq.broker.store.consume_queue_ext import is_address
from cometmq.broker.store.consume_queues import ConsumeQueues, QueueKindWrong
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.index import Index
from cometmq.broker.store.index_file import IndexFile
from cometmq.broker.store.index_keys import key_hash
from cometmq.protocol import record as records
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.properties import decode_properties
from support import golden_store as golden

LEVELS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
WHOLE = tuple(name for name in golden.NAMES if name != "trimmed")
LOG_FILE = 1 << 20


class Stored(NamedTuple):
    """A record of the commit log, as dispatch sees it."""

    record: records.Record
    properties: dict[str, str]

    @property
    def tags_code(self) -> int:
        if self.record.topic == "SCHEDULE_TOPIC_XXXX":
            return self.record.store_timestamp + LEVELS[int(self.properties["DELAY"]) - 1] * 1000
        return tags_code(self.properties.get("TAGS", ""))

    @property
    def keys(self) -> list[str]:
        names = [self.properties.get("UNIQ_KEY", ""), *self.properties.get("KEYS", "").split(" ")]
        return [name for name in names if name]


@functools.cache
def log_of(name: str) -> tuple[Stored, ...]:
    """All records of a directory, by the rules of the log."""
    found = []
    for path, content in sorted(golden.files(name).items()):
        if not path.startswith("commitlog/"):
            continue
        position = 0
        while struct.unpack_from(">i", content, position + 4)[0] in (records.MAGIC_V1, records.MAGIC_V2):
            record = records.decode_record(content, position)
            assert record.physical_offset == int(path[-20:]) + position
            found.append(Stored(record, decode_properties(record.properties)))
            position += record.size
    return tuple(found)


@functools.cache
def by_offset(name: str) -> dict[int, Stored]:
    return {stored.record.physical_offset: stored for stored in log_of(name)}


def min_physical(name: str) -> int:
    return min(int(path[-20:]) for path in golden.files(name) if path.startswith("commitlog/"))


def store_time_of(name: str):
    """The function that searches by time ask."""

    def store_time(physical: int, size: int) -> int:
        stored = by_offset(name).get(physical)
        return stored.record.store_timestamp if stored and stored.record.size == size else -1

    return store_time


def is_batch_topic(name: str):
    return golden.BATCH_TOPICS.get(name, frozenset()).__contains__


#: What the running test has opened.
_OPENED: list[ConsumeQueues] = []


@pytest.fixture(autouse=True)
def closed_after_each_test():
    yield
    while _OPENED:
        _OPENED.pop().close()


def queues_of(name: str, disk, root: str) -> ConsumeQueues:
    queues = ConsumeQueues(disk, root, golden.options(name), is_batch_topic=is_batch_topic(name))
    _OPENED.append(queues)
    return queues


def opened(name: str, tmp_path, *, thorough: bool) -> ConsumeQueues:
    queues = queues_of(name, RealDisk(), str(golden.unpack(name, tmp_path)))
    queues.load()
    queues.recover(thorough=thorough)
    return queues


def replay(name: str, queues: ConsumeQueues, bit_maps: dict[int, bytes] | None = None) -> None:
    """What dispatch does after a crash: everything again."""
    for number, stored in enumerate(log_of(name)):
        record, properties = stored
        place = (record.physical_offset, record.size, stored.tags_code)
        queues.append(
            record.topic, record.queue_id, int(properties.get("INNER_BASE", record.queue_offset)), *place,
            record.store_timestamp, batch_count=int(properties.get("INNER_NUM", 1)),
            bit_map=(bit_maps or {}).get(record.physical_offset),
        )  # fmt: skip
        if "INNER_MULTI_DISPATCH" in properties:
            names = properties["INNER_MULTI_DISPATCH"].split(",")
            for target, offset in zip(names, properties["INNER_MULTI_QUEUE_OFFSET"].split(","), strict=True):
                queues.append(target, 0, int(offset), *place, extended=False)
        if number % 7 == 0:
            queues.write_out()
    queues.write_out()


@pytest.mark.parametrize("thorough", [False, True], ids=["search", "scan"])
@pytest.mark.parametrize("name", golden.NAMES)
class TestReading:
    def test_every_unit_is_that_of_its_record(self, name, thorough, tmp_path):
        queues = opened(name, tmp_path, thorough=thorough)
        seen = 0
        for queue in queues:
            for offset, physical, size, code, count in all_entries(queue):
                if physical < min_physical(name):
                    continue
                seen += 1
                record, properties = stored = by_offset(name)[physical]
                assert size == record.size
                if queue.topic.startswith("%LMQ%"):
                    targets = properties["INNER_MULTI_DISPATCH"].split(",")
                    offsets = properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
                    assert offset == int(offsets[targets.index(queue.topic)])
                else:
                    assert (queue.topic, queue.queue_id) == (record.topic, record.queue_id)
                    assert offset == int(properties.get("INNER_BASE", record.queue_offset))
                assert count == int(properties.get("INNER_NUM", 1))
                if is_address(code):
                    unit = queue.ext.get(code)
                    assert unit is not None
                    assert unit.store_time == record.store_timestamp
                    code = unit.tags_code
                assert code == stored.tags_code
        # Killed ones have a record or two without a unit.
        light = sum(len(s.properties.get("INNER_MULTI_DISPATCH", "").split(",")) for s in log_of(name) if
                    "INNER_MULTI_DISPATCH" in s.properties)  # fmt: skip
        assert 0 <= len(log_of(name)) + light - seen <= (2 if name.startswith("killed") else 0)

    def test_offsets_and_times_are_what_the_real_broker_says(self, name, thorough, tmp_path):
        queues = opened(name, tmp_path, thorough=thorough)
        if name.startswith("killed"):
            replay(name, queues)
        queues.correct_min(min_physical(name))
        for wanted in golden.manifest(name).queues.values():
            queue = queues.get(wanted.topic, wanted.queue_id)
            if queue is None:
                assert wanted.max_offset == 0
                continue
            assert (queue.min_offset, queue.max_offset) == (wanted.min_offset, wanted.max_offset)
            # 4.9 went by the times of the files.
            for time, offset in () if name.endswith("49") else wanted.searches:
                found = queue.offset_by_time(time, Boundary.LOWER, store_time_of(name), min_physical=min_physical(name))
                assert found == offset, (queue, time)
            for message in wanted.messages:
                physical, size, _ = queue.unit(message.queue_offset)
                assert physical == message.physical_offset
                assert message.in_inner_batch or size == message.store_size

    def test_both_boundaries_of_every_time(self, name, thorough, tmp_path):
        queues = opened(name, tmp_path, thorough=thorough)
        queues.correct_min(min_physical(name))
        time_of = store_time_of(name)
        for queue in queues:
            if isinstance(queue, BatchConsumeQueue) or queue.topic.startswith("%LMQ%"):
                continue
            times = [time_of(physical, size) for _, physical, size, _, _ in all_entries(queue, queue.min_offset)]
            for time in sorted({moment + shift for moment in times[::17] + times[-1:] for shift in (-1, 0, 1)}):
                lower = sum(moment < time for moment in times)
                upper = max(sum(moment <= time for moment in times) - 1, 0)
                found = [
                    queue.offset_by_time(time, boundary, time_of, min_physical=min_physical(name)) - queue.min_offset
                    for boundary in (Boundary.LOWER, Boundary.UPPER)
                ]
                assert found == [lower, upper], (queue, time)


def all_entries(queue, offset=None):
    """Every entry of a queue, by reads that end with the files."""
    offset = queue.min_offset if offset is None else offset
    while offset < queue.max_offset:
        before = offset
        for entry in queue.entries(offset, 100):
            yield entry
            offset = entry[0] + entry[4]
        assert offset > before


class TestWritingAnew:
    @pytest.mark.parametrize("name", WHOLE)
    def test_gives_the_same_bytes(self, name, tmp_path):
        bit_maps = {}
        for queue in opened(name, tmp_path, thorough=True):
            for _, physical, _, code, _ in all_entries(queue):
                if is_address(code):
                    bit_maps[physical] = queue.ext.get(code).bit_map
        disk = FakeDisk()
        queues = queues_of(name, disk, "/store")
        replay(name, queues, bit_maps)
        compared = 0
        for path, content in golden.files(name).items():
            if not path.startswith(("consumequeue/", "consumequeue_ext/", "batchconsumequeue/")):
                continue
            if not any(content) and not disk.exists(f"/store/{path}"):
                continue
            ours = disk.read_file(f"/store/{path}")
            if name.startswith("killed"):
                # The kill came before the last units were written.
                end = len(content.rstrip(b"\0"))
                assert ours[: end + -end % 20] == content[: end + -end % 20]
                assert len(ours) == len(content)
            else:
                assert ours == content, path
            compared += 1
        assert compared >= 3

    def test_twice_changes_nothing(self):
        disk = FakeDisk()
        queues = queues_of("clean", disk, "/store")
        replay("clean", queues)
        before = {queue.files.folder: (queue.min_offset, queue.max_offset) for queue in queues}
        operations = len(disk.operations)
        replay("clean", queues)
        assert {queue.files.folder: (queue.min_offset, queue.max_offset) for queue in queues} == before
        assert len(disk.operations) == operations

    def test_goes_on_where_real_queues_end(self, tmp_path):
        queues = opened("clean", tmp_path, thorough=False)
        queue = queues.get("StoreTopic", 0)
        end, physical = queue.max_offset, queues.max_physical
        assert queues.append("StoreTopic", 0, end, physical, 300, 7)
        queues.write_out()
        assert UNIT.unpack(queue.units(end, 5)) == (physical, 300, 7)
        assert queue.units(end - 1, 5) == golden_tail("clean", "StoreTopic/0") + UNIT.pack(physical, 300, 7)


def golden_tail(name: str, queue: str) -> bytes:
    """The last unit of a queue file."""
    content = max(item for item in golden.files(name).items() if item[0].startswith(f"consumequeue/{queue}/"))[1]
    end = len(content.rstrip(b"\0"))
    end += -end % 20
    return content[end - 20 : end]


class TestTruncating:
    @pytest.mark.parametrize("name", WHOLE)
    def test_and_replaying_gives_the_same_bytes_again(self, name, tmp_path):
        """At many places, in every queue: extension units are written anew too."""
        disk = FakeDisk()
        queues = queues_of(name, disk, "/store")
        replay(name, queues)
        wanted = contents(disk, queues)
        for stored in log_of(name)[:: len(log_of(name)) // 9]:
            physical = stored.record.physical_offset
            queues.truncate(physical)
            for queue in queues:
                assert queue.max_physical <= physical
                assert all(entry[1] < physical for entry in all_entries(queue))
            fresh = queues_of(name, disk, "/store")
            fresh.load()
            fresh.recover(thorough=True)
            for queue in queues:
                again = fresh.get(queue.topic, queue.queue_id)
                # What was cut off does not come back.
                assert (again.max_offset if again else 0) == queue.max_offset
            replay(name, queues)
            assert contents(disk, queues) == wanted


def contents(disk: FakeDisk, queues: ConsumeQueues) -> dict[str, bytes]:
    logs = [log for queue in queues for log in (queue, queue.ext) if log is not None]
    return {file.path: disk.read_file(file.path) for log in logs for file in log.files.files}


class TestExpiring:
    def test_trimmed_is_what_the_real_broker_made_of_clean(self, tmp_path):
        queues = opened("clean", tmp_path, thorough=False)
        queues.correct_min(0)
        dropped = queues.delete_expired(2 * LOG_FILE)
        assert dropped == 2
        for queue in queues:
            for path in (file.path for file in queue.files.files):
                place = path[path.index("consumequeue/") :]
                assert golden.files("trimmed")[place] == RealDisk().read_file(path)
        kept = [path for path in golden.files("trimmed") if path.startswith("consumequeue/StoreTopic/")]
        assert sorted(kept) == sorted(
            f"consumequeue/StoreTopic/{queue.queue_id}/{file.start:020d}"
            for queue in queues.of_topic("StoreTopic").values()
            for file in queue.files.files
        )
        for wanted in golden.manifest("trimmed").queues.values():
            queue = queues.get(wanted.topic, wanted.queue_id)
            assert queue is None or queue.min_offset == wanted.min_offset


class TestKinds:
    def test_a_batch_folder_of_a_plain_topic_is_refused(self, tmp_path):
        root = str(golden.unpack("special", tmp_path))
        queues = ConsumeQueues(RealDisk(), root, golden.options("special"))
        with pytest.raises(QueueKindWrong, match="BatchCqTopic") as caught:
            queues.load()
        assert caught.value.path.endswith("batchconsumequeue/BatchCqTopic")

    def test_a_plain_folder_of_a_batch_topic_is_refused(self, tmp_path):
        root = str(golden.unpack("clean", tmp_path))
        queues = ConsumeQueues(RealDisk(), root, golden.options("clean"), is_batch_topic=lambda topic: True)
        with pytest.raises(QueueKindWrong, match="keep batches"):
            queues.load()

    def test_special_has_all_kinds(self, tmp_path):
        queues = opened("special", tmp_path, thorough=False)
        batch = queues.get("BatchCqTopic", 0)
        assert isinstance(batch, BatchConsumeQueue)
        assert [unit[4:6] for unit in BATCH_UNIT.iter_unpack(batch.units(0, 100))] == [
            (0, 3), (3, 4), (7, 5), (12, 6), (18, 7), (25, 1),
        ]  # fmt: skip
        extended = queues.get("ExtTopic", 0)
        assert isinstance(extended, ConsumeQueue)
        first = extended.ext.get(extended.unit(0)[2])
        assert (first.tags_code, first.bit_map) == (0, b"")
        second = extended.ext.get(extended.unit(2)[2])
        assert second.bit_map.hex() == "0000100000000040000000040000"
        assert not any(is_address(code) for _, _, _, code, _ in queues.get("%LMQ%one", 0).entries(0, 9))


def index_of(name: str, disk, root: str, clock=None, **changes: str) -> Index:
    return Index(disk, root, golden.options(name, **changes), clock or FakeClock())


def index_names(name: str) -> list[str]:
    return sorted(path[6:] for path in golden.files(name) if path.startswith("index/"))


@pytest.mark.parametrize("name", golden.NAMES)
class TestIndex:
    def test_every_entry_is_that_of_its_record(self, name, tmp_path):
        index = index_of(name, RealDisk(), str(golden.unpack(name, tmp_path)))
        index.load(clean=True, safe_timestamp=0)
        assert [file.name for file in index.files] == index_names(name)
        seen = 0
        for file in index.files:
            heads = 0
            for number in range(1, file.count):
                stored_hash, physical, seconds, before = file.entry(number)
                heads += before == 0
                if physical < min_physical(name):
                    continue
                stored = by_offset(name)[physical]
                assert stored_hash in {key_hash(stored.record.topic, key) for key in stored.keys}
                if number > 1:
                    assert seconds == (stored.record.store_timestamp - file.begin_time) // 1000
                seen += 1
            assert heads == file.slots_used
        keys = sum(len(stored.keys) for stored in log_of(name))
        assert seen == keys if not name.startswith("killed") else keys - seen < 10

    def test_every_key_is_found(self, name, tmp_path):
        index = index_of(name, RealDisk(), str(golden.unpack(name, tmp_path)), maxMsgsNumBatch="5000")
        index.load(clean=True, safe_timestamp=0)
        end = index.end_physical
        for stored in log_of(name)[::5]:
            record = stored.record
            if record.physical_offset > end:
                continue
            for key in stored.keys:
                time = record.store_timestamp
                found = index.query(record.topic, key, 5000, time - 1000, time + 1000).offsets
                assert record.physical_offset in found
                assert found == sorted(found, reverse=True)
                assert record.physical_offset not in index.query(record.topic, key, 5000, 0, time - 1001).offsets
                assert record.physical_offset not in index.query(record.topic, key, 5000, time + 1, 2**62).offsets

    def test_queries_are_what_the_real_broker_answers(self, name, tmp_path):
        index = index_of(name, RealDisk(), str(golden.unpack(name, tmp_path)))
        index.load(clean=True, safe_timestamp=0)
        if name.startswith("killed"):
            index.put_turn(turn_of(name))
        for wanted in golden.manifest(name).queries:
            answer = index.query(wanted.topic, wanted.key, 64, 0, 2**62)
            # Whoever asks compares the keys: other keys may have the hash.
            found = {
                offset for offset in answer.offsets
                if offset in by_offset(name) and wanted.key in by_offset(name)[offset].keys
                and by_offset(name)[offset].record.topic == wanted.topic
            }  # fmt: skip
            assert found == set(wanted.physical_offsets)
            if wanted.index_last_update is not None:
                assert answer.last_update_timestamp == wanted.index_last_update


def turn_of(name: str):
    """All records as the index takes them."""
    return [
        (
            stored.record.topic,
            stored.properties.get("KEYS", "").encode(),
            stored.properties.get("UNIQ_KEY", "").encode(),
            stored.record.physical_offset,
            stored.record.store_timestamp,
        )
        for stored in log_of(name)
    ]


class TestIndexWrittenAnew:
    @pytest.mark.parametrize("turn", [1, 3, 64, 5000])
    @pytest.mark.parametrize("name", WHOLE)
    def test_gives_the_same_bytes(self, name, turn):
        disk = FakeDisk()
        index = index_of(name, disk, "/store")
        records = turn_of(name)
        if name.startswith("killed"):
            # The kill came before the last records were indexed.
            last = max(index_header(name, file)[3] for file in index_names(name))
            records = [item for item in records if item[3] <= last]
        for start in range(0, len(records), turn):
            index.put_turn(records[start : start + turn])
        assert len(index.files) == len(index_names(name))
        for ours, theirs in zip(index.files, index_names(name), strict=True):
            content = disk.read_file(f"/store/index/{ours.name}")
            wanted = golden.files(name)[f"index/{theirs}"]
            assert content[:40] == wanted[:40]
            assert content == wanted

    def test_twice_changes_nothing(self):
        disk = FakeDisk()
        index = index_of("clean", disk, "/store")
        index.put_turn(turn_of("clean"))
        before = [disk.read_file(file.path) for file in index.files]
        index.put_turn(turn_of("clean"))
        assert [disk.read_file(file.path) for file in index.files] == before

    def test_after_a_cut_at_any_record_the_rest_can_be_put_again(self):
        disk = FakeDisk()
        index = index_of("clean", disk, "/store")
        index.put_turn(turn_of("clean"))
        wanted = [disk.read_file(file.path) for file in index.files]
        for item in turn_of("clean")[::150]:
            index.truncate(item[3])
            assert index.end_physical < item[3]
            assert all(file.entry(file.count - 1)[1] < item[3] for file in index.files)
            index.put_turn(turn_of("clean"))
            assert [disk.read_file(file.path) for file in index.files] == wanted


def index_header(name: str, file: str) -> tuple[int, ...]:
    return struct.unpack_from(">qqqqii", golden.files(name)[f"index/{file}"])


class TestIndexLoading:
    @pytest.mark.parametrize("name", ["killed", "killed49"])
    def test_after_a_kill_only_full_synced_files_stay(self, name, tmp_path):
        """The checkpoint knows up to which time files were full and synced."""
        root = str(golden.unpack(name, tmp_path))
        safe = struct.unpack_from(">q", golden.files(name)["checkpoint"], 16)[0]
        index = index_of(name, RealDisk(), root)
        index.load(clean=False, safe_timestamp=safe)
        kept = [file for file in index_names(name) if index_header(name, file)[1] <= safe]
        assert [file.name for file in index.files] == kept
        assert RealDisk().list_dir(f"{root}/index") == kept
        # And the rest is put again, without a key too many.
        index.put_turn(turn_of(name))
        entries = sum(file.count - 1 for file in index.files)
        assert entries == sum(len(stored.keys) for stored in log_of(name))

    def test_trimmed_expires_what_the_real_broker_would(self, tmp_path):
        index = index_of("trimmed", RealDisk(), str(golden.unpack("trimmed", tmp_path)))
        index.load(clean=True, safe_timestamp=0)
        assert index.delete_expired(2 * LOG_FILE) == 0
        assert index.delete_expired(3196603) == 1
        assert index.delete_expired(2**40) == 0
        assert [type(file) for file in index.files] == [IndexFile]
