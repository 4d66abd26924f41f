"""Faults of a fake disk: what happens to the next operations of a kind.

Operations that fail, take long, or wait at a gate until a test opens it. Which operations there are, and what a failed
one leaves, the disk knows.
"""

import errno
import os
import threading
import time
from dataclasses import dataclass

from cometmq.broker.store.clock import Clock, FakeClock


class Gate:
    """A place where an operation waits until it is opened."""

    def __init__(self) -> None:
        #: Set when somebody has come to the gate.
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.reached.set()
        self._open.wait()


@dataclass(slots=True)
class Fault:
    """Something that will happen to some operations."""

    operation: str
    path: str
    after: int
    times: int
    error: int = 0
    partial: int = 0
    seconds: float = 0.0
    gate: Gate | None = None

    def raise_for(self, path: str) -> None:
        raise OSError(self.error, os.strerror(self.error), path)


class Faults:
    """The part of a fake disk that makes trouble."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._faults: list[Fault] = []
        self._faults_lock = threading.Lock()

    def fail_next(
        self,
        operation: str,
        error: int = errno.EIO,
        *,
        path: str = "",
        after: int = 0,
        times: int = 1,
        partial: int = 0,
    ) -> None:
        """The next operations of this kind on paths with this in them fail; of a write, `partial` bytes get through.

        Kinds: open, read, write, sync, reserve, write_file, rename, unlink, sync_dir. `after` lets some pass first.
        A failed sync leaves what it should have saved in doubt for ever, as kernels do.
        """
        self._faults.append(Fault(operation, path, after, times, error=error, partial=partial))

    def slow_next(self, operation: str, seconds: float, *, path: str = "", after: int = 0, times: int = 1) -> None:
        """The next operations of this kind take that long: of the disk's clock if that is a fake one, else really."""
        self._faults.append(Fault(operation, path, after, times, seconds=seconds))

    def gate(self, operation: str, *, path: str = "", after: int = 0) -> Gate:
        """The next operation of this kind waits at the returned gate. For work in threads."""
        gate = Gate()
        self._faults.append(Fault(operation, path, after, 1, gate=gate))
        return gate

    def heal(self) -> None:
        """Takes back all faults that have not come up."""
        self._faults.clear()

    def _meet(self, operation: str, path: str) -> None:
        """Acts out what waits for an operation; raises when it is to fail."""
        if self._faults and (fault := self._due(operation, path)) is not None:
            fault.raise_for(path)

    def _due(self, operation: str, path: str) -> Fault | None:
        """Acts out delays. Returns a failure, for those who leave something behind when they fail."""
        if not self._faults:
            return None
        due = []
        with self._faults_lock:
            for fault in list(self._faults):
                if fault.operation != operation or fault.path not in path:
                    continue
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                due.append(fault)
        failure = None
        for fault in due:
            if fault.gate is not None:
                fault.gate.pass_through()
            if fault.seconds and isinstance(self.clock, FakeClock):
                self.clock.advance(fault.seconds)
            elif fault.seconds:
                time.sleep(fault.seconds)
            if fault.error:
                failure = fault
        return failure
