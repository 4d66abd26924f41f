"""Headers of taking a timer message back before its time."""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import Header, Operation, field


class RecallMessage(Header, frozen=True):
    """Takes a timer message back, by the handle that its send was answered with."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageAnswer(Header, frozen=True):
    """The unique key of the message that was taken back; a refusal tells the region only."""

    msg_id: str | None = None
    msg_region: str | None = field(name="MSG_REGION", default=None)


OPERATIONS: tuple[Operation, ...] = (Operation(RequestCode.RECALL_MESSAGE, RecallMessage, RecallMessageAnswer),)
