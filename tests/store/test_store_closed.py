"""A store that was closed: it touches its directory no more, which may be somebody else's by then."""

import errno

import pytest

from cometmq.broker.store.errors import StoreClosed
from support.store_kit import StoreKit, bodies, message

UNIT_FILE = "/store/consumequeue/T/0/00000000000000000000"


def test_a_dispatch_that_was_to_be_tried_again_is_not_tried_after_the_close() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 3)
    kit.fake.fail_next("write", errno.ENOSPC, path="consumequeue", times=3)
    kit.put(store, message("T", 0, b"late"))
    assert store.dispatch.behind
    store.close()
    kit.fake.heal()
    left = kit.fake.read_file(UNIT_FILE)
    kit.runner.advance(10)
    assert kit.fake.read_file(UNIT_FILE) == left
    assert kit.fake.exists("/store/abort")
    assert bodies(kit.opened(), "T", 0)[-1] == b"late"


def test_a_close_tries_once_more_what_could_not_be_dispatched_before() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 3)
    kit.fake.fail_next("write", errno.ENOSPC, path="consumequeue")
    kit.put(store, message("T", 0, b"late"))
    assert store.dispatch.behind
    store.close()
    assert not kit.fake.exists("/store/abort")


def test_a_reader_that_outlives_the_store_takes_no_file_away() -> None:
    kit = StoreKit(fileReservedTime="0")
    store = kit.opened()
    kit.fill(store, 300, size=300)
    reader = store.get_message("g", "T", 0, 0, 1)
    assert reader is not None
    store.clean()
    kit.runner.advance(5)
    first = store.commit_log.files.files[0]
    assert first.retired
    store.close()
    again = kit.opened()
    reader.release()
    assert kit.fake.exists(first.path)
    assert again.commit_log.min_offset == 0
    assert not first.is_open


def test_reads_of_a_closed_store_find_nothing_and_open_nothing() -> None:
    kit = StoreKit()
    store = kit.opened()
    ticket = kit.fill(store, 10)[0]
    store.close()
    assert store.get_message("g", "T", 0, 0, 1) is None
    assert store.message_at(ticket.physical_offset) is None
    assert store.query("T", "k1", 3).ranges == []
    assert store.message_by_unique_key("T", f"U{0:031d}") is None
    assert store.message_time("T", 0, 0) == store.earliest_time("T", 0) == -1
    assert not store.is_hot("T", 0, 0)
    with pytest.raises(StoreClosed):
        store.offset_by_time("T", 0, 1)
    assert len(store.queues.upkeep.open_files) == 0
    assert not any(file.is_open for file in store.commit_log.files.files)


def test_a_closed_store_refuses_every_change() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 10)
    store.close()
    with pytest.raises(StoreClosed):
        store.append_raw(store.commit_log.max_offset, b"data")
    with pytest.raises(StoreClosed):
        store.delete_topic("T")
    with pytest.raises(StoreClosed):
        store.clean_expired_queues()
    assert kit.fake.exists(UNIT_FILE)
