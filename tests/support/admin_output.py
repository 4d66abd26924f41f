"""What the real mqadmin printed (tests/data/admin), and prints, as values in which only what must be equal is left.

Times, addresses, ids and paths are replaced by their kind, widths of columns by one blank: those hang on the data.
Lines are a set: rows of queues come in any order, and rows that differ in their numbers only are one.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "admin"

_KINDS = [
    (re.compile(r"/tmp/\S+|/srv/\S+|/usr/rmq\S*"), "<path>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?"), "<time>"),
    (re.compile(r"\b1[78]\d{11}\b"), "<time>"),
    (re.compile(r"\d+\.\d+\.\d+\.\d+@[\w#-]+"), "<client>"),
    (re.compile(r"/?\d+\.\d+\.\d+\.\d+:\d+"), "<address>"),
    (re.compile(r"\b[0-9A-F]{32}\b"), "<id>"),
    (re.compile(r"body=\[[^\]]*\]"), "body=[]"),
    (re.compile(r"BODY: .*"), "BODY: "),
]
_NUMBER = re.compile(r"(?<![\w.<])-?\d+(\.\d+)?(E-?\d+)?(?![\w.])|(?<=key)\d+")
_CAUSE = re.compile(r"CODE: (\d+) +DESC: ([^\n]*)")


@dataclass(frozen=True, slots=True)
class Printed:
    """What one command printed."""

    out: str
    err: str

    def lines(self, *, numbers: bool = False) -> set[str]:
        """The lines of stdout; with `numbers` every number is one."""
        out = self.out.replace("MessageTrack [", "\nMessageTrack [")  # some commands print them on one line
        return {tidy(line, numbers) for line in out.splitlines() if line.strip()}

    @property
    def cause(self) -> tuple[int, str] | None:
        """Code and text of what went wrong, as the command's stack trace tells it."""
        found = _CAUSE.search(self.err)
        return (int(found[1]), tidy(found[2], True).removesuffix(" BROKER: <address>")) if found else None


def tidy(line: str, numbers: bool) -> str:
    for pattern, kind in _KINDS:
        line = pattern.sub(kind, line)
    if numbers:
        line = _NUMBER.sub("<n>", line)
    return re.sub(r"\s+", " ", line).strip()


def golden(name: str) -> Printed:
    """The recorded output of a command."""
    text = (FOLDER / f"{name}.txt").read_text()
    out = text.partition("--- stdout\n")[2].partition("--- stderr")[0]
    return Printed(out, text.partition("--- stderr")[2])
