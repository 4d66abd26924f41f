"""Headers of pop consumption: the broker shares out messages one by one and takes each back that is not acknowledged.

They mirror PopMessageRequestHeader and its family. What the texts of offsets and receipts mean is not decided here.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation


class PopMessage(Header, frozen=True):
    """Asks for messages of any queue (-1) or one, to be invisible to others for a time."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    init_mode: I32
    born_time: I64 = 0  # now
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageAnswer(Header, frozen=True):
    """When, from where and until when the messages were given; a client needs the four numbers with any code."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(Header, frozen=True):
    """Acknowledges one message by its receipt (`extra_info`)."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


class ChangeInvisibleTime(Header, frozen=True):
    """Keeps a message invisible for longer, or has it come back sooner."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


class ChangeInvisibleTimeAnswer(Header, frozen=True):
    """What the new receipt is made of."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


class Notification(Header, frozen=True):
    """Waits until there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64
    order: bool = False
    attempt_id: str | None = None


class NotificationAnswer(Header, frozen=True):
    """Whether there is something to pop, and whether too many are waiting."""

    has_msg: bool
    polling_full: bool = False


class PollingInfo(Header, frozen=True):
    """Asks how many requests wait at a queue."""

    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfoAnswer(Header, frozen=True):
    """How many requests wait."""

    polling_num: I32


class PeekMessage(Header, frozen=True):
    """Asks for messages without taking them."""

    topic: str
    queue_id: I32
    max_msg_nums: I32
    consumer_group: str


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.POP_MESSAGE, PopMessage, PopMessageAnswer),
    Operation(RequestCode.PEEK_MESSAGE, PeekMessage, PopMessageAnswer),
    Operation(RequestCode.ACK_MESSAGE, AckMessage, NoHeader),
    Operation(RequestCode.BATCH_ACK_MESSAGE, NoHeader, NoHeader),
    Operation(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTime, ChangeInvisibleTimeAnswer),
    Operation(RequestCode.NOTIFICATION, Notification, NotificationAnswer),
    Operation(RequestCode.POLLING_INFO, PollingInfo, PollingInfoAnswer),
    Operation(RequestCode.QUERY_ASSIGNMENT, NoHeader, NoHeader),
    Operation(RequestCode.SET_MESSAGE_REQUEST_MODE, NoHeader, NoHeader, "admin → broker"),
    Operation(RequestCode.POP_ROLLBACK, NoHeader, NoHeader, "admin → broker"),
)
