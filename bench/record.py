"""Time the codecs of messages: records and batches.

    python bench/record.py [--rounds 100]

Each figure is the best of several rounds, for one message. `json.loads` of a header of 381 bytes is timed in the same
run: it tells how fast the machine is, so that figures of two machines can be compared.
"""

import json
import sys
from collections.abc import Callable
from time import perf_counter_ns

import click

from cometmq.protocol import properties
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.checksum import crc32
from cometmq.protocol.hashing import hash_code
from cometmq.protocol.message_id import UniqueKeyGenerator, pack_host
from cometmq.protocol.record import decode_record, decode_records, encode_record

BODY = bytes(range(256)) * 4
TEXT = properties.encode_properties(
    {
        "TAGS": "TagA",
        "KEYS": "order-4711",
        "UNIQ_KEY": "7F000001162A18B4AAC2A8A5B5C30000",
        "WAIT": "true",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
)
TOPIC = b"TopicTest"
BORN = pack_host("192.0.2.2", 51_234)
STORE = pack_host("127.0.0.1", 10_911)
BATCH = 32


def _header(length: int) -> bytes:
    """A send header as Java writes it, filled up to `length` bytes."""
    fields = {
        "a": "PG_bench",
        "b": "TopicTest",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "UNIQ_KEY\u00017F000001162A18B4AAC2A8A5B5C30000\u0002WAIT\u0001true\u0002TAGS\u0001TagA\u0002",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }
    header = {
        "code": 310,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": 12,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    short = len(json.dumps(header, separators=(",", ":")))
    fields["a"] += "x" * (length - short)
    raw = json.dumps(header, separators=(",", ":")).encode()
    assert len(raw) == length, len(raw)
    return raw


def loops_for(call: Callable[[], object]) -> int:
    """How often to call so that one round takes some 2 ms: long enough for the clock, short enough to miss others."""
    loops = 1
    while timed(call, loops) < 2_000_000:
        loops *= 2
    return loops


def timed(call: Callable[[], object], loops: int) -> int:
    start = perf_counter_ns()
    for _ in range(loops):
        call()
    return perf_counter_ns() - start


def cases() -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed, and how many messages one call handles."""
    buffer = bytearray(64 * 1024)

    def encode(crc: int | None = None) -> int:
        return encode_record(buffer, 0, 3, 0, 17, 1 << 20, 0, 1, BORN, 2, STORE, 0, 0, BODY, TOPIC, TEXT, crc)

    record = bytes(buffer[: encode()])
    pull = record * BATCH
    items = [BatchItem(0, BODY[:100], TEXT)] * BATCH
    batch = encode_batch(items)
    keys = UniqueKeyGenerator("127.0.0.1", 4711, 0x18B4AAC2)
    header = _header(381)
    return {
        "json.loads of a 381-byte header": (lambda: json.loads(header), 1),
        "encode_record, 1 KiB": (encode, 1),
        "encode_record, 1 KiB, CRC known": (lambda: encode(1), 1),
        "decode_record, 1 KiB": (lambda: decode_record(record), 1),
        "decode_record, 1 KiB, no CRC": (lambda: decode_record(record, check_crc=False), 1),
        "decode_record, 1 KiB, no body": (lambda: decode_record(record, check_crc=False, read_body=False), 1),
        f"decode_records, {BATCH} of 1 KiB": (lambda: list(decode_records(pull)), BATCH),
        f"encode_batch, {BATCH} of 100 B": (lambda: encode_batch(items), BATCH),
        f"decode_batch, {BATCH} of 100 B": (lambda: decode_batch(batch), BATCH),
        "crc32, 1 KiB": (lambda: crc32(BODY), 1),
        "properties.find, middle of 7": (lambda: properties.find(TEXT, b"UNIQ_KEY"), 1),
        "decode_properties, 7": (lambda: properties.decode_properties(TEXT), 1),
        "hash_code, 20 characters": (lambda: hash_code("TopicTest#order-4711"), 1),
        "unique key": (keys, 1),
    }


@click.command(help=__doc__)
@click.option("--rounds", default=100, show_default=True, help="Rounds for each figure; the best one counts.")
def main(rounds: int) -> None:
    timings = {name: (call, messages, loops_for(call)) for name, (call, messages) in cases().items()}
    best = dict.fromkeys(timings, float("inf"))
    # Round by round through all cases, so that a slow second of the machine does not hit one of them alone.
    for _ in range(rounds):
        for name, (call, messages, loops) in timings.items():
            best[name] = min(best[name], timed(call, loops) / loops / messages)
    print(f"Python {sys.version.split()[0]}, best of {rounds} rounds")
    print(f"{'':<36}{'us/message':>12}{'1000/s':>10}")
    for name, nanos in best.items():
        print(f"{name:<36}{nanos / 1000:>12.3f}{1e6 / nanos:>10.0f}")


if __name__ == "__main__":
    main()
