"""The check of a store: directories of the real RocketMQ are sound, every planted damage is found where it is, and a
repair gives a sound store with every message that the damage has left.
"""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.store.check import Check, NoStore, guess_options, kept_still
from cometmq.broker.store.check_report import MAX_KEPT, Kind, Report
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import StoreLocked
from cometmq.broker.store.reading import GetStatus
from cometmq.broker.store.repair import Repair
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.transforms import SimpleTopics
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.record import decode_record
from support import golden_store
from support.golden_store import GoldenMessage
from support.store_kit import StoreKit, message

LOG_FILE = 1048576
SLOTS, ENTRIES = 1000, 4000
FIRST_ENTRY = 40 + 4 * SLOTS


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(root)): (hashlib.sha1(path.read_bytes()).digest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        # Large, and nothing that is looked at.
        if path.is_file() and path.name != "timerwheel"
    }


def check(root: Path, **properties: str) -> Report:
    return Check(str(root), properties).run()


def found(report: Report, kind: Kind, path: Path, offset: int | None) -> bool:
    """Whether a defect of this kind is told at exactly this place."""
    return any(each.kind is kind and each.path == str(path) and each.offset == offset for each in report.defects)


def write(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def read(path: Path, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


def flip(path: Path, offset: int) -> None:
    write(path, offset, bytes([read(path, offset, 1)[0] ^ 0x10]))


# Golden directories


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_directories_of_the_real_broker_are_sound_and_stay_as_they_are(name: str, tmp_path: Path) -> None:
    root = golden_store.unpack(name, tmp_path)
    before = tree(root)
    report = check(root)
    assert report.defects == []
    assert report.sound
    assert tree(root) == before
    manifest = golden_store.manifest(name)
    assert report.records >= len({told.physical_offset for told in manifest.messages})
    assert report.units >= report.records
    assert report.index_entries > report.records
    assert report.log_files == len(list((root / "commitlog").iterdir()))


@pytest.mark.parametrize(("name", "units"), [("killed", 2), ("killed49", 1)])
def test_what_recovery_mends_is_a_note(name: str, units: int, tmp_path: Path) -> None:
    root = golden_store.unpack(name, tmp_path)
    report = check(root)
    notes = {(each.kind, each.path) for each in report.notes}
    assert (Kind.STORE, str(root / "abort")) in notes
    assert (Kind.LOG_FILE, str(root / "commitlog/00000000000005242880")) in notes
    lacking = [each.what for each in report.notes if each.kind is Kind.UNIT]
    assert len(lacking) == 1
    assert lacking[0].startswith(f"{units} records from ")


def test_clean_directories_have_no_notes(tmp_path: Path) -> None:
    assert check(golden_store.unpack("clean", tmp_path)).notes == []


def test_file_sizes_are_told_by_the_files(tmp_path: Path) -> None:
    root = golden_store.unpack("special", tmp_path)
    options = guess_options(RealDisk(read_only=True), str(root), {})
    assert options.mapped_file_size_commit_log == LOG_FILE
    assert options.mapped_file_size_consume_queue == 6000
    assert options.mapped_file_size_consume_queue_ext == 49152
    assert options.mapper_file_size_batch_consume_queue == 4600
    assert options.enable_consume_queue_ext
    assert options.enable_multi_dispatch
    given = Check(str(root))
    given.run()
    assert given.index_shape == (SLOTS, ENTRIES)


def test_configured_sizes_that_the_files_have_not_are_told(tmp_path: Path) -> None:
    root = golden_store.unpack("special", tmp_path)
    report = check(root, mappedFileSizeCommitLog="2097152")
    assert found(report, Kind.LOG_FILE, root / "commitlog" / "00000000000000000000", LOG_FILE)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStore):
        Check(str(tmp_path))


# Damage. Each plants one, and says where it must be found and from which physical offset on messages are lost.

Planted = tuple[Kind, Path, int | None, int | None]


def a_message(name: str, at_least: int, topic: str | None = None) -> GoldenMessage:
    """The first message of a directory from a physical offset on."""
    messages = [
        told
        for told in golden_store.manifest(name).messages
        if told.physical_offset >= at_least and (topic is None or told.topic == topic)
    ]
    return min(messages, key=lambda told: told.physical_offset)


def log_place(root: Path, physical: int) -> tuple[Path, int]:
    start = physical - physical % LOG_FILE
    return root / "commitlog" / f"{start:020d}", physical - start


def unit_place(root: Path, topic: str, queue_id: int, offset: int) -> tuple[Path, int]:
    start = offset * 20 - offset * 20 % 6000
    return root / "consumequeue" / topic / str(queue_id) / f"{start:020d}", offset * 20 - start


def header_flip(inside: int) -> Callable[[Path], Planted]:
    def damage(root: Path) -> Planted:
        told = a_message("clean", 1_500_000, "StoreTopic")
        path, at = log_place(root, told.physical_offset)
        flip(path, at + inside)
        return Kind.RECORD, path, at, told.physical_offset

    return damage


def body_flip(root: Path) -> Planted:
    told = a_message("clean", 1_500_000, "StoreTopic")
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 88 + told.body_length // 2)
    return Kind.RECORD, path, at, told.physical_offset


def last_body_flip(root: Path) -> Planted:
    told = max(golden_store.manifest("clean").messages, key=lambda each: each.physical_offset)
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 90)
    return Kind.RECORD, path, at, told.physical_offset


def wrong_physical_offset(root: Path) -> Planted:
    told = a_message("clean", 1_500_000)
    path, at = log_place(root, told.physical_offset)
    write(path, at + 28, struct.pack(">q", told.physical_offset + 8))
    return Kind.RECORD, path, at, told.physical_offset


def zeroed_page(root: Path) -> Planted:
    told = a_message("clean", 2_200_000)
    path, at = log_place(root, told.physical_offset)
    write(path, at, bytes(4096))
    return Kind.RECORD, path, at, told.physical_offset


def wrong_blank_size(root: Path) -> Planted:
    path, at = log_place(root, 1046722)
    write(path, at, struct.pack(">i", 77))
    return Kind.BLANK, path, at, None


def middle_file_deleted(root: Path) -> Planted:
    path = root / "commitlog" / f"{LOG_FILE:020d}"
    path.unlink()
    return Kind.LOG_FILE, path, None, LOG_FILE


def short_log_file(root: Path) -> Planted:
    path = root / "commitlog" / f"{2 * LOG_FILE:020d}"
    os.truncate(path, 500_000)
    lost = max(
        told.physical_offset
        for told in golden_store.manifest("clean").messages
        if told.physical_offset < 2 * LOG_FILE + 500_000
    )
    return Kind.LOG_FILE, path, 500_000, lost


def foreign_log_file(root: Path) -> Planted:
    path = root / "commitlog" / "00000000000000000077"
    path.write_bytes(b"what")
    return Kind.LOG_FILE, path, None, None


def cut_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 100)
    write(path, at + 9, bytes(11))
    return Kind.UNIT, path, at, None


def wrong_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 100)
    flip(path, at + 7)
    return Kind.UNIT, path, at, None


def wrong_unit_size(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 33)
    flip(path, at + 11)
    return Kind.UNIT, path, at, None


def wrong_tags_code(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 33)
    flip(path, at + 19)
    return Kind.UNIT, path, at + 12, None


def swapped_units(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 0, 7)
    data = read(path, at, 40)
    write(path, at, data[20:] + data[:20])
    return Kind.UNIT, path, at, None


def zeroed_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 0, 50)
    write(path, at, bytes(20))
    return Kind.UNIT, path, at, None


def lost_tail_of_queue(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end - 5)
    write(path, at, bytes(100))
    return Kind.UNIT, path, at, None


def queue_ahead(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end)
    write(path, at, struct.pack(">qiq", 4_000_000, 300, 0))
    return Kind.UNIT, path, at, None


def extra_unit(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end)
    write(path, at, read(path, at - 20, 20))
    return Kind.UNIT, path, at, None


def queue_file_deleted(root: Path) -> Planted:
    path = root / "consumequeue/StoreTopic/1/00000000000000000000"
    path.unlink()
    return Kind.UNIT, path, 0, None


def queue_deleted(root: Path) -> Planted:
    folder = root / "consumequeue/StoreTopic/1"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return Kind.QUEUE_FILE, folder, None, None


def short_queue_file(root: Path) -> Planted:
    path = root / "consumequeue/StoreTopic/1/00000000000000000000"
    os.truncate(path, 3010)
    return Kind.QUEUE_FILE, path, 3010, None


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def wrong_index_hash(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500
    flip(path, at + 3)
    return Kind.INDEX_ENTRY, path, at, None


def wrong_index_offset(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500
    (place,) = struct.unpack(">q", read(path, at + 4, 8))
    write(path, at + 4, struct.pack(">q", place + 1))
    return Kind.INDEX_ENTRY, path, at + 4, None


def wrong_index_time(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500 + 12
    flip(path, at + 3)
    return Kind.INDEX_ENTRY, path, at, None


def broken_chain(root: Path) -> Planted:
    path = index_file(root)
    number = next(n for n in range(3999, 1, -1) if struct.unpack(">i", read(path, FIRST_ENTRY + 20 * n + 16, 4))[0] > 9)
    at = FIRST_ENTRY + 20 * number + 16
    write(path, at, struct.pack(">i", 1))
    return Kind.INDEX_ENTRY, path, at, None


def wrong_slot(root: Path) -> Planted:
    path = index_file(root)
    (key_hash,) = struct.unpack(">i", read(path, FIRST_ENTRY + 20 * 3000, 4))
    at = 40 + 4 * (key_hash % SLOTS)
    write(path, at, bytes(4))
    return Kind.INDEX_ENTRY, path, at, None


def wrong_index_header(root: Path) -> Planted:
    path = index_file(root, 1)
    flip(path, 35)
    return Kind.INDEX_FILE, path, 32, None


def short_index_file(root: Path) -> Planted:
    path = index_file(root, 1)
    os.truncate(path, 5000)
    return Kind.INDEX_FILE, path, 5000, None


def offset_beyond_max(root: Path) -> Planted:
    path = root / "config/consumerOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"StoreRetry@CG_store":{0:3,', b'"StoreRetry@CG_store":{0:4,'))
    return Kind.OFFSET, path, text.index(b'"StoreRetry@CG_store"'), None


def negative_offset(root: Path) -> Planted:
    path = root / "config/consumerOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"StoreRetry@CG_store":{0:3,', b'"StoreRetry@CG_store":{0:-3,'))
    return Kind.OFFSET, path, text.index(b'"StoreRetry@CG_store"'), None


def delay_offset_beyond_max(root: Path) -> Planted:
    path = root / "config/delayOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"{1:7,", b"{1:8,"))
    return Kind.OFFSET, path, text.index(b"1:7,"), None


def damaged_table(root: Path) -> Planted:
    path = root / "config/topics.json"
    path.write_bytes(path.read_bytes()[:300])
    return Kind.CONFIG, path, None, None


def short_checkpoint(root: Path) -> Planted:
    path = root / "checkpoint"
    os.truncate(path, 17)
    return Kind.CHECKPOINT, path, 17, None


DAMAGES: dict[str, Callable[[Path], Planted]] = {
    "flipped size": header_flip(2),
    "flipped magic": header_flip(5),
    "flipped body checksum": header_flip(9),
    "flipped sys flag of the host": header_flip(39),
    "flipped length of the body": header_flip(86),
} | {
    function.__name__.replace("_", " "): function
    for function in (
        body_flip, last_body_flip, wrong_physical_offset, zeroed_page, wrong_blank_size, middle_file_deleted,
        short_log_file, foreign_log_file, cut_unit, wrong_unit, wrong_unit_size, wrong_tags_code, swapped_units,
        zeroed_unit, lost_tail_of_queue, queue_ahead, extra_unit, queue_file_deleted, queue_deleted, short_queue_file,
        wrong_index_hash, wrong_index_offset, wrong_index_time, broken_chain, wrong_slot, wrong_index_header,
        short_index_file, offset_beyond_max, negative_offset, delay_offset_beyond_max, damaged_table, short_checkpoint,
    )
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_where_it_is_and_repaired(damage: Callable[[Path], Planted], tmp_path: Path) -> None:
    root = golden_store.unpack("clean", tmp_path)
    kind, path, offset, lost = damage(root)
    before = tree(root)
    report = check(root)
    assert tree(root) == before
    assert not report.sound
    assert found(report, kind, path, offset), [str(each) for each in report.defects]
    repaired("clean", root, lost)


def repaired(name: str, root: Path, lost: int | None) -> list[str]:
    """Repair a directory; then it is sound, and every message before `lost` is there. Returns what was told."""
    told: list[str] = []
    first, last = Repair(str(root), say=told.append).run()
    assert not first.sound
    assert last.defects == []
    assert told
    assert check(root).defects == []
    everything_is_there(name, root, lost)
    # Sound as it is, it stays as it is.
    before = tree(root)
    again, same = Repair(str(root)).run()
    assert again is same
    assert {key: value[0] for key, value in tree(root).items()} == {key: value[0] for key, value in before.items()}
    return told


def everything_is_there(name: str, root: Path, lost: int | None = None) -> None:
    topics = SimpleTopics(golden_store.BATCH_TOPICS.get(name, frozenset()))
    runner = ManualRunner(FakeClock(wall=1_794_900_000_000))
    store = Store(root, golden_store.options(name), runner=runner, topics=topics, memory=1 << 30)
    store.open()
    try:
        for told in golden_store.manifest(name).messages:
            if lost is not None and told.physical_offset >= lost:
                continue
            result = store.get_message("g", told.topic, told.queue_id, told.queue_offset, 1)
            assert result is not None
            assert result.status is GetStatus.FOUND, told
            record = decode_record(result.read(), decompress=True)
            result.release()
            assert record.physical_offset == told.physical_offset
            body = record.body
            if told.in_inner_batch:
                body = decode_batch(body)[told.queue_offset - record.queue_offset].body
            assert hashlib.sha1(body).hexdigest() == told.body_sha1
            if told.unique_key and not told.in_inner_batch:
                by_key = store.message_by_unique_key(told.topic, told.unique_key)
                assert by_key is not None, told
                by_key.release()
        for (topic, queue_id), queue in golden_store.manifest(name).queues.items():
            if lost is None:
                assert store.max_offset(topic, queue_id) == queue.max_offset
                assert store.min_offset(topic, queue_id) == queue.min_offset
    finally:
        store.close()


def test_nothing_is_thrown_away(tmp_path: Path) -> None:
    root = golden_store.unpack("clean", tmp_path)
    _, path, at, lost = body_flip(root)
    assert at is not None
    rest = read(path, at, LOG_FILE - at)
    later = (root / "commitlog" / f"{3 * LOG_FILE:020d}").read_bytes()
    told = repaired("clean", root, lost)
    assert (root / "quarantine" / f"commitlog-{lost:020d}").read_bytes() == rest
    assert (root / "quarantine" / f"commitlog-{3 * LOG_FILE:020d}").read_bytes() == later
    assert any(f"the log ends at {lost} now" in line for line in told)
    # Consumers that were further than that stand at the ends of the queues now.
    assert b'"StoreRetry@CG_store":{0:0,1:0' in (root / "config/consumerOffset.json").read_bytes()
    assert b'"StoreRetry@CG_store":{0:3,1:3' in (root / "config/consumerOffset.json.bak").read_bytes()


def test_two_bad_records_are_both_found(tmp_path: Path) -> None:
    root = golden_store.unpack("clean", tmp_path)
    messages = sorted(golden_store.manifest("clean").messages, key=lambda told: told.physical_offset)
    for told in messages[700:702]:
        path, at = log_place(root, told.physical_offset)
        flip(path, at + 90)
    report = check(root)
    assert [each.offset for each in report.defects] == [
        told.physical_offset % LOG_FILE for told in messages[700:702]
    ], [str(each) for each in report.defects]


# Extensions, batches, light queues, whole-record checksums


def ext_unit(root: Path) -> Planted:
    path = root / "consumequeue_ext/ExtTopic/0/00000000000000000000"
    size = struct.unpack(">h", read(path, 0, 2))[0]
    flip(path, size + 9)
    return Kind.EXT_UNIT, path, size, None


def ext_address(root: Path) -> Planted:
    path = root / "consumequeue/ExtTopic/0/00000000000000000000"
    write(path, 20 * 5 + 12, struct.pack(">q", -(1 << 63) + 100_000))
    return Kind.UNIT, path, 20 * 5 + 12, None


def batch_unit(root: Path) -> Planted:
    path = next((root / "batchconsumequeue/BatchCqTopic").rglob("0*0"))
    flip(path, 46 * 2 + 37)
    return Kind.UNIT, path, 46 * 2, None


def batch_unit_zeroed(root: Path) -> Planted:
    path = next((root / "batchconsumequeue/BatchCqTopic").rglob("0*0"))
    write(path, 46, bytes(46))
    return Kind.UNIT, path, 46, None


def light_unit(root: Path) -> Planted:
    path = root / "consumequeue/%LMQ%one/0/00000000000000000000"
    flip(path, 20 + 7)
    return Kind.UNIT, path, 20, None


def flag_flip(root: Path) -> Planted:
    """Only the checksum of the whole record can tell."""
    told = a_message("special", 3000, "ExtTopic")
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 19)
    return Kind.RECORD, path, at, told.physical_offset


@pytest.mark.parametrize("damage", [ext_unit, ext_address, batch_unit, batch_unit_zeroed, light_unit, flag_flip])
def test_damage_of_special_files_is_found_and_repaired(damage: Callable[[Path], Planted], tmp_path: Path) -> None:
    root = golden_store.unpack("special", tmp_path)
    kind, path, offset, lost = damage(root)
    report = check(root)
    assert found(report, kind, path, offset), [str(each) for each in report.defects]
    repaired("special", root, lost)


# Trimmed and killed directories


def test_a_trimmed_store_keeps_its_numbering_when_queues_are_rebuilt(tmp_path: Path) -> None:
    root = golden_store.unpack("trimmed", tmp_path)
    queue = golden_store.manifest("trimmed").queues["StoreTopic", 1]
    path, at = unit_place(root, "StoreTopic", 1, queue.max_offset - 3)
    flip(path, at + 7)
    assert found(check(root), Kind.UNIT, path, at)
    repaired("trimmed", root, None)


def test_a_unit_that_points_below_the_log_out_of_order_is_found(tmp_path: Path) -> None:
    root = golden_store.unpack("trimmed", tmp_path)
    queue = golden_store.manifest("trimmed").queues["StoreTopic", 1]
    path, at = unit_place(root, "StoreTopic", 1, queue.min_offset - 2)
    write(path, at, struct.pack(">q", 17))
    assert found(check(root), Kind.UNIT, path, at)
    repaired("trimmed", root, None)


@pytest.mark.parametrize("name", ["killed", "killed49"])
def test_a_bad_record_in_the_middle_of_a_killed_store_is_no_note(name: str, tmp_path: Path) -> None:
    root = golden_store.unpack(name, tmp_path)
    told = a_message(name, 2_500_000)
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 100)
    assert found(check(root), Kind.RECORD, path, at)
    repaired(name, root, told.physical_offset)


def test_a_torn_tail_of_a_killed_store_is_a_note(tmp_path: Path) -> None:
    root = golden_store.unpack("killed", tmp_path)
    told = max(golden_store.manifest("killed").messages, key=lambda each: each.physical_offset)
    path, at = log_place(root, told.physical_offset)
    write(path, at + 200, bytes(told.store_size - 200))
    report = check(root)
    assert report.defects == []
    assert any(each.kind is Kind.RECORD and each.path == str(path) and each.offset == at for each in report.notes)


# Stores of our own


def test_our_own_stores_are_sound(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path / "store")
    store = kit.opened()
    kit.fill(store, 300)
    kit.put(store, message("Delayed", 0, b"later", DELAY="3"))
    store.close()
    report = check(tmp_path / "store", **kit.properties)
    assert report.defects == []
    assert report.notes == []
    assert report.records == 301
    assert report.index_entries == 600
    assert report.log_files > 3
    # Nothing but the files tells their sizes, the odd ones of the index too.
    guessed = check(tmp_path / "store")
    assert (guessed.defects, guessed.index_entries) == ([], 600)


def test_a_topic_that_was_made_anew_is_a_note(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path / "store")
    store = kit.opened()
    kit.fill(store, 40)
    store.delete_topic("T")
    kit.fill(store, 10)
    store.close()
    report = check(tmp_path / "store", **kit.properties)
    assert [str(each) for each in report.defects] == []
    assert any("made anew" in each.what for each in report.notes)
    path = tmp_path / "store/consumequeue/T/0/00000000000000000000"
    flip(path, 27)
    report = check(tmp_path / "store", **kit.properties)
    assert found(report, Kind.UNIT, path, 20)
    _, last = Repair(str(tmp_path / "store"), kit.properties).run()
    assert last.defects == []
    store = kit.store()
    store.open()
    assert store.max_offset("T", 0) == 5
    store.close()


def test_a_store_that_somebody_runs_is_refused(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path / "store")
    store = kit.opened()
    try:
        with pytest.raises(StoreLocked) as refused, kept_still(str(tmp_path / "store")):
            pass
        assert refused.value.pid == os.getpid()
        with pytest.raises(StoreLocked):
            Repair(str(tmp_path / "store")).run()
        assert run("check", str(tmp_path / "store")).returncode == 1
    finally:
        store.close()


def test_a_store_that_is_checked_cannot_be_opened_by_another_process(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path / "store")
    kit.opened().close()
    with kept_still(str(tmp_path / "store")):
        answer = run("check", "--repair", str(tmp_path / "store"))
        assert answer.returncode == 1
        assert f"process {os.getpid()}" in answer.stderr
    assert run("check", "--repair", str(tmp_path / "store")).returncode == 0


def test_reports_fit_in_memory() -> None:
    report = Report()
    for number in range(MAX_KEPT + 5):
        report.defect(Kind.UNIT, "file", number, "wrong")
    assert report.defect_count == MAX_KEPT + 5
    assert len(report.defects) == MAX_KEPT


# As a process


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cometmq.broker.store", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_exit_codes_and_output(tmp_path: Path) -> None:
    root = golden_store.unpack("clean", tmp_path)
    answer = run("check", str(root))
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "sound, 0 notes"
    assert "4 files, 1571 records; " in answer.stdout
    assert answer.stderr == ""
    _, path, at, _ = wrong_unit(root)
    answer = run("check", "--plain", str(root))
    assert answer.returncode == 1
    assert f"DEFECT: {path} at {at}: queue unit: " in answer.stdout
    assert answer.stdout.splitlines()[-1] == "1 defect, 0 notes"
    answer = run("check", str(root), "--repair")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "was moved to" in answer.stdout
    assert "before the repair: 1 defect" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "sound, 0 notes"
    assert run("check", str(root)).returncode == 0


def test_wrong_usage_is_2_and_failures_are_1(tmp_path: Path) -> None:
    assert run("check").returncode == 2
    assert run("check", str(tmp_path / "nowhere")).returncode == 2
    assert run("check", str(tmp_path), "--what").returncode == 2
    assert run("check", str(tmp_path), "-D", "novalue").returncode == 2
    answer = run("check", str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.startswith("store: ")
    assert len(answer.stderr.splitlines()) == 1


def test_sizes_from_a_configuration_file(tmp_path: Path) -> None:
    root = golden_store.unpack("special", tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in golden_store.properties("special").items()))
    assert run("check", str(root), "-c", str(conf)).returncode == 0
    answer = run("check", str(root), "-c", str(conf), "-D", "mappedFileSizeConsumeQueue=4000")
    assert answer.returncode == 1
    assert "the file has 6000 bytes in place of 4000" in answer.stdout
