"""`EmbeddedBroker`: nameserver and broker on a thread and a loop of their own, for tests in any framework.

Whatever the test's own loop does, the broker serves: it is used like one in another process, through its address. The
calls here are made by the test's thread; what they do happens on the broker's.
"""

import asyncio
import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from cometmq.broker.broker import Broker
from cometmq.broker.hooks import BrokerHook, Hooks
from cometmq.broker.standalone import Standalone, standalone_config
from cometmq.loops import loop_factory
from cometmq.options import text_of
from cometmq.testing.clock import MovableClock

_T = TypeVar("_T")

#: A store that lives as long as a test needs no files of a gigabyte.
SMALL_STORE = {"mappedFileSizeCommitLog": str(64 * 1024**2), "commitLogReserveStep": str(1024**2)}

#: A broker that shares its cores, and its interpreter, with a test shall be slow there and not refuse messages.
PATIENT = {"waitTimeMillsInSendQueue": "10000", "waitTimeMillsInPullQueue": "60000"}

#: Seconds that a start or a call may take before the test is told that something hangs.
PATIENCE = 60.0


class EmbeddedBroker:
    """A real broker with a nameserver, on free ports of 127.0.0.1, as `with` or `async with`.

    `store` is the directory to use; without one there is a temporary one, which is removed at the end. `config` holds
    RocketMQ's keys: `{"autoCreateTopicEnable": False, "messageDelayLevel": "1s 5s"}`. `hooks` are plug-ins of the
    broker; those of installed packages are not loaded.
    """

    def __init__(
        self,
        *,
        store: Path | str | None = None,
        config: Mapping[str, object] | None = None,
        hooks: tuple[BrokerHook, ...] = (),
    ) -> None:
        self._store = store
        self._settings = {key: text_of(value) for key, value in (config or {}).items()}
        self._hooks = hooks
        self._clock = MovableClock()
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._both: Standalone | None = None
        self._ports = (0, int(self._settings.get("listenPort", "0")))

    # Where it is

    @property
    def nameserver(self) -> str:
        """What a client is given as the address of its nameserver."""
        return self._running.nameserver_address

    @property
    def address(self) -> str:
        """`host:port` of the broker itself."""
        return self._running.broker.address

    @property
    def store(self) -> Path:
        """The directory with all its files."""
        return Path(self._temporary if self._store is None else self._store)  # type: ignore[arg-type]

    @property
    def _running(self) -> Standalone:
        if self._both is None:
            raise RuntimeError("the broker does not run: use it inside of `with` or `async with`, or call start()")
        return self._both

    # Its life

    def start(self) -> None:
        """Start it; returns when it is ready. Raises what kept it from starting."""
        if self._thread is not None:
            raise RuntimeError("the broker runs already")
        if self._store is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="cometmq-")
        started: _Outcome = _Outcome()
        self._thread = threading.Thread(target=self._run, args=(started,), name="cometmq broker", daemon=True)
        self._thread.start()
        try:
            started.wait()
        except BaseException:
            self._thread.join()
            self._thread = None
            self._remove_temporary()
            raise

    def close(self) -> None:
        """End it, and remove its temporary directory. Nothing happens the second time."""
        self._end()
        self._remove_temporary()

    def restart(self) -> None:
        """End it properly and start it again with the same ports and files, as after an update."""
        self._ports = (self._running.nameserver.port, self._running.broker.port)
        self._end()
        self.start()

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    # What a test does with it

    def advance(self, time: timedelta) -> None:
        """Move the broker's wall clock; returns when everything that became due by it has been dispatched.

        Delays and retries become due; heartbeats, locks and long polls do not notice. From a coroutine, call it by
        `await asyncio.to_thread(broker.advance, ...)`, or the test's own loop stands still meanwhile.
        """
        if time < timedelta(0):
            raise ValueError("time does not go back")
        self._call(self._advance(round(time.total_seconds() * 1000)))

    def inspect(self, look: Callable[[Broker], _T]) -> _T:
        """What a function finds out about the broker, on the broker's own thread."""

        async def asked() -> _T:
            return look(self._running.broker)

        return self._call(asked())

    async def _advance(self, millis: int) -> None:
        self._clock.ahead += millis
        state = self._running.broker.state
        await state.delay.settle()
        state.store.dispatch.catch_up()

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._thread is None:
            work.close()
            raise RuntimeError("the broker does not run")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called on the broker's own thread, which would wait for itself")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    # On its thread

    def _run(self, started: "_Outcome") -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve(started))
        except BaseException as error:
            started.fail(error)

    async def _serve(self, started: "_Outcome") -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        nameserver, broker = self._ports
        defaults = SMALL_STORE if self._store is None else {}
        config = standalone_config(
            {**PATIENT, **defaults, **self._settings}, {}, nameserver=f"127.0.0.1:{nameserver}", store=str(self.store)
        )
        config = dataclasses.replace(config, listen_port=broker)
        both = Standalone(
            config,
            nameserver=f"127.0.0.1:{nameserver}",
            clock=self._clock,
            hooks=Hooks(self._hooks),
            # A port that the system chose has no neighbour that would be free for sure.
            fast_port="listenPort" in self._settings,
        )
        async with both:
            self._both = both
            started.succeed()
            await self._stop.wait()
            self._both = None


class _Outcome:
    """How the start on another thread ended."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def succeed(self) -> None:
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> None:
        if not self._done.wait(PATIENCE):
            raise TimeoutError(f"the broker was not ready after {PATIENCE:g} s")
        if self._error is not None:
            raise self._error
