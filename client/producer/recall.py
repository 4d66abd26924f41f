"""Taking back a message before its time, by the handle that its receipt has. Brokers since 5.3.2 can do it."""

import base64
import binascii
from typing import TYPE_CHECKING

from cometmq.client.errors import InvalidMessage
from cometmq.client.requests import ask
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.recall import RecallMessage, RecallMessageAnswer

if TYPE_CHECKING:
    from cometmq.client.client import Client


async def recall(
    client: "Client",
    topic: str,
    handle: str,
    group: str,
    timeout: float,  # noqa: ASYNC109 - the budget of one request
) -> str:
    """The id of the message that was taken back. Asks the broker that the handle names, else another of the topic."""
    name = _broker_of(handle)
    brokers = client.routes.brokers
    if not brokers.has(name):
        route = await client.routes.get(topic)
        if not brokers.has(name) and route.publish:
            name = route.publish[0].broker_name
    address = brokers.master(name)
    header = RecallMessage(topic=topic, recall_handle=handle, producer_group=group)
    answer = await ask(client.remoting, address, RequestCode.RECALL_MESSAGE, header, timeout=timeout)
    return answer.header(RecallMessageAnswer).msg_id or ""


def _broker_of(handle: str) -> str:
    """The broker that a recall handle names: `v1 topic broker time id`, in base64."""
    try:
        parts = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except (binascii.Error, ValueError) as error:
        raise InvalidMessage(f"{handle!r} is no recall handle: {error}") from None
    if len(parts) != 5 or parts[0] != "v1":
        raise InvalidMessage(f"{handle!r} is no recall handle of this version")
    return parts[2]
