"""A broker whose disk is too slow: sends that wait over 200 ms get SYSTEM_BUSY, and the broker recovers.

A whole broker with its default limits, on a fake disk whose writes take 300 ms, has more senders than it can serve
then. What it accepts is stored once, what it refuses is not stored, and on a disk that is well again all are served.
"""

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.clock import SystemClock
from cometmq.broker.store.fake_disk import FakeDisk
from support.raw_peer import request
from support.store_kit import read_queue

SLOW_WRITE = 0.3
SECONDS = 60.0
SYSTEM_BUSY = 2


@dataclass
class Seen:
    """What a producer was told."""

    accepted: list[bytes] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def produce(address: tuple[str, int], name: str, stop: threading.Event, seen: Seen) -> None:
    """One producer with one message under way at a time, as fast as it is answered."""
    keys = {"a": "PG", "b": "TopicTest", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    with socket.create_connection(address, SECONDS) as connection, connection.makefile("rb") as stream:
        number = 0
        while not stop.is_set():
            number += 1
            body = f"{name}-{number}".encode()
            text = f"UNIQ_KEY\x01{name}{number:030d}\x02"
            connection.sendall(request(310, keys | {"i": text}, body, opaque=number, version=479))
            length, size = struct.unpack(">II", stream.read(8))
            header = json.loads(stream.read(length - 4)[:size])
            if header["code"] == 0:
                seen.accepted.append(body)
            else:
                assert header["code"] == SYSTEM_BUSY, header
                seen.refused.append(header["remark"])
                stop.wait(0.01)


def until(what: str, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not look():
        if time.monotonic() > deadline:
            pytest.fail(f"never: {what}")
        time.sleep(0.02)


async def test_a_slow_disk_gives_busy_answers_and_the_broker_recovers() -> None:
    disk = FakeDisk(SystemClock())
    config = BrokerConfig().with_properties(
        {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": "/store",
            "mappedFileSizeCommitLog": str(4 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
        }
    )
    broker = Broker(config, disk=disk)
    await broker.start()
    try:
        seen = [Seen() for _ in range(12)]
        await asyncio.to_thread(_play, ("127.0.0.1", broker.port), disk, seen)
        records = read_queue(broker.state.store, "TopicTest", 0)
    finally:
        await broker.close()
    refused = [remark for each in seen for remark in each.refused]
    assert refused
    assert all(
        remark.startswith(("[TIMEOUT_CLEAN_QUEUE]", "[PCBUSY_CLEAN_QUEUE]", "[REJECTREQUEST]")) for remark in refused
    )
    assert any("period in queue: " in remark for remark in refused)
    # Accepted means stored, once, and in the order of its producer; refused means not stored.
    stored = [record.body for record in records]
    accepted = [body for each in seen for body in each.accepted]
    assert sorted(stored) == sorted(accepted)
    for each in seen:
        own = set(each.accepted)
        assert [body for body in stored if body in own] == each.accepted


def _play(address: tuple[str, int], disk: FakeDisk, seen: list[Seen]) -> None:
    stop = threading.Event()
    threads = [
        threading.Thread(target=produce, args=(address, f"p{number:x}", stop, each)) for number, each in enumerate(seen)
    ]
    for thread in threads:
        thread.start()
    try:
        until("everybody is served", lambda: all(len(each.accepted) >= 5 for each in seen))
        disk.slow_next("write", SLOW_WRITE, path="commitlog", times=1_000_000)
        until("somebody is refused", lambda: sum(len(each.refused) for each in seen) >= 20)
        disk.heal()
        healed = [len(each.accepted) for each in seen]
        until(
            "everybody is served again",
            lambda: all(len(each.accepted) >= before + 20 for each, before in zip(seen, healed, strict=True)),
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
