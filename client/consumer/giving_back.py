"""Messages that failed go back: by the broker's own way, or as a message to the retry topic of the group.

RocketMQ's sendMessageBack of DefaultMQPushConsumerImpl and ConsumeMessageOrderlyService.
"""

import logging
from typing import TYPE_CHECKING

from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.message import ReceivedMessage
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.requests import ask
from cometmq.protocol import properties as props
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.send import SendMessageBack
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Seconds for each way back.
TIMEOUT = 5.0
#: The level of the first retry, when we choose it ourselves.
FIRST_LEVEL = 3


class GivingBack:
    """The ways back of one group."""

    def __init__(self, client: "Client", group: str, retry_topic: str) -> None:
        self._client = client
        self._group = group
        self._retry_topic = retry_topic

    async def send_back(self, message: ReceivedMessage, delay_level: int, most: int) -> bool:
        """Give a message back; whether the broker has it."""
        header = SendMessageBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=most,
        )
        try:
            address = self._client.routes.brokers.master(message.queue.broker_name)
            await ask(self._client.remoting, address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout=TIMEOUT)
        except (BrokerError, ClientError, TransportError) as error:
            log.warning("%r could not be given back (%s): it is sent to the retry topic", message, error)
            level = delay_level or FIRST_LEVEL + message.reconsume_times
            return await self.send_again(message, most, level)
        return True

    async def send_again(self, message: ReceivedMessage, most: int, delay_level: int | None) -> bool:
        """Send a message to the retry topic as if it were a new one; whether that succeeded."""
        pairs = dict(message.properties)
        pairs.pop(props.TRAN_MSG, None)
        pairs.setdefault(props.RETRY_TOPIC, message.topic)
        pairs.setdefault(props.ORIGIN_MESSAGE_ID, message.message_id)
        pairs.pop(props.DELAY, None)
        if delay_level:
            pairs[props.DELAY] = str(delay_level)
        outgoing = Outgoing(
            self._retry_topic,
            message.body,
            props.format_properties(pairs),
            message.message_id,
            message.flag,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=most,
        )
        try:
            await self._client.send_internally(outgoing)
        except (BrokerError, ClientError, TransportError) as error:
            log.error("%r could not be sent to the retry topic either: %s", message, error)
            return False
        return True
