"""Puts that are not taken or not written: refusals of the whole store, writes that fail, writes that take long."""

import errno

import pytest

from cometmq.broker.store import gather
from cometmq.broker.store.disk import DiskUsage
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.record import Record
from support.store_kit import StoreKit, batch, bodies, message, read_queue

FILE = 16384


# Refusals of the whole store


def test_nothing_is_taken_before_the_start_and_after_the_close() -> None:
    kit = StoreKit()
    store = kit.store()
    store.open()
    early = kit.put(store, message("T", 0, b"a"))
    assert early.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "not started" in early.remark
    store.start()
    store.close()
    late = kit.put(store, message("T", 0, b"a"))
    assert late.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "closed" in late.remark


def test_a_slave_takes_no_messages_until_it_becomes_master() -> None:
    kit = StoreKit(brokerRole="SLAVE")
    store = kit.opened()
    refused = kit.put(store, message("T", 0, b"a"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "slave" in refused.remark
    store.set_slave(False)
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK


def test_a_full_disk_is_told_with_its_ratio() -> None:
    kit = StoreKit()
    kit.fake.space = DiskUsage(total=1000, used=930, available=70)
    store = kit.opened()
    refused = kit.put(store, message("T", 0, b"a"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "CL:  0.93 CQ:  0.93 INDEX:  0.93" in refused.remark
    kit.fake.space = DiskUsage(total=1000, used=500, available=500)
    kit.runner.advance(61)
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK


# Writes that fail


@pytest.mark.parametrize("partial", [0, 7, 100, 1500])
def test_a_full_disk_takes_back_what_it_could_not_write(partial: int) -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"before"))
    end = store.watermarks.appended
    kit.fake.fail_next("write", errno.ENOSPC, path="/commitlog/", partial=partial)
    tickets = [store.put(message("T", number % 2, bytes([65 + number]) * 200)) for number in range(8)]
    kit.runner.run()
    assert {ticket.status for ticket in tickets} == {PutStatus.SERVICE_NOT_AVAILABLE}
    assert all("full" in ticket.remark for ticket in tickets)
    assert store.watermarks.appended == end
    assert store.commit_log.files.files[0].read(end, 2000) == bytes(2000), "nothing stays that looks like a record"
    assert kit.put(store, message("T", 0, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.runner.advance(61)
    after = kit.put(store, message("T", 0, b"after"))
    assert (after.status, after.queue_offset, after.physical_offset) == (PutStatus.PUT_OK, 1, end)
    assert kit.put(store, message("T", 1, b"other")).queue_offset == 0
    assert bodies(store, "T", 0) == [b"before", b"after"]


def test_another_failure_ends_the_taking_of_messages() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"before"))
    kit.fake.fail_next("write", errno.EIO, path="/commitlog/", partial=50)
    failed = kit.put(store, message("T", 0, b"failed"))
    assert failed.status is PutStatus.UNKNOWN_ERROR
    kit.runner.advance(100)
    refused = kit.put(store, message("T", 0, b"refused"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "cannot be written" in refused.remark
    assert bodies(store, "T", 0) == [b"before"], "reading goes on"
    store.close()
    assert kit.disk.exists("/store/abort"), "the next start looks at everything"
    store = kit.opened()
    assert bodies(store, "T", 0) == [b"before"]


def test_of_a_turn_over_two_files_the_first_part_counts_alone() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, bytes(FILE - 2000)))
    kit.fake.fail_next("write", errno.ENOSPC, path="/commitlog/", after=1)
    tickets = [store.put(message("T", 0, bytes([number]) * 400)) for number in range(8)]
    kit.runner.run()
    statuses = [ticket.status for ticket in tickets]
    stored = statuses.count(PutStatus.PUT_OK)
    assert 0 < stored < 8
    assert statuses == [PutStatus.PUT_OK] * stored + [PutStatus.SERVICE_NOT_AVAILABLE] * (8 - stored)
    assert store.watermarks.appended == FILE
    kit.runner.advance(61)
    after = kit.put(store, message("T", 0, b"after"))
    assert (after.queue_offset, after.physical_offset) == (1 + stored, FILE)


def test_a_foreign_file_in_the_place_of_the_next_one_is_told() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fake.write_file(f"/store/commitlog/{FILE:020d}", b"not of this store", backup=False)
    tickets = kit.fill(store, 100, size=300)
    assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK, PutStatus.CREATE_MAPPED_FILE_FAILED}
    assert "17 bytes" in tickets[-1].remark
    kit.fake.unlink(f"/store/commitlog/{FILE:020d}")
    assert kit.put(store, message("T", 0, b"x" * 300)).status is PutStatus.PUT_OK


# Writes that take long


def slow(kit: StoreKit, seconds: float, times: int = 1) -> None:
    kit.fake.slow_next("write", seconds, path="/commitlog/", times=times)


def test_after_a_slow_write_the_next_ones_go_through_a_thread() -> None:
    kit = StoreKit()
    store = kit.opened()
    slow(kit, 0.05)
    assert kit.put(store, message("T", 0, b"slow")).status is PutStatus.PUT_OK
    kit.runner.hold("write")
    ticket = store.put(message("T", 0, b"threaded"))
    kit.runner.run()
    assert ticket.status is None
    assert kit.runner.waiting("write") == 1
    more = store.put(message("T", 0, b"more"))
    kit.runner.run()
    assert kit.runner.waiting("write") == 1, "one write at a time"
    assert kit.runner.step("write")
    kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    assert more.status is None
    kit.runner.let_go("write")
    kit.runner.run()
    assert more.status is PutStatus.PUT_OK
    assert bodies(store, "T", 0) == [b"slow", b"threaded", b"more"]


def test_after_a_quiet_second_writes_are_direct_again() -> None:
    kit = StoreKit()
    store = kit.opened()
    slow(kit, 0.05)
    kit.put(store, message("T", 0, b"slow"))
    kit.runner.hold("write")
    kit.clock.advance(1.001)
    assert kit.put(store, message("T", 0, b"direct")).status is PutStatus.PUT_OK
    assert kit.runner.waiting("write") == 0


def held_write(store: Store, kit: StoreKit) -> Ticket:
    slow(kit, 0.05)
    kit.put(store, message("T", 0, b"slow"))
    kit.runner.hold("write")
    ticket = store.put(message("T", 0, b"held"))
    kit.runner.run()
    assert ticket.status is None
    return ticket


def test_a_write_of_more_than_a_second_is_a_busy_page_cache() -> None:
    kit = StoreKit()
    store = kit.opened()
    held = held_write(store, kit)
    kit.clock.advance(0.9)
    waiting = store.put(message("T", 0, b"waits"))
    kit.clock.advance(0.2)
    assert store.puts.write_age == pytest.approx(1.1)
    refused = store.put(message("T", 0, b"refused"))
    batch_refused = store.put_batch(batch((b"x", "")))
    kit.runner.let_go("write")
    kit.runner.run()
    assert held.status is waiting.status is PutStatus.PUT_OK
    assert refused.status is batch_refused.status is PutStatus.OS_PAGE_CACHE_BUSY
    assert "1100 ms" in refused.remark
    assert kit.put(store, message("T", 0, b"again")).status is PutStatus.PUT_OK
    assert bodies(store, "T", 0) == [b"slow", b"held", b"waits", b"again"]


def test_a_write_that_hangs_is_given_up_but_may_still_succeed() -> None:
    kit = StoreKit()
    store = kit.opened()
    held = held_write(store, kit)
    kit.runner.advance(8.1)
    assert held.status is PutStatus.UNKNOWN_ERROR
    kit.runner.let_go("write")
    kit.runner.run()
    assert held.status is PutStatus.UNKNOWN_ERROR, "told once"
    assert bodies(store, "T", 0) == [b"slow", b"held"]


def test_a_close_waits_for_the_write_under_way() -> None:
    kit = StoreKit()
    store = kit.opened()
    held = held_write(store, kit)
    last = store.put(message("T", 0, b"last"))
    store.close()
    assert held.status is last.status is PutStatus.PUT_OK
    again = kit.opened()
    assert bodies(again, "T", 0) == [b"slow", b"held", b"last"]


def test_a_write_in_a_thread_may_fail_too() -> None:
    kit = StoreKit()
    store = kit.opened()
    held = held_write(store, kit)
    kit.fake.fail_next("write", errno.ENOSPC, path="/commitlog/")
    kit.runner.let_go("write")
    kit.runner.run()
    assert held.status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.runner.advance(61)
    assert kit.put(store, message("T", 0, b"after")).queue_offset == 1


def test_records_of_many_turns_are_what_was_put() -> None:
    """Everything at once: sizes, topics, batches; the log read from its first byte is the same."""
    kit = StoreKit()
    store = kit.opened()
    expected: dict[tuple[str, int], list[bytes]] = {}
    for number in range(400):
        topic, queue_id = f"T{number % 5}", number % 3
        body = bytes([number % 256]) * (number * 7 % 900)
        if number % 4 == 0:
            store.put_batch(batch((body[:50], "KEYS\x01k\x02"), (body[:9], ""), topic=topic, queue_id=queue_id))
            expected.setdefault((topic, queue_id), []).extend([body[:50], body[:9]])
        else:
            store.put(message(topic, queue_id, body, UNIQ_KEY=f"U{number}"))
            expected.setdefault((topic, queue_id), []).append(body)
        if number % 3 == 0:
            kit.runner.run()
    kit.runner.run()
    for (topic, queue_id), content in expected.items():
        records: list[Record] = read_queue(store, topic, queue_id)
        assert [record.body for record in records] == content
        assert [record.queue_offset for record in records] == list(range(len(content)))


def test_a_write_that_was_only_kept_from_running_does_not_go_to_a_thread() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"first"))
    kit.runner.hold("write")
    kit.clock.waits = lambda: 7  # type: ignore[method-assign]
    kit.fake.slow_next("write", 0.1, path="commitlog")
    assert kit.put(store, message("T", 0, b"late")).status is PutStatus.PUT_OK
    assert kit.put(store, message("T", 0, b"next")).status is PutStatus.PUT_OK
    del kit.clock.waits  # type: ignore[method-assign]
    kit.fake.slow_next("write", 0.1, path="commitlog")
    assert kit.put(store, message("T", 0, b"slow")).status is PutStatus.PUT_OK
    assert kit.put(store, message("T", 0, b"through a thread")).status is None
    kit.runner.let_go("write")
    kit.runner.run()
    store.close()


def test_a_batch_that_cannot_be_laid_out_costs_the_others_of_its_turn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OverflowError("int too big to convert")

    kit = StoreKit()
    store = kit.opened()
    monkeypatch.setattr(gather, "explode_batch", fails)
    first = store.put(message("T", 0, b"first"))
    odd = store.put_batch(batch((b"a", ""), (b"b", ""), topic="T", queue_id=0))
    last = store.put(message("T", 0, b"last"))
    kit.runner.run()
    assert (first.status, odd.status, last.status) == (PutStatus.PUT_OK, PutStatus.UNKNOWN_ERROR, PutStatus.PUT_OK)
    assert "int too big" in odd.remark
    assert bodies(store, "T", 0) == [b"first", b"last"]
