"""Odd and broken requests: ours answers or closes as the real broker 5.3.3 did when it was asked the same.

The differences that we want are in `OWN_WAY`, each with its reason. Times, places in the log, addresses, made ids and
the order of answers on one connection do not count. Against the real broker (slow) the same cases show that they are
right.
"""

import asyncio
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import comparable, golden, real_rocketmq
from support.cluster import OURS, REAL, Cluster, own_broker_missing
from support.golden_broker import golden_cluster
from support.replay_setup import create
from support.wire import Reply, Wire, connect, frame

CASES = {case.case: case for case in golden.raw_cases("raw-cases") if case.target == "broker"}
PROBE = 29999
MIB = 1024 * 1024

BAD_REQUEST = (1, "a remark of our own instead of Java's exception")
NO_SQL = (23, "this version filters by tag only")
NOT_YET = (3, "not in this version")
#: Cases whose answer is another one here: code, and why.
OWN_WAY: dict[str, tuple[int, str]] = {
    "first-10-bytes-only": (3, "RocketMQ waits for twelve bytes before it looks; we answer at once"),
    "no-extfields": BAD_REQUEST,
    "send-v2-empty-ext": BAD_REQUEST,
    "send-v2-missing-topic": BAD_REQUEST,
    "send-v2-not-a-number": BAD_REQUEST,
    "send-empty-body": (13, "a message without a body is illegal; Java falls over it"),
    "send-batch-garbage": (13, "an illegal message, not an error of the system"),
    "heartbeat-no-body": BAD_REQUEST,
    "heartbeat-bad-body": BAD_REQUEST,
    "pull-sql-trailing-garbage": NO_SQL,
    "pull-bad-sql": NO_SQL,
    "pull-bad-expression-type": (1, "a type of expression that nobody knows; Java takes it for tags"),
    "check-client-config-ok": NO_SQL,
    "check-client-config-bad": NO_SQL,
    "check-client-config-empty": NO_SQL,
    "query-assignment": NOT_YET,
    "pop": NOT_YET,
    "pop-nothing": NOT_YET,
    "pop-too-many": NOT_YET,
    "pop-unknown-topic": NOT_YET,
    "pop-bad-queue": NOT_YET,
    "ack-unknown": NOT_YET,
    "change-invisible-unknown": NOT_YET,
    "recall-bad-handle": NOT_YET,
    "polling-info": NOT_YET,
    "notification": NOT_YET,
    "end-transaction-bad": NOT_YET,
    "update-config-bad": (16, "only keys declared dynamic may be set from outside"),
}
#: The real broker of this run against the recorded one: its answers here hang on moments.
OWN_WAY_OF_REAL = {"pop": 0, "pop-nothing": 210}
#: Its requests go to several thread pools: on a busy machine the later ones are sometimes answered first.
RACES_OF_REAL = {"heartbeat-consumer-then-pull", "heartbeat-consumer-then-list-lock-unlock"}
#: A request without opaque: Java answers under a number of its own, which nobody can match.
ANY_OPAQUE = {"header-empty-json", "first-10-bytes-only"}
#: Fields that the broker made up.
MADE = {"transactionId", "timestamp", "popTime"}
#: The bodies of these are judged by tests of their own.
SHAPES_ONLY = {"group-config-unknown"}


@pytest.fixture(scope="module", params=[OURS, pytest.param(REAL, marks=[pytest.mark.slow, pytest.mark.interop])])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = own_broker_missing() if request.param == OURS else real_rocketmq.available()
    if reason:
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp(f"raw-{request.param}")
    with golden_cluster(request.param, folder) as running:
        create(running.address, "TopicRaw", 1, 1, 6)
        create(running.address, "TopicRO", 1, 1, 4)
        yield running


def sent(case: golden.RawCase) -> bytes:
    """The bytes of a case; of the two that were cut the rest is all x and all v."""
    if case.cut is None:
        return case.sent
    if case.case == "send-body-over-4MiB":
        return case.sent + b"x" * (case.cut - len(case.sent))
    ext = {"a": "PG_raw", "b": "TopicRaw", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1700000000000, "h": 0}
    text = "k\x01" + "v" * 40000 + "\x02"
    return frame(310, ext | {"i": text, "j": 0, "k": "false", "m": "false"}, b"x")


async def replies_until_probe(wire: Wire) -> list[Reply]:
    """What came before the answer to a request that is known to be answered; EOFError when the peer closed."""
    wire.send(frame(PROBE, opaque=78787878))
    replies = []
    while (reply := await wire.receive()).opaque != 78787878:
        replies.append(reply)
    return replies


def expected_of(case: golden.RawCase) -> list[dict[str, object]]:
    return [
        view(case, header["code"], header.get("remark"), header.get("extFields") or {}, body)
        for header, body, _ in case.answers
    ]


def view(case: golden.RawCase, code: int, remark: str | None, ext: dict[str, str], body: bytes) -> dict[str, object]:
    pulls = body and case.case.startswith(("heartbeat-consumer-then-pull", "pull", "lite-pull", "pop"))
    seen = comparable.answer(11 if pulls else 0, code, remark, ext, body)
    seen["ext"] = {key: f"<{key}>" if key in MADE else item for key, item in seen["ext"].items()}
    if case.case in SHAPES_ONLY and isinstance(seen["body"], dict):
        seen["body"] = sorted(seen["body"])
    for one in seen["body"] if pulls and isinstance(seen["body"], list) else ():
        one["properties"] = sorted(key for key in one["properties"].split("\x02") if "UNIQ_KEY" not in key)
    return seen


def in_any_order(views: list[dict[str, object]]) -> list[str]:
    return sorted(json.dumps(view, sort_keys=True, default=repr) for view in views)


async def check(case: golden.RawCase, cluster: Cluster) -> None:
    async with connect(cluster.broker.port) as wire:
        wire.send(sent(case))
        if case.closed:
            await wire.closed()
            assert not case.answers
            return
        ours = cluster.kind == OURS and case.case in OWN_WAY
        replies = [await wire.receive() for _ in range(1 if ours else len(case.answers))]
        if ours or len(replies) or cluster.kind == OURS:
            replies += await replies_until_probe(wire)
    if ours:
        (reply,) = replies
        assert (reply.code, bool(reply.remark)) == (OWN_WAY[case.case][0], True), reply
        assert "java" not in (reply.remark or "").lower()
        return
    if cluster.kind == REAL and case.case in RACES_OF_REAL:
        return
    seen = [view(case, reply.code, reply.remark, reply.ext, reply.body) for reply in replies]
    if cluster.kind == REAL and case.case in OWN_WAY_OF_REAL:
        assert [one["code"] for one in seen] == [OWN_WAY_OF_REAL[case.case]]
        return
    assert in_any_order(seen) == in_any_order(expected_of(case))
    opaques = {header["opaque"] for header, _, _ in case.answers if header["code"] != 40}
    assert case.case in ANY_OPAQUE or opaques == {reply.opaque for reply in replies if reply.code != 40}


def test_all_cases_in_their_order(cluster: Cluster) -> None:
    """In one go: some of them build on others, as in the recording."""
    failed = []
    for name, case in CASES.items():
        try:
            asyncio.run(check(case, cluster))
        except (AssertionError, EOFError, TimeoutError, struct.error) as error:
            failed.append(f"case {name}: {type(error).__name__} {error}")
    assert not failed, f"{len(failed)} cases:\n" + "\n".join(failed)
    assert len(CASES) == 112


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.closed])
def test_bad_frame_closes_only_its_own_connection(cluster: Cluster, name: str) -> None:
    async def both() -> None:
        async with connect(cluster.broker.port) as other, connect(cluster.broker.port) as wire:
            assert await replies_until_probe(other) == []
            wire.send(CASES[name].sent)
            await wire.closed()
            assert await replies_until_probe(other) == []

    asyncio.run(both())
