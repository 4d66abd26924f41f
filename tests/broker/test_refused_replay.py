"""What this version has not is refused: the captured requests of transactions, SQL92 and POP clients, never forgotten.

Half messages get 16, SQL92 gets 23, other requests 3, each with a remark that says why; timers are with the producers
in test_replay. Nothing of a refused message is stored, and the connection goes on.
"""

import asyncio
from collections.abc import Iterator

import pytest

from support import golden
from support.cluster import OURS, Cluster, own_broker_missing
from support.golden import Frame
from support.golden_broker import golden_cluster
from support.plain_frames import call
from support.replay_setup import create
from support.wire import Reply, connect, frame

NO_PERMISSION, SUBSCRIPTION_PARSE_FAILED, NOT_SUPPORTED = 16, 23, 3
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
PROBE, PROBE_OPAQUE = 29999, 78787878


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := own_broker_missing():
        pytest.skip(reason)
    with golden_cluster(OURS, tmp_path_factory.mktemp("refused")) as running:
        for topic in ("TopicTx", "TopicSql", "TopicPop"):
            create(running.address, topic, 2, 2, 6)
        yield running


def requests(capture: str, *codes: int) -> list[Frame]:
    """The requests to the broker with these codes."""
    return [
        each
        for each in golden.frames(capture)
        if each.whole
        and each.link == "client-broker"
        and each.dir == "c2s"
        and not each.is_response
        and each.code in codes
    ]


async def ask_all(cluster: Cluster, frames: list[Frame]) -> dict[int, Reply]:
    """The answers by opaque, after all of the requests on one connection; a probe tells that they are complete."""
    answers = {}
    async with connect(cluster.broker.port) as wire:
        for each in frames:
            assert each.raw is not None
            wire.send(each.raw)
        wire.send(frame(PROBE, opaque=PROBE_OPAQUE))
        while (reply := await wire.receive()).opaque != PROBE_OPAQUE:
            answers[reply.opaque] = reply
    return answers


def max_offset(cluster: Cluster, topic: str) -> int:
    return int(call(cluster.address, 30, {"topic": topic, "queueId": "0"}).fields["offset"])


@pytest.mark.parametrize("capture", ["transaction-json", "transaction-bin", "transaction-49"])
def test_half_messages_are_refused_and_not_stored(cluster: Cluster, capture: str) -> None:
    halves = [each for each in requests(capture, 310) if "TRAN_MSG\x01true" in each.ext["i"]]
    assert len(halves) == 4
    answers = asyncio.run(ask_all(cluster, halves))
    assert {reply.code for reply in answers.values()} == {NO_PERMISSION}
    assert all("transaction" in (reply.remark or "") for reply in answers.values())
    assert len(answers) == 4
    assert (max_offset(cluster, "TopicTx"), max_offset(cluster, HALF_TOPIC)) == (0, 0)


def test_end_of_a_transaction_does_no_harm(cluster: Cluster) -> None:
    """It is oneway: nobody waits for an answer, and none comes."""
    ends = requests("transaction-json", 37)
    assert len(ends) == 7
    assert all(each.is_oneway for each in ends)
    assert asyncio.run(ask_all(cluster, ends)) == {}


def test_sql_subscriptions_are_refused(cluster: Cluster) -> None:
    """By the check that a consumer makes before it starts, whether the text is well formed or not."""
    answers = asyncio.run(ask_all(cluster, requests("sql-filter", 46)))
    assert [reply.code for reply in answers.values()] == [SUBSCRIPTION_PARSE_FAILED] * 2
    assert all("filters by tag only" in (reply.remark or "") for reply in answers.values())


def test_sql_pulls_are_refused(cluster: Cluster) -> None:
    """Pulls of a consumer that did not ask first: its heartbeat named an expression."""
    pulls = [each for each in requests("sql-filter", 11) if each.ext["expressionType"] == "SQL92"]
    assert len(pulls) == 7
    version = f'"subVersion":{pulls[0].ext["subVersion"]}'.encode()
    beat = next(each for each in requests("sql-filter", 34) if version in each.body)
    answers = asyncio.run(ask_all(cluster, [beat, *pulls]))
    for each in pulls:
        assert answers[each.opaque].code == SUBSCRIPTION_PARSE_FAILED, answers[each.opaque]
        assert answers[each.opaque].body == b""


def test_pop_requests_are_not_supported(cluster: Cluster) -> None:
    pops = requests("pop", 400, 200050, 200051, 200053)
    assert len(pops) == 14
    answers = asyncio.run(ask_all(cluster, pops))
    for each in pops:
        assert (answers[each.opaque].code, bool(answers[each.opaque].remark)) == (NOT_SUPPORTED, True)
