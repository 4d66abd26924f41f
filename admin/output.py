"""What a command shows, in three forms: RocketMQ's text, tables drawn for people, or one JSON document.

A command says everything once: lines and tables for the eye, and a result for machines. Which of it is printed depends
on where the output goes and on `--plain` and `--json`.
"""

import enum
import re
import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec


class Form(enum.Enum):
    """How output looks."""

    PLAIN = "plain"
    DRAWN = "drawn"
    JSON = "json"

    @classmethod
    def choose(cls, *, plain: bool, json: bool) -> "Form":
        """As told; else drawn on a terminal and plain elsewhere."""
        if json:
            return cls.JSON
        return cls.DRAWN if not plain and sys.stdout.isatty() else cls.PLAIN


class Table(msgspec.Struct, frozen=True):
    """Rows under titles. `head` and `row` are the printf formats of RocketMQ's text; no head, no title line there."""

    titles: tuple[str, ...]
    row: str
    rows: Sequence[tuple[object, ...]]
    head: str | None = None

    def plain(self) -> list[str]:
        lines = [] if self.head is None else [self.head % self.titles]
        return lines + [self.row % cells for cells in self.rows]

    def objects(self) -> list[dict[str, object]]:
        """The rows for machines, by titles in camel case: `#Broker Name` is brokerName."""
        keys = [_camel(title) for title in self.titles]
        return [dict(zip(keys, cells, strict=True)) for cells in self.rows]


def _camel(title: str) -> str:
    words: list[str] = re.findall(r"[A-Za-z0-9]+", title) or ["value"]
    first, *rest = words
    first = first.lower() if first.isupper() else first[0].lower() + first[1:]
    return first + "".join(word[0].upper() + word[1:] for word in rest)


class Output:
    """Collects the result of a command and prints what its form shows. Lines and tables go out at once."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._result: Any = None
        self._lines: list[str] = []
        self._tables: list[Table] = []

    def line(self, text: str = "") -> None:
        """A line, in both forms for the eye."""
        if self.form is Form.JSON:
            self._lines.append(text)
        else:
            click.echo(text)

    def table(self, table: Table) -> None:
        if self.form is Form.DRAWN:
            _draw(table)
        elif self.form is Form.PLAIN:
            for line in table.plain():
                click.echo(line)
        else:
            self._tables.append(table)

    def result(self, value: object) -> None:
        """What machines get. Without one it is made of the tables or the lines."""
        self._result = value

    def close(self) -> None:
        """Print what is printed at the end. It may be closed again after more was said."""
        if self.form is not Form.JSON:
            return
        value = self._result
        if value is None:
            objects = [each for table in self._tables for each in table.objects()]
            value = objects if self._tables else {"output": [line for line in self._lines if line]}
        text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
        click.echo(text.decode())
        self._result, self._lines, self._tables = None, [], []


def _draw(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(box=box.ROUNDED, header_style="bold")
    for number, title in enumerate(table.titles):
        is_number = bool(table.rows) and all(_is_number(cells[number]) for cells in table.rows)
        drawing.add_column(title.lstrip("#"), justify="right" if is_number else "left", overflow="fold")
    for cells in table.rows:
        drawing.add_row(*(Text(str(cell)) for cell in cells))
    Console().print(drawing)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or bool(re.fullmatch(r"\s*-?\d+(\.\d+)?", str(cell)))
