"""Power losses and deaths of the process after every operation of a seeded workload, on the fake disk.

Each point is a disk of its own that is opened again and compared with the ledger. A failure names seed and moment:
`Workload(seed, ...).run(STEPS)` and `workload.disk.crash(seed, moment)` bring it back.
"""

import dataclasses
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable

import pytest

from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from support.crash_checks import Found, check_ends, check_no_ghosts, check_told, kept_from, look
from support.crash_workload import TOPICS, Deaths, Put, Told, Workload
from support.store_kit import StoreKit, message

SYNC, ASYNC = "SYNC_FLUSH", "ASYNC_FLUSH"
#: Actions of a workload: some 600 operations, some hundred messages.
STEPS = 60
#: The flush interval, and a little for the clock's rounding, in seconds.
FLUSH_INTERVAL = 0.5 + 0.01


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    # Thousands of recoveries, each with some lines.
    caplog.set_level(logging.CRITICAL)


def opened(workload: Workload, disk: FakeDisk) -> tuple[StoreKit, Store]:
    kit = StoreKit(disk, **workload.kit.properties)
    kit.clock = workload.kit.clock
    kit.runner = type(kit.runner)(kit.clock)
    store = kit.store()
    store.open()
    return kit, store


def before(entries: Iterable[Told], moment: int) -> list[Told]:
    return [entry for entry in entries if entry.after <= moment]


def promises(workload: Workload, moment: int) -> list[Told]:
    """What a power loss at this moment must not take."""
    ledger = workload.ledger
    acknowledged = before(ledger.acknowledged, moment)
    if workload.kit.properties["flushDiskType"] == SYNC:
        return acknowledged + before(ledger.readable, moment)
    known = bisect_right(ledger.moments, moment, key=lambda entry: entry.after) - 1
    if known < 0:
        return []
    now, flushed = ledger.moments[known].moment, ledger.moments[known].flushed
    # A disk that hangs may break the promise about time, not the one about what was flushed.
    old = now - FLUSH_INTERVAL if not workload.hangs else -1.0
    return [entry for entry in acknowledged if entry.physical_offset < flushed or entry.moment < old]


def check(workload: Workload, store: Store, moment: int, promised: list[Told]) -> Found:
    """Compare a store with what the ledger says about a moment."""
    found = look(store)
    check_no_ghosts(found, workload.ledger, moment)
    file_size = int(workload.kit.properties["mappedFileSizeCommitLog"])
    check_told(found, promised, kept_from=kept_from(workload.disk.operations, moment, file_size))
    check_ends(found, workload.ledger, promised)
    return found


def check_config(workload: Workload, disk: FakeDisk, moment: int) -> None:
    """The tables are the last saved ones, or those whose save was under way."""
    files = ConfigFiles(disk, workload.kit.folder)
    offsets, delays = files.consumer_offsets.load(), files.delay_offsets.load()
    saved = max((value for _, after, value in workload.ledger.saves if after <= moment), default=0)
    begun = max((value for start, _, value in workload.ledger.saves if start < moment), default=0)
    values = (
        offsets.offset_table["Orders@g"][0] if offsets is not None else 0,
        delays.offset_table[1] if delays is not None else 0,
    )
    for value in values:
        assert saved <= value <= begun


def goes_on(workload: Workload, kit: StoreKit, store: Store, found: Found, moment: int) -> None:
    """The store takes messages where its queues end, closes cleanly and opens again with all of them."""
    store.start()
    puts = dict(workload.ledger.puts)
    for number, (topic, _) in enumerate(TOPICS, start=90_000_000):
        body = b"%08d" % number + bytes(300)
        puts[number] = Put(body, topic, 0, moment)
        ticket = store.put(message(topic, 0, body, KEYS="again"))
        kit.runner.run()
        assert ticket.status is PutStatus.PUT_OK
        assert ticket.queue_offset == found.queues.get((topic, 0), (0, 0))[1]
    store.close()
    again = kit.store()
    assert again.open().clean
    second = look(again)
    check_no_ghosts(second, dataclasses.replace(workload.ledger, puts=puts), moment)
    assert second.records.keys() == found.records.keys() | (puts.keys() - workload.ledger.puts.keys())
    assert all(second.records[number] == record for number, record in found.records.items())


def once_more(workload: Workload, disk: FakeDisk, found: Found, moment: int, promised: list[Told], seed: int) -> None:
    """A second power loss: right after the recovery from the first it takes nothing, during it no promise is void."""
    operations = len(disk.operations)
    _, store = opened(workload, disk.crash(seed, operations))
    assert look(store).records == found.records
    _, store = opened(workload, disk.crash(seed, seed % (operations + 1)))
    check(workload, store, moment, promised)


def survive(
    workload: Workload,
    lost: Callable[[int], FakeDisk],
    moments: Iterable[int],
    promised_at: Callable[[int], list[Told]],
) -> None:
    """A catastrophe at each of the moments, and what must be true after it."""
    for count, moment in enumerate(moments):
        try:
            promised = promised_at(moment)
            disk = lost(moment)
            kit, store = opened(workload, disk)
            found = check(workload, store, moment, promised)
            check_config(workload, disk, moment)
            if count % 8 == 0:
                once_more(workload, disk, found, moment, promised, workload.seed + moment)
            elif count % 8 == 4:
                goes_on(workload, kit, store, found, moment)
        except Exception as error:
            error.add_note(f"workload {workload.seed}, moment {moment}, {workload.kit.properties}")
            raise


def lose_power(workload: Workload, outcome: int, step: int = 1) -> int:
    """A power loss after every operation, or every few; gives how many."""
    moments = range(outcome % step, len(workload.disk.operations) + 1, step)
    survive(
        workload,
        lambda moment: workload.disk.crash(outcome, moment),
        moments,
        lambda moment: promises(workload, moment),
    )
    return len(moments)


def die(workload: Workload, step: int) -> int:
    """The death of the process after every few operations; gives how many."""
    moments = range(workload.seed % step, len(workload.disk.operations) + 1, step)
    ledger = workload.ledger
    survive(
        workload,
        lambda moment: Deaths(workload.disk).at(moment, same_life=moment // step % 2 == 0),
        moments,
        lambda moment: before(ledger.acknowledged, moment) + before(ledger.readable, moment),
    )
    return len(moments)


@pytest.mark.parametrize("seed", range(4))
def test_sync_flush_a_power_loss_after_any_operation_takes_nothing_that_anybody_knew(seed: int) -> None:
    workload = Workload(seed, flushDiskType=SYNC).run(STEPS)
    assert lose_power(workload, seed) > 350


@pytest.mark.parametrize("seed", range(2))
def test_async_flush_a_power_loss_takes_at_most_what_was_not_flushed(seed: int) -> None:
    workload = Workload(seed, flushDiskType=ASYNC).run(STEPS)
    assert lose_power(workload, seed, step=2) > 175


@pytest.mark.parametrize("seed", range(2, 4))
def test_async_flush_a_power_loss_takes_at_most_half_a_second(seed: int) -> None:
    """Here no sync hangs."""
    workload = Workload(seed, hangs=False, flushDiskType=ASYNC).run(STEPS)
    assert lose_power(workload, seed, step=3) > 115


@pytest.mark.parametrize(("seed", "flush"), [(10, SYNC), (11, ASYNC), (12, ASYNC)])
def test_the_death_of_the_process_takes_nothing_that_anybody_knew(seed: int, flush: str) -> None:
    workload = Workload(seed, flushDiskType=flush).run(STEPS)
    assert die(workload, step=4) > 80


@pytest.mark.parametrize("entries", ["7", "100"])
def test_a_death_at_any_moment_indexes_nothing_twice(entries: str) -> None:
    """In the same life of the machine, when the index is not built anew; with small files it rolls in each turn."""
    kit = StoreKit(maxIndexNum=entries)
    store = kit.opened()
    for turn in range(4):
        kit.put(store, *(message("T", 0, b"%08d" % (3 * turn + n), KEYS="k", UNIQ_KEY=f"U{turn}{n}") for n in range(3)))
        kit.clock.advance(0.001)
    deaths = Deaths(kit.fake)
    for moment in range(len(kit.fake.operations) + 1):
        again = StoreKit(deaths.at(moment, same_life=True), **kit.properties)
        try:
            look(again.opened())
        except AssertionError as error:
            error.add_note(f"moment {moment}")
            raise


def test_a_file_that_goes_young_takes_no_numbering_with_it() -> None:
    """A full disk removes files that are younger than the last sync of the queues."""
    workload = Workload(0, patient=False, flushDiskType=SYNC).run(STEPS)
    assert lose_power(workload, 0, step=2) > 175


def one_new_unit(old: int = 10, **properties: str) -> tuple[StoreKit, int]:
    """A killed store in which recovery writes the last unit of queue 0 anew, and none of the `old` ones before it.

    Gives how many messages the queue has.
    """
    kit = StoreKit(None, **(properties | {"flushDiskType": SYNC}))
    store = kit.opened()
    numbers = iter(range(100))
    for _ in range(old):
        kit.put(store, message("T", 0, b"%08d" % next(numbers), KEYS="k", TAGS="Tag"))
    for _ in range(40):
        # Keys enough for a full index file: for its sake too the recovery need not begin with the first file.
        number = next(numbers)
        kit.put(store, message("T", 1, b"%08d" % number + bytes(1000), KEYS=f"a{number} b{number} c{number}"))
    kit.runner.advance(70)
    kit.put(store, message("T", 0, b"%08d" % next(numbers), KEYS="k", TAGS="Tag"))
    kit.runner.advance(70)
    kit.killed()
    return kit, old + 1


@pytest.mark.parametrize("whole", [0, 4, 7, 8, 9, 11])
def test_a_unit_that_was_torn_while_it_was_wiped_takes_no_messages_with_it(whole: int) -> None:
    """Recovery wipes units that it writes anew; a power loss can leave the first bytes of that."""
    kit, count = one_new_unit()
    file = kit.fake.open(f"/store/consumequeue/T/0/{0:020d}")
    file.write((count - 1) * 20, [bytes(whole)])
    file.close()
    found = look(kit.opened())
    assert found.queues["T", 0] == (0, count)


#: With 20 units in a file the last one is the first of the second file.
@pytest.mark.parametrize("old", [10, 20])
@pytest.mark.parametrize("whole", [12, 13, 16, 19])
def test_a_torn_unit_does_not_take_the_extension_with_it(whole: int, old: int) -> None:
    """The first byte of an address in the extension alone is the address 0."""
    kit, count = one_new_unit(old, enableConsumeQueueExt="true", mappedFileSizeConsumeQueueExt="4096")
    torn = (count - 1) * 20
    file = kit.fake.open(f"/store/consumequeue/T/0/{torn - torn % 400:020d}")
    file.write(torn % 400 + whole, [bytes(20 - whole)])
    file.close()
    found = look(kit.opened())
    assert found.queues["T", 0] == (0, count)


@pytest.mark.parametrize("gap", [1, 2, 3, 100])
def test_a_lost_page_is_torn_wherever_the_next_record_begins(gap: int) -> None:
    """Of a record that begins with the last bytes of a page, zeros of its length, nothing else is in that page."""
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"%08d" % 0 + bytes(3000)))
    begin = store.commit_log.max_offset
    overhead = kit.put(store, message("T", 0, b"%08d" % 1)).end_offset - begin - 8
    begin = store.commit_log.max_offset
    body = (b"%08d" % 2).ljust(8192 - gap - begin - overhead, b"x")
    assert kit.put(store, message("T", 0, body)).end_offset == 8192 - gap
    kit.put(store, message("T", 0, b"%08d" % 3 + b"y" * 600))
    kit.killed()
    # Not a death alone: the machine has lost its power.
    kit.fake.unlink("/store/abort.life")
    file = kit.fake.open(f"/store/commitlog/{0:020d}")
    file.write(4096, [bytes(4096)])
    file.close()
    found = look(kit.opened())
    assert sorted(found.records) == [0, 1]


VARIANTS: tuple[dict[str, str], ...] = (
    {},
    {"mappedFileSizeConsumeQueue": "10000"},
    {"mappedFileSizeCommitLog": "40960"},
    {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "4096"},
    {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"},
    {"messageIndexSafe": "true", "maxIndexNum": "25"},
)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_power_losses(seed: int, variant: int) -> None:
    flush = (SYNC, ASYNC)[seed % 2]
    options = VARIANTS[variant] | {"flushDiskType": flush}
    workload = Workload(seed, hangs=seed % 4 < 2, patient=True, **options)
    workload.run(2 * STEPS)
    assert lose_power(workload, seed) > 700
    assert die(workload, step=5) > 140
