"""The handover of a store: written by us, opened by the real RocketMQ, added to, and taken back.

The stages are functions, in the order of this file; each fills in what was seen at a `Life`, and nothing is judged here
but what the next stage needs. Who starts processes and when is the fixtures' business.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.broker.store.clock import SystemClock
from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.recovery import Recovered
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.protocol import names
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.record import Record, decode_record
from support.line_driver import BUILD_SECONDS, LineDriver
from support.plain_frames import register_now
from support.real_rocketmq import START_SECONDS, V5, RealBroker, cache, install, locked
from support.server_process import wait_for
from support.store_kit import message, read_queue
from support.store_writer import (
    COMPRESSED,
    COUNT,
    GEOMETRY,
    SOON,
    Planned,
    delayed_topic,
    main_topic,
    planned,
    queues,
    unique_key,
)

TESTS = Path(__file__).parent.parent
Seen = dict[str, Any]
Queue = tuple[str, int]

#: What the Java client sends to each store: enough for the next file of the log, and a batch.
SENT, SENT_SIZE, BATCH = 30, 3000, 6
STOP_SECONDS = 60
#: Puts whose messages are looked up by their ids, plain ones of the main topic.
LOOKED_UP = range(1, COUNT, 36)
#: The client adds these to what it pulls.
ADDED = ("MIN_OFFSET", "MAX_OFFSET")


@dataclass(frozen=True, slots=True)
class Case:
    """How a store is written and left by us, by whom it is opened, and how the broker ends."""

    name: str
    version: str
    flush_disk_type: str
    our_end: str
    real_end: str

    @property
    def long(self) -> bool:
        return self.version == V5

    @property
    def queues(self) -> list[Queue]:
        return queues(self.name, long=self.long)

    def planned(self, number: int) -> list[Planned]:
        return planned(self.name, number, long=self.long)


class StoreClient(LineDriver):
    """The Java program that looks into brokers' stores; the head of StoreClient.java describes it."""

    def __init__(self, folder: Path, nameserver: str) -> None:
        place = install(V5)
        argv = place.java("StoreClient", folder, nameserver)
        argv[argv.index(place.classpath)] = f"{_classes()}{os.pathsep}{place.classpath}"
        super().__init__("Java store client", argv, folder)

    def ask(self, *words: object) -> dict[str, Any]:
        answer = self._ask(" ".join(map(str, words)), 60)
        for seen in answer.get("messages", []):
            seen["body"] = b64decode(seen["body"])
            for name in ADDED:
                seen["properties"].pop(name, None)
        return answer

    def pull(self, broker: RealBroker, queue: Queue) -> list[Seen]:
        """All messages of a queue; it has nothing else."""
        answer = self.ask("pull", queue[0], broker.broker_name, queue[1])
        assert answer["min"] == 0, f"{queue} begins at {answer['min']}"
        found: list[Seen] = answer["messages"]
        offsets = [seen["queue_offset"] for seen in found]
        assert offsets == list(range(answer["max"])), f"{queue} to {answer['max']} holds {offsets}"
        return found


def _classes() -> Path:
    """The compiled program, from the cache."""
    source = TESTS / "interop" / "java" / "StoreClient.java"
    classes = cache() / f"java-store-client-{V5}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    with locked("java-store-client"):
        if not classes.is_dir():
            partial = classes.with_name(classes.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = ["javac", "-nowarn", "-d", str(partial), "-cp", install(V5).classpath, str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
            assert done.returncode == 0, done.stderr
            partial.rename(classes)
    return classes


@dataclass(slots=True)
class Life:
    """One case, from the first put to the second opening by us; filled in as it goes on."""

    case: Case
    broker: RealBroker
    #: What our store acknowledged, by number of the put.
    acknowledged: list[dict[str, Any]] = field(default_factory=list)
    #: What the Java client saw before it sent anything.
    pulled: dict[Queue, list[Seen]] = field(default_factory=dict)
    delivered: list[Seen] = field(default_factory=list)
    by_key: dict[str, list[Seen]] = field(default_factory=dict)
    by_id: list[Seen] = field(default_factory=list)
    by_time: dict[int, int] = field(default_factory=dict)
    #: What it sent, and then saw.
    sent: list[dict[str, Any]] = field(default_factory=list)
    batch: dict[str, Any] = field(default_factory=dict)
    pulled_at_last: dict[Queue, list[Seen]] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def folder(self) -> Path:
        return self.broker.folder / "store"

    @property
    def puts(self) -> int:
        """How many puts the real broker found, by the number of messages."""
        found, number = sum(map(len, self.pulled.values())), 0
        while found > 0:
            found -= len(self.case.planned(number))
            number += 1
        assert found == 0, "a batch is there in part"
        return number

    def expected(self) -> dict[Queue, list[Planned]]:
        lines: dict[Queue, list[Planned]] = {queue: [] for queue in self.case.queues}
        for number in range(self.puts):
            for each in self.case.planned(number):
                lines[each.topic, each.queue_id].append(each)
        return lines

    def complaints(self) -> list[str]:
        """What the real broker wrote into its log, warnings and errors."""
        file = self.broker.folder / "rocketmq.log"
        return file.read_text(errors="replace").splitlines() if file.exists() else []


def real_broker(case: Case, folder: Path, nameserver: str) -> RealBroker:
    config = GEOMETRY | {"flushDiskType": case.flush_disk_type}
    return RealBroker(folder, case.version, f"broker-{case.name}", f"Cluster-{case.name}", nameserver, config)


def write_all(lives: list[Life]) -> None:
    """The writers run side by side."""
    writers = []
    for life in lives:
        case = life.case
        command = [sys.executable, "-m", "support.store_writer", str(life.folder), case.name, str(life.broker.port)]
        command += [case.flush_disk_type, case.our_end, "long" if case.long else "short"]
        writers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TESTS))
    for life, writer in zip(lives, writers, strict=True):
        out, err = writer.communicate(timeout=60)
        killed = life.case.our_end != "close"
        assert writer.returncode == (-signal.SIGKILL if killed else 0), err.decode()
        assert (life.folder / "abort").exists() == killed, life.case
        assert (life.folder / "checkpoint").exists() == (life.case.our_end != "kill_early"), life.case
        life.acknowledged = [json.loads(line) for line in out.splitlines()]
        assert len(life.acknowledged) == COUNT, life.case


def wait_registered(broker: RealBroker, nameserver: str) -> None:
    def look() -> bool:
        if broker.registered(nameserver):
            return True
        with contextlib.suppress(OSError):  # not up yet
            register_now(broker.address)
        return False

    broker.wait_ready("registered", START_SECONDS, look, pause=0.3)


def look_into(client: StoreClient, life: Life) -> None:
    case, broker, topic = life.case, life.broker, main_topic(life.case.name)
    for queue in case.queues:
        life.pulled[queue] = client.pull(broker, queue)
    soon = len(life.pulled[names.SCHEDULE_TOPIC, SOON - 1])
    delayed = delayed_topic(case.name), 0
    life.delivered = wait_for(
        "delayed messages are delivered",
        20,
        lambda: found if len(found := client.pull(broker, delayed)) >= soon else None,
    )
    for key in ("K0", "K1", "K5-4", "K200", "shared3"):
        life.by_key[key] = client.ask("query", topic, key)["messages"]
    for number in LOOKED_UP:
        life.by_id += client.ask("view", topic, life.acknowledged[number]["ids"][0])["messages"]
        life.by_id += client.ask("view", topic, unique_key(number))["messages"]
    for seen in life.pulled[topic, 0][::20]:
        answer = client.ask("search", topic, broker.broker_name, 0, seen["store_timestamp"])
        life.by_time[seen["queue_offset"]] = answer["offset"]


def send_to(client: StoreClient, life: Life) -> None:
    case, broker, topic = life.case, life.broker, main_topic(life.case.name)
    life.sent = client.ask("send", topic, broker.broker_name, 1, "added", SENT, SENT_SIZE)["sent"]
    (life.batch,) = client.ask("batch", topic, broker.broker_name, 2, "batched", BATCH)["sent"]
    for queue in (*case.queues, (delayed_topic(case.name), 0)):
        life.pulled_at_last[queue] = client.pull(broker, queue)


def end_all(lives: list[Life]) -> None:
    """kill -9, or a stop in good order; those go on side by side."""
    for life in lives:
        if life.case.real_end == "kill":
            life.broker.kill()
        else:
            os.kill(life.broker.pid, signal.SIGTERM)
    for life in lives:
        if life.case.real_end == "stop":
            life.exit_code = life.broker.wait(STOP_SECONDS)
        assert (life.folder / "abort").exists() == (life.case.real_end == "kill"), life.case


@dataclass(slots=True)
class TakenBack:
    """The directory after the real broker, opened by us once more."""

    life: Life
    recovered: Recovered
    #: Every queue that is known, and what it holds.
    found: dict[Queue, list[Seen]]
    by_key: dict[str, list[int]]
    by_unique_key: dict[str, int]
    #: Of one more message to each queue: where it was put and what the log's end was before.
    end: int
    put: dict[Queue, tuple[int, int]]
    closed_and_opened: Recovered
    found_at_last: dict[Queue, list[Seen]]


def _store(life: Life, runner: ManualRunner) -> Store:
    options = StoreOptions.from_properties(GEOMETRY | {"flushDiskType": life.case.flush_disk_type})
    host = pack_host("127.0.0.1", life.broker.port)
    return Store(life.folder, options, runner=runner, clock=SystemClock(), store_host=host)


def take_back(life: Life) -> TakenBack:
    runner = ManualRunner()
    store = _store(life, runner)
    recovered = store.open()
    known = list(life.pulled_at_last)
    found = {queue: _read(store, queue) for queue in known}
    topic = main_topic(life.case.name)
    keys = [f"KEY-added-{i}" for i in range(SENT)] + [f"KEY-batched-{i}" for i in range(BATCH)] + list(life.by_key)
    by_key = {key: _query(store, topic, key) for key in keys}
    by_unique_key = {one["id"]: _at_unique_key(store, topic, one["id"]) for one in life.sent}
    end = recovered.end
    store.start()
    put = {}
    for queue in known:
        ticket = store.put(message(*queue, b"once more", KEYS="again", UNIQ_KEY=unique_key(9999)))
        runner.run()
        assert ticket.status is PutStatus.PUT_OK, ticket.remark
        put[queue] = ticket.physical_offset, ticket.queue_offset
    store.close()
    store = _store(life, ManualRunner())
    closed_and_opened = store.open()
    found_at_last = {queue: _read(store, queue) for queue in known}
    store.close()
    return TakenBack(life, recovered, found, by_key, by_unique_key, end, put, closed_and_opened, found_at_last)


def _read(store: Store, queue: Queue) -> list[Seen]:
    assert store.min_offset(*queue) == 0, queue
    return [_seen(record) for record in read_queue(store, *queue)]


def _query(store: Store, topic: str, key: str) -> list[int]:
    """Physical offsets of the messages that bear a key, in the order of the log."""
    result = store.query(topic, key, 64)
    records = [decode_record(part.read()) for part in result.ranges]
    result.release()
    return [r.physical_offset for r in records if r.topic == topic and key in r.property_map().get("KEYS", "").split()]


def _at_unique_key(store: Store, topic: str, unique: str) -> int:
    found = store.message_by_unique_key(topic, unique)
    assert found is not None, unique
    with found:
        return decode_record(found.read()).physical_offset


def _seen(record: Record) -> Seen:
    """A record of ours in the words of the Java client."""
    text = record.property_map()
    packed = record.sys_flag & COMPRESSED
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "id": text.get("UNIQ_KEY", record.message_id),
        "offset_id": record.message_id,
        "flag": record.flag,
        "sys_flag": record.sys_flag & ~COMPRESSED,
        "body_crc": record.body_crc,
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host.hex(),
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host.hex(),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "tags": text.get("TAGS"),
        "keys": text.get("KEYS"),
        "properties": text,
        "body": zlib.decompress(record.body) if packed else record.body,
    }
