"""What a broker does by the clock: each job by its period, on the loop, until it is told to stop.

A job that raises is logged and comes again. Periods are functions: they may change while the broker runs. The
scheduled executors of RocketMQ's BrokerController.
"""

import logging
from collections.abc import Callable

from cometmq.broker.store.runner import Handle, Runner

log = logging.getLogger(__name__)


class Jobs:
    """The periodic jobs of one broker."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._timers: dict[str, Handle] = {}
        self._is_stopped = False

    def every(self, name: str, period: Callable[[], float], job: Callable[[], None]) -> None:
        """Run a job each time its period (seconds) is over."""

        def run() -> None:
            if self._is_stopped:
                return
            self._timers[name] = self._runner.call_later(period(), run)
            try:
                job()
            except Exception:
                log.exception("%s failed; it is tried again in %g s", name, period())

        if name in self._timers:
            raise ValueError(f"there is a job {name!r} already")
        self._timers[name] = self._runner.call_later(period(), run)

    def stop(self) -> None:
        """No job runs any more."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
