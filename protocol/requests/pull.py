"""Headers of pulling messages from a queue.

They mirror PullMessageRequestHeader and PullMessageResponseHeader. The bits of `sys_flag` are in
`cometmq.protocol.sysflag`.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, Operation


class PullMessage(Header, frozen=True):
    """Asks for the messages of a queue from an offset on, and may commit an offset by the way."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64  # Java writes it after `subscription`; a required field has to come first here
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_froward_client_id: str | None = None  # the misspelling is the protocol's


class PullMessageAnswer(Header, frozen=True):
    """How far the queue goes and where to go on; comes with 0, 19, 20 and 21."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class PullMessageRefusal(Header, frozen=True):
    """Who forbids the pull, with NO_PERMISSION: 1 broker, 2 group, 3 topic, 4 broadcasting, 5 subscription."""

    forbidden_type: I32 | None = None


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.PULL_MESSAGE, PullMessage, PullMessageAnswer),
    Operation(RequestCode.LITE_PULL_MESSAGE, PullMessage, PullMessageAnswer),
)
