"""A wall clock that a test may move; the monotonic one goes on as it does.

Delays, retries and retention follow the wall clock, heartbeats, locks and long polls the monotonic one: a test that
waits two hours loses no client by it.
"""

from cometmq.broker.store.clock import SystemClock


class MovableClock(SystemClock):
    """The clocks of the machine, with the wall clock ahead by what the test has moved it."""

    def __init__(self) -> None:
        #: Milliseconds.
        self.ahead = 0

    def wall(self) -> int:
        return super().wall() + self.ahead
