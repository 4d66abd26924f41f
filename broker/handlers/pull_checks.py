"""May this pull be served, and by which filter? RocketMQ's checks, in RocketMQ's order, with its codes and remarks.

They are made anew whenever a held pull is executed again. What is found is in `pull`. The first half of RocketMQ's
PullMessageProcessor.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from cometmq.broker.config import BrokerConfig
from cometmq.broker.remarks import FAQ
from cometmq.broker.store.reading import MessageFilter
from cometmq.broker.subscriptions import SubscriptionRefused, Subscriptions
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.bodies.heartbeat import ConsumeType, MessageModel
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.pull import PullMessage, PullMessageRefusal
from cometmq.remoting.dispatch import Request, Response

if TYPE_CHECKING:
    from cometmq.broker.consumers import ConsumerGroup
    from cometmq.broker.state import BrokerState

# The bits of a pull's sysFlag.
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

PERM_READ: Final = 4

# Who forbids a pull: the `forbiddenType` that comes with NO_PERMISSION.
BROKER_FORBIDS: Final = 1
GROUP_FORBIDS: Final = 2
TOPIC_FORBIDS: Final = 3
BROADCASTING_DISABLED: Final = 4
SUBSCRIPTION_FORBIDDEN: Final = 5

_LITE: Final = int(RequestCode.LITE_PULL_MESSAGE)
_GROUP_OFFLINE: Final = f"the consumer's group info not exist{FAQ}"


class PullRefused(Exception):
    """Raised when a check fails; the client gets the response."""

    def __init__(self, code: ResponseCode | int, remark: str, forbidden_type: int | None = None) -> None:
        super().__init__(remark)
        # Java writes the keys of a pull's answer even when there are none.
        self.response = Response(int(code), PullMessageRefusal(forbidden_type), remark=remark)


class Admitted(NamedTuple):
    """What the checks have found by the way."""

    group: SubscriptionGroupConfig
    topic: TopicConfig
    #: None: all messages.
    wanted: MessageFilter | None


class PullChecks:
    """The checks of one broker."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state
        self._groups = state.groups
        self._topics = state.topics
        self._consumers = state.consumers
        self._monotonic = state.clock.monotonic
        self.subscriptions = Subscriptions()
        self.configure(state.config)
        state.on_config.append(self.configure)

    def configure(self, config: BrokerConfig) -> None:
        # What a running broker nearly never has is one question.
        self._rejects = not config.is_master and not config.slave_read_enable
        self._unusual = self._rejects or not config.is_readable or not config.lite_pull_message_enable
        self._rejects_active = config.reject_pull_consumer_enable

    def admit(self, request: Request[PullMessage]) -> Admitted:
        """Raises `PullRefused`. Hot: six lookups for a consumer with heartbeats."""
        header = request.header
        name, topic_name = header.consumer_group, header.topic
        if self._unusual:
            self._check_broker(request)
        group: SubscriptionGroupConfig | None = self._groups.find(name)
        if group is None:
            remark = f"subscription group [{name}] does not exist, {FAQ}"
            raise PullRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            _forbid(GROUP_FORBIDS, f"subscription group no permission, {name}")
        topic: TopicConfig | None = self._topics.get(topic_name)
        if topic is None:
            remark = f"topic[{topic_name}] not exist, apply first please! {FAQ}"
            raise PullRefused(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            _forbid(TOPIC_FORBIDS, f"the topic[{topic_name}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{header.queue_id}] is illegal, topic:[{topic_name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{request.connection}]"
            )
            raise PullRefused(ResponseCode.INVALID_PARAMETER, remark)
        try:
            if header.sys_flag & SUBSCRIPTION:
                wanted = self._of_header(header)
            else:
                wanted = self._of_heartbeat(header, group)
        except SubscriptionRefused as error:
            raise PullRefused(error.code, str(error)) from None
        if self._rejects_active:
            self._check_active(request)
        return Admitted(group, topic, wanted)

    def _check_broker(self, request: Request[PullMessage]) -> None:
        config = self._state.config
        if self._rejects:
            raise PullRefused(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        if not config.is_readable:
            _forbid(BROKER_FORBIDS, f"the broker[{config.broker_ip1}] pulling message is forbidden")
        if request.command.code == _LITE and not config.lite_pull_message_enable:
            _forbid(BROKER_FORBIDS, f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden")

    def _of_header(self, header: PullMessage) -> MessageFilter | None:
        """The pull says itself what it wants."""
        made = self.subscriptions.of_pull(header.topic, header.subscription, header.expression_type)
        self._consumers.remember_puller(header.consumer_group, header.topic, made.data, self._monotonic())
        return made.wanted

    def _of_heartbeat(self, header: PullMessage, config: SubscriptionGroupConfig) -> MessageFilter | None:
        """The heartbeats of the group have said it."""
        name, topic = header.consumer_group, header.topic
        group: ConsumerGroup | None = self._consumers.get(name)
        if group is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, _GROUP_OFFLINE)
        if not config.consume_broadcast_enable and group.message_model == MessageModel.BROADCASTING.value:
            _forbid(BROADCASTING_DISABLED, f"the consumer group[{name}] can not consume by broadcast way")
        if self._groups.is_forbidden(name, topic):
            _forbid(SUBSCRIPTION_FORBIDDEN, f"the consumer group[{name}] is forbidden for topic[{topic}]")
        data = group.subscriptions.get(topic)
        if data is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if data.sub_version < header.sub_version:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return self.subscriptions.of_group(name, data)

    def _check_active(self, request: Request[PullMessage]) -> None:
        """`rejectPullConsumerEnable`: only members of a group may pull, and those that the system has."""
        name = request.header.consumer_group
        group: ConsumerGroup | None = self._consumers.get(name)
        if group is not None and (
            group.consume_type != ConsumeType.ACTIVELY.value or request.connection in group.channels
        ):
            return
        if name not in names.BUILT_IN_GROUPS and not names.is_system_group(name):
            remark = f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}"
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)


def _forbid(who: int, remark: str) -> NoReturn:
    raise PullRefused(ResponseCode.NO_PERMISSION, remark, who)
