"""Tickets, the lines in which they wait, and the watermarks that they wait for."""

import asyncio

import pytest

from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.tickets import Ticket, WaitLine, Watermarks
from cometmq.protocol.message_id import pack_host


def ticket(end: int, settled: list[Ticket] | None = None) -> Ticket:
    return Ticket(None, None if settled is None else settled.append, end_offset=end)


def test_a_line_lets_go_up_to_the_watermark_in_order() -> None:
    settled: list[Ticket] = []
    line = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT)
    for end in (100, 200, 300):
        line.add(ticket(end, settled), 5.0)
    line.advance(99)
    assert settled == []
    line.advance(200)
    assert [each.end_offset for each in settled] == [100, 200]
    assert {each.status for each in settled} == {PutStatus.PUT_OK}
    assert len(line) == 1


def test_a_deadline_gives_the_status_of_its_line() -> None:
    settled: list[Ticket] = []
    line = WaitLine(PutStatus.FLUSH_SLAVE_TIMEOUT)
    line.add(ticket(1, settled), 5.0)
    line.add(ticket(2, settled), 6.0)
    assert line.deadline == 5.0
    line.expire(4.9)
    assert settled == []
    line.expire(5.0)
    assert [(each.end_offset, each.status) for each in settled] == [(1, PutStatus.FLUSH_SLAVE_TIMEOUT)]
    assert settled[0].status is not None
    assert settled[0].status.stored
    line.advance(10)
    assert line.deadline is None


def test_a_ticket_in_two_lines_waits_for_both() -> None:
    settled: list[Ticket] = []
    disk, slave = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT), WaitLine(PutStatus.FLUSH_SLAVE_TIMEOUT)
    one = ticket(1, settled)
    disk.add(one, 1.0)
    slave.add(one, 1.0)
    disk.advance(1)
    assert settled == []
    slave.advance(1)
    assert one.status is PutStatus.PUT_OK


def test_the_slave_has_the_last_word_when_both_are_late() -> None:
    disk, slave = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT), WaitLine(PutStatus.FLUSH_SLAVE_TIMEOUT)
    one = ticket(1)
    disk.add(one, 1.0)
    slave.add(one, 1.0)
    disk.expire(1.0)
    slave.expire(1.0)
    assert one.status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_one_late_line_is_enough() -> None:
    disk, slave = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT), WaitLine(PutStatus.FLUSH_SLAVE_TIMEOUT)
    one = ticket(1)
    disk.add(one, 1.0)
    slave.add(one, 1.0)
    disk.expire(1.0)
    slave.advance(1)
    assert one.status is PutStatus.FLUSH_DISK_TIMEOUT


def test_a_line_that_fails_acknowledges_nobody() -> None:
    line = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT)
    tickets = [ticket(end) for end in (1, 2)]
    for each in tickets:
        line.add(each, 1.0)
    line.fail(PutStatus.UNKNOWN_ERROR, "the disk is broken")
    assert [(each.status, each.remark) for each in tickets] == [(PutStatus.UNKNOWN_ERROR, "the disk is broken")] * 2
    assert len(line) == 0


def test_a_caller_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Ticket) -> None:
        raise ValueError("my fault")

    line = WaitLine(PutStatus.FLUSH_DISK_TIMEOUT)
    settled: list[Ticket] = []
    line.add(Ticket(None, broken, end_offset=1), 1.0)
    line.add(ticket(2, settled), 1.0)
    line.advance(2)
    assert len(settled) == 1
    assert "my fault" in caplog.text


def test_message_ids() -> None:
    one = Ticket(None, physical_offset=4096, store_host=pack_host("127.0.0.1", 10911))
    assert one.message_id == "7F00000100002A9F0000000000001000"
    one.offsets = [4096, 8192]
    assert one.message_id == "7F00000100002A9F0000000000001000,7F00000100002A9F0000000000002000"


async def test_a_ticket_can_be_awaited() -> None:
    one = Ticket(None)
    future = one.future()
    assert not future.done()
    one.settle(PutStatus.PUT_OK)
    assert (await future) is one
    assert (await one.future()) is one, "and again when it is settled"


async def test_the_callback_is_called_beside_the_future() -> None:
    settled: list[Ticket] = []
    one = Ticket(None, settled.append)
    future = one.future()
    one.settle(PutStatus.MESSAGE_ILLEGAL, "too long")
    assert settled == [one]
    assert (await future).remark == "too long"


async def test_who_no_longer_waits_is_not_in_the_way() -> None:
    one = Ticket(None)
    future = one.future()
    future.cancel()
    one.settle(PutStatus.PUT_OK)
    with pytest.raises(asyncio.CancelledError):
        await future


def test_watermarks_tell_when_the_log_has_grown() -> None:
    marks = Watermarks()
    called: list[str] = []
    marks.when_grown(0, lambda: called.append("beyond 0"))
    marks.when_grown(100, lambda: called.append("beyond 100"))
    marks.confirm(100)
    assert called == ["beyond 0"]
    marks.confirm(50)
    assert marks.confirmed == 100, "never back"
    marks.when_grown(99, lambda: called.append("at once"))
    assert called[-1] == "at once"
    marks.confirm(101)
    assert called[-1] == "beyond 100"
    marks.reset(7)
    assert (marks.appended, marks.flushed, marks.confirmed, marks.dispatched) == (7, 7, 7, 7)
