"""What the daemons share around their event loop: properties, logs, signals, and how they fail.

No protocol and no sockets here. Mirrors what RocketMQ has from the JVM: system properties (`-D`), logback's files, the
shutdown hook.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from cometmq.loops import loop_factory
from cometmq.protocol import properties_text
from cometmq.protocol.errors import BodyError, CometMQError
from cometmq.protocol.frame import MAX_FRAME

#: RocketMQ's sizes: a log file is rotated at 100 MiB, and this many old ones are kept.
LOG_FILE_BYTES = 100 * 1024 * 1024
LOG_FILE_COUNT = 5

TLS_PROPERTIES = (
    "tls.enable",
    "tls.test.mode.enable",
    "tls.server.mode",
    "tls.server.need.client.auth",
    "tls.client.authServer",
    *(f"tls.{side}.{file}" for side in ("server", "client") for file in ("certPath", "keyPath", "trustCertPath")),
    "tls.server.keyPassword",
    "tls.client.keyPassword",
)

#: Longest message of a record, in characters: a page of it says what there is to say.
MAX_LOG_MESSAGE = 4000
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s - %(message)s"

log = logging.getLogger(__name__)


class UsageError(CometMQError):
    """Raised when the command line is wrong."""


class StartError(CometMQError):
    """Raised when a daemon cannot start; says what failed and why, and `remedy` what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy


class SystemProperties:
    """Java's system properties: `-D key=value`, else the environment variable of the same name in capitals.

    `rocketmq.namesrv.addr` is `ROCKETMQ_NAMESRV_ADDR` in the environment.
    """

    def __init__(self, definitions: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> None:
        self.defined: dict[str, str] = {}
        self._environ = environ
        for definition in definitions:
            key, equals, value = definition.partition("=")
            if not key.strip() or not equals:
                raise UsageError(f"-D takes key=value, not {definition!r}")
            self.defined[key.strip()] = value

    def get(self, key: str) -> str | None:
        """The value of a property, or None. An empty environment variable counts as not set."""
        value = self.defined.get(key)
        if value is None:
            value = self._environ.get(key.upper().replace(".", "_")) or None
        return value

    def found(self, keys: Iterable[str]) -> dict[str, str]:
        """Those of the keys that are set."""
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def overrides(self, prefix: str, keys: Collection[str]) -> dict[str, str]:
        """Keys of a configuration file that are set here: with a prefix, or plainly by -D."""
        found = self.found(prefix + key for key in keys)
        plain = {key: value for key, value in self.defined.items() if key in keys}
        return {key.removeprefix(prefix): value for key, value in found.items()} | plain


def read_properties(path: str) -> dict[str, str]:
    """The keys of a `.properties` file that the user named."""
    try:
        with open(path, "rb") as file:
            return properties_text.loads(file.read())
    except OSError as error:
        raise StartError(
            f"cannot read {path}: {reason_of(error)}", "name a file that exists and is readable"
        ) from error
    except BodyError as error:
        raise StartError(f"cannot read {path}: {error}", "correct that line") from error


def tls_settings(properties: SystemProperties) -> dict[str, str]:
    """What system properties, and the file that one of them names, say about TLS."""
    settings = read_properties(path) if (path := properties.get("tls.config.file")) else {}
    return settings | properties.found(TLS_PROPERTIES)


def frame_limit(properties: SystemProperties) -> int:
    """The longest frame that is accepted (bytes)."""
    key = "com.rocketmq.remoting.frameMaxLength"
    text = properties.get(key)
    if text is None:
        return MAX_FRAME
    # Above 32 MiB the first byte of a frame could be that of another protocol.
    if not text.isascii() or not text.isdigit() or not 1024 <= int(text) < 2**25:
        raise StartError(f"{key}={text}: expected a number of bytes from 1024 to {2**25 - 1}", "correct the value")
    return int(text)


def announce(line: str) -> None:
    """Print a line that others wait for, e.g. that the daemon is ready."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _let_stdout_go()


def _let_stdout_go() -> None:
    """Whoever read our output has left. A daemon goes on without, and does not trip over it at exit either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _StdoutHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            _let_stdout_go()
        else:
            super().handleError(record)


def log_to(directory: Path | str | None, file_name: str, parts: Mapping[str, str] | None = None) -> None:
    """Send the logs to stdout, or to rotated files in a directory that is made when it is missing.

    `parts` are loggers that get files of their own there: name of the logger -> name of the file.
    """
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.setLevel(logging.INFO)
    if directory is None:
        _add_handler(root, _StdoutHandler(sys.stdout))
        return
    _add_handler(root, _rotated(Path(directory).expanduser() / file_name))
    for name, own_file in (parts or {}).items():
        logger = logging.getLogger(name)
        _add_handler(logger, _rotated(Path(directory).expanduser() / own_file))
        logger.propagate = False


class _Formatter(logging.Formatter):
    """Whatever peers put into their names, a record is one line of bounded length; traces have lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if len(text) > MAX_LOG_MESSAGE:
            text = f"{text[:MAX_LOG_MESSAGE]}... ({len(text)} characters)"
        record.message = text.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


def _add_handler(logger: logging.Logger, handler: logging.Handler) -> None:
    handler.setFormatter(_Formatter(_LOG_FORMAT))
    logger.addHandler(handler)


def _rotated(path: Path) -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # pulls sockets and pickle in: only where it is needed

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(
            path, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILE_COUNT, encoding="utf-8", errors="backslashreplace"
        )
    except OSError as error:
        raise StartError(
            f"cannot write the log {path}: {reason_of(error)}", "choose another directory with -d"
        ) from error


def run(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a daemon's coroutine on the fastest loop there is. SIGINT and SIGTERM set the event that it waits for.

    A second signal ends the process at once: somebody is tired of waiting for a clean end.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask_to_stop(name: str) -> None:
            if stop.is_set():
                os._exit(1)
            log.info("%s: shutting down", name)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, ask_to_stop, number.name)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda n, _: loop.call_soon_threadsafe(ask_to_stop, signal.Signals(n).name))
        await serve(stop)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


def reason_of(error: OSError) -> str:
    """Why a call to the system failed, in lower case and without its number."""
    return (error.strerror or str(error)).lower()


def exit_with(program: str, error: CometMQError | OSError) -> NoReturn:
    """End the process with one line on stderr: 2 when the command line was wrong, 1 for every other failure."""
    text = reason_of(error) if isinstance(error, OSError) else str(error)
    remedy = getattr(error, "remedy", "")
    line = " ".join(f"{program}: {text}{'; ' if remedy else ''}{remedy}".split())
    print(line, file=sys.stderr)
    sys.exit(2 if isinstance(error, UsageError) else 1)


def calm_collector() -> None:
    """Let Python's cycle collector look at what is new only, and less often.

    Requests in flight are no cycles; a thousand of them make its defaults take a tenth of the processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
