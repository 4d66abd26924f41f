"""Flipped bits, cut and missing files: a store says what is wrong or gives right messages, and never anything else.

What a checksum covers is never wrong: bodies always, whole records with `enabledAppendPropCRC`. Seeded: a failure names
the damage, and `damage(files, kind, random.Random(seed_of(...)))` does it again.
"""

import contextlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.consume_queue import Boundary
from cometmq.broker.store.disk import Disk, RealDisk
from cometmq.broker.store.errors import StoreError
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper, TopicConfigSerializeWrapper
from cometmq.protocol.checksum import verify_property_crc
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import Record, decode_record
from support.crash_damage import KINDS, Damage, Files, damage, fake_disk, real_folder, seed_of, snapshot
from support.store_kit import StoreKit, message

FOLDER = "/store"
TOPIC, QUEUES = "T", 2
#: Damages of each kind of file in the default run.
EACH = 24
PROPERTIES = {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "4096", "maxIndexNum": "60"}
WITH_CRC = {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"}


@dataclass(frozen=True, slots=True)
class Sound:
    """A store before the damage: its files, and every record as it was written."""

    files: Files
    properties: dict[str, str]
    clock: FakeClock
    #: By queue and queue offset.
    records: dict[tuple[int, int], bytes]
    bodies: frozenset[bytes]


def made(*, clean: bool, crc: bool) -> Sound:
    properties = PROPERTIES | (WITH_CRC if crc else {})
    kit = StoreKit(None, **properties)
    store = kit.opened()
    kit.fill(store, 45, size=300)
    # The checkpoint comes to stand in the middle.
    kit.runner.advance(70)
    kit.fill(store, 45, size=500)
    files = ConfigFiles(kit.disk, FOLDER)
    files.topics.save(TopicConfigSerializeWrapper())
    for offset in range(2):
        files.consumer_offsets.save(ConsumerOffsetSerializeWrapper(offset_table={"T@g": {0: offset}}))
    records = {}
    for queue_id in range(QUEUES):
        queue = store.queues.get(TOPIC, queue_id)
        assert queue is not None
        for offset in range(queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None
            found = store.message_at(unit[0])
            assert found is not None
            with found:
                records[queue_id, offset] = found.read()
    assert len(records) == 90
    if clean:
        store.close()
    else:
        kit.killed()
    bodies = frozenset(decode_record(raw).body for raw in records.values())
    return Sound(snapshot(kit.fake, FOLDER), dict(kit.properties), kit.clock, records, bodies)


@pytest.fixture(scope="module", params=["clean", "killed", "clean, checksums", "killed, checksums"])
def sound(request: pytest.FixtureRequest) -> Sound:
    clean, _, crc = request.param.partition(", ")
    return made(clean=clean == "clean", crc=bool(crc))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


def new_store(sound: Sound, disk: Disk, folder: str) -> tuple[Store, ManualRunner]:
    runner = ManualRunner(sound.clock)
    options = StoreOptions.from_properties(sound.properties)
    return Store(folder, options, runner=runner, disk=disk, clock=sound.clock, memory=1 << 30), runner


def received(raw: bytes, crc: bool) -> Iterator[Record]:
    """The records that a client takes out of an answer, up to the first that it finds wrong."""
    at = 0
    while at < len(raw):
        try:
            record = decode_record(raw, at)
        except RecordError:
            return
        if crc and not verify_property_crc(raw, at, record.size):
            return
        yield record
        at += record.size


def check_record(sound: Sound, record: Record, crc: bool) -> None:
    """What a client has accepted is right as far as checksums go."""
    assert record.body in sound.bodies, "a body that nobody sent"
    if crc:
        original = decode_record(sound.records[record.queue_id, record.queue_offset])
        assert record == original, "a record that nobody wrote"


def read_everything(sound: Sound, store: Store) -> int:
    """Read in every way that there is; gives how many right messages the queues gave."""
    crc = "enabledAppendPropCRC" in sound.properties
    count = 0
    for queue_id in range(QUEUES):
        offset = store.min_offset(TOPIC, queue_id)
        for _ in range(1000):
            result = store.get_message("g", TOPIC, queue_id, offset, 1)
            assert result is not None
            raw = b"".join(result.buffers())
            result.release()
            for record in received(raw, crc):
                check_record(sound, record, crc)
                count += 1
            if result.next_begin_offset <= offset:
                break
            offset = result.next_begin_offset
        else:
            pytest.fail("a consumer would read for ever")
        for timestamp in (0, sound.clock.wall() - 100, sound.clock.wall() + 100):
            for boundary in Boundary:
                found = store.offset_by_time(TOPIC, queue_id, timestamp, boundary)
                assert 0 <= found <= store.max_offset(TOPIC, queue_id)
        store.earliest_time(TOPIC, queue_id)
        store.message_time(TOPIC, queue_id, 3)
    for number in range(0, 90, 9):
        answer = store.query(TOPIC, f"k{number}", 8)
        for part in answer.ranges:
            for record in received(part.read(), crc):
                check_record(sound, record, crc)
        answer.release()
        at = store.message_by_unique_key(TOPIC, f"U{number:031d}")
        if at is not None:
            at.release()
    for offset in range(0, store.commit_log.max_offset + 64, 997):
        at = store.message_at(offset)
        if at is not None:
            with at:
                at.read()
    return count


def open_and_use(sound: Sound, disk: Disk, folder: str, *, repair: bool) -> int | None:
    """Open, read, put, close. How many right messages the queues gave; None when the store refused."""
    store, runner = new_store(sound, disk, folder)
    try:
        store.open(repair=repair)
    except StoreError:
        return None
    count = read_everything(sound, store)
    store.start()
    body = next(iter(sound.bodies))
    ticket = store.put(message(TOPIC, 0, body))
    runner.run()
    assert ticket.status is PutStatus.PUT_OK, ticket.remark
    found = store.message_at(ticket.physical_offset)
    assert found is not None
    with found:
        assert decode_record(found.read()).body == body
    store.close()
    return count


def load_config(disk: Disk, folder: str) -> None:
    files = ConfigFiles(disk, folder)
    for file in (files.topics, files.consumer_offsets):
        with contextlib.suppress(StoreError):
            file.load()


def least(hurt: Damage, everything: int) -> int:
    """How many messages must be there after a damage that did not stop the start."""
    if not hurt.path.startswith(("commitlog/", "consumequeue/")):
        return everything
    # A flipped bit takes the message that it strikes, or whose unit it strikes.
    return everything - 1 if hurt.how.startswith("a b") else 0


def try_damage(sound: Sound, hurt: Damage, disk: Disk, folder: str) -> bool:
    """Whether the store could be opened without a repair."""
    try:
        load_config(disk, folder)
        count = open_and_use(sound, disk, folder, repair=False)
        if count is None:
            open_and_use(sound, disk, folder, repair=True)
        elif count < least(hurt, len(sound.records)):
            # What follows a bad record of a store that was killed, and was not flushed yet, may be taken for torn: then
            # it is kept where it can be looked at.
            assert "abort" in sound.files
            assert disk.list_dir(f"{folder}/quarantine"), f"{len(sound.records) - count} messages are lost"
    except Exception as error:
        error.add_note(f"{hurt.path}: {hurt.how}")
        raise
    return count is not None


#: (The lock of the fake disk is no file: see the test on a real one.)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lock"])
def test_damage_is_named_or_does_no_harm(sound: Sound, kind: str) -> None:
    if not any(path.startswith(kind) for path in sound.files):
        pytest.skip("a store that was closed has no such file")
    opened = 0
    for number in range(EACH):
        hurt = damage(sound.files, kind, random.Random(seed_of(kind, number)))
        opened += try_damage(sound, hurt, fake_disk(hurt.to(sound.files), FOLDER, sound.clock), FOLDER)
    # Nothing but damage to the log or the length of a file stops a start.
    assert opened > 0


@pytest.mark.parametrize("kind", ["commitlog/", "consumequeue/", "consumequeue_ext/", "index/"])
def test_damage_to_a_store_that_is_open_does_no_harm(sound: Sound, kind: str) -> None:
    """Bits that flip under a running store: no map is cut, so files keep their lengths."""
    tried = 0
    for number in range(EACH):
        hurt = damage(sound.files, kind, random.Random(seed_of("open", kind, number)))
        if hurt.data is None or len(hurt.data) != len(sound.files[hurt.path]):
            continue
        disk: FakeDisk = fake_disk(sound.files, FOLDER, sound.clock)
        store, _ = new_store(sound, disk, FOLDER)
        store.open()
        try:
            file = disk.open(f"{FOLDER}/{hurt.path}")
            file.write(0, [hurt.data])
            read_everything(sound, store)
        except FileNotFoundError:
            # Recovery has removed it.
            continue
        except Exception as error:
            error.add_note(f"{hurt.path}: {hurt.how}")
            raise
        tried += 1
    assert tried > EACH // 4 or kind == "index/"


@pytest.mark.parametrize("kind", KINDS)
def test_damage_on_a_real_disk(sound: Sound, kind: str, tmp_path: Path) -> None:
    if not any(path.startswith(kind) for path in sound.files):
        pytest.skip("a store that was closed has no such file")
    for number in range(4):
        hurt = damage(sound.files, kind, random.Random(seed_of("real", kind, number)))
        folder = tmp_path / str(number)
        real_folder(hurt.to(sound.files), folder)
        try_damage(sound, hurt, RealDisk(), str(folder))


@pytest.mark.parametrize("bit", [24, 30, 40, 62])
def test_a_flipped_bit_in_a_unit_hides_no_other_message(bit: int) -> None:
    """The unit points behind the end of the log; the ones after it are good."""
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 20, queues=1)
    store.close()
    file = kit.fake.open(f"/store/consumequeue/T/0/{0:020d}")
    position = 5 * 20 + 7 - bit // 8
    file.write(position, [bytes([file.read(position, 1)[0] ^ 1 << bit % 8])])
    file.close()
    store = kit.opened()
    seen = []
    offset = 0
    while offset < 20:
        result = store.get_message("g", "T", 0, offset, 32)
        assert result is not None
        seen += [record.queue_offset for record in received(b"".join(result.buffers()), crc=False)]
        result.release()
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    assert [number for number in seen if number != 5] == [*range(5), *range(6, 20)]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lock"])
def test_much_damage(sound: Sound, kind: str) -> None:
    if not any(path.startswith(kind) for path in sound.files):
        pytest.skip("a store that was closed has no such file")
    for number in range(3000):
        hurt = damage(sound.files, kind, random.Random(seed_of("slow", kind, number)))
        try_damage(sound, hurt, fake_disk(hurt.to(sound.files), FOLDER, sound.clock), FOLDER)
