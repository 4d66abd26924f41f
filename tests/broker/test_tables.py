"""Tables that are saved by time: when they are written, and what happens when they cannot be."""

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.tables import LANE, SavedTable
from cometmq.protocol.bodies import DelayOffsetSerializeWrapper


class Kit:
    def __init__(self):
        self.clock = FakeClock()
        self.runner = ManualRunner(self.clock)
        self.disk = FakeDisk(self.clock)
        self.file = ConfigFiles(self.disk, "/store").delay_offsets
        self.offsets = {1: 0}
        self.snapshots = 0
        self.seconds = 5.0
        self.table = SavedTable(self.file, self.snapshot, self.runner, lambda: self.seconds)

    def snapshot(self):
        self.snapshots += 1
        return DelayOffsetSerializeWrapper(offset_table=dict(self.offsets))

    def change(self, offset):
        self.offsets[1] = offset
        self.table.is_dirty = True

    def saved(self):
        table = self.file.load()
        return None if table is None else table.offset_table[1]


@pytest.fixture
def kit():
    return Kit()


def test_a_change_is_written_when_the_interval_is_over(kit):
    kit.table.start()
    kit.change(7)
    kit.runner.advance(4.9)
    assert kit.saved() is None
    kit.runner.advance(0.2)
    assert kit.saved() == 7


def test_many_changes_are_one_write_and_no_change_is_none(kit):
    kit.table.start()
    for offset in range(100):
        kit.change(offset)
    kit.runner.advance(5)
    assert (kit.saved(), kit.snapshots) == (99, 1)
    kit.runner.advance(50)
    assert kit.snapshots == 1


def test_one_write_is_in_flight_and_what_changes_meanwhile_comes_with_the_next(kit):
    kit.table.start()
    kit.runner.hold(LANE)
    kit.change(1)
    kit.runner.advance(5)
    kit.change(2)
    kit.runner.advance(20)
    assert kit.runner.waiting(LANE) == 1
    kit.runner.let_go(LANE)
    kit.runner.run()
    assert kit.saved() == 1
    kit.runner.advance(5)
    assert kit.saved() == 2


def test_a_failed_write_is_counted_and_tried_again(kit, caplog):
    kit.table.start()
    kit.disk.fail_next("write_file", times=2)
    kit.change(3)
    kit.runner.advance(5)
    assert (kit.table.failures, kit.saved()) == (1, None)
    assert isinstance(kit.table.last_error, OSError)
    kit.runner.advance(5)
    assert kit.table.failures == 2
    kit.runner.advance(5)
    assert (kit.saved(), kit.table.failures, kit.table.last_error) == (3, 2, None)
    assert "delayOffset.json could not be saved (failure 2)" in caplog.text


def test_a_close_waits_for_the_write_in_flight_and_writes_the_rest(kit):
    kit.table.start()
    kit.runner.hold(LANE)
    kit.change(1)
    kit.runner.advance(5)
    kit.change(2)
    kit.table.close()
    assert kit.saved() == 2
    assert kit.runner.timers() == 0


def test_a_close_tells_that_the_last_write_failed(kit):
    kit.change(1)
    kit.disk.fail_next("write_file")
    with pytest.raises(OSError, match="Input/output error"):
        kit.table.close()
    assert kit.table.is_dirty
    kit.table.save_now()
    assert kit.saved() == 1


def test_an_interval_may_change_while_it_runs(kit):
    kit.table.start()
    kit.seconds = 1.0
    kit.runner.advance(5)
    kit.change(4)
    kit.runner.advance(1)
    assert kit.saved() == 4
