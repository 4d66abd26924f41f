"""The lane of plain sends: it must never be told from the usual way, but by the time that it takes."""

import asyncio
import errno
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.handlers import send
from cometmq.broker.handlers.send_lane import MAX_SHAPES, SendLane
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.fake_disk import FakeDisk
from support.raw_peer import RawPeer, pack
from support.small_broker import SmallBroker

TOPIC = "LaneTopic"
ONEWAY = 2
NOW = 1_700_000_000_000


def frame(opaque: int, body: bytes, *, queue: str = "1", born: str = str(NOW), flag: int = 0, **text: str) -> bytes:
    """A send as Java writes it; `text` are its properties."""
    properties = {"UNIQ_KEY": f"7F000001{opaque:024X}", "WAIT": "true", "TAGS": "TagA"} | text
    keys = ["PG", TOPIC, "TBW102", "4", queue, "0", born, "0"]
    ext = dict(zip("abcdefgh", keys, strict=True))
    ext["i"] = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
    ext |= {"j": "0", "k": "false", "m": "false", "n": "broker-a"}
    header = {"code": 310, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": 401}
    return pack(json.dumps(header, separators=(",", ":")).encode(), body)


def any_frame(rng: random.Random, opaque: int) -> bytes:
    """Mostly plain, sometimes not: everything in which two requests of a producer may differ, and what is wrong."""
    body = rng.randbytes(rng.choice([1, 3, 60, 200, 1500]))
    options: dict[str, Any] = {"queue": str(rng.randrange(4)), "born": str(NOW - rng.randrange(50))}
    if rng.random() < 0.3:
        options["KEYS"] = rng.choice(["o-1", "order 7", "k", "a/b:c"])
    if rng.random() < 0.3:
        options["TAGS"] = rng.choice(["TagB", "Tag-long", "ü"])
    if rng.random() < 0.2:
        special: list[dict[str, Any]] = [
            {"queue": "9"},
            {"queue": "01"},
            {"born": "-5"},
            {"born": "0001"},
            {"UNIQ_KEY": "with blank"},
            {"UNIQ_KEY": 'quo"te'},
            {"UNIQ_KEY": "ü" * 16},
            {"KEYS": 'a"b'},
            {"KEYS": "ключ"},
            {"KEYS": "back\\slash"},
            {"DELAY": "1"},
            {"WAIT": "false"},
            {"custom": "x" * 40},
            {"flag": ONEWAY},
        ]
        options |= rng.choice(special)
    if rng.random() < 0.02:
        body = b""
    return frame(opaque, body, **options)


async def answers_to(broker: SmallBroker, writes: Iterator[list[bytes]]) -> dict[int, tuple[Any, ...]]:
    """Sends what belongs together in one write each, and gives the answers by opaque."""
    peer = await broker.peer()
    answers = {}
    for frames in writes:
        expected = sum(1 for each in frames if json.loads(header_of(each))["flag"] != ONEWAY)
        await peer.send(b"".join(frames))
        for _ in range(expected):
            answer = await peer.frame()
            assert answer.opaque not in answers
            # A refusal names the peer, whose port is any.
            remark = (answer.remark or "").partition(" Producer: ")[0]
            answers[answer.opaque] = (answer.code, answer.ext, remark, answer.body)
    return answers


def header_of(each: bytes) -> bytes:
    return each[8 : 8 + int.from_bytes(each[5:8], "big")]


def log_of(broker: SmallBroker) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(Path(broker.folder, "commitlog").iterdir()))


def queues_of(broker: SmallBroker) -> dict[str, bytes]:
    root = Path(broker.folder, "consumequeue")
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


class Watched:
    """Counts what takes the lane."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        take = SendLane.take

        def counting(lane: SendLane, connection: Any, chunk: bytes, position: int, end: int, received: float) -> int:
            before = connection.open_replies
            result = take(lane, connection, chunk, position, end, received)
            self.taken += connection.open_replies - before
            return result

        monkeypatch.setattr(SendLane, "take", counting)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize("file_size", [16 << 20, 64 << 10], ids=["one file", "many files"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_log_queues_and_answers_are_those_of_the_usual_way(
    tmp_path: Path, watched: Watched, seed: int, flush: str, file_size: int
) -> None:
    results = []
    for lane in (True, False):
        rng = random.Random(seed)
        folder = tmp_path / str(lane)
        clock = FakeClock(wall=NOW)
        options = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(file_size), "listenPort": "10911"}
        async with SmallBroker(folder, [send.rows], clock=clock, **options) as broker:
            broker.topic(TOPIC, 4)
            if not lane:
                broker.server.table.lane = None
            opaque = iter(range(1, 100_000))
            writes = ([any_frame(rng, next(opaque)) for _ in range(rng.choice([1, 5, 40]))] for _ in range(25))
            # The port of the peer is in the records; the store's address must not differ.
            answers = await answers_to(broker, writes)
            for queue_id in range(4):
                assert [record.queue_offset for record in broker.records(TOPIC, queue_id)] == list(
                    range(len(broker.records(TOPIC, queue_id)))
                )
            counted = broker.state.stats.totals()
            records = {
                queue_id: [(each.body, each.properties, each.flag, each.sys_flag, each.born_timestamp, each.size)
                           for each in broker.records(TOPIC, queue_id)]
                for queue_id in range(4)
            }  # fmt: skip
        results.append((answers, records, queues_of(broker), len(log_of(broker)), counted))
    assert watched.taken > 100
    for with_lane, without in zip(*results, strict=True):
        assert with_lane == without


@pytest.mark.parametrize("first", [999_999_950, (1 << 31) - 100])
async def test_opaques_of_ten_digits_take_the_lane(tmp_path: Path, watched: Watched, first: int) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        frames = [frame(first + n, b"x") for n in range(100)]
        answers = await answers_to(broker, iter([frames[start : start + 20] for start in range(0, 100, 20)]))
    assert [answers[first + n][0] for n in range(100)] == [0] * 100
    assert watched.taken > 70


async def test_an_opaque_that_is_none_does_not_take_the_lane(tmp_path: Path, watched: Watched) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        largest = (1 << 31) - 1
        frames = [frame(largest - 20 + n, b"x") for n in range(20)]
        await answers_to(broker, iter([frames[:10], frames[10:]]))
        before = watched.taken
        peer = broker._peers[0]
        await peer.send(frame(largest + 1, b"x"))
        with pytest.raises(asyncio.IncompleteReadError):  # closed: nobody could tell the answer
            await peer.frame()
    assert watched.taken == before > 0


async def test_alternating_tags_keep_the_lane(tmp_path: Path, watched: Watched) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        frames = [frame(1000 + n, b"x", TAGS=f"Tag{n % 5}") for n in range(500)]
        answers = await answers_to(broker, iter([frames[start : start + 50] for start in range(0, 500, 50)]))
    assert [answers[1000 + n][0] for n in range(500)] == [0] * 500
    assert watched.taken > 400


async def test_requests_that_all_differ_are_answered_too(tmp_path: Path, watched: Watched) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        frames = [frame(1000 + n, b"x", custom=f"value {n:05d}") for n in range(3 * MAX_SHAPES)]
        answers = await answers_to(broker, iter([frames]))
    assert {code for code, *_ in answers.values()} == {0}
    assert watched.taken == 0


async def test_a_topic_that_lost_its_queues_refuses_what_would_have_fitted(tmp_path: Path) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        first = await answers_to(broker, iter([[frame(n, b"x", queue="3") for n in range(10, 30)]]))
        assert {code for code, *_ in first.values()} == {0}
        peer: RawPeer = broker._peers[0]
        broker.topic(TOPIC, 2)
        await peer.send(frame(31, b"x", queue="3") + frame(32, b"x", queue="1"))
        assert [(await peer.frame()).code for _ in range(2)] == [29, 0]


async def test_every_send_of_a_run_hears_of_a_full_disk(tmp_path: Path) -> None:
    disk = FakeDisk()
    async with SmallBroker("/store", [send.rows], disk=disk) as broker:
        broker.topic(TOPIC, 4)
        await answers_to(broker, iter([[frame(n, b"x" * 100) for n in range(10, 20)]]))
        peer = broker._peers[0]
        disk.fail_next("write", errno.ENOSPC, path="/commitlog/")
        await peer.send(b"".join(frame(n, b"y" * 100_000) for n in range(20, 90)))
        answers = [await peer.frame() for _ in range(70)]
    assert {each.opaque for each in answers} == set(range(20, 90))
    refused = [each for each in answers if each.code != 0]
    assert refused
    assert all("disk is full" in (each.remark or "") for each in refused)
    assert broker.state.overload.open_sends == 0


async def test_a_peer_that_goes_leaves_nothing_open(tmp_path: Path) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        await answers_to(broker, iter([[frame(n, b"x") for n in range(10, 20)]]))
        peer = broker._peers.pop()
        await peer.send(b"".join(frame(n, b"x") for n in range(20, 200)))
        await peer.reset()
        async with asyncio.timeout(10):
            while broker.server.connections or broker.state.overload.open_sends:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.005)
        assert broker.server.dispatcher.open_replies == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("regionId", "elsewhere"),
        ("regionId", "MSGID"),
        ("traceOn", "false"),
        ("startAcceptSendRequestTimeStamp", str(NOW * 2)),
    ],
)
async def test_changed_settings_count_for_what_was_learned_before(
    tmp_path: Path, watched: Watched, key: str, value: str
) -> None:
    results = []
    for lane in (True, False):
        async with SmallBroker(tmp_path / str(lane), [send.rows], clock=FakeClock(wall=NOW)) as broker:
            broker.topic(TOPIC, 4)
            if not lane:
                broker.server.table.lane = None
            await answers_to(broker, iter([[frame(n, b"x")] for n in range(10, 30)]))
            broker.state.apply(broker.config.with_properties({key: value}))
            peer = broker._peers[0]
            await peer.send(b"".join(frame(n, b"x") for n in range(30, 40)))
            answers = [await peer.frame() for _ in range(10)]
            texts = [record.properties for record in broker.records(TOPIC, 1)]
        results.append((texts, [(each.opaque, each.code, each.remark, each.ext.get("MSG_REGION")) for each in answers]))
    assert watched.taken > 10
    assert results[0] == results[1]


async def test_an_order_topic_of_a_broker_that_is_made_read_only_refuses_what_would_have_fitted(tmp_path: Path) -> None:
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4, order=True)
        await answers_to(broker, iter([[frame(n, b"x")] for n in range(10, 30)]))
        broker.state.apply(broker.config.with_properties({"brokerPermission": "4"}))
        peer = broker._peers[0]
        await peer.send(frame(31, b"x") + frame(32, b"x"))
        assert [(await peer.frame()).code for _ in range(2)] == [16, 16]


@pytest.mark.parametrize("again", [b'"\\u0065":"2"', b'"e" : "2"', b'"e":\t"2"'])
async def test_a_queue_that_stands_there_twice_is_the_one_that_decoders_read(tmp_path: Path, again: bytes) -> None:
    """Learned while both say the same, the first one must not decide."""
    async with SmallBroker(tmp_path, [send.rows]) as broker:
        broker.topic(TOPIC, 4)
        peer = await broker.peer()
        await peer.send(frame(9, b"x", queue="3"))
        await peer.frame()
        queues = []
        for opaque, queue in enumerate(["2", "2", "3"], 10):
            whole = frame(opaque, b"x", queue=queue)
            header = header_of(whole).replace(b'"n":"broker-a"', b'"n":"broker-a",' + again)
            await peer.send(pack(header, b"x"))
            queues.append((await peer.frame()).ext["queueId"])
    assert queues == ["2", "2", "2"]
