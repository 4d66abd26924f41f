"""How a job is made a command: the options that all have, Spark's session, and how results and failures are told.

Exit codes: 0 fine, 1 the job failed (one line on stderr: what, why, what to do), 2 wrong usage, 130 and 143 stopped by
Ctrl-C and SIGTERM before its end. Everything that is slow to load is imported when a job runs, so that help and wrong
usage are answered at once.
"""

import functools
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cometmq.protocol.errors import CometMQError
from cometmq.spark.jobs.signals import Ended, StoppedEarly, ended_by_signals, java_deaf_to_sigterm, listen_again

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cometmq.spark.jobs.metrics import Display, Metrics, ResultTable

PROGRAM = "python -m cometmq.spark"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all jobs are told by the command line."""

    name_server: str | None
    #: Options of the data source.
    options: Mapping[str, str]
    master: str | None
    conf: Mapping[str, str]
    json: bool
    quiet: bool
    verbose: bool

    def display(self) -> "Display":
        from cometmq.spark.jobs.metrics import Bar, Lines, Silence

        if self.quiet:
            return Silence()
        return Bar() if sys.stderr.isatty() else Lines()

    def session(self, job: str) -> "SparkSession":
        """Spark: the one that spark-submit made, or a quiet one of our own."""
        from pyspark.logger import PySparkLogger

        from cometmq.spark import session, set_elsewhere

        config = {"spark.ui.showConsoleProgress": "false", **self.conf}
        name = f"cometmq {job}"
        if self.verbose or "PYSPARK_GATEWAY_PORT" in os.environ:
            with java_deaf_to_sigterm():
                spark = session(name, self.master, config)
            listen_again()
            return spark
        # The job says what failed, in one line; these would say it before, in a hundred.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(logger).disabled = True
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        log = Path(__file__).with_name("log4j2.properties")
        if log.is_file():  # not when the package is inside of a zip
            # What is said here overrules what was said elsewhere: both have to be in it.
            said = {**set_elsewhere.settings(os.environ), **config}
            given = said.get("spark.driver.extraJavaOptions", "")
            config["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log.as_uri()} {given}".strip()
        with java_deaf_to_sigterm(), _java_kept_quiet():
            spark = session(name, self.master, config)
        listen_again()
        return spark


@contextmanager
def _java_kept_quiet() -> Iterator[None]:
    """Java is started with another stderr: it greets there. What it said is shown when it does not start."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception:
            said.seek(0)
            os.write(kept, said.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`key=value` texts as a table."""
    found = {}
    for each in values:
        key, sign, text = each.partition("=")
        if not sign or not key.strip():
            raise click.BadParameter(f"{each!r} is not key=value", ctx, param)
        found[key.strip()] = text
    return found


def time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A time: ISO 8601 (UTC where it says no zone), or milliseconds since 1970."""
    from cometmq.spark.jobs.messages import time_of

    try:
        return None if value is None else time_of(value)
    except (ValueError, OverflowError, OSError):
        remedy = "write 2026-01-31T08:00:00Z or milliseconds (not seconds) since 1970, such as 1769846400000"
        raise click.BadParameter(f"{value!r} is no time; {remedy}", ctx, param) from None


def chart_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A file that a chart can be written to."""
    if value is not None:
        from cometmq.spark.jobs.chart import check_form
        from cometmq.spark.jobs.errors import JobError

        try:
            check_form(value)
        except JobError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


@contextmanager
def wrong_usage(kind: type[Exception]) -> Iterator[None]:
    """Such an error of what reads the values of options is wrong usage, too."""
    from cometmq.spark.jobs.errors import told

    try:
        yield
    except kind as error:
        raise click.UsageError(told(error)) from None


def duration(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """A length of time, as the jobs read it."""
    from cometmq.spark.jobs.durations import REMEDY, millis_of

    try:
        millis_of(value, least=1 if param.name == "window" else 0)
    except ValueError:
        raise click.BadParameter(f"{value!r} is none; {REMEDY}", ctx, param) from None
    return value


_COMMON = (
    click.option("-n", "--namesrvAddr", "name_server", help="Nameservers: 'host:9876;host2:9876'. Or NAMESRV_ADDR"),
    click.option("--access-key", help="The user, where the brokers want one"),
    click.option("--secret-key", help="The user's secret"),
    click.option(
        "--option",
        "options",
        callback=pairs,
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of the data source; may be repeated",
    ),
    click.option("--master", help="Spark's master, such as local[4] or spark://host:7077"),
    click.option(
        "--conf", "conf", callback=pairs, multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated"
    ),
    click.option("--json", "as_json", is_flag=True, help="The result as one JSON document"),
    click.option("--quiet", is_flag=True, help="No progress"),
    click.option("--verbose", is_flag=True, help="Spark's own log, too, and tracebacks"),
)


def job(name: str, help: str) -> Callable[[Callable[..., "Metrics"]], click.Command]:
    """Makes a function `(settings, **options) -> Metrics` the command of a job."""

    def make(body: Callable[..., "Metrics"]) -> click.Command:
        @functools.wraps(body)
        def callback(**values: Any) -> None:
            settings = _settings(values)
            try:
                with ended_by_signals():
                    show(body(settings, **values), as_json=settings.json)
            except KeyboardInterrupt as ended:  # Spark has its own for a moment, while it starts
                number = ended.signal if isinstance(ended, Ended) else signal.SIGINT
                complain(f"{PROGRAM} {name}: {Ended(number)}", 128 + number)
            except StoppedEarly as stopped:
                show(stopped.metrics, as_json=settings.json)
                complain(f"{PROGRAM} {name}: {stopped}", 128 + stopped.signal)
            except Exception as error:
                if settings.verbose or not _is_told(error):
                    raise
                from cometmq.spark.jobs.errors import told

                complain(f"{PROGRAM} {name}: {told(error)}", 1)

        wrapped: Any = callback
        for decorate in reversed(_COMMON):
            wrapped = decorate(wrapped)
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}
        command = click.command(name, help=help, context_settings=names)(wrapped)
        # A job's own options first: they are what its help is read for.
        command.params = command.params[len(_COMMON) :] + command.params[: len(_COMMON)]
        return command

    return make


def _settings(values: dict[str, Any]) -> Settings:
    options = values.pop("options")
    for key, name in (("access_key", "accessKey"), ("secret_key", "secretKey")):
        value = values.pop(key)
        if value:
            options[name] = value
    return Settings(
        name_server=values.pop("name_server"),
        options=options,
        master=values.pop("master"),
        conf=values.pop("conf"),
        json=values.pop("as_json"),
        quiet=values.pop("quiet"),
        verbose=values.pop("verbose"),
    )


def _is_told(error: Exception) -> bool:
    """Whether it is a failure of the job, and not a mistake in this program."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, CometMQError | OSError | PySparkException | Py4JError)


# Telling


def show(metrics: "Metrics", *, as_json: bool) -> None:
    """The result on stdout: what was found out, then the figures."""
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(metrics.to_dict(), enc_hook=str), indent=2).decode())
        return
    for name, table in metrics.tables.items():
        if table.rows:
            _draw(name, table)
    from cometmq.spark.jobs.metrics import ResultTable

    figures = {key: value for key, value in metrics.to_dict().items() if key not in metrics.tables}
    _draw("", ResultTable(("figure", "value"), tuple((key, _figure(value)) for key, value in figures.items())))


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):  # an int, too
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else "-" if value is None else str(value)


def _draw(title: str, table: "ResultTable") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200)
    drawing = Table(title=title or None, title_justify="left", box=box.ROUNDED, header_style="bold")
    for number, name in enumerate(table.titles):
        is_number = all(isinstance(row[number], int | float) for row in table.rows)
        drawing.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        drawing.add_row(*(Text("" if cell is None else _figure(cell)) for cell in row))
    console.print(drawing)


def complain(text: str, code: int) -> NoReturn:
    print(" ".join(text.split()), file=sys.stderr)
    sys.exit(code)
