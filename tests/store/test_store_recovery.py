"""Opening what was left behind: clean and unclean ends, missing files, queues that lag or lead, damage in the log."""

import logging
from pathlib import Path

import pytest

from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.errors import FileMissing, StoreDamaged, StoreLocked
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.record import MAGIC_BLANK, encode_blank
from support.store_kit import StoreKit, bodies, message, read_queue, record_at

FILE = 16384
LOG = "/store/commitlog"


def read(disk: FakeDisk, path: str) -> bytes:
    return disk.read_file(path)


def overwrite(disk: FakeDisk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.write(position, [data])
    file.sync()
    file.close()


def log_path(offset: int) -> str:
    return f"{LOG}/{offset // FILE * FILE:020d}"


def spoil(disk: FakeDisk, offset: int, data: bytes) -> None:
    """Write over the commit log at a physical offset."""
    overwrite(disk, log_path(offset), offset % FILE, data)


def flip(disk: FakeDisk, offset: int) -> None:
    spoil(disk, offset, bytes([read(disk, log_path(offset))[offset % FILE] ^ 0x10]))


def tree(disk: FakeDisk, path: str = "/store") -> dict[str, bytes]:
    found = {}
    for name in disk.list_dir(path):
        inner = f"{path}/{name}"
        if disk.is_dir(inner):
            found |= tree(disk, inner)
        else:
            found[inner] = disk.read_file(inner)
    return found


def left(clean: bool, count: int = 200, seconds: float = 0.0, **properties: str) -> tuple[StoreKit, list[Ticket]]:
    """A directory with messages in several files, left cleanly or not."""
    kit = StoreKit(**properties)
    store = kit.opened()
    tickets = kit.fill(store, count)
    if seconds:
        kit.runner.advance(seconds)
    if clean:
        store.close()
    else:
        kit.killed()
    return kit, tickets


def check_whole(store: Store, tickets: list[Ticket], topic: str = "T", queues: int = 2) -> None:
    """Everything that was put is in its place in the log, the queues and the index, and nothing else is."""
    for queue_id in range(queues):
        own = [ticket for number, ticket in enumerate(tickets) if number % queues == queue_id]
        records = read_queue(store, topic, queue_id)
        assert [record.physical_offset for record in records] == [ticket.physical_offset for ticket in own]
        assert [record.queue_offset for record in records] == [ticket.queue_offset for ticket in own]
    for number, ticket in enumerate(tickets):
        result = store.query(topic, f"k{number}", 64)
        assert ticket.physical_offset in [part.start for part in result.ranges], number
        result.release()
    if tickets:
        assert store.watermarks.appended == tickets[-1].end_offset
    marks = store.watermarks
    assert marks.appended == marks.flushed == marks.confirmed == marks.dispatched


def open_again(kit: StoreKit, **properties: str) -> Store:
    store = kit.store(**properties)
    store.open()
    return store


# The usual ends


def test_after_a_clean_end_nothing_is_dispatched_again() -> None:
    kit, tickets = left(clean=True)
    store = kit.store()
    recovered = store.open()
    assert recovered.clean
    assert recovered.dispatched == 0
    assert recovered.start == FILE * (tickets[-1].physical_offset // FILE), "only the last file was read"
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"more")).queue_offset == 100


def test_the_files_of_a_clean_end_are_not_touched() -> None:
    kit, _ = left(clean=True)
    before = tree(kit.fake)
    store = open_again(kit)
    store.close()
    assert tree(kit.fake) == before


def test_after_a_kill_everything_is_there(caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=False)
    store = kit.store()
    recovered = store.open()
    assert not recovered.clean
    assert recovered.end == tickets[-1].end_offset
    assert "not closed cleanly" in caplog.text
    check_whole(store, tickets)


def test_after_a_kill_only_what_is_younger_than_the_checkpoint_is_read(caplog: pytest.LogCaptureFixture) -> None:
    kit = StoreKit(maxIndexNum="40", flushConsumeQueueThoroughInterval="1000")
    store = kit.opened()
    kit.fill(store, 200)
    kit.runner.advance(10)
    more = kit.fill(store, 100, topic="U")
    kit.runner.advance(10)
    kit.killed()
    store = kit.store()
    recovered = store.open()
    assert recovered.start > 0
    assert [record.queue_offset for record in read_queue(store, "T", 0)] == list(range(100))
    assert [record.queue_offset for record in read_queue(store, "U", 0)] == list(range(50))
    for number in (0, 99, 150):
        assert store.query("T", f"k{number}", 9).ranges, "the index is whole, though its last file was not kept"
    assert store.query("U", "k99", 9).ranges[0].start == more[99].physical_offset
    assert "whole log" not in caplog.text


def test_an_empty_directory_is_a_store() -> None:
    kit = StoreKit()
    store = open_again(kit)
    assert store.watermarks.appended == 0
    store.close()
    store = open_again(kit)
    store.start()
    kit.killed()
    store = open_again(kit)
    store.start()
    assert kit.put(store, message("T", 0, b"a")).physical_offset == 0


def test_progress_is_told() -> None:
    kit, _ = left(clean=False)
    told: list[tuple[int, int]] = []
    store = kit.store()
    store.open(lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] <= told[-1][1]


def test_a_store_that_is_in_use_is_refused() -> None:
    kit = StoreKit()
    store = kit.opened()
    other = kit.store()
    with pytest.raises(StoreLocked, match="process"):
        other.open()
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK


def test_a_refused_opening_gives_the_lock_back() -> None:
    kit, tickets = left(clean=True)
    flip(kit.fake, tickets[-3].physical_offset + 100)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            open_again(kit)
    assert kit.fake.locks == {}
    assert kit.fake.open_files == 0


# Torn and zero tails


@pytest.mark.parametrize("kept", [0, 3, 4, 7, 8, 40, 100, 200])
def test_a_torn_last_record_is_cut(kept: int, caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=False)
    last = tickets[-1]
    size = last.end_offset - last.physical_offset
    spoil(kit.fake, last.physical_offset + kept, bytes(size - kept))
    store = kit.store()
    recovered = store.open()
    check_whole(store, tickets[:-1])
    if kept >= 4:
        assert f"the log ends at {last.physical_offset}" in caplog.text
    assert recovered.quarantined == ()
    assert (
        read(kit.fake, log_path(last.physical_offset))[last.physical_offset % FILE :].count(0)
        == FILE - last.physical_offset % FILE
    )
    store.start()
    again = kit.put(store, message("T", 1, b"again"))
    assert (again.physical_offset, again.queue_offset) == (last.physical_offset, last.queue_offset)


def test_a_last_record_with_a_flipped_bit_is_cut_after_a_crash() -> None:
    kit, tickets = left(clean=False)
    flip(kit.fake, tickets[-1].physical_offset + 95)
    check_whole(open_again(kit), tickets[:-1])


def test_a_last_record_that_went_bad_after_a_clean_end_is_kept_aside(caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=True)
    last = tickets[-1]
    original = read(kit.fake, log_path(last.physical_offset))
    flip(kit.fake, last.physical_offset + 95)
    store = kit.store()
    recovered = store.open()
    check_whole(store, tickets[:-1])
    (path,) = recovered.quarantined
    kept = read(kit.fake, path)
    size = last.end_offset - last.physical_offset
    assert path.endswith(f"{last.physical_offset:020d}")
    assert sum(a != b for a, b in zip(kept, original[last.physical_offset % FILE :][:size], strict=False)) == 1
    assert "checksum" in caplog.text
    assert "consume queues know records" in caplog.text


def test_files_made_ahead_are_no_end() -> None:
    kit, tickets = left(clean=False)
    following = (tickets[-1].end_offset // FILE + 1) * FILE
    for start in (following, following + FILE):
        file = kit.fake.open(f"{LOG}/{start:020d}", size=FILE, create=True)
        file.close()
    store = open_again(kit)
    check_whole(store, tickets)
    assert not kit.fake.exists(f"{LOG}/{following + FILE:020d}")


def test_an_empty_last_file_is_removed() -> None:
    kit, tickets = left(clean=False)
    following = (tickets[-1].end_offset // FILE + 1) * FILE
    kit.fake.open(f"{LOG}/{following:020d}", size=0, create=True).close()
    check_whole(open_again(kit), tickets)
    assert not kit.fake.exists(f"{LOG}/{following:020d}")


def test_a_blank_record_without_a_next_file_is_taken_back() -> None:
    kit, tickets = left(clean=False, count=20)
    end = tickets[-1].end_offset
    blank = bytearray(8)
    encode_blank(blank, 0, FILE - end)
    spoil(kit.fake, end, bytes(blank))
    store = open_again(kit)
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"fits")).physical_offset == end


def test_a_blank_record_before_an_empty_next_file_stays() -> None:
    kit, tickets = left(clean=False, count=20)
    end = tickets[-1].end_offset
    blank = bytearray(8)
    encode_blank(blank, 0, FILE - end)
    spoil(kit.fake, end, bytes(blank))
    kit.fake.open(f"{LOG}/{FILE:020d}", size=FILE, create=True).close()
    store = open_again(kit)
    assert store.watermarks.appended == FILE
    store.start()
    assert kit.put(store, message("T", 0, b"there")).physical_offset == FILE
    assert int.from_bytes(read(kit.fake, log_path(0))[end + 4 : end + 8], "big", signed=True) == MAGIC_BLANK


def test_what_was_cut_never_comes_back() -> None:
    """A longer old record behind a shorter new one must not be taken for a part of the log."""
    kit, tickets = left(clean=False, count=40)
    bad = tickets[20]
    spoil(kit.fake, bad.physical_offset, bytes(FILE - bad.physical_offset % FILE))
    for later in kit.fake.list_dir(LOG):
        if int(later) > bad.physical_offset:
            kit.fake.unlink(f"{LOG}/{later}")
    # Whole records of an earlier life stand behind the end.
    stale = read(kit.fake, log_path(0))[: tickets[3].end_offset]
    spoil(kit.fake, bad.physical_offset + 500, stale)
    store = open_again(kit)
    check_whole(store, tickets[:20])
    store.start()
    after = kit.put(store, message("T", 0, b"short"))
    kit.killed()
    store = open_again(kit)
    assert store.watermarks.appended == after.end_offset
    assert bodies(store, "T", 0)[-1] == b"short"


# A bad record in the middle


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("where", [4, 20 + 11, 87, 95, 0])
def test_a_bad_record_with_good_ones_after_it_stops_the_start(clean: bool, where: int) -> None:
    kit, tickets = left(clean=clean)
    bad = tickets[-4]
    assert bad.physical_offset // FILE == tickets[-1].physical_offset // FILE, "a clean start reads the last file"
    flip(kit.fake, bad.physical_offset + where)
    before = {path: data for path, data in tree(kit.fake).items() if "/commitlog/" in path or "/consumequeue/" in path}
    with pytest.raises(StoreDamaged) as caught:
        open_again(kit)
    assert caught.value.path == log_path(bad.physical_offset)
    assert caught.value.offset == bad.physical_offset % FILE
    assert str(tickets[-3].physical_offset) in str(caught.value)
    assert "--repair" in caught.value.remedy
    after = tree(kit.fake)
    for path, data in before.items():
        if "/commitlog/" in path:
            assert after[path] == data, "nothing is deleted silently"
    assert kit.fake.exists("/store/abort") is not clean
    flip(kit.fake, bad.physical_offset + where)
    check_whole(open_again(kit), tickets)


@pytest.mark.parametrize("clean", [True, False])
def test_repair_moves_the_rest_away_and_goes_on(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    bad = tickets[100]
    assert bad.physical_offset // FILE < tickets[-1].physical_offset // FILE, "with later files"
    data = {path: content for path, content in tree(kit.fake).items() if "/commitlog/" in path}
    flip(kit.fake, bad.physical_offset + 95)
    if clean:
        # A clean start looks at the last file only; without queues at everything.
        kit.fake.remove_tree("/store/consumequeue")
    with pytest.raises(StoreDamaged):
        open_again(kit)
    store = kit.store()
    recovered = store.open(repair=True)
    check_whole(store, tickets[:100])
    assert recovered.end == bad.physical_offset
    assert len(recovered.quarantined) == len(data) - bad.physical_offset // FILE
    for path in recovered.quarantined:
        offset = int(path.rpartition("-")[2])
        original = data[log_path(offset)][offset % FILE :]
        kept = read(kit.fake, path)
        assert sum(a != b for a, b in zip(kept, original, strict=True)) <= 1
    store.start()
    assert kit.put(store, message("T", 0, b"on")).queue_offset == 50
    store.close()
    again = open_again(kit)
    assert bodies(again, "T", 0)[-1] == b"on"


def test_a_second_repair_does_not_overwrite_the_first_quarantine() -> None:
    kit, tickets = left(clean=False, count=30)
    for _ in range(2):
        flip(kit.fake, tickets[5].physical_offset + 95)
        store = kit.store()
        recovered = store.open(repair=True)
        assert len(recovered.quarantined) == 1
        store.start()
        for number in range(5, 30):
            kit.put(store, message("T", number % 2, bytes(100), TAGS="Tag0"))
        kit.killed()
        tickets[5].physical_offset = recovered.end
    assert len(kit.fake.list_dir("/store/quarantine")) == 2


def test_a_file_missing_in_the_middle_is_named() -> None:
    for clean in (True, False):
        kit, _ = left(clean=clean)
        kit.fake.unlink(f"{LOG}/{FILE:020d}")
        with pytest.raises(FileMissing) as caught:
            open_again(kit)
        assert caught.value.path == f"{LOG}/{FILE:020d}"
        assert f"from offset {FILE} to {2 * FILE}" in str(caught.value)


def test_files_missing_at_the_beginning_have_expired() -> None:
    for clean in (True, False):
        kit, tickets = left(clean=clean)
        kit.fake.unlink(f"{LOG}/{0:020d}")
        store = open_again(kit)
        assert store.commit_log.min_offset == FILE
        gone = [ticket for ticket in tickets if ticket.physical_offset < FILE]
        assert store.min_offset("T", 0) == len(gone[::2])
        records = read_queue(store, "T", 0)
        assert [record.queue_offset for record in records] == list(range(len(gone[::2]), 100))


def test_the_last_file_gone_cuts_queues_and_index(caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=True)
    lost = tickets[-1].physical_offset // FILE * FILE
    kit.fake.unlink(f"{LOG}/{lost:020d}")
    store = open_again(kit)
    rest = [ticket for ticket in tickets if ticket.physical_offset < lost]
    assert "consume queues know records" in caplog.text
    assert [record.physical_offset for record in read_queue(store, "T", 0)] == [t.physical_offset for t in rest[::2]]
    store.start()
    new = kit.put(store, message("T", 0, b"new", KEYS="new"))
    assert new.queue_offset == len(rest[::2])
    assert [part.start for part in store.query("T", "new", 9).ranges] == [new.physical_offset]
    assert store.query("T", "k199", 9).ranges == []


# What checksums cover


def test_without_checksums_a_flipped_body_is_not_seen() -> None:
    kit, tickets = left(clean=False)
    flip(kit.fake, tickets[-10].physical_offset + 95)
    store = open_again(kit, checkCRCOnRecover="false")
    assert store.watermarks.appended == tickets[-1].end_offset


def test_checksums_of_records_see_properties_too() -> None:
    kit, tickets = left(clean=False, enabledAppendPropCRC="true", forceVerifyPropCRC="true")
    flip(kit.fake, tickets[-10].end_offset - 60)
    with pytest.raises(StoreDamaged, match="checksum of the record"):
        open_again(kit)
    kit, tickets = left(clean=False)
    flip(kit.fake, tickets[-10].end_offset - 20)
    assert open_again(kit).watermarks.appended == tickets[-1].end_offset, "the body's does not"


# Queues and index


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["consumequeue", "index", "both", "checkpoint"])
def test_queues_and_index_are_built_anew(clean: bool, lost: str) -> None:
    kit, tickets = left(clean=clean)
    for name in ("consumequeue", "index") if lost == "both" else (lost,):
        if name == "checkpoint":
            kit.fake.unlink("/store/checkpoint")
        else:
            kit.fake.remove_tree(f"/store/{name}")
    store = open_again(kit)
    check_whole(store, tickets)
    store.close()
    store = kit.store()
    assert store.open().dispatched == 0
    check_whole(store, tickets)


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_index_file_is_filled_again(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    names = kit.fake.list_dir("/store/index")
    assert len(names) >= 3
    kit.fake.unlink(f"/store/index/{names[-1]}")
    check_whole(open_again(kit), tickets)


class Known:
    """A topic table that knows which topics there are."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)

    def is_batch(self, topic: str) -> bool:
        return False

    def exists(self, topic: str) -> bool | None:
        return topic in self.topics


@pytest.mark.parametrize("clean", [True, False])
def test_one_lost_queue_of_a_known_topic_is_built_anew(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    kit.topics = Known("T")
    kit.fake.remove_tree("/store/consumequeue/T/1")
    check_whole(open_again(kit), tickets)


def test_queues_of_deleted_topics_are_not_brought_back() -> None:
    kit = StoreKit()
    kit.topics = Known("T", "Gone")
    store = kit.opened()
    kit.fill(store, 20, topic="Gone")
    tickets = kit.fill(store, 20)
    kit.topics.topics.discard("Gone")
    store.delete_topic("Gone")
    kit.killed()
    store = open_again(kit)
    assert store.queues.get("Gone", 0) is None
    check_whole(store, tickets)


def test_a_topic_that_was_made_anew_keeps_its_new_numbers() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 20)
    store.delete_topic("T")
    tickets = kit.fill(store, 6)
    assert tickets[0].queue_offset == 0
    kit.killed()
    store = open_again(kit)
    assert [record.physical_offset for record in read_queue(store, "T", 0)] == [t.physical_offset for t in tickets[::2]]


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_behind_the_log_is_filled(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    kit, tickets = left(clean=clean)
    # Units of the last 30 messages of one queue vanish: 20 units to a file.
    kit.fake.unlink(f"/store/consumequeue/T/1/{1600:020d}")
    overwrite(kit.fake, f"/store/consumequeue/T/1/{1200:020d}", 200, bytes(200))
    check_whole(open_again(kit), tickets)
    if clean:
        assert "whole log" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_ahead_of_the_log_is_cut(clean: bool) -> None:
    kit, tickets = left(clean=clean)
    last = tickets[-1]
    unit = (last.end_offset + 400).to_bytes(8, "big") + (300).to_bytes(4, "big") + bytes(8)
    kit.fake.open(f"/store/consumequeue/T/0/{2000:020d}", size=400, create=True).close()
    overwrite(kit.fake, f"/store/consumequeue/T/0/{2000:020d}", 0, unit * 3)
    store = open_again(kit)
    check_whole(store, tickets)
    store.start()
    assert kit.put(store, message("T", 0, b"next")).queue_offset == 100


@pytest.mark.parametrize("kept", [1, 7, 8, 11, 12, 19])
def test_a_half_written_unit_is_written_again(kept: int) -> None:
    kit, tickets = left(clean=False)
    path = f"/store/consumequeue/T/1/{1600:020d}"
    before = read(kit.fake, path)
    overwrite(kit.fake, path, 380 + kept, bytes(20 - kept))
    overwrite(kit.fake, path, 180 + kept, bytes(20 - kept))
    store = open_again(kit)
    check_whole(store, tickets)
    store.close()
    assert read(kit.fake, path) == before, "the codes of the tags too"


def test_stale_units_behind_the_end_never_become_visible() -> None:
    kit, tickets = left(clean=True, count=100)
    store = kit.opened()
    store.close()
    # The log loses its last 30 messages, the queues still know them; then other messages come.
    cut = tickets[70]
    spoil(kit.fake, cut.physical_offset, bytes(FILE - cut.physical_offset % FILE))
    for name in kit.fake.list_dir(LOG):
        if int(name) > cut.physical_offset:
            kit.fake.unlink(f"{LOG}/{name}")
    store = kit.opened()
    check_whole(store, tickets[:70])
    kit.put(store, message("T", 0, b"new"))
    store.close()
    for _ in range(2):
        store = open_again(kit)
        assert store.max_offset("T", 0) == 36
        assert bodies(store, "T", 0)[-1] == b"new"
        assert store.max_offset("T", 1) == 35
        store.close()


def test_without_a_log_there_are_no_queues() -> None:
    kit, _ = left(clean=True)
    kit.fake.remove_tree(LOG)
    store = open_again(kit)
    assert store.watermarks.appended == 0
    assert len(store.queues) == 0
    assert store.query("T", "k1", 9).ranges == []
    store.start()
    assert kit.put(store, message("T", 0, b"a")).physical_offset == 0


def test_a_log_that_begins_late_fills_its_queues_with_blanks() -> None:
    kit, tickets = left(clean=False)
    kit.fake.unlink(f"{LOG}/{0:020d}")
    kit.fake.remove_tree("/store/consumequeue")
    store = open_again(kit)
    first = next(ticket for ticket in tickets if ticket.physical_offset >= FILE)
    queue_id = tickets.index(first) % 2
    assert store.min_offset("T", queue_id) == first.queue_offset
    assert store.max_offset("T", queue_id) == 100
    assert record_at(store, first.physical_offset).queue_offset == first.queue_offset
    store.close()
    again = open_again(kit)
    assert again.min_offset("T", queue_id) == first.queue_offset


def test_delays_keep_their_time_when_the_queue_is_built_anew() -> None:
    kit = StoreKit()
    store = kit.opened()
    due = []
    for level in (1, 3, 18):
        ticket = kit.put(store, message("T", 0, b"later", DELAY=str(level)))
        due.append(ticket.store_timestamp + [1, 10, 7200][[1, 3, 18].index(level)] * 1000)
        kit.clock.advance(1)
    kit.killed()
    kit.fake.remove_tree("/store/consumequeue")
    store = open_again(kit)
    codes = []
    for level in (1, 3, 18):
        queue = store.queues.get("SCHEDULE_TOPIC_XXXX", level - 1)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        codes.append(unit[2])
    assert codes == due


def test_what_was_recovered_is_safe_at_once() -> None:
    """Consumers see it now: the next power loss must not take it back."""
    for seed in range(10):
        kit, tickets = left(clean=False, flushDiskType="SYNC_FLUSH")
        store = kit.opened()
        check_whole(store, tickets)
        kit.power_lost(seed)
        check_whole(open_again(kit), tickets)


@pytest.mark.parametrize("clean", [True, False])
def test_queues_that_were_only_looked_at_keep_no_file_open(clean: bool) -> None:
    kit = StoreKit()
    store = kit.opened()
    for number in range(200):
        store.put(message("T", number, b"x"))
    kit.runner.run()
    if clean:
        store.close()
    else:
        kit.killed()
    store = open_again(kit)
    assert len(store.queues) == 200
    assert kit.fake.open_files < 10


# Power loss: a first look; tests/crash does it at every write


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_power_loss_at_many_moments(flush: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    kit = StoreKit(flushDiskType=flush, flushConsumeQueueThoroughInterval="2000")
    store = kit.opened()
    acknowledged: list[tuple[int, int]] = []  # operations done when it was acknowledged, number of the message
    tickets: list[Ticket] = []

    def settled(number: int) -> None:
        acknowledged.append((len(kit.fake.operations), number))

    for number in range(160):
        each = message("T", number % 2, b"%d" % number + bytes(150), KEYS=f"k{number}", UNIQ_KEY=f"U{number:031d}")
        tickets.append(store.put(each, lambda _, number=number: settled(number)))  # type: ignore[misc]
        if number % 3:
            kit.runner.run()
        if number % 10 == 0:
            kit.runner.advance(0.7)
    kit.runner.run()
    disk = kit.fake
    total = len(disk.operations)
    moments = sorted({*range(0, total, 11), total})
    for seed, moment in enumerate(moments):
        after = StoreKit(disk.crash(seed, moment), flushDiskType=flush)
        store = after.store()
        store.open()
        end = store.watermarks.appended
        there = [ticket for ticket in tickets if ticket.end_offset <= end]
        assert end == (there[-1].end_offset if there else 0) or end % FILE == 0
        check_whole(store, there) if end % FILE else None
        if flush == "SYNC_FLUSH":
            safe = [number for at, number in acknowledged if at <= moment]
            assert len(there) > max(safe, default=-1), (seed, moment)
        store.start()
        more = after.put(store, message("T", 0, b"more"))
        assert more.queue_offset == len(there[::2])
        store.close()
        again = after.store()
        assert again.open().clean
        assert bodies(again, "T", 0)[-1] == b"more"
        again.close()


# Only the process died


def test_after_the_death_of_the_process_the_index_is_kept() -> None:
    kit = StoreKit(maxIndexNum="4000", flushConsumeQueueThoroughInterval="1000")
    store = kit.opened()
    tickets = kit.fill(store, 150)
    kit.runner.advance(10)
    tickets += kit.fill(store, 50)
    kit.runner.advance(10)
    (name,) = kit.fake.list_dir("/store/index")
    kit.killed()
    store = kit.store()
    recovered = store.open()
    assert recovered.start > 0, "it is not built anew from the first file"
    assert kit.fake.list_dir("/store/index") == [name]
    assert store.query("T", "k149", 9).ranges[0].start == tickets[149].physical_offset


def test_after_a_power_loss_the_index_is_built_anew() -> None:
    kit = StoreKit(maxIndexNum="4000", flushConsumeQueueThoroughInterval="1000", flushDiskType="SYNC_FLUSH")
    store = kit.opened()
    tickets = kit.fill(store, 150)
    kit.runner.advance(10)
    kit.power_lost(1)
    store = kit.store()
    recovered = store.open()
    assert recovered.start == 0
    check_whole(store, tickets)


def test_a_turn_of_the_index_that_was_not_finished_is_taken_back() -> None:
    kit = StoreKit(maxIndexNum="4000", maxHashSlotNum="7")
    store = kit.opened()
    tickets = kit.fill(store, 60)
    assert store.index is not None
    path = store.index.files[-1].path
    before = read(kit.fake, path)
    tickets += [store.put(message("T", number % 2, b"x", KEYS=f"k{number}")) for number in range(60, 90)]
    kit.runner.run()
    # As if it had died before the header was stored: all chains begin with entries that it does not know.
    overwrite(kit.fake, path, 0, before[:40])
    kit.killed()
    store = open_again(kit)
    check_whole(store, tickets)
    assert store.index is not None
    assert store.index.files[-1].count == 60 * 2 + 30 + 1


def test_a_copy_of_a_directory_is_not_trusted(tmp_path: Path) -> None:
    kit = StoreKit(maxIndexNum="4000")
    store = kit.opened()
    tickets = kit.fill(store, 30)
    kit.killed()
    kit.fake.dump("/store", str(tmp_path))
    other = StoreKit(RealDisk(), tmp_path, maxIndexNum="4000")
    store = other.store()
    store.open()
    check_whole(store, tickets)
    store.close()
