"""How often a message is tried, and where it goes after the last time.

A consumer that failed gives the message back (`handlers.send_back`), or, when that does not reach us, sends it itself
to the retry topic of its group (`handlers.send`). The rules of both ways live here; they differ by one try, as
RocketMQ's do. Nothing is put here. Mirrors `consumerSendMsgBack` and `handleRetryAndDLQ`.
"""

from typing import NamedTuple, Protocol

from cometmq.broker.remarks import no_group
from cometmq.broker.state import BrokerState
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.codes import ResponseCode, Version
from cometmq.remoting.dispatch import Response

#: The level of the first retry; each further one waits a level longer.
FIRST_RETRY_LEVEL = 3
#: Dead letters have one queue.
DLQ_QUEUES = 1
#: Clients before this version do not say how often their messages are tried.
_SAYS_MAX_SINCE = int(Version.V3_5_8)


class DeadLetter(NamedTuple):
    """A message that is not tried again: it goes to this topic, queue 0, without delay."""

    topic: str


class RetryHeader(Protocol):
    """What the headers of both ways say about retries."""

    @property
    def max_reconsume_times(self) -> int | None: ...


def max_times(group: SubscriptionGroupConfig, header: RetryHeader, version: int) -> int:
    """How often a message of the group is tried again; newer clients decide it themselves."""
    asked = header.max_reconsume_times
    return group.retry_max_times if asked is None or version < _SAYS_MAX_SINCE else asked


def retry_delay(delay_level: int, reconsume_times: int) -> int:
    """The delay level of the next try: the consumer's wish, or a level more each time."""
    return delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + reconsume_times


def redirect_retry(
    state: BrokerState, topic: str, reconsume_times: int, header: RetryHeader, version: int
) -> DeadLetter | Response | None:
    """What to do with a send to a retry topic: None to take it as it is, a dead letter, or a refusal.

    A group whose queues are locked consumes in order: its messages are tried in the client, and what is sent has come
    to its end.
    """
    if not topic.startswith(names.RETRY_PREFIX):
        return None
    # Retry topics of pop consumers name the topic behind a plus sign.
    name = topic[len(names.RETRY_PREFIX) :].partition("+")[0]
    group = state.groups.find(name)
    if group is None:
        return Response(int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), remark=no_group(name))
    if reconsume_times > max_times(group, header, version) or state.locks.is_group_locked(name):
        return dead_letter(state, name)
    return None


def dead_letter(state: BrokerState, group: str) -> DeadLetter:
    """Where the dead letters of a group go; the topic is made when it is first needed."""
    topic = names.dlq_topic(group)
    state.topics.create_internal(topic, DLQ_QUEUES)
    return DeadLetter(topic)
