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
from cometmq.broker.store.errors import FileLengthWrong, StoreLocked
from cometmq.broker.store.reading import GetStatus
from cometmq.broker.store.repair import Repair
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.transforms import SimpleTopics
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.record import decode_record
from support import golden_store
from support.planted_damage import (
    DAMAGES,
    ENTRIES,
    LOG_FILE,
    SLOTS,
    SPECIAL,
    Planted,
    a_message,
    body_flip,
    flip,
    log_place,
    read,
    unit_place,
    write,
    wrong_unit,
)
from support.store_kit import StoreKit, message


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


def test_a_repair_with_the_sizes_of_another_store_is_refused(tmp_path: Path) -> None:
    kit = StoreKit(RealDisk(), tmp_path / "store")
    store = kit.opened()
    kit.fill(store, 300)
    store.close()
    before = tree(tmp_path)
    for size in ("8192", "32768"):
        with pytest.raises(FileLengthWrong, match=f"16384 bytes, {size} were expected"):
            Repair(str(tmp_path / "store"), {"mappedFileSizeCommitLog": size})
    assert tree(tmp_path) == before


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStore):
        Check(str(tmp_path))


# Planted damage


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


@pytest.mark.parametrize("damage", SPECIAL)
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
