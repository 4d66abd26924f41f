"""Clients of a whole broker: its ports, its housekeeping and its notices together, and the captured odd requests."""

import json

import pytest

from cometmq.broker import housekeeping
from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from support import golden
from support.client_broker import CONSUMER_LIST, NOTIFY, answer_of, asked_by_broker, consumes, heartbeat
from support.raw_peer import RawPeer, request
from support.server_process import free_port


@pytest.fixture
async def broker(tmp_path):
    config = BrokerConfig().with_properties(
        {
            "brokerIP1": "127.0.0.1",
            "brokerName": "broker-a",
            "bindAddress": "127.0.0.1",
            "listenPort": str(free_port()),
            "storePathRootDir": str(tmp_path / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
        }
    )
    async with Broker(config) as broker:
        yield broker


async def peer_of(broker, port=0):
    return await RawPeer.open(("127.0.0.1", port or broker.port))


async def test_members_on_both_ports_hear_of_each_other_and_of_a_loss(broker):
    async with await peer_of(broker) as main, await peer_of(broker, broker.port - 2) as fast:
        await answer_of(main, heartbeat("main", consumes("G", T="*")))
        await fast.send(heartbeat("fast", consumes("G", T="*")))
        assert (await asked_by_broker(fast)).code == NOTIFY
        answer = await answer_of(main, request(CONSUMER_LIST, {"consumerGroup": "G"}))
        assert json.loads(answer.body)["consumerIdList"] == ["main", "fast"]
        await fast.reset()
        while len(broker.state.consumers.get("G").channels) == 2:
            assert (await asked_by_broker(main)).code == NOTIFY


async def test_the_silent_are_looked_for_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(housekeeping, "SCAN_INTERVAL", 0.05)
    monkeypatch.setattr("cometmq.broker.broker.SCAN_INTERVAL", 0.05)
    config = BrokerConfig().with_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "channelExpiredTimeout": "1",
            "storePathRootDir": str(tmp_path / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
        }
    )
    async with Broker(config) as broker, await peer_of(broker) as peer:
        await answer_of(peer, heartbeat("me", consumes("G", T="*")))
        await peer.closed()
        assert broker.state.consumers.get("G") is None


async def test_a_broker_that_ends_sends_nobody_off_to_divide_queues_anew(broker):
    peers = [await peer_of(broker) for _ in range(3)]
    for number, peer in enumerate(peers):
        await answer_of(peer, heartbeat(f"m{number}", consumes("G", T="*")))
    # Answered in order: notices of the joins are all in front of this answer.
    await answer_of(peers[0], request(CONSUMER_LIST, {"consumerGroup": "G"}))
    sent = broker._notices.sent
    await broker.close()
    assert broker._notices.sent == sent
    for peer in peers:
        await peer.close()


#: Odd requests of clients, as they were sent to RocketMQ.
CASES = [
    "heartbeat-producer",
    "heartbeat-no-body",
    "heartbeat-bad-body",
    "heartbeat-consumer-then-list-lock-unlock",
    "consumer-list-unknown",
    "unregister-unknown",
]


@pytest.mark.parametrize("case", CASES)
async def test_odd_requests_are_answered_as_rocketmq_answers_them(broker, case):
    captured = next(each for each in golden.raw_cases("raw-cases") if each.case == case)
    async with await peer_of(broker) as peer:
        await peer.send(captured.sent)
        ours = [await peer.frame() for _ in captured.answers]
    theirs = captured.answers

    def told(header, body):
        return header["code"], header["flag"] & 3, header.get("extFields") or {}, body

    def key(item):
        return str(item)

    ours_told = sorted((told(frame.header, frame.body) for frame in ours), key=key)
    theirs_told = sorted((told(header, body) for header, body, _ in theirs), key=key)
    assert ours_told == theirs_told
    # Java gives the text of an exception; here it is a reason, too.
    assert all(frame.remark for frame in ours if frame.code == 1)
