"""Headers of what a broker asks of a client, on the connection that the client has opened.

GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY come from an admin first; the broker passes them on to the
client with the same keys, and the client's answer back.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation


class CheckTransactionState(Header, frozen=True):
    """Asks a producer what became of a half message; it answers by an END_TRANSACTION of its own."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class NotifyConsumerIdsChanged(Header, frozen=True):
    """Tells the members of a group that it is time to share the queues anew."""

    consumer_group: str


class ResetConsumerOffset(Header, frozen=True):
    """Has a consumer go on from the offsets in the body."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool
    queue_id: I32 = -1
    offset: I64 | None = None


class GetConsumerStatusFromClient(Header, frozen=True):
    """Asks a consumer for its offsets."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Header, frozen=True):
    """Asks a consumer how it is doing, with the stacks of its threads if wanted."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectly(Header, frozen=True):
    """Has one client consume one message now; the broker adds its name, the flags and the message itself."""

    consumer_group: str
    client_id: str
    msg_id: str
    broker_name: str | None = None  # an admin's request goes without
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class PushReply(Header, frozen=True):
    """Hands the reply to a request over to the client that waits for it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None


_BROKER = "broker → client"

OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.CHECK_TRANSACTION_STATE, CheckTransactionState, NoHeader, _BROKER, oneway=True),
    Operation(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChanged, NoHeader, _BROKER, oneway=True),
    Operation(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetConsumerOffset, NoHeader, _BROKER, oneway=True),
    Operation(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatusFromClient, NoHeader, _BROKER),
    Operation(RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfo, NoHeader, _BROKER),
    Operation(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectly, NoHeader, _BROKER),
    Operation(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, PushReply, NoHeader, _BROKER),
)
