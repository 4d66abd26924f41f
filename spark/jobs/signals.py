"""How Ctrl-C and SIGTERM end a job as a command: at the next good moment where something is to be saved, else at once.

Mutable state: the handlers of this process, and whether its logging is on.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.spark.jobs.metrics import Metrics

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Ended(KeyboardInterrupt):
    """Raised when a signal ends a job at once."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.signal = number


class StoppedEarly(Exception):
    """Raised when a signal ended a job that was not through; what it did until then is done."""

    def __init__(self, metrics: "Metrics", number: int, left: int | None) -> None:
        rest = "" if left is None else f" with {left:,} to go"
        super().__init__(f"stopped by {signal.Signals(number).name}{rest}; start it again to go on from there")
        self.metrics = metrics
        self.signal = number


class Stop(threading.Event):
    """Set by a signal, whose number it keeps."""

    signal: int | None = None

    def ended(self, metrics: "Metrics") -> "Metrics":
        """The figures of a job that ends by itself: StoppedEarly when it did not."""
        return self.ended_with(metrics, metrics.backlog)

    def ended_with(self, metrics: "Metrics", left: int | None) -> "Metrics":
        """The same where what is left to do is not the backlog."""
        if self.signal is not None and left != 0:
            raise StoppedEarly(metrics, self.signal, left)
        return metrics


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A signal raises Ended."""
    with _handled(_end):
        yield


def listen_again() -> None:
    """Take the signals back within `ended_by_signals`: Spark's context asks its Java things when Ctrl-C comes."""
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, _end)


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """An event that a signal sets: the job ends at the next good moment. The second one ends at once."""
    stop = Stop()

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            _end(number, frame)
        stop.signal = number
        stop.set()

    with _handled(on_signal):
        try:
            yield stop
        except Exception as error:
            # Under spark-submit Java hears SIGTERM, too: what fails then is this stop.
            if stop.signal is None or not _java_is_gone():
                raise
            raise Ended(stop.signal) from error


@contextmanager
def java_deaf_to_sigterm() -> Iterator[None]:
    """Java that is started meanwhile does not hear SIGTERM, as pyspark has it not hear Ctrl-C.

    systemd and `timeout` signal all processes of a group. Java would end while the job brings its work to an end; as
    it is, it ends when its stdin does, after this process.
    """
    import pyspark.java_gateway

    gateway: Any = pyspark.java_gateway
    start = getattr(gateway, "Popen", None)
    if start is None or os.name != "posix":
        yield
        return

    begun = []

    def started(*arguments: Any, preexec_fn: Callable[[], None], **settings: Any) -> Any:
        def deaf() -> None:
            preexec_fn()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        begun.append(start(*arguments, preexec_fn=deaf, **settings))
        return begun[-1]

    gateway.Popen = started
    try:
        yield
    except BaseException:
        for each in begun:  # half started, it would wait for this process for ever
            each.kill()
        raise
    finally:
        gateway.Popen = start


def _end(number: int, frame: object) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    logging.disable()  # py4j and Spark would tell about the calls that this breaks
    raise Ended(number)


@contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def _java_is_gone() -> bool:
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    try:
        return context is None or bool(context._jsc.sc().isStopped())
    except Exception:
        return True
