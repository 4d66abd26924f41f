"""Nearly right requests of every code to a real broker: an answer with a reason or a closed connection, every time.

The broker is a process of its own, and stays one: it answers good requests afterwards, it has not grown beyond
measure, and nothing in its log is a bug's trace.
"""

import asyncio
import contextlib
import json
import os
import struct
from pathlib import Path

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests import OPERATIONS
from support.cluster import OwnBroker
from support.fuzz_requests import CLIENT, GROUP, TOPIC, Fuzzed, Fuzzer
from support.plain_frames import call, create_topic

#: Connections that fuzz at a time.
WORKERS = 8
#: Seconds for an answer; requests that the broker sends on to a client may take some by themselves.
PATIENCE = 60.0
#: Bytes by which the broker may grow: caches fill, allocators keep some. A request that makes it allocate what a header
#: announces takes gigabytes.
GROWTH = 300 << 20
#: Answers that say no without a remark: what a pull or a query did not find.
QUIET = {19, 20, 21, 22}
NOT_SUPPORTED = 3

#: Requests of each code.
DEFAULT, THOROUGH = 150, 2500


class Closed(Exception):
    """The broker closed the connection."""


class Peer:
    """A connection that answers what the broker asks, as a client that cannot help."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 25))

    async def ask(self, fuzzed: Fuzzed):
        """Header and body of the answer."""
        try:
            self._writer.write(fuzzed.data)
            await self._writer.drain()
            while True:
                header, body = await self._frame()
                if header["flag"] & 1:
                    if header["opaque"] == fuzzed.opaque:
                        return header, body
                elif not header["flag"] & 2:
                    self._refuse(header["opaque"])
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Closed from None

    async def _frame(self):
        length, word = struct.unpack(">II", await self._reader.readexactly(8))
        rest = await self._reader.readexactly(length - 4)
        size, kind = word & 0xFFFFFF, word >> 24
        if kind == 0:
            return json.loads(rest[:size]), rest[size:]
        assert kind == 1, "an answer has the header type of its request"
        code, _, _, opaque, flag, remark = struct.unpack_from(">hbhiii", rest)
        return {"code": code, "opaque": opaque, "flag": flag, "remark": rest[17 : 17 + remark].decode()}, rest[size:]

    def _refuse(self, opaque):
        header = json.dumps({"code": 1, "flag": 1, "opaque": opaque, "remark": "no", "version": 479}).encode()
        self._writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)

    async def close(self):
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Run:
    """All requests of a run, shared among workers."""

    def __init__(self, port, codes, count, seed):
        self._port = port
        self._todo = iter([(code, number) for number in range(count) for code in codes])
        self._seed = seed
        self.answered = dict.fromkeys(codes, 0)
        self.closed = 0

    async def go(self):
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self):
        peer = await Peer.connect(self._port)
        try:
            for code, number in self._todo:
                fuzzed = Fuzzer(hash((self._seed, code, number))).request(code)
                try:
                    async with asyncio.timeout(PATIENCE):
                        header, _ = await peer.ask(fuzzed)
                except TimeoutError:
                    pytest.fail(f"no answer within {PATIENCE:g} s to {fuzzed.text}")
                except Closed:
                    self.closed += 1
                    await peer.close()
                    peer = await Peer.connect(self._port)
                    continue
                self.answered[code] += 1
                if header["code"] != 0 and header["code"] not in QUIET:
                    assert header.get("remark"), f"{header['code']} without a reason for {fuzzed.text}"
        finally:
            await peer.close()


def resident(pid: int) -> int:
    """The memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def bugs(log: str) -> list[str]:
    """The traces in a log, each kind once: where they came from, and what they ended with."""
    found: dict[tuple[str, str], str] = {}
    lines = log.splitlines()
    for start, line in enumerate(lines):
        if not line.startswith("Traceback"):
            continue
        end = start + 1
        while end < len(lines) and lines[end].startswith(" "):
            end += 1
        place = next((text for text in reversed(lines[start:end]) if text.startswith("  File")), "")
        found.setdefault((place, lines[min(end, len(lines) - 1)][:80]), "\n".join(lines[start - 1 : end + 1])[:4000])
    return list(found.values())


def heartbeat(address):
    wanted = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in (TOPIC, f"%RETRY%{GROUP}")]
    body = {
        "clientID": CLIENT,
        "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": wanted, "messageModel": "CLUSTERING"}],
        "producerDataSet": [{"groupName": GROUP}],
    }
    return call(address, RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def send(address, topic):
    numbers = dict.fromkeys("efhj", "0")
    fields = {"a": GROUP, "b": topic, "c": "TBW102", "d": "4", "g": "1", "i": "", **numbers}
    return call(address, RequestCode.SEND_MESSAGE_V2, fields, b"hello")


def codes_of(address):
    """The codes that the broker serves."""
    return [code for code in OPERATIONS if call(address, code).code != NOT_SUPPORTED]


@pytest.fixture
def broker(tmp_path):
    process = OwnBroker(tmp_path, "127.0.0.1:1", {"flushDiskType": "ASYNC_FLUSH"})
    try:
        process.start()
        process.wait_ready("boot", 60, lambda: process.boot_line in process.stdout)
        yield process
    finally:
        process.kill()


def fuzz(broker, count, seed):
    address = broker.address
    create_topic(address, TOPIC, 4)
    assert heartbeat(address).code == 0
    for _ in range(20):
        assert send(address, TOPIC).code == 0
    codes = codes_of(address)
    assert len(codes) > 40
    before = resident(broker.pid)
    run = Run(broker.port, codes, count, seed)
    asyncio.run(run.go())
    assert broker.alive, broker.tail()
    # Every code was really served, not only cut off.
    assert [code for code, answers in run.answered.items() if answers < count / 3] == []
    grown = resident(broker.pid) - before
    assert grown < GROWTH, f"grew by {grown >> 20} MiB"
    assert bugs(broker.stdout + broker.stderr) == []
    assert heartbeat(address).code == 0
    create_topic(address, "Afterwards", 1)
    assert send(address, "Afterwards").code == 0


def test_every_request_is_answered_or_cut_off_and_the_broker_lives(broker):
    fuzz(broker, DEFAULT, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_the_same_for_longer(broker, seed):
    fuzz(broker, THOROUGH, seed)
