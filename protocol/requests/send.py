"""Headers of sending: single messages, batches, replies to requests, and a consumer that gives a message back.

They mirror SendMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader and
ConsumerSendMsgBackRequestHeader. How a body is laid out is said elsewhere: see `cometmq.protocol.bodies` and the
message records.

The long and the short form of a send mean the same and have the same names here, so that one handler serves both.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation, field


class SendMessage(Header, frozen=True):
    """Stores one message or, when `batch` says so, many; the long form that Go sends."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    # A key that many requests may carry; declared here because the short form has a key of its own for it.
    broker_name: str | None = field(name="bname", default=None)


class SendMessageV2(Header, frozen=True):
    """`SendMessage` with keys of one letter; what Java sends, and every batch."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: I32 = field(name="d")
    queue_id: I32 = field(name="e")
    sys_flag: I32 = field(name="f")
    born_timestamp: I64 = field(name="g")
    flag: I32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: I32 = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: I32 | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)


class SendMessageAnswer(Header, frozen=True):
    """Where the message went; comes with 0 and with the three codes that say "stored, but"."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    trace_on: bool | None = field(name="TRACE_ON", default=None)
    msg_region: str | None = field(name="MSG_REGION", default=None)


class SendMessageRefusal(Header, frozen=True):
    """The keys of a send that was looked at and refused; nothing was stored, so there is no place to tell."""

    trace_on: bool | None = field(name="TRACE_ON", default=None)
    msg_region: str | None = field(name="MSG_REGION", default=None)


class SendMessageBack(Header, frozen=True):
    """A consumer gives a message back, to get it again later or to have it put with the dead letters."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.SEND_MESSAGE, SendMessage, SendMessageAnswer),
    Operation(RequestCode.SEND_MESSAGE_V2, SendMessageV2, SendMessageAnswer),
    Operation(RequestCode.SEND_BATCH_MESSAGE, SendMessageV2, SendMessageAnswer),
    Operation(RequestCode.SEND_REPLY_MESSAGE, SendMessage, SendMessageAnswer),
    Operation(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageV2, SendMessageAnswer),
    Operation(RequestCode.CONSUMER_SEND_MSG_BACK, SendMessageBack, NoHeader),
)
