"""Flush: when what was written is safe, who is told, and what a failed sync means."""

import errno

import pytest

from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.tickets import Ticket
from support.store_kit import StoreKit, bodies, message, record_at


def log_syncs(kit: StoreKit, since: int = 0) -> list[str]:
    return [
        operation.path[-20:]
        for operation in kit.fake.operations[since:]
        if operation.kind == "sync" and "/commitlog/" in operation.path
    ]


# ASYNC_FLUSH


def test_async_flush_acknowledges_at_once_and_syncs_by_the_clock() -> None:
    kit = StoreKit()
    store = kit.opened()
    ticket = kit.put(store, message("T", 0, b"a"))
    assert ticket.status is PutStatus.PUT_OK
    assert bodies(store, "T", 0) == [b"a"]
    assert store.watermarks.flushed == 0
    before = len(kit.fake.operations)
    kit.runner.advance(0.49)
    assert log_syncs(kit, before) == []
    kit.runner.advance(0.02)
    assert store.watermarks.flushed == store.watermarks.appended
    assert len(log_syncs(kit, before)) == 1
    kit.runner.advance(5)
    assert len(log_syncs(kit, before)) == 1, "nothing dirty, nothing synced"


def test_least_pages_wait_for_the_thorough_interval() -> None:
    kit = StoreKit(flushCommitLogLeastPages="2", flushCommitLogThoroughInterval="3000", mappedFileSizeCommitLog="65536")
    store = kit.opened()
    kit.put(store, message("T", 0, bytes(4000)))
    kit.runner.advance(1)
    assert store.watermarks.flushed == 0
    kit.put(store, message("T", 0, bytes(4200)))
    kit.runner.advance(0.6)
    assert store.watermarks.flushed == store.watermarks.appended
    kit.put(store, message("T", 0, b"small"))
    kit.runner.advance(0.6)
    assert store.watermarks.flushed < store.watermarks.appended
    kit.runner.advance(3)
    assert store.watermarks.flushed == store.watermarks.appended


def test_a_full_file_is_always_flushed() -> None:
    kit = StoreKit(flushCommitLogLeastPages="1000")
    store = kit.opened()
    kit.fill(store, 60, size=300)
    assert store.watermarks.appended > 16384
    kit.runner.advance(0.6)
    assert store.watermarks.flushed == store.watermarks.appended


def test_the_checkpoint_follows_the_syncs() -> None:
    kit = StoreKit(flushConsumeQueueThoroughInterval="5000")
    store = kit.opened()
    ticket = kit.put(store, message("T", 0, b"a"))
    assert store.checkpoint.physic_msg_timestamp == 0
    kit.runner.advance(2)
    assert store.checkpoint.physic_msg_timestamp == ticket.store_timestamp
    assert store.checkpoint.logics_msg_timestamp == 0, "not all queues are safe"
    kit.runner.advance(5)
    assert store.checkpoint.logics_msg_timestamp == ticket.store_timestamp
    kit.runner.advance(1.1)
    data = kit.disk.read_file("/store/checkpoint")
    assert int.from_bytes(data[:8], "big") == int.from_bytes(data[8:16], "big") == ticket.store_timestamp


# SYNC_FLUSH


def sync_kit(**properties: str) -> StoreKit:
    return StoreKit(flushDiskType="SYNC_FLUSH", **properties)


def test_sync_flush_acknowledges_after_the_sync() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    ticket = kit.put(store, message("T", 0, b"a"))
    assert ticket.status is None
    assert store.watermarks.appended > 0
    assert store.max_offset("T", 0) == 0, "no consumer sees what a power loss could take back"
    kit.runner.let_go("flush")
    kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    assert store.watermarks.flushed == store.watermarks.confirmed == store.watermarks.appended
    assert bodies(store, "T", 0) == [b"a"]


def test_one_sync_in_flight_and_all_that_waited_go_together() -> None:
    kit = sync_kit(mappedFileSizeCommitLog="1048576")
    store = kit.opened()
    kit.runner.hold("flush")
    settled: list[Ticket] = []
    first = store.put(message("T", 0, b"first"), settled.append)
    kit.runner.run()
    before = len(log_syncs(kit))
    others = []
    for number in range(256):
        others.append(store.put(message("T", number % 4, b"%d" % number), settled.append))
        kit.runner.run()
    assert kit.runner.waiting("flush") == 1
    assert settled == []
    kit.runner.step("flush")
    kit.runner.run()
    assert settled == [first], "the others came after the sync had begun"
    assert kit.runner.waiting("flush") == 1
    kit.runner.step("flush")
    kit.runner.run()
    assert settled == [first, *others]
    assert len(log_syncs(kit)) - before == 2


def test_who_does_not_wait_is_acknowledged_at_once() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    waits = kit.put(store, message("T", 0, b"a", WAIT="true"))
    does_not = kit.put(store, message("T", 0, b"b", WAIT="false"))
    assert waits.status is None
    assert does_not.status is PutStatus.PUT_OK
    assert store.max_offset("T", 0) == 0
    kit.runner.let_go("flush")
    kit.runner.run()
    assert bodies(store, "T", 0) == [b"a", b"b"]
    assert store.watermarks.flushed == store.watermarks.appended, "nobody waited for the last one, it is flushed too"


def test_a_late_sync_is_told_but_the_message_is_stored() -> None:
    kit = sync_kit(syncFlushTimeout="1000")
    store = kit.opened()
    kit.runner.hold("flush")
    first = kit.put(store, message("T", 0, b"a"))
    kit.runner.advance(0.6)
    second = kit.put(store, message("T", 0, b"b"))
    kit.runner.advance(0.5)
    assert (first.status, second.status) == (PutStatus.FLUSH_DISK_TIMEOUT, None)
    assert store.message_at(first.physical_offset) is None, "a power loss could still take it"
    kit.runner.let_go("flush")
    kit.runner.run()
    assert (first.status, second.status) == (PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.PUT_OK)
    assert record_at(store, first.physical_offset).body == b"a"
    assert bodies(store, "T", 0) == [b"a", b"b"]


def test_uncommitted_reads_are_a_matter_of_an_option() -> None:
    kit = sync_kit(readUnCommitted="true")
    store = kit.opened()
    kit.runner.hold("flush")
    ticket = kit.put(store, message("T", 0, b"a"))
    assert ticket.status is None
    assert bodies(store, "T", 0) == [b"a"]


def test_a_sync_over_two_files_goes_in_the_order_of_the_log() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.put(store, message("T", 0, bytes(16000)))
    before = len(kit.fake.operations)
    ticket = kit.put(store, message("T", 0, bytes(1000)))
    assert ticket.status is PutStatus.PUT_OK
    assert ticket.physical_offset == 16384
    synced = log_syncs(kit, before)
    assert synced.index(f"{0:020d}") < len(synced) - 1
    assert synced[-1] == f"{16384:020d}"


def test_refused_messages_wait_for_nothing() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    refused = kit.put(store, message("x" * 200, 0, b"a"))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL


# A sync that fails


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final(code: int, caplog: pytest.LogCaptureFixture) -> None:
    kit = sync_kit()
    store = kit.opened()
    assert kit.put(store, message("T", 0, b"safe")).status is PutStatus.PUT_OK
    kit.fake.fail_next("sync", code, path="/commitlog/")
    failed = kit.put(store, message("T", 0, b"in doubt"))
    assert failed.status is PutStatus.UNKNOWN_ERROR
    assert "read-only" in failed.remark
    assert "read-only" in caplog.text
    assert bodies(store, "T", 0) == [b"safe"], "never shown"
    refused = kit.put(store, message("T", 0, b"refused"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "sync" in refused.remark
    before = len(log_syncs(kit))
    kit.runner.advance(120)
    assert len(log_syncs(kit)) == before, "never tried again as if nothing had happened"
    assert kit.put(store, message("T", 0, b"refused")).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    assert len(log_syncs(kit)) == before
    assert kit.disk.exists("/store/abort")


def test_nobody_who_waited_is_acknowledged_by_a_failed_sync() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    first = kit.put(store, message("T", 0, b"1"))
    second = kit.put(store, message("T", 0, b"2"))
    kit.fake.fail_next("sync", errno.EIO, path="/commitlog/")
    kit.runner.let_go("flush")
    kit.runner.run()
    assert first.status is second.status is PutStatus.UNKNOWN_ERROR


def test_a_failed_sync_of_async_flush_stops_the_store_too() -> None:
    kit = StoreKit()
    store = kit.opened()
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK
    kit.fake.fail_next("sync", errno.EIO, path="/commitlog/")
    kit.runner.advance(1)
    assert kit.put(store, message("T", 0, b"b")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert bodies(store, "T", 0) == [b"a"]


def test_a_failed_sync_of_the_queues_stops_the_store() -> None:
    kit = StoreKit(flushConsumeQueueThoroughInterval="1000")
    store = kit.opened()
    kit.put(store, message("T", 0, b"a"))
    kit.fake.fail_next("sync", errno.EIO, path="/consumequeue/")
    kit.runner.advance(2.5)
    refused = kit.put(store, message("T", 0, b"b"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "consume queues" in refused.remark
    assert store.checkpoint.logics_msg_timestamp == 0
    store.close()
    assert kit.disk.exists("/store/abort")


# Closing


def test_a_close_leaves_everything_synced_and_in_order() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 50)
    store.close()
    assert not kit.disk.exists("/store/abort")
    assert kit.fake.open_files == 0
    assert kit.fake.locks == {}
    # Nothing is lost by a power loss afterwards.
    kit.power_lost(seed=3)
    store = kit.opened()
    assert len(bodies(store, "T", 0)) + len(bodies(store, "T", 1)) == 50


def test_a_close_settles_who_still_waits() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    waiting = kit.put(store, message("T", 0, b"a"))
    just_put = store.put(message("T", 0, b"b"))
    store.close()
    assert waiting.status is just_put.status is PutStatus.PUT_OK
    kit.runner.let_go("flush")
    kit.runner.run()
    assert bodies(kit.opened(), "T", 0) == [b"a", b"b"]


def test_no_timer_survives_a_close() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.fill(store, 5)
    store.close()
    store.close()
    kit.runner.advance(300)
    assert kit.runner.timers() == 0


def test_sync_flush_shows_nothing_that_is_not_on_the_disk() -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.runner.hold("flush")
    ticket = kit.put(store, message("T", 0, b"a", KEYS="k", UNIQ_KEY="U"))
    assert ticket.status is None
    assert store.max_offset("T", 0) == 0
    assert store.message_at(ticket.physical_offset) is None
    assert store.query("T", "k", 10).ranges == []
    kit.runner.let_go("flush")
    kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    assert record_at(store, ticket.physical_offset).body == b"a"


@pytest.mark.parametrize(
    ("operation", "path"),
    [("sync", f"/commitlog/{16384:020d}"), ("sync_dir", "/commitlog"), ("sync", "/consumequeue/")],
)
def test_a_new_file_that_cannot_be_saved_stops_the_store(operation: str, path: str) -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 2)
    kit.fake.fail_next(operation, errno.EIO, path=path)
    tickets = kit.fill(store, 200, size=300)
    assert [ticket.status for ticket in tickets if ticket.status is not PutStatus.PUT_OK]
    last = tickets[-1]
    assert last.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "read-only until it is restarted" in last.remark
    kit.runner.advance(120)
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    assert kit.disk.exists("/store/abort")
    again = kit.opened()
    stored = {ticket.physical_offset for ticket in tickets if ticket.status is PutStatus.PUT_OK}
    assert all(again.message_at(offset) is not None for offset in stored)
    assert kit.put(again, message("T", 0, b"x")).status is PutStatus.PUT_OK


def test_the_checkpoint_does_not_call_queues_safe_after_a_failed_sync_elsewhere() -> None:
    kit = StoreKit(fileReservedTime="0")
    store = kit.opened()
    kit.fill(store, 200, size=300)
    kit.fake.fail_next("sync", errno.EIO, path="/consumequeue/")
    store.clean()
    kit.runner.run()
    before = store.checkpoint.logics_msg_timestamp
    kit.runner.advance(200)
    assert store.checkpoint.logics_msg_timestamp == before


@pytest.mark.parametrize("seed", range(12))
def test_a_restart_after_a_failed_sync_saves_what_the_kernel_takes_for_saved(seed: int) -> None:
    kit = sync_kit()
    store = kit.opened()
    kit.fill(store, 5)
    kit.fake.fail_next("sync", errno.EIO, path=f"/commitlog/{0:020d}")
    assert kit.put(store, message("T", 0, b"doubt" * 1000)).status is PutStatus.UNKNOWN_ERROR
    store.close()
    store = kit.opened()
    seen = bodies(store, "T", 0)
    assert seen[-1] == b"doubt" * 1000
    assert kit.put(store, message("T", 0, b"after")).status is PutStatus.PUT_OK
    kit.power_lost(seed)
    assert bodies(kit.opened(), "T", 0) == [*seen, b"after"]
