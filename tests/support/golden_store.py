"""Store directories written by unmodified Apache RocketMQ (tests/data/store/golden), and what is in them.

Unpacks a directory with its sparse files and times, says with which options it was written, and reads its manifest:
what the real broker, started on a copy, told its client. See tests/data/store/README.md.
"""

import functools
import gzip
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.broker.store.options import StoreOptions

GOLDEN = Path(__file__).parent.parent / "data" / "store" / "golden"

#: `49` was written by 4.9.7, the others by 5.3.3.
NAMES = ("clean", "clean49", "killed", "killed49", "special", "trimmed")

#: What all of them were written with.
PROPERTIES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "mappedFileSizeTimerLog": "1048320",
}
#: And what `special` has besides.
SPECIAL_PROPERTIES = {
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": "49152",
    "bitMapLengthConsumeQueueExt": "112",
    "enabledAppendPropCRC": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mapperFileSizeBatchConsumeQueue": "4600",
}
#: Topics whose queues are batch consume queues.
BATCH_TOPICS = {"special": frozenset({"BatchCqTopic"})}


@dataclass(frozen=True, slots=True)
class GoldenMessage:
    """A message as the Java client showed it.

    The client unpacks compressed bodies and then clears that bit of the sys flag, and it adds MIN_OFFSET and
    MAX_OFFSET to the properties. Messages out of an inner batch have no size and no message id of their own.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    message_id: str | None
    unique_key: str | None
    body_sha1: str
    body_length: int
    body_crc: int
    tags: str | None
    keys: str | None
    flag: int
    sys_flag: int
    born_time: int
    store_time: int
    #: "address:port".
    born_host: str
    store_host: str
    reconsume_times: int
    prepared_offset: int
    properties: dict[str, str]

    @property
    def in_inner_batch(self) -> bool:
        return bool(self.sys_flag & 0x80)


@dataclass(frozen=True, slots=True)
class GoldenQueue:
    """A queue as the real broker showed it."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    #: The store time of its first message.
    earliest: int
    messages: tuple[GoldenMessage, ...]
    #: (time, the offset that the broker found for it; lower boundary).
    searches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GoldenQuery:
    """A query by key. `error` is the broker's answer when it found nothing."""

    topic: str
    key: str
    physical_offsets: tuple[int, ...]
    index_last_update: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that the real broker said about a directory."""

    name: str
    version: str
    queues: dict[tuple[str, int], GoldenQueue]
    queries: tuple[GoldenQuery, ...]
    messages: tuple[GoldenMessage, ...] = field(repr=False)


def properties(name: str) -> dict[str, str]:
    """The configuration that a directory was written with, as far as it is not the default."""
    return PROPERTIES | (SPECIAL_PROPERTIES if name == "special" else {})


def options(name: str, **changes: str) -> StoreOptions:
    """The same as options. `changes` are RocketMQ's keys."""
    return StoreOptions.from_properties(properties(name) | changes)


def unpack(name: str, target: Path | str) -> Path:
    """Unpacks a directory, holes and times as they were. Returns the root of the store."""
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(target, filter="data")
        else:
            tar.extractall(target)
    return Path(target) / "store"


@functools.cache
def files(name: str) -> dict[str, bytes]:
    """The content of every file by its path under the root of the store."""
    content = {}
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        for member in tar:
            if member.isfile() and (file := tar.extractfile(member)):
                content[member.name.removeprefix("store/")] = file.read()
    return content


@functools.cache
def manifest(name: str) -> Manifest:
    with gzip.open(GOLDEN / f"{name}.manifest.json.gz", "rt", encoding="utf-8") as file:
        tree = json.load(file)
    queues = {
        (topic, int(queue_id)): _queue(topic, int(queue_id), row)
        for topic, rows in tree["topics"].items()
        for queue_id, row in rows.items()
    }
    return Manifest(
        name=name,
        version=tree["version"],
        queues=queues,
        queries=tuple(_query(row) for row in tree["queries"]),
        messages=tuple(message for queue in queues.values() for message in queue.messages),
    )


def _queue(topic: str, queue_id: int, row: dict[str, Any]) -> GoldenQueue:
    return GoldenQueue(
        topic=topic,
        queue_id=queue_id,
        min_offset=row["min"],
        max_offset=row["max"],
        earliest=row["earliest"],
        messages=tuple(_message(topic, queue_id, message) for message in row["messages"]),
        searches=tuple((time, offset) for time, offset in row["searchOffset"]),
    )


def _message(topic: str, queue_id: int, row: dict[str, Any]) -> GoldenMessage:
    return GoldenMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        store_size=row["storeSize"],
        message_id=row["offsetMsgId"],
        unique_key=row["uniqKey"],
        body_sha1=row["bodySha1"],
        body_length=row["bodyLen"],
        body_crc=row["bodyCrc"],
        tags=row["tags"],
        keys=row["keys"],
        flag=row["flag"],
        sys_flag=row["sysFlag"],
        born_time=row["born"],
        store_time=row["store"],
        born_host=row["bornHost"].removeprefix("/"),
        store_host=row["storeHost"].removeprefix("/"),
        reconsume_times=row["reconsume"],
        prepared_offset=row["prepared"],
        properties=row["properties"],
    )


def _query(row: dict[str, Any]) -> GoldenQuery:
    return GoldenQuery(
        topic=row["topic"],
        key=row["key"],
        physical_offsets=tuple(row.get("physicalOffsets", ())),
        index_last_update=row.get("indexLastUpdateTimestamp"),
        error=row.get("error"),
    )
