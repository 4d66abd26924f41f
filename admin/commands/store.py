"""checkStore: the self-check of a store directory that no broker runs, CometMQ's or RocketMQ's.

The only command that needs no server, and the only one that looks into the broker's part: its store.
"""

from typing import TYPE_CHECKING

import click

from cometmq.admin.arguments import directory
from cometmq.admin.command import Session, command
from cometmq.client.errors import ClientError

if TYPE_CHECKING:
    from cometmq.broker.store.check_report import Report

#: Defects and notes that are shown.
SHOWN = 200


class StoreDamaged(ClientError):
    """Raised when a store is not sound."""

    remedy = "python -m cometmq.broker.store check --repair DIR puts right what can be put right"


@command(
    "checkStore",
    click.Argument(["path"], metavar="DIR", type=directory),
    help="Verify every record, queue unit, index entry and offset of a store directory that no broker runs.",
)
async def check_store(session: Session, *, path: str) -> None:
    from cometmq.broker.store.check import Check, kept_still

    with kept_still(path):
        report = Check(path, {}).run()
    _show(session, path, report)
    if report.defect_count:
        raise StoreDamaged(f"{path} has {report.defect_count} defects")


def _show(session: Session, path: str, report: "Report") -> None:
    for title, findings, count in (
        ("note", report.notes, report.note_count),
        ("DEFECT", report.defects, report.defect_count),
    ):
        for finding in findings[:SHOWN]:
            session.out.line(f"{title}: {finding}")
        if count > SHOWN:
            session.out.line(f"{title}: {count - SHOWN} more")
    counts = {
        "records": report.records,
        "logFiles": report.log_files,
        "queues": report.queues,
        "units": report.units,
        "indexFiles": report.index_files,
        "indexEntries": report.index_entries,
        "offsets": report.offsets,
    }
    looked_at = ", ".join(f"{name} {count}" for name, count in counts.items())
    session.out.line(f"{path}: log {report.begin} to {report.end}; {looked_at}")
    session.out.line("sound" if report.sound else f"{report.defect_count} defects, {report.note_count} notes")
    session.out.result(
        {
            "directory": path,
            "sound": report.sound,
            "begin": report.begin,
            "end": report.end,
            **counts,
            "defects": [str(finding) for finding in report.defects],
            "notes": [str(finding) for finding in report.notes],
        }
    )
