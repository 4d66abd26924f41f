"""A store that others shall open: what it holds, and the program that writes it, as a child that may be killed.

    python -m support.store_writer FOLDER NAME PORT FLUSH_DISK_TYPE close|kill|kill_early long|short

One number stands for one put: `planned(...)` tells from it what a reader must find, without asking the store. The
program writes numbers 0 to COUNT - 1, prints a line of JSON for each acknowledged one, and closes the store; or it puts
OPEN more, and dies by SIGKILL in the turn after they were written, before the flush. An early death comes before the
first checkpoint is written.
"""

import asyncio
import json
import os
import signal
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import names
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.bodies import TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import DataVersion, TopicConfig
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.properties import encode_properties

#: Files so small that a few hundred messages fill several of each kind. RocketMQ's keys, for both sides.
GEOMETRY = {
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(50 * 20),
    "maxHashSlotNum": "100",
    "maxIndexNum": "200",
}
#: Puts that are acknowledged, in groups; and those that are under way when the program is killed.
COUNT, GROUP, OPEN = 240, 8, 12
QUEUES = 3
BORN = 1_700_000_000_000
BORN_HOST = pack_host("192.0.2.7", 40_001)
BORN_HOST_V6 = pack_host("2001:db8::7", 40_002)
COMPRESSED, BORN_HOST_IS_V6 = 0x1, 0x10
#: Messages of the first level are due when somebody else opens the store; those of the others stay where they are.
SOON, LATE = 1, (17, 18)


@dataclass(frozen=True, slots=True)
class Planned:
    """A message as any reader of the store must see it. `body` is plain, `stored_body` what the log holds."""

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str]
    born_timestamp: int
    flag: int = 0
    sys_flag: int = 0
    born_host: bytes = BORN_HOST
    reconsume_times: int = 0
    stored_body: bytes = field(default=b"")


def main_topic(name: str) -> str:
    return f"Store_{name}"


def delayed_topic(name: str) -> str:
    """Where delayed messages go in the end, and nothing else."""
    return f"Store_{name}_Delayed"


def long_topic(name: str) -> str:
    """Needs a record of the second version: what only RocketMQ 5 can read."""
    return f"{names.RETRY_PREFIX}{name}_".ljust(140, "g")


def queues(name: str, *, long: bool) -> list[tuple[str, int]]:
    """Every queue that is written, (topic, id)."""
    found = [(main_topic(name), i) for i in range(QUEUES)]
    found += [(names.SCHEDULE_TOPIC, level - 1) for level in (SOON, *LATE)]
    return [*found, (long_topic(name), 0)] if long else found


def planned(name: str, number: int, *, long: bool) -> list[Planned]:
    """The messages of one put: one, or those of a batch."""
    topic, queue_id, born = main_topic(name), (number + number // 12) % QUEUES, BORN + number
    text = {
        "KEYS": f"K{number} shared{number % 7}",
        "TAGS": f"Tag{number % 3}",
        "UNIQ_KEY": unique_key(number),
        "colour": "ultramarin-blå 蓝 \U0001f535",
    }
    body = f"{number}:".encode().ljust(number * 37 % 3000 + 5, b"x")

    def one(topic: str = topic, queue_id: int = queue_id, body: bytes = body, **others: object) -> Planned:
        fields = {"properties": text, "stored_body": body, "born_timestamp": born, **others}
        return Planned(topic, queue_id, body, **fields)  # type: ignore[arg-type]

    match number % 12:
        case 3 if long:
            return [one(long_topic(name), 0)]
        case 4:
            return [one(properties={})]
        case 5:
            items = [text | {"UNIQ_KEY": unique_key(number, i), "KEYS": f"K{number}-{i}"} for i in range(5)]
            return [one(body=b"%d/%d" % (number, i), properties=each, flag=i) for i, each in enumerate(items)]
        case 6:
            return [one(body=body.ljust(9000 + number, b"y"))]
        case 7:
            body = body * 3
            return [one(body=body, stored_body=zlib.compress(body), sys_flag=COMPRESSED)]
        case 8:
            return [one(flag=7, born_host=BORN_HOST_V6, sys_flag=BORN_HOST_IS_V6, reconsume_times=3)]
        case 9:
            return [one(body=b"")]
        case 10:
            return [_delayed(name, one, text, LATE[number // 12 % 2])]
        case 11 if number < 60:
            return [_delayed(name, one, text, SOON)]
    return [one()]


def _delayed(name: str, one: Callable[..., Planned], text: dict[str, str], level: int) -> Planned:
    waiting = {"DELAY": str(level), "REAL_TOPIC": delayed_topic(name), "REAL_QID": "0"}
    return one(names.SCHEDULE_TOPIC, level - 1, properties=text | waiting)


def unique_key(number: int, item: int = 0) -> str:
    return f"7F0000010001{item:04X}{number:016X}"


def _message(name: str, each: Planned) -> Message:
    """What is put, so that the store makes the planned message of it."""
    text = dict(each.properties)
    topic, queue_id = text.pop("REAL_TOPIC", each.topic), int(text.pop("REAL_QID", each.queue_id))
    return Message(
        topic,
        queue_id,
        each.stored_body,
        encode_properties(text),
        flag=each.flag,
        sys_flag=each.sys_flag & COMPRESSED,
        born_timestamp=each.born_timestamp,
        born_host=each.born_host,
        reconsume_times=each.reconsume_times,
    )


def _put(store: Store, name: str, number: int, *, long: bool) -> Ticket:
    messages = planned(name, number, long=long)
    if len(messages) == 1:
        return store.put(_message(name, messages[0]))
    items = [BatchItem(each.flag, each.body, encode_properties(each.properties)) for each in messages]
    first = messages[0]
    wrapper = Message(
        first.topic, first.queue_id, encode_batch(items), born_timestamp=first.born_timestamp, born_host=first.born_host
    )
    return store.put_batch(wrapper)


def _topics(name: str, *, long: bool) -> TopicConfigSerializeWrapper:
    counts = {main_topic(name): QUEUES, delayed_topic(name): 1}
    if long:
        counts[long_topic(name)] = 1
    table = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
        for topic, count in counts.items()
    }
    return TopicConfigSerializeWrapper(
        data_version=DataVersion(counter=len(table), timestamp=BORN), topic_config_table=table
    )


async def _write(folder: str, name: str, port: int, flush_disk_type: str, end: str, *, long: bool) -> None:
    disk = RealDisk()
    runner = AsyncioRunner()
    # Nothing but the end of the store makes an early death's checkpoint; the other one's is not long in coming.
    interval = "60000" if end == "kill_early" else "50"
    options = StoreOptions.from_properties(
        GEOMETRY
        | {
            "flushDiskType": flush_disk_type,
            "flushIntervalCommitLog": interval,
            "flushIntervalConsumeQueue": interval,
            "flushConsumeQueueThoroughInterval": interval,
        }
    )
    store = Store(folder, options, runner=runner, disk=disk, store_host=pack_host("127.0.0.1", port))
    store.open()
    store.start()
    ConfigFiles(disk, folder).topics.save(_topics(name, long=long))
    for start in range(0, COUNT, GROUP):
        if end == "kill" and start >= COUNT // 2:
            while not disk.exists(f"{folder}/checkpoint"):  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.01)
        tickets = [_put(store, name, number, long=long) for number in range(start, start + GROUP)]
        for number, ticket in enumerate(tickets, start):
            await ticket.future()
            if ticket.status is not PutStatus.PUT_OK:
                raise RuntimeError(f"put {number} was answered {ticket.status}: {ticket.remark}")
            print(json.dumps(_acknowledged(number, ticket)), flush=True)
    if end != "close":
        for number in range(COUNT, COUNT + OPEN):
            _put(store, name, number, long=long)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
        await asyncio.sleep(10)
    store.close()
    runner.close()


def _acknowledged(number: int, ticket: Ticket) -> dict[str, object]:
    return {
        "number": number,
        "ids": ticket.message_id.split(","),
        "physical_offset": ticket.physical_offset,
        "queue_offset": ticket.queue_offset,
        "store_timestamp": ticket.store_timestamp,
    }


if __name__ == "__main__":
    _folder, _name, _port, _flush, _end, _long = sys.argv[1:]
    asyncio.run(_write(_folder, _name, int(_port), _flush, _end, long=_long == "long"))
