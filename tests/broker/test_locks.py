"""Locks on queues over real sockets: the captured exchanges, two clients, bad input."""

import json

import pytest

from cometmq.broker.store.clock import FakeClock
from support import golden
from support.client_broker import LOCK, UNLOCK, ClientBroker, answer_of
from support.raw_peer import request


def queue(number, topic="T"):
    return {"brokerName": "broker-a", "queueId": number, "topic": topic}


def body(client_id, *numbers, group="G"):
    asked = {"clientId": client_id, "consumerGroup": group, "mqSet": [queue(n) for n in numbers]}
    return json.dumps(asked | {"onlyThisBroker": False}).encode()


async def lock(peer, *args, **more):
    answer = await answer_of(peer, request(LOCK, None, body(*args, **more)))
    assert (answer.code, answer.remark) == (0, None)
    return [each["queueId"] for each in json.loads(answer.body)["lockOKMQSet"]]


@pytest.fixture
async def broker(tmp_path):
    async with ClientBroker(tmp_path) as broker:
        yield broker


@pytest.mark.parametrize("name", ["push-orderly-json", "push-orderly-bin", "push-orderly-49"])
async def test_the_captured_exchanges_are_answered_alike(broker, name):
    peer = await broker.peer()
    compared = 0
    for exchange in golden.exchanges(name):
        if exchange.request.code not in (LOCK, UNLOCK) or exchange.response is None:
            continue
        answer = await answer_of(peer, request(exchange.request.code, None, exchange.request.body))
        assert answer.code == exchange.response.code
        if exchange.response.body:
            ours, theirs = json.loads(answer.body), json.loads(exchange.response.body)
            key = "lockOKMQSet"
            assert sorted(ours[key], key=str) == sorted(theirs[key], key=str)
        else:
            assert answer.body == b""
        compared += 1
    assert compared > 3


async def test_two_clients_share_the_queues_and_hand_them_over(tmp_path):
    clock = FakeClock()
    async with ClientBroker(tmp_path, clock=clock) as broker:
        one, two = await broker.peer(), await broker.peer()
        assert await lock(one, "one", 0, 1) == [0, 1]
        assert await lock(two, "two", 0, 1, 2) == [2]
        assert (await answer_of(one, request(UNLOCK, None, body("one", 0, 2)))).code == 0
        assert await lock(two, "two", 0, 1, 2) == [0, 2]
        clock.advance(61)
        assert await lock(two, "two", 0, 1, 2) == [0, 1, 2]


async def test_a_lost_connection_releases_nothing(broker):
    one, two = await broker.peer(), await broker.peer()
    await lock(one, "one", 0)
    await one.reset()
    assert await lock(two, "two", 0) == []
    assert broker.state.locks.is_group_locked("G")


async def test_locks_run_out_of_the_table_by_the_scan(tmp_path):
    clock = FakeClock()
    async with ClientBroker(tmp_path, clock=clock) as broker:
        await lock(await broker.peer(), "one", *range(100))
        clock.advance(61)
        broker.housekeeping.scan()
        assert len(broker.state.locks) == 0


@pytest.mark.parametrize("code", [LOCK, UNLOCK])
@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"clientId":"c"}',
        b'{"consumerGroup":"G"}',
        b'{"clientId":"c","consumerGroup":"G","mqSet":[17]}',
        b'{"clientId":"c","consumerGroup":"G","mqSet":[{"queueId":"x"}]}',
        b'{"clientId":"c","consumerGroup":"G","mqSet":[{"queueId":99999999999}]}',
        b'{"clientId":"c","consumerGroup":"' + b"g" * (2 << 20) + b'"}',
    ],
    ids=lambda bad: repr(bad[:60]),
)
async def test_bad_input_is_refused_with_a_reason_and_locks_nothing(broker, code, bad):
    peer = await broker.peer()
    answer = await answer_of(peer, request(code, None, bad))
    assert answer.code == 1
    assert answer.remark
    assert len(broker.state.locks) == 0
    assert await lock(peer, "c", 0) == [0]
