"""Many clients in one process: producers that send in order, consumers that wait for messages. A program.

    python load_client.py HOST:PORT --seconds 20 --pairs 500 --rate 1500

A pair is a producer and a consumer with a connection each, and a queue that nobody else uses. Producers send numbered
messages, one at a time, and stop when the time is over; consumers must get each acknowledged number once and in order.
What happened goes to stdout as one line of JSON. Nothing of cometmq is used here on purpose: what judges a broker must
not share its mistakes.
"""

import argparse
import asyncio
import collections
import json
import struct
import sys
import time
from typing import Any

TOPIC, GROUP = "LoadTopic", "LoadGroup"
HEART_BEAT, SEND, PULL, UPDATE_TOPIC = 34, 310, 11, 17
SUCCESS, BUSY, NOT_FOUND, RETRY = 0, 2, 19, 20
#: Where a stored record has the length of its body, for IPv4 hosts.
BODY_LENGTH_AT = 84
#: Milliseconds that a pull may be held, and seconds until an answer is given up: far more, for a loaded machine.
SUSPEND = 5000
PATIENCE = 90.0
#: Seconds.
HEARTBEAT_PERIOD = 10.0
#: COMMIT_OFFSET and SUSPEND.
SYS_FLAG = 3
#: Connections that are opened at a time: fewer than any backlog.
OPENING = 50


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._opaque = 0
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self.transport: asyncio.Transport
        self.notices = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError(f"the broker closed the connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            (length,) = struct.unpack_from(">I", buffer)
            if len(buffer) < length + 4:
                return
            size = struct.unpack_from(">I", buffer, 4)[0] & 0xFFFFFF
            header = json.loads(bytes(buffer[8 : 8 + size]))
            body = bytes(buffer[8 + size : length + 4])
            del buffer[: length + 4]
            if not header["flag"] & 1:
                self.notices += 1
            elif (waiting := self._waiting.pop(header["opaque"], None)) is None:
                raise RuntimeError(f"an answer that nobody waits for: {header}")
            elif not waiting.done():
                waiting.set_result((header, body))

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Header and body of the answer."""
        if self.is_lost:
            raise ConnectionError("the broker closed the connection")
        self._opaque += 1
        fields = {"code": code, "flag": 0, "language": "JAVA", "opaque": self._opaque, "version": 479, "extFields": ext}
        header = json.dumps(fields).encode()
        waiting = self._waiting[self._opaque] = asyncio.get_running_loop().create_future()
        self.transport.write(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        async with asyncio.timeout(PATIENCE):
            return await waiting


class Pair:
    """A producer and a consumer that share a queue."""

    def __init__(self, load: "Load", queue_id: int) -> None:
        self._load = load
        self.queue_id = queue_id
        self.acknowledged = 0
        self.received = 0
        self.problems: list[str] = []

    async def produce(self, client: Client, interval: float, until: float) -> None:
        loop = asyncio.get_running_loop()
        # Not all in the same moment.
        due = loop.time() + interval * (self.queue_id % 100) / 100
        while due < until:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + interval, loop.time())
            await self._send(client)

    async def _send(self, client: Client) -> None:
        body = b"%d:%d:%d" % (self.queue_id, self.acknowledged, time.monotonic_ns())
        ext = {
            "a": "LoadProducers",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(self.queue_id),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": f"UNIQ_KEY\x01{self.queue_id:08X}{self.acknowledged:024X}\x02",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        while True:
            begun = time.monotonic()
            header, _ = await client.ask(SEND, ext, body)
            self._load.codes[SEND, header["code"]] += 1
            if header["code"] == SUCCESS:
                self._load.send_times.append(time.monotonic() - begun)
                if header["extFields"]["queueOffset"] != str(self.acknowledged):
                    self.problems.append(f"message {self.acknowledged} has offset {header['extFields']['queueOffset']}")
                self.acknowledged += 1
                return
            if header["code"] != BUSY:
                self.problems.append(f"send answered {header['code']}: {header.get('remark')}")
                return
            await asyncio.sleep(0.05)

    async def consume(self, client: Client) -> None:
        """Until everything that was acknowledged is here and nothing more is sent."""
        offset = 0
        while not (self._load.is_over and self.received >= self.acknowledged):
            header, body = await client.ask(PULL, self._pull(offset))
            code = header["code"]
            self._load.codes[PULL, code] += 1
            if code == SUCCESS:
                self._take(body)
            elif code == BUSY:
                await asyncio.sleep(0.1)
                continue
            elif code not in (NOT_FOUND, RETRY):
                self.problems.append(f"pull of {offset} answered {code}: {header.get('remark')}")
                return
            offset = int(header["extFields"]["nextBeginOffset"])

    def _pull(self, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": str(self.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(SYS_FLAG),
            "commitOffset": str(offset),
            "suspendTimeoutMillis": str(SUSPEND),
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        }

    def _take(self, records: bytes) -> None:
        position, now = 0, time.monotonic_ns()
        while position < len(records):
            (size,) = struct.unpack_from(">I", records, position)
            (length,) = struct.unpack_from(">I", records, position + BODY_LENGTH_AT)
            start = position + BODY_LENGTH_AT + 4
            queue_id, number, sent = map(int, records[start : start + length].split(b":"))
            if (queue_id, number) != (self.queue_id, self.received):
                self.problems.append(f"got {queue_id}:{number}, expected {self.queue_id}:{self.received}")
            self.received += 1
            self._load.way_times.append((now - sent) / 1e9)
            position += size


class Load:
    """The whole of it."""

    def __init__(self, host: str, port: int, pairs: int) -> None:
        self._host, self._port = host, port
        self.pairs = [Pair(self, number) for number in range(pairs)]
        self.codes: collections.Counter[tuple[int, int]] = collections.Counter()
        self.send_times: list[float] = []
        self.way_times: list[float] = []
        self.is_over = False
        self._opening = asyncio.Semaphore(OPENING)

    async def run(self, seconds: float, rate: float) -> dict[str, Any]:
        first = await self._connect()
        await self._make_topic(first)
        first.transport.close()
        producers = await asyncio.gather(*(self._join("producer", pair) for pair in self.pairs))
        consumers = await asyncio.gather(*(self._join("consumer", pair) for pair in self.pairs))
        print("connected", file=sys.stderr, flush=True)
        until = asyncio.get_running_loop().time() + seconds
        interval = len(self.pairs) / rate
        async with asyncio.TaskGroup() as group:
            for pair, client in zip(self.pairs, consumers, strict=True):
                group.create_task(pair.consume(client))
            beats = [
                group.create_task(self._beat(role, pair, client))
                for role, clients in (("producer", producers), ("consumer", consumers))
                for pair, client in zip(self.pairs, clients, strict=True)
            ]
            async with asyncio.TaskGroup() as sending:
                for pair, client in zip(self.pairs, producers, strict=True):
                    sending.create_task(pair.produce(client, interval, until))
            self.is_over = True
            for beat in beats:
                beat.cancel()
        notices = sum(client.notices for client in consumers)
        for client in (*producers, *consumers):
            client.transport.close()
        return self._report(notices)

    async def _connect(self) -> Client:
        async with self._opening:
            _, client = await asyncio.get_running_loop().create_connection(Client, self._host, self._port)
        return client

    async def _make_topic(self, client: Client) -> None:
        queues = str(len(self.pairs))
        ext = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        header, _ = await client.ask(UPDATE_TOPIC, ext)
        if header["code"] != SUCCESS:
            raise RuntimeError(f"no topic: {header}")

    async def _join(self, role: str, pair: Pair) -> Client:
        client = await self._connect()
        header, _ = await client.ask(HEART_BEAT, {}, self._heartbeat(role, pair.queue_id))
        if header["code"] != SUCCESS:
            raise RuntimeError(f"no heartbeat: {header}")
        return client

    def _heartbeat(self, role: str, number: int) -> bytes:
        subscription = {"topic": TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        consumer = {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription, subscription | {"topic": f"%RETRY%{GROUP}"}],
        }
        body = {
            "clientID": f"127.0.0.1@{role}-{number}",
            "producerDataSet": [{"groupName": "LoadProducers"}] if role == "producer" else [],
            "consumerDataSet": [consumer] if role == "consumer" else [],
        }
        return json.dumps(body).encode()

    async def _beat(self, role: str, pair: Pair, client: Client) -> None:
        """As clients do, but more often, so that a short run has some too."""
        while True:
            await asyncio.sleep(HEARTBEAT_PERIOD * (0.5 + pair.queue_id / len(self.pairs)))
            header, _ = await client.ask(HEART_BEAT, {}, self._heartbeat(role, pair.queue_id))
            self.codes[HEART_BEAT, header["code"]] += 1
            if header["code"] != SUCCESS:
                pair.problems.append(f"heartbeat answered {header['code']}: {header.get('remark')}")

    def _report(self, notices: int) -> dict[str, Any]:
        problems = [problem for pair in self.pairs for problem in pair.problems]
        return {
            "acknowledged": sum(pair.acknowledged for pair in self.pairs),
            "received": sum(pair.received for pair in self.pairs),
            "problems": problems[:20],
            "notices": notices,
            "codes": {f"{request}:{answer}": count for (request, answer), count in sorted(self.codes.items())},
            "send": _quantiles(self.send_times),
            "way": _quantiles(self.way_times),
        }


def _quantiles(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    if not times:
        return {}
    times = sorted(times)
    return {f"p{percent}": round(times[len(times) * percent // 100] * 1000, 2) for percent in (50, 99)}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("address")
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("--pairs", type=int, required=True)
    arguments.add_argument("--rate", type=float, required=True, help="messages a second, of all together")
    given = arguments.parse_args()
    host, _, port = given.address.rpartition(":")
    report = asyncio.run(Load(host, int(port), given.pairs).run(given.seconds, given.rate))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
