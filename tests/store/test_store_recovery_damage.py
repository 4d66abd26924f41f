"""Opening a log with damage in the middle: bad records, missing files, what checksums cover."""

import pytest

from cometmq.broker.store.errors import FileMissing, StoreDamaged
from cometmq.broker.store.tickets import Ticket
from support.left_store import FILE, LOG, check_whole, flip, left, log_path, open_again, read, spoil, tree
from support.store_kit import StoreKit, bodies, message, read_queue


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


# Torn or damaged


def with_zeros_at_page_ends() -> tuple[StoreKit, list[Ticket]]:
    """A killed store whose bodies are zeros: every page of the log ends with some."""
    kit = StoreKit()
    store = kit.opened()
    messages = [message("T", 0, b"%08d" % number + bytes(380), KEYS=f"k{number}") for number in range(12)]
    tickets = [kit.put(store, each) for each in messages]
    kit.killed()
    return kit, tickets


@pytest.mark.parametrize("same_life", [True, False])
def test_a_flipped_bit_is_no_tearing_although_its_page_ends_with_zeros(same_life: bool) -> None:
    kit, tickets = with_zeros_at_page_ends()
    hurt = next(ticket for ticket in tickets if ticket.physical_offset // 4096 < ticket.end_offset // 4096)
    page_end = hurt.end_offset // 4096 * 4096
    assert read(kit.fake, log_path(0))[page_end - 1] == 0
    flip(kit.fake, hurt.physical_offset + 90)
    if not same_life:
        kit.fake.unlink("/store/abort.life")
    with pytest.raises(StoreDamaged) as caught:
        kit.store().open()
    assert caught.value.offset == hurt.physical_offset


@pytest.mark.parametrize("zeros", [512, 4096])
def test_a_page_that_was_lost_is_torn_after_a_power_loss_and_damage_after_a_kill(zeros: int) -> None:
    kit, _ = left(clean=False)
    spoil(kit.fake, 8192 - zeros, bytes(zeros))
    with pytest.raises(StoreDamaged):
        kit.store().open()
    kit.fake.unlink("/store/abort.life")
    recovered = kit.store().open()
    assert recovered.end <= 8192 - zeros
    assert recovered.quarantined
