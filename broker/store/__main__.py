"""Tools for a store that nobody runs: `python -m cometmq.broker.store check DIR`.

Options in, a report out; what is looked at and how is known in `check` and `repair`. Exits with 0 when the store is
sound, 1 when something is wrong with it or it cannot be checked, 2 for wrong usage.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cometmq.daemon import StartError, SystemProperties, exit_with, reason_of
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    from cometmq.broker.store.check_log import Progress
    from cometmq.broker.store.check_report import Report

PROGRAM = "store"

#: Defects and notes that are printed; a line says how many there are besides.
SHOWN = 200


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Tools for store directories, of CometMQ and of Apache RocketMQ."""


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--repair", is_flag=True, help="Put right what is wrong. What is replaced goes to quarantine/.")
@click.option("--plain", is_flag=True, help="No progress bar, also on a terminal.")
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="The broker's configuration file.")
@click.option("-D", "definitions", metavar="KEY=VALUE", multiple=True, help="A config item, e.g. a file size.")
def check(directory: str, repair: bool, plain: bool, config_file: str | None, definitions: tuple[str, ...]) -> None:
    """Verify every record, queue unit, index entry and offset of a store that no broker runs.

    File sizes are those of the files when neither -c nor -D gives them.
    """
    # Warnings of the parts that read: the report says the same, and better.
    logging.getLogger("cometmq").addHandler(logging.NullHandler())
    logging.getLogger("cometmq").propagate = False
    try:
        properties = _read_properties(config_file) if config_file else {}
        properties |= SystemProperties(definitions).defined
        directory = os.path.abspath(directory)
        with _progress(plain) as progress:
            report = _repair(directory, properties, progress) if repair else _check(directory, properties, progress)
    except (CometMQError, OSError) as error:
        exit_with(PROGRAM, error)
    sys.exit(0 if report.sound else 1)


def _check(directory: str, properties: dict[str, str], progress: "Progress | None") -> "Report":
    from cometmq.broker.store.check import Check, kept_still

    with kept_still(directory):
        report = Check(directory, properties, progress=progress).run()
    _print(directory, report)
    return report


def _repair(directory: str, properties: dict[str, str], progress: "Progress | None") -> "Report":
    from cometmq.broker.store.repair import Repair

    before, after = Repair(directory, properties, say=click.echo, progress=progress).run()
    if before is not after:
        click.echo(f"before the repair: {_count(before.defect_count, 'defect')}")
    _print(directory, after)
    return after


def _print(directory: str, report: "Report") -> None:
    for title, findings, count in (
        ("note", report.notes, report.note_count),
        ("DEFECT", report.defects, report.defect_count),
    ):
        for finding in findings[:SHOWN]:
            click.echo(f"{title}: {finding}")
        if count > SHOWN:
            click.echo(f"{title}: {count - SHOWN} more")
    click.echo(
        f"{directory}: log {report.begin} to {report.end}, {_count(report.log_files, 'file')}, "
        f"{_count(report.records, 'record')}; {_count(report.queues, 'queue')}, {_count(report.units, 'unit')}; "
        f"{_count(report.index_files, 'index file')}, {_count(report.index_entries, 'entry', 'entries')}; "
        f"{_count(report.offsets, 'consumer offset')}; {_count(report.timers, 'timer')}"
    )
    verdict = "sound" if report.sound else _count(report.defect_count, "defect")
    click.echo(f"{verdict}, {_count(report.note_count, 'note')}")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


@contextlib.contextmanager
def _progress(plain: bool) -> Iterator["Progress | None"]:
    """A bar on a terminal; nothing elsewhere."""
    if plain or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("reading the log"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _read_properties(path: str) -> dict[str, str]:
    from cometmq.protocol import properties_text
    from cometmq.protocol.errors import BodyError

    try:
        with open(path, "rb") as file:
            return properties_text.loads(file.read())
    except OSError as error:
        raise StartError(f"cannot read {path}: {reason_of(error)}", "name a file that can be read") from error
    except BodyError as error:
        raise StartError(f"cannot read {path}: {error}", "correct that line") from error


if __name__ == "__main__":
    main(prog_name=f"python -m {__spec__.parent}" if __spec__ else PROGRAM)
