"""Clocks and runners: time that tests move, and callbacks that come in order."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from cometmq.broker.store.clock import FakeClock, SystemClock
from cometmq.broker.store.runner import AsyncioRunner, ManualRunner


class TestClocks:
    def test_the_system_clock(self):
        clock = SystemClock()
        before = datetime.now(UTC).timestamp() * 1000
        assert before - 1 <= clock.wall() <= datetime.now(UTC).timestamp() * 1000
        assert isinstance(clock.wall(), int)
        assert clock.monotonic() <= clock.monotonic()
        assert clock.local(1_700_000_000_123) == datetime.fromtimestamp(1_700_000_000.123)

    def test_the_fake_clock_moves_when_it_is_told(self):
        clock = FakeClock(wall=1_700_000_000_000, monotonic=5.0)
        assert (clock.wall(), clock.monotonic()) == (1_700_000_000_000, 5.0)
        clock.advance(1.5)
        assert (clock.wall(), clock.monotonic()) == (1_700_000_001_500, 6.5)
        clock.set_wall(1000)
        assert (clock.wall(), clock.monotonic()) == (1000, 6.5)
        with pytest.raises(ValueError, match="does not go back"):
            clock.advance(-1)

    def test_local_time_of_a_zone(self):
        assert FakeClock().local(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000)
        east = FakeClock(zone=timezone(timedelta(hours=8)))
        assert east.local(1_700_000_000_123) == datetime(2023, 11, 15, 6, 13, 20, 123_000)


class TestManualRunner:
    def test_turns_run_what_is_queued_in_order(self):
        runner, seen = ManualRunner(), []
        runner.call_soon(lambda: (seen.append(1), runner.call_soon(lambda: seen.append(3))))
        runner.call_soon(lambda: seen.append(2))
        assert seen == []
        assert runner.turn() == 2
        assert seen == [1, 2]
        assert runner.turn() == 1
        assert seen == [1, 2, 3]
        assert runner.turn() == 0

    def test_running_on_ends_when_nothing_is_queued(self):
        runner, seen = ManualRunner(), []

        def again():
            seen.append(len(seen))
            if len(seen) < 10:
                runner.call_soon(again)

        runner.call_soon(again)
        runner.run()
        assert seen == list(range(10))

    def test_a_callback_that_never_ends_is_found(self):
        runner = ManualRunner()

        def again():
            runner.call_soon(again)

        runner.call_soon(again)
        with pytest.raises(RuntimeError, match="still busy"):
            runner.run()

    def test_timers_run_at_their_moment_and_in_order(self):
        runner, seen = ManualRunner(), []

        def at(name):
            return lambda: seen.append((name, runner.clock.monotonic()))

        runner.call_later(2, at("b"))
        runner.call_later(1, at("a"))
        runner.call_later(2, at("c"))
        runner.call_later(9, at("late"))
        cancelled = runner.call_later(1.5, at("never"))
        cancelled.cancel()
        assert runner.timers() == 4
        runner.advance(0.999)
        assert seen == []
        runner.advance(2)
        assert seen == [("a", 1), ("b", 2), ("c", 2)]
        assert runner.clock.monotonic() == pytest.approx(2.999)
        assert runner.timers() == 1

    def test_a_timer_that_sets_itself_again(self):
        runner, seen = ManualRunner(), []

        def tick():
            seen.append(runner.clock.monotonic())
            runner.call_later(0.5, tick)

        runner.call_later(0.5, tick)
        runner.advance(2)
        assert seen == [0.5, 1.0, 1.5, 2.0]

    def test_turns_that_follow_from_a_timer_run_at_its_moment(self):
        runner, seen = ManualRunner(), []
        runner.call_later(1, lambda: runner.call_soon(lambda: seen.append(runner.clock.monotonic())))
        runner.advance(5)
        assert seen == [1]

    def test_a_slow_callback_delays_the_next_timer(self):
        runner, seen = ManualRunner(), []
        runner.call_later(1, lambda: runner.clock.advance(3))
        runner.call_later(2, lambda: seen.append(runner.clock.monotonic()))
        runner.advance(2)
        assert seen == [4]

    def test_work_for_a_thread_is_done_at_once_and_told_in_the_next_turn(self):
        runner, seen = ManualRunner(), []
        runner.in_thread(lambda: seen.append("work") or 42, lambda value, error: seen.append((value, error)))
        assert seen == ["work"]
        runner.turn()
        assert seen == ["work", (42, None)]

    def test_what_work_raises_is_told(self):
        runner, seen = ManualRunner(), []
        failure = OSError("no space")

        def work():
            raise failure

        runner.in_thread(work, lambda value, error: seen.append((value, error)))
        runner.run()
        assert seen == [(None, failure)]

    def test_held_work_waits_for_its_step(self):
        runner, seen = ManualRunner(), []
        runner.hold("flush")
        for name in ("one", "two"):
            runner.in_thread(
                lambda name=name: seen.append(name), lambda value, error: seen.append("done"), lane="flush"
            )
        runner.in_thread(lambda: seen.append("read"), lambda value, error: None, lane="read")
        runner.run()
        assert seen == ["read"]
        assert (runner.waiting(), runner.waiting("flush"), runner.waiting("read")) == (2, 2, 0)
        assert runner.step("flush")
        assert seen == ["read", "one"]
        runner.run()
        assert seen == ["read", "one", "done"]
        assert not runner.step("read")
        runner.let_go("flush")
        runner.run()
        assert seen == ["read", "one", "done", "two", "done"]
        assert not runner.step()


class TestAsyncioRunner:
    async def test_callbacks_come_on_the_loop_in_order(self):
        runner, seen = AsyncioRunner(), []
        done = asyncio.Event()
        runner.call_soon(lambda: seen.append(1))
        runner.call_soon(lambda: seen.append(2))
        runner.call_later(0.01, done.set)
        never = runner.call_later(0.001, lambda: seen.append("never"))
        never.cancel()
        await asyncio.wait_for(done.wait(), 10)
        assert seen == [1, 2]
        runner.close()

    async def test_work_runs_elsewhere_and_its_end_comes_here(self):
        runner, owner = AsyncioRunner(), threading.get_ident()
        result = asyncio.get_running_loop().create_future()
        runner.in_thread(
            threading.get_ident, lambda value, error: result.set_result((value, error, threading.get_ident()))
        )
        worker, error, here = await asyncio.wait_for(result, 10)
        assert worker != owner == here
        assert error is None
        runner.close()

    async def test_what_work_raises_is_told(self):
        runner = AsyncioRunner()
        result = asyncio.get_running_loop().create_future()
        runner.in_thread(lambda: 1 // 0, lambda value, error: result.set_result((value, error)))
        value, error = await asyncio.wait_for(result, 10)
        assert value is None
        assert isinstance(error, ZeroDivisionError)
        runner.close()

    async def test_a_lane_keeps_its_order_and_never_waits_for_another(self):
        runner, seen = AsyncioRunner(), []
        gate, done = threading.Event(), asyncio.Event()
        runner.in_thread(gate.wait, lambda value, error: None, lane="read")
        for index in range(20):
            runner.in_thread(lambda index=index: index, lambda value, error: seen.append(value), lane="flush")
        runner.in_thread(lambda: None, lambda value, error: done.set(), lane="flush")
        await asyncio.wait_for(done.wait(), 10)
        assert seen == list(range(20))
        gate.set()
        runner.close()

    async def test_closing_waits_for_the_work_that_has_begun(self):
        before = set(threading.enumerate())  # other stores of this process may live on
        runner, started, finished = AsyncioRunner(), threading.Event(), []
        release = threading.Event()

        def work():
            started.set()
            release.wait(10)
            finished.append(True)

        runner.in_thread(work, lambda value, error: None)
        await asyncio.to_thread(started.wait, 10)
        asyncio.get_running_loop().call_later(0.01, lambda: None)
        threading.Timer(0.02, release.set).start()
        runner.close()
        assert finished == [True]
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("store-")]

    def test_a_loop_that_has_gone_is_not_asked_any_more(self):
        loop = asyncio.new_event_loop()
        runner = AsyncioRunner(loop)
        release, ended = threading.Event(), []
        runner.in_thread(lambda: release.wait(10), lambda value, error: ended.append(value))
        loop.close()
        release.set()
        runner.close()
        assert ended == []
