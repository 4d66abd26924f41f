"""Values of options: addresses, times, yes or no, attributes. Text in, values out; mistakes are usage errors."""

import os
import time
from datetime import datetime

import click

#: Where a broker listens unless told otherwise; `-b host` means this port.
BROKER_PORT = 10911


def broker_address(text: str) -> str:
    """`host:port` of a broker; without a port 10911 is meant."""
    from cometmq.remoting.address import parse_address
    from cometmq.remoting.errors import BadAddress

    given = text.strip()
    address = given if ":" in given and not given.endswith("]") else f"{given}:{BROKER_PORT}"
    try:
        parse_address(address)
    except BadAddress as error:
        raise click.BadParameter(str(error)) from error
    return address


def timestamp(text: str) -> tuple[str, int]:
    """Milliseconds, or `yyyy-MM-dd#HH:mm:ss:SSS` in local time, or `now`: the text, and milliseconds."""
    given = text.strip()
    if given == "now":
        return given, time.time_ns() // 1_000_000
    digits = given.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return given, int(given)
    moment, _, millis = given.rpartition(":")
    try:
        at = datetime.strptime(moment, "%Y-%m-%d#%H:%M:%S").astimezone()
        return given, round(at.timestamp() * 1000) + int(millis)
    except ValueError:
        raise click.BadParameter(f"{given!r} is no time: give milliseconds, now, or yyyy-MM-dd#HH:mm:ss:SSS") from None


def json_file(text: str) -> bytes:
    """The content of a file that has to be there."""
    try:
        with open(text, "rb") as file:
            return file.read()
    except OSError as error:
        raise click.BadParameter(f"the file path {text} does not exists: {error.strerror}") from error


def directory(text: str) -> str:
    """The whole path of a directory that has to be there."""
    if not os.path.isdir(text):
        raise click.BadParameter(f"there is no directory {text}")
    return os.path.abspath(text)


def attributes_of(text: str | None) -> dict[str, str]:
    """Changes of attributes, `+a=b,-c`, as a table: `{"+a": "b", "-c": ""}`."""
    table: dict[str, str] = {}
    for item in (text or "").split(","):
        change = item.strip()
        if not change:
            continue
        name, equals, value = change.partition("=")
        sets = name.startswith("+") and len(name) > 1 and bool(equals)
        removes = name.startswith("-") and len(name) > 1 and not equals
        if not sets and not removes:
            raise click.UsageError(f"attribute {change!r}: write +name=value to set one, -name to remove one")
        if any(name[1:] == known[1:] for known in table):
            raise click.UsageError(f"attribute {name[1:]!r} is given twice")
        table[name] = value
    return table


def one_of(broker: str | None, cluster: str | None) -> None:
    """One of `-b` and `-c` has to be there; when both are, `-b` wins."""
    if broker is None and cluster is None:
        raise click.UsageError("Missing required option: one of -b (a broker) and -c (a cluster)")
