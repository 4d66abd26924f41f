"""A small broker that knows its clients: members of groups, notices, housekeeping, locks, topics and groups.

async with ClientBroker(tmp_path) as broker:
    peer = await broker.peer()
    answer = await peer.ask(heartbeat("me", consumes("G", T="*")))
"""

import json
from pathlib import Path
from typing import Any, Self

from cometmq.broker.consumers import Consumers
from cometmq.broker.handlers import clients, groups, locks, topics
from cometmq.broker.housekeeping import ClientHousekeeping
from cometmq.broker.notices import ConsumerNotices
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.producers import Producers
from support.raw_peer import Frame, RawPeer, request
from support.small_broker import SmallBroker

HEART_BEAT, UNREGISTER, CONSUMER_LIST, NOTIFY, LOCK, UNLOCK, CHECK = 34, 35, 38, 40, 41, 42, 46


class HeldPullsByHand:
    """Stands for the long polls: remembers who was woken."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake_topic(self, topic: str) -> None:
        self.woken.append(topic)


class ClientBroker(SmallBroker):
    """One broker on any port. `async with` starts and ends it."""

    def __init__(self, folder: Path | str, **more: Any) -> None:
        super().__init__(folder, [clients.rows, locks.rows, topics.rows, groups.rows], **more)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        state = self.state
        state.consumers = Consumers()
        state.producers = Producers()
        state.offsets = ConsumerOffsets(state.files, self.clock)
        state.offsets.load()
        state.held_pulls = self.held_pulls = HeldPullsByHand()
        self.notices = ConsumerNotices(state)
        self.housekeeping = ClientHousekeeping(state)
        self.server.dispatcher.table.on_connection_lost.append(self.housekeeping.connection_lost)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.notices.close()
        await super().__aexit__(*exception)


def consumes(group: str, *, model: str = "CLUSTERING", version: int = 1, **subscriptions: str) -> dict[str, Any]:
    """The part of a heartbeat for a consumer group; keyword arguments are topics with their tags."""
    wanted = {**subscriptions, f"%RETRY%{group}": "*"}
    return {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": model,
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": text,
                "subVersion": version,
                "tagsSet": [],
                "topic": topic,
            }
            for topic, text in wanted.items()
        ],
        "unitMode": False,
    }


def heartbeat(
    client_id: str,
    *consumers: dict[str, Any],
    producers: tuple[str, ...] = (),
    ext: dict[str, str] | None = None,
    opaque: int = 1,
    **more: Any,
) -> bytes:
    """A HEART_BEAT as Java sends it."""
    body = {
        "clientID": client_id,
        "consumerDataSet": list(consumers),
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": name} for name in producers],
        "withoutSub": False,
    }
    return request(HEART_BEAT, ext, json.dumps(body | more).encode(), opaque=opaque, version=479)


async def answer_of(peer: RawPeer, data: bytes) -> Frame:
    """Sends a request and gives its answer; requests of the broker that come before it are passed over."""
    await peer.send(data)
    while True:
        frame = await peer.frame()
        if frame.header["flag"] & 1:
            return frame


async def asked_by_broker(peer: RawPeer) -> Frame:
    """The next request that the broker sends."""
    while True:
        frame = await peer.frame()
        if not frame.header["flag"] & 1:
            return frame
