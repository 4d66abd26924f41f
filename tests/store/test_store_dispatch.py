"""Dispatch: its order, what it does when it is fed and when it must read, and when queues cannot be written."""

import errno
from collections.abc import Sequence

import msgspec
import pytest

from cometmq.broker.store.dispatch import ATTEMPTS, TellArrivals
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.errors import StoreError
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from cometmq.protocol import sysflag
from cometmq.protocol.hashing import tags_code
from support.store_kit import StoreKit, bodies, message, read_queue


class Watcher:
    """A dispatcher that notes what it gets, and what readers could see at that moment."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.turns: list[list[DispatchRequest]] = []
        self.visible: list[int] = []

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        self.turns.append(list(requests))
        self.visible.append(self._store.max_offset(requests[-1].topic, requests[-1].queue_id))


def test_later_dispatchers_find_queue_and_index_filled() -> None:
    kit = StoreKit()
    store = kit.opened()
    watcher = Watcher(store)
    store.dispatch.append(watcher)
    arrivals: list[int] = []
    store.dispatch.append(TellArrivals(lambda requests: arrivals.append(len(requests))))
    store.dispatch.insert(0, first := Watcher(store))
    store.put(message("T", 0, b"a", TAGS="TagA", KEYS="k", UNIQ_KEY="U"))
    store.put(message("T", 0, b"b"))
    kit.runner.run()
    assert first.visible == [0]
    assert watcher.visible == [2]
    assert arrivals == [2]
    (requests,) = watcher.turns
    assert requests[0].tags_code == tags_code("TagA")
    assert (requests[0].keys, requests[0].unique_key) == (b"k", b"U")
    assert [request.queue_offset for request in requests] == [0, 1]
    store.dispatch.remove(watcher)
    kit.put(store, message("T", 0, b"c"))
    assert len(watcher.turns) == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_when_it_comes_last_whoever_waits_hears_of_the_put_first(flush: str) -> None:
    kit = StoreKit(flushDiskType=flush)
    store = kit.opened()
    store.dispatch.comes_last = True
    seen: list[tuple[int, bool]] = []
    store.put(message("T", 0, b"a"), lambda _: seen.append((store.max_offset("T", 0), store.dispatch.is_put_off)))
    kit.runner.run()
    assert seen == [(0, True)]
    assert store.max_offset("T", 0) == 1
    assert not store.dispatch.is_put_off

    def look(_: object) -> None:
        store.dispatch.run()
        seen.append((store.max_offset("T", 0), store.dispatch.is_put_off))

    store.put(message("T", 0, b"b"), look)
    kit.runner.run()
    assert seen[1:] == [(2, False)]
    assert bodies(store, "T", 0) == [b"a", b"b"]
    store.put(message("T", 0, b"c"))
    store.close()
    assert bodies(kit.opened(), "T", 0) == [b"a", b"b", b"c"]


def test_what_is_fed_is_what_would_be_read() -> None:
    kit = StoreKit()
    store = kit.opened()
    watcher = Watcher(store)
    store.dispatch.append(watcher)
    kit.fill(store, 150)
    for number, state in enumerate((sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT)):
        half = message("T", 0, b"h", UNIQ_KEY=f"h{number}")
        kit.put(store, msgspec.structs.replace(half, sys_flag=state, prepared_transaction_offset=number))
    kit.put(store, message("T", 0, b"later", DELAY="2"))
    fed = [request for turn in watcher.turns for request in turn]
    assert len(fed) == 153
    reader = store.dispatch._reader
    read: list[DispatchRequest] = []
    at = 0
    while at < store.watermarks.appended:
        some, at = reader.requests(at, store.watermarks.appended, 10)
        read += some
    assert read == fed


def test_raw_bytes_are_dispatched_as_records_become_whole() -> None:
    master, slave = StoreKit(), StoreKit(brokerRole="SLAVE")
    source = master.opened()
    master.fill(source, 120, size=300)
    assert source.watermarks.appended > 2 * 16384
    copy = slave.opened()
    data = b""
    at = 0
    while at < source.watermarks.appended:
        found = source.commit_log.read(at, 1 << 20)
        assert found is not None
        with found:
            data += found.read()
            at += found.length
    assert len(data) == source.watermarks.appended
    sent = 0
    seen = []
    for step in [1, 3, 50, 700, 33, 9999] * 20:
        chunk = data[sent : sent + step]
        if not chunk:
            break
        copy.append_raw(sent, chunk)
        slave.runner.run()
        sent += len(chunk)
        seen.append(copy.max_offset("T", 0))
    assert sent == len(data)
    assert seen == sorted(seen)
    assert copy.watermarks.dispatched == copy.watermarks.appended
    assert read_queue(copy, "T", 0) == read_queue(source, "T", 0)
    assert read_queue(copy, "T", 1) == read_queue(source, "T", 1)
    with pytest.raises(StoreError, match="do not fit"):
        copy.append_raw(sent + 1, b"x")
    # As a master it goes on with the numbers.
    copy.set_slave(False)
    ticket = slave.put(copy, message("T", 0, b"own"))
    assert ticket.queue_offset == source.max_offset("T", 0)


def test_a_replica_may_begin_in_the_middle() -> None:
    kit = StoreKit(brokerRole="SLAVE")
    copy = kit.opened()
    master = StoreKit()
    source = master.opened()
    master.fill(source, 80, size=300)
    last = source.commit_log.files.files[-1]
    found = source.commit_log.read(last.start, 1 << 20)
    assert found is not None
    with found:
        copy.append_raw(last.start, found.read())
    kit.runner.run()
    assert copy.commit_log.min_offset == last.start
    assert copy.watermarks.appended == source.watermarks.appended
    first = read_queue(copy, "T", 0)[0]
    assert first.queue_offset == copy.min_offset("T", 0) > 0
    assert copy.max_offset("T", 0) == source.max_offset("T", 0)


def test_growth_of_the_log_can_be_waited_for() -> None:
    kit = StoreKit(flushDiskType="SYNC_FLUSH")
    store = kit.opened()
    called: list[int] = []
    store.watermarks.when_grown(0, lambda: called.append(store.watermarks.confirmed))
    kit.runner.hold("flush")
    kit.put(store, message("T", 0, b"a"))
    assert called == []
    kit.runner.let_go("flush")
    kit.runner.run()
    assert called == [store.watermarks.appended]


def test_queues_that_cannot_be_written_are_tried_again() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"a"))
    kit.fake.fail_next("write", errno.ENOSPC, path="/consumequeue/", times=3)
    ticket = kit.put(store, message("T", 0, b"b", UNIQ_KEY="U"))
    assert ticket.status is PutStatus.PUT_OK, "it is in the log"
    assert store.max_offset("T", 0) == 1
    kit.put(store, message("T", 0, b"c"))
    assert store.dispatch.behind > 0
    kit.runner.advance(1)
    assert store.max_offset("T", 0) == 1
    kit.runner.advance(3)
    assert store.dispatch.behind == 0
    assert bodies(store, "T", 0) == [b"a", b"b", b"c"]
    assert len(store.query("T", "U", 9).ranges) == 1


def test_an_index_that_cannot_be_written_is_tried_again() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fake.fail_next("write", errno.ENOSPC, path="/index/", times=2)
    kit.put(store, message("T", 0, b"a", UNIQ_KEY="U", KEYS="k1 k2"))
    kit.runner.advance(5)
    assert store.dispatch.behind == 0
    for key in ("U", "k1", "k2"):
        assert len(store.query("T", key, 9).ranges) == 1
    assert bodies(store, "T", 0) == [b"a"]


def test_after_thirty_attempts_no_more_messages_are_taken() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fake.fail_next("write", errno.EIO, path="/consumequeue/", times=1000)
    kit.put(store, message("T", 0, b"a"))
    kit.runner.advance(ATTEMPTS - 2)
    assert kit.put(store, message("T", 0, b"b")).status is PutStatus.PUT_OK
    kit.runner.advance(3)
    refused = kit.put(store, message("T", 0, b"c"))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "consume queues cannot be written" in refused.remark
    store.close()
    assert kit.disk.exists("/store/abort"), "they are dispatched after the next start"
    kit.fake.heal()
    kit.runner.run()
    assert bodies(kit.opened(), "T", 0) == [b"a", b"b"]


def test_a_long_way_behind_is_caught_up_in_passes() -> None:
    kit = StoreKit(mappedFileSizeCommitLog=str(4 << 20), mappedFileSizeConsumeQueue="200000")
    store = kit.opened()
    kit.fake.fail_next("write", errno.EIO, path="/consumequeue/", times=1)
    kit.put(store, message("T", 0, b"x"))
    for number in range(3000):
        store.put(message("T", 0, b"%d" % number))
    kit.runner.run()
    # Forget what was fed: it must be read from the log.
    store.dispatch._fed.clear()
    kit.runner.advance(2)
    assert store.dispatch.behind == 0
    assert store.max_offset("T", 0) == 3001


def test_a_dispatcher_that_fails_stops_dispatch_not_the_puts(caplog: pytest.LogCaptureFixture) -> None:
    kit = StoreKit()
    store = kit.opened()

    class Broken:
        calls = 0

        def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
            self.calls += 1
            if self.calls < 3:
                raise ValueError("an error of a plug-in")

    broken = Broken()
    store.dispatch.append(broken)
    tickets = [kit.put(store, message("T", 0, b"a")), kit.put(store, message("T", 0, b"b"))]
    assert [ticket.status for ticket in tickets] == [PutStatus.PUT_OK] * 2
    assert store.dispatch.behind
    kit.runner.advance(3)
    assert store.dispatch.behind == 0
    assert broken.calls == 4
    assert bodies(store, "T", 0) == [b"a", b"b"]
    assert "an error of a plug-in" in caplog.text


def test_whoever_waits_for_messages_cannot_stop_dispatch(caplog: pytest.LogCaptureFixture) -> None:
    kit = StoreKit()
    store = kit.opened()

    def deaf(requests: Sequence[DispatchRequest]) -> None:
        raise ValueError("an error of a waiter")

    store.dispatch.append(TellArrivals(deaf))
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK
    assert store.dispatch.behind == 0
    assert "an error of a waiter" in caplog.text
