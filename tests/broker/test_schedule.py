"""Delay levels on a store whose time is stepped: what is due when, in which order, and what a crash leaves."""

import asyncio

import pytest

from cometmq.broker.schedule import BATCH, DelayDelivery, restored
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from support.store_kit import StoreKit, bodies, message, read_queue

LEVELS = "1s 5s 10s 2h"


class Setup:
    """A store with a delivery; `again` opens them anew."""

    def __init__(self, **properties: str) -> None:
        self.kit = StoreKit(messageDelayLevel=LEVELS, **properties)
        self.delivered: list[tuple[str, int]] = []
        self.store = self.kit.opened()
        self.delay = self._delivery(self.store)

    def _delivery(self, store: Store) -> DelayDelivery:
        delay = DelayDelivery(
            store,
            ConfigFiles(self.kit.disk, self.kit.folder).delay_offsets,
            DelayLevels.parse(LEVELS),
            clock=self.kit.clock,
            runner=self.kit.runner,
            delivered=lambda topic, queue_id, size: self.delivered.append((topic, queue_id)),
        )
        delay.load()
        delay.start()
        return delay

    def put(self, *texts: str, level: int = 1, topic: str = "T", queue_id: int = 0) -> None:
        ticket = self.kit.put(
            self.store, *(message(topic, queue_id, text.encode(), DELAY=str(level), TAGS="a") for text in texts)
        )
        assert ticket.status is PutStatus.PUT_OK

    def pass_time(self, seconds: float) -> None:
        self.kit.runner.advance(seconds)

    def again(self) -> None:
        self.store = self.kit.opened()
        self.delay = self._delivery(self.store)

    def arrived(self, topic: str = "T", queue_id: int = 0) -> list[str]:
        return [body.decode() for body in bodies(self.store, topic, queue_id)]


def test_a_message_comes_when_it_is_due_and_not_before() -> None:
    setup = Setup()
    setup.put("later", level=2)
    setup.pass_time(4.99)
    assert setup.arrived() == []
    setup.pass_time(0.02)
    assert setup.arrived() == ["later"]
    assert setup.delivered == [("T", 0)]


def test_the_delivered_record_is_the_message_with_its_history() -> None:
    setup = Setup()
    setup.put("x", level=1, queue_id=3)
    setup.pass_time(1.1)
    (record,) = read_queue(setup.store, "T", 3)
    assert record.property_map() == {"DELAY": "1", "TAGS": "a", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert record.born_timestamp == 1_699_999_999_000
    assert record.born_address == ("192.0.2.7", 40_001)
    assert record.reconsume_times == 0
    assert record.queue_offset == 0


def test_levels_do_not_wait_for_each_other_and_keep_their_order() -> None:
    setup = Setup()
    setup.put("long", level=3)
    setup.put("1", "2", "3", level=1)
    setup.pass_time(1.01)
    assert setup.arrived() == ["1", "2", "3"]
    setup.pass_time(9)
    assert setup.arrived() == ["1", "2", "3", "long"]


def test_more_than_a_batch_that_is_due_at_once_comes_in_order() -> None:
    setup = Setup(mappedFileSizeCommitLog="1048576")
    texts = [str(number) for number in range(3 * BATCH + 5)]
    setup.put(*texts)
    setup.pass_time(1.01)
    assert setup.arrived() == texts


def test_a_level_above_the_table_is_its_last_one() -> None:
    setup = Setup()
    setup.put("x", level=20)
    setup.pass_time(7199)
    assert setup.arrived() == []
    setup.pass_time(1.1)
    assert setup.arrived() == ["x"]
    (record,) = read_queue(setup.store, "T", 0)
    assert record.property_map()["DELAY"] == "4"


def test_what_became_due_while_the_broker_was_down_comes_at_the_start() -> None:
    setup = Setup()
    setup.put("a", "b", level=2)
    setup.delay.stop()
    setup.store.close()
    setup.kit.clock.advance(3600)
    setup.again()
    setup.pass_time(0.2)
    assert setup.arrived() == ["a", "b"]


def test_after_a_clean_stop_nothing_comes_twice() -> None:
    setup = Setup()
    setup.put("a", level=1)
    setup.put("b", level=2)
    setup.pass_time(1.01)
    setup.delay.stop()
    setup.store.close()
    setup.again()
    setup.pass_time(10)
    assert setup.arrived() == ["a", "b"]


def test_a_stop_in_the_middle_of_a_batch_finishes_it() -> None:
    setup = Setup()
    setup.put("a", "b", level=1)
    setup.kit.clock.advance(2)
    setup.delay.poke()
    setup.delay.stop()
    assert dict(setup.delay.offsets)[1] == 2
    setup.store.close()
    setup.again()
    setup.pass_time(5)
    assert setup.arrived() == ["a", "b"]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_loss_never_takes_a_message_whose_offset_was_saved(flush: str, seed: int) -> None:
    """The original was on the disk for long: the copy may be lost only while the offset still stands before it."""
    setup = Setup(flushDiskType=flush, flushIntervalCommitLog="5000", syncFlushTimeout="60000")
    texts = [f"m{number}" for number in range(20)]
    for text in texts:
        ticket = setup.store.put(message("T", 0, text.encode(), DELAY="1"))
    setup.kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    setup.store.sync()
    setup.kit.runner.hold("flush")
    setup.pass_time(1.2)
    setup.delay.save()
    setup.kit.power_lost(seed)
    setup.again()
    setup.pass_time(2)
    assert set(setup.arrived()) == set(texts)


def test_offsets_move_only_with_the_flush() -> None:
    setup = Setup(flushIntervalCommitLog="500")
    setup.put("a", level=1)
    setup.store.sync()
    setup.kit.runner.hold("flush")
    setup.pass_time(1.05)
    assert setup.arrived() == ["a"]
    assert dict(setup.delay.offsets)[1] == 1
    assert setup.delay.snapshot().offset_table == {}
    setup.kit.runner.let_go("flush")
    setup.pass_time(1)
    assert setup.delay.snapshot().offset_table == {1: 1}


def test_a_store_that_refuses_is_asked_again_and_nothing_is_lost_or_disordered() -> None:
    setup = Setup()
    setup.put("a", "b", "c", level=1)
    setup.store.puts.shut = "for a while"
    setup.pass_time(3)
    assert setup.arrived() == []
    setup.store.puts.shut = None
    setup.pass_time(1)
    assert setup.arrived() == ["a", "b", "c"]


def test_a_message_that_cannot_be_stored_does_not_stop_its_level(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.put("too long for tomorrow's limit", "b", level=1)
    setup.store.configure(setup.store.options.updated({"maxMessageSize": "10"}))
    setup.pass_time(2)
    assert setup.arrived() == ["b"]
    assert "cannot be stored in T and is passed over" in caplog.text


def test_half_messages_and_messages_without_a_target_are_not_delivered(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.put("half", topic=HALF_TOPIC)
    setup.put("good")
    setup.pass_time(2)
    assert setup.arrived() == ["good"]
    assert setup.arrived(HALF_TOPIC) == []
    (half, _) = read_queue(setup.store, SCHEDULE_TOPIC, 0)
    assert restored(half) is None
    assert "half a transaction" in caplog.text


def test_a_time_beyond_the_level_is_due_at_once() -> None:
    """The level was made shorter since the message was stored."""
    kit = StoreKit(messageDelayLevel="2h")
    store = kit.opened()
    kit.put(store, message("T", 0, b"x", DELAY="1"))
    delay = DelayDelivery(
        store,
        ConfigFiles(kit.disk, kit.folder).delay_offsets,
        DelayLevels.parse("1s"),
        clock=kit.clock,
        runner=kit.runner,
    )
    delay.load()
    delay.start()
    kit.runner.advance(0.2)
    assert bodies(store, "T", 0) == [b"x"]


def test_an_offset_outside_of_its_queue_is_corrected() -> None:
    setup = Setup()
    setup.put("a", level=1)
    setup.pass_time(2)
    setup.delay.stop()
    file = ConfigFiles(setup.kit.disk, setup.kit.folder).delay_offsets
    saved = file.load()
    assert saved is not None
    assert saved.offset_table == {1: 1}
    file.save(type(saved)(offset_table={1: 99, 17: 5}))
    setup.store.close()
    setup.again()
    assert dict(setup.delay.offsets)[1] == 1
    assert setup.delay.snapshot().offset_table == {1: 1, 17: 5}, "levels that the table does not have are kept"


async def test_settle_returns_when_all_that_is_due_has_come() -> None:
    setup = Setup(mappedFileSizeCommitLog="1048576")
    setup.put(*(str(number) for number in range(150)), level=3)
    setup.kit.clock.set_wall(setup.kit.clock.wall() + 60_000)
    waiting = asyncio.ensure_future(setup.delay.settle())
    while not waiting.done():
        await asyncio.sleep(0)
        setup.kit.runner.advance(0.001)
    assert len(setup.arrived()) == 150


def test_cold_messages_are_read_in_a_thread() -> None:
    setup = Setup()
    setup.kit.memory = 0
    setup.delay.stop()
    setup.store.close()
    setup.again()
    setup.put("a", "b", level=1)
    setup.kit.runner.hold("read")
    setup.pass_time(2)
    assert setup.arrived() == []
    assert setup.kit.runner.waiting("read") == 1
    setup.kit.runner.let_go("read")
    setup.pass_time(0.5)
    assert setup.arrived() == ["a", "b"]


def test_retry_topics_are_targets_like_others() -> None:
    setup = Setup()
    setup.put("x", topic="%RETRY%g|x")
    setup.pass_time(1.1)
    assert setup.arrived("%RETRY%g|x") == ["x"]


def test_a_damaged_record_costs_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    setup.put("a", "b", "c", "d", level=1)
    damaged = read_queue(setup.store, SCHEDULE_TOPIC, 0)[1]
    path = f"{setup.kit.folder}/commitlog/{0:020d}"
    setup.kit.disk.open(path).write(damaged.physical_offset + 4, [b"\x00\x00\x00\x01"])  # no magic code
    setup.pass_time(2)
    assert setup.arrived() == ["a", "c", "d"]
    assert "the message at offset 1 is passed over" in caplog.text
    assert setup.delay.offsets[1] == 4
