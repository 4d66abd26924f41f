"""From the end of a put to the code and the remark of its answer: RocketMQ's table, sentence by sentence.

Everything that stores a message for a client uses it: sends, batches, replies. Mirrors `handlePutMessageResult`.
"""

from typing import Final

from cometmq.broker.store.message import PutStatus
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.codes import ResponseCode

#: Stored, though with a "but": these are answered with the whole header.
STORED: Final = {
    PutStatus.PUT_OK: int(ResponseCode.SUCCESS),
    PutStatus.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    PutStatus.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
    PutStatus.SLAVE_NOT_AVAILABLE: int(ResponseCode.SLAVE_NOT_AVAILABLE),
}

_CODES: Final = {
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
}

_SENTENCES: Final = {
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "in-sync replicas not enough",
    PutStatus.CREATE_MAPPED_FILE_FAILED: "create mapped file failed, server is busy or broken.",
    PutStatus.OS_PAGE_CACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]broker config enableLmq and enableMultiDispatch, lmq consumeQueue num exceed"
        " maxLmqConsumeQueueNum config num, default limit 2w."
    ),
}


def refusal_of(ticket: Ticket, store: Store, body_length: int) -> tuple[int, str]:
    """Code and remark of a put that did not store the message.

    RocketMQ's sentence comes first, because clients match it; the store's own reason follows where the sentence leaves
    it open.
    """
    status = ticket.status
    if status is None or status in STORED:
        raise ValueError(f"a put that ended with {status} is no refusal")
    code = int(_CODES.get(status, ResponseCode.SYSTEM_ERROR))
    reason = ticket.remark
    if status is PutStatus.MESSAGE_ILLEGAL or status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
        limit = store.options.max_message_size
        sentence = (
            "the message is illegal, maybe msg body or properties length not matched."
            f" msg body length limit {limit}B, msg properties length limit 32KB."
        )
        says_it_all = status is PutStatus.PROPERTIES_SIZE_EXCEEDED or body_length > limit
        return code, sentence if says_it_all else _with_reason(sentence, reason)
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        sentence = (
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full"
            f" [{store.cleaning.space()}], messages are put to the slave, message store has been shut down, etc."
        )
        return code, _with_reason(sentence, reason)
    if status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL:
        return code, reason or "timer message illegal"
    if status is PutStatus.OS_PAGE_CACHE_BUSY and reason.startswith("["):
        return code, reason  # given up while it waited: see `overload`
    known = _SENTENCES.get(status)
    return code, known if known is not None else _with_reason(status.value, reason)


def _with_reason(sentence: str, reason: str) -> str:
    return f"{sentence} ({reason})" if reason else sentence
