"""From a broker's answer to the receipt of a send."""

from collections.abc import Sequence
from itertools import count, repeat
from typing import Final

from cometmq.client.errors import BrokerError
from cometmq.client.message import SendReceipt, SendStatus
from cometmq.client.queues import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.requests.send import SendMessageAnswer
from cometmq.remoting.pending import Answer

#: Answers that say that the message is stored.
STATUS: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_DEFAULT_REGION: Final = "DefaultRegion"


def receipt_of(answer: Answer, unique_key: str, queue: MessageQueue, address: str) -> SendReceipt:
    """The receipt that an answer stands for; BrokerError when it is none. Hot."""
    status = STATUS.get(answer.command.code)
    if status is None:
        raise BrokerError.of(answer, address)
    header = answer.header(SendMessageAnswer)
    return SendReceipt(
        status,
        header.batch_uniq_id or unique_key,
        header.msg_id,
        queue if header.queue_id == queue.queue_id else queue._replace(queue_id=header.queue_id),
        header.queue_offset,
        header.transaction_id,
        header.msg_region or _DEFAULT_REGION,
        header.trace_on is not False,
        header.recall_handle,
    )


def receipts_of(receipt: SendReceipt, keys: Sequence[str]) -> list[SendReceipt]:
    """The receipt of a batch, taken apart. An inner batch has one place for all its messages. Hot."""
    ids: Sequence[str] = receipt.offset_message_id.split(",")
    if len(ids) != len(keys):
        ids = [receipt.offset_message_id] * len(keys)
    return list(
        map(
            SendReceipt,
            repeat(receipt.status),
            keys,
            ids,
            repeat(receipt.queue),
            count(receipt.queue_offset),
            repeat(None),
            repeat(receipt.region_id),
            repeat(receipt.trace_on),
        )
    )
