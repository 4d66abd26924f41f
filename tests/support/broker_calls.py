"""What a client asks a broker and its nameserver, in one line each: tests look at a whole broker from outside."""

import asyncio
import re
from collections.abc import Mapping

from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.protocol.requests.offsets import GetMaxOffset
from cometmq.protocol.requests.send import SendMessageAnswer, SendMessageV2
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.pending import Answer


def property_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}\x01{value}\x02" for key, value in properties.items())


async def send(
    client: RemotingClient, address: str, topic: str, body: bytes, *, queue_id: int = 0, **properties: str
) -> Answer:
    """Sends a message; the answer may be an error. Keyword arguments are properties: `DELAY="1"`."""
    header = SendMessageV2(
        producer_group="tests",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=property_text(properties),
    )
    return await client.request(address, RequestCode.SEND_MESSAGE_V2, header, body, timeout=10)


async def sent(client: RemotingClient, address: str, topic: str, body: bytes, **options: str) -> SendMessageAnswer:
    """Sends a message that must be stored; where it went."""
    answer = await send(client, address, topic, body, **options)  # type: ignore[arg-type]
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageAnswer)


async def max_offset(client: RemotingClient, address: str, topic: str, queue_id: int = 0) -> int:
    header = GetMaxOffset(topic=topic, queue_id=queue_id)
    answer = await client.request(address, RequestCode.GET_MAX_OFFSET, header, timeout=10)
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


async def route(client: RemotingClient, nameserver: str, topic: str) -> TopicRouteData | None:
    """Where a topic is, or None while the nameserver does not know it."""
    code, header = RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic=topic)
    answer = await client.request(nameserver, code, header, timeout=10)
    return TopicRouteData.decode(answer.body) if answer.code == 0 else None


async def routed(client: RemotingClient, nameserver: str, topic: str, seconds: float = 20.0) -> TopicRouteData:
    """Where a topic is, as soon as the nameserver knows it."""
    async with asyncio.timeout(seconds):
        while True:
            if (found := await route(client, nameserver, topic)) is not None:
                return found
            await asyncio.sleep(0.01)


_BOOT = re.compile(r"The broker\[(?P<name>.+), (?P<address>[^\]]*(?:\[[^\]]*\]:\d+)?)\] boot success\.")


def booted(output: str) -> tuple[str, str] | None:
    """Name and address of a broker whose output says that it is ready."""
    found = _BOOT.search(output)
    return (found["name"], found["address"]) if found else None
