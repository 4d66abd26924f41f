"""How single messages are shown: their fields, the file with their body, and who has consumed them."""

import os
import re
import sys
import tempfile
from collections.abc import Mapping

from cometmq.admin.command import Session
from cometmq.admin.java_text import host_text, human_time, message_text, optional, properties_text
from cometmq.admin.output import Table
from cometmq.client.admin import MessageTrack
from cometmq.client.consumer.pulling import Pulled
from cometmq.client.message import ReceivedMessage


def body_folder() -> str:
    """Where bodies are saved, as RocketMQ's tools do."""
    return os.path.join(tempfile.gettempdir(), "rocketmq", "msgbodys")


def save_body(message: ReceivedMessage, suffix: str = "") -> str:
    """Write the body to a file of its own; its path. A failure is told on stderr and keeps nobody from the rest."""
    # The id is what a producer wrote: it must not lead anywhere else.
    name = re.sub(r"[^0-9A-Za-z_-]", "_", message.message_id)[:100] + suffix
    path = os.path.join(body_folder(), name)
    try:
        os.makedirs(body_folder(), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(message.body)
    except OSError as error:
        print(f"mqadmin: the body of {message.message_id} was not saved: {error}", file=sys.stderr)
    return path


def pulled_properties(message: ReceivedMessage, pulled: Pulled) -> dict[str, str]:
    """The properties of a pulled message as Java's clients show them: with the ends of its queue."""
    return {
        **message.properties,
        "MIN_OFFSET": str(pulled.min_offset),
        "MAX_OFFSET": str(pulled.max_offset),
    }


def fields(
    message: ReceivedMessage,
    *,
    path: str,
    with_id: bool = True,
    properties: Mapping[str, str] | None = None,
    charset: str | None = None,
) -> list[tuple[str, str]]:
    """The fields of a message in RocketMQ's order."""
    record = message.record
    shown = message.properties if properties is None else properties
    rows = [
        ("OffsetID:", message.offset_message_id),
        ("Topic:", record.topic),
        ("Tags:", f"[{optional(message.tag)}]"),
        ("Keys:", f"[{optional(message.properties.get('KEYS'))}]"),
        ("Queue ID:", str(record.queue_id)),
        ("Queue Offset:", str(record.queue_offset)),
        ("CommitLog Offset:", str(record.physical_offset)),
        ("Reconsume Times:", str(record.reconsume_times)),
        ("Born Timestamp:", human_time(record.born_timestamp)),
        ("Store Timestamp:", human_time(record.store_timestamp)),
        ("Born Host:", host_text(record.born_host)),
        ("Store Host:", host_text(record.store_host)),
        ("System Flag:", str(record.sys_flag)),
        ("Properties:", properties_text(shown)),
        ("Message Body Path:", path),
    ]
    if charset is not None:
        rows.append(("Message Body:", message.body.decode(charset, "replace")))
    return rows if with_id else rows[1:]


def show_fields(session: Session, rows: list[tuple[str, str]]) -> None:
    session.out.table(Table(("Field", "Value"), "%-20s %s", rows))


def track_text(track: MessageTrack) -> str:
    return f"MessageTrack [consumerGroup={track.group}, trackType={track.type}, exceptionDesc={optional(track.error)}]"


def show_tracks(session: Session, tracks: list[MessageTrack]) -> None:
    session.out.line()
    session.out.line()
    if not tracks:
        session.out.line("WARN: No Consumer")
    for track in tracks:
        session.out.line(track_text(track))


def message_object(message: ReceivedMessage, tracks: list[MessageTrack] | None = None) -> dict[str, object]:
    """A message for machines."""
    record = message.record
    found: dict[str, object] = {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": record.topic,
        "brokerName": message.queue.broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "tags": message.tag,
        "keys": message.keys,
        "reconsumeTimes": record.reconsume_times,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": host_text(record.born_host),
        "storeHost": host_text(record.store_host),
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "properties": dict(message.properties),
        "body": message.body.decode("utf-8", "replace"),
    }
    if tracks is not None:
        found["tracks"] = tracks
    return found


def message_line(message: ReceivedMessage, properties: Mapping[str, str], body: str) -> str:
    """A message in one line."""
    return f"MSGID: {message.message_id} {message_text(message, properties)} BODY: {body}"
