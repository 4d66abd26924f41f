"""What a user of the SDK can meet. Each error says its cause in words, and `remedy` what to do about it.

Three branches: `ClientError` (this side), `TransportError` (the way; see `cometmq.remoting.errors`) and `BrokerError`
(what a server answered). All are `CometMQError`s with `code`, `retriable` and `remedy`.
"""

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from cometmq.protocol.codes import ResponseCode, request_name
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    from cometmq.remoting.pending import Answer


class ClientError(CometMQError):
    """Root of the errors of this side: wrong use, or something that is not there."""


class Closed(ClientError):
    """Raised when a client, producer or consumer is used before its start or after its close."""

    remedy = "use it inside of its `async with` block"


class NoNameserver(ClientError):
    """Raised when no nameserver was given, or none of those that were given answers."""

    code = 10004
    remedy = "give the addresses to connect(), set NAMESRV_ADDR, or name an HTTP address server"

    def __init__(self, text: str, *, are_silent: bool = False) -> None:
        """`are_silent`: there are some, and none of them answers."""
        super().__init__(text)
        if are_silent:
            self.retriable = True
            self.remedy = "check that a nameserver runs at one of these addresses, and that this machine can reach it"


class NoRoute(ClientError):
    """Raised when there is no way to a topic; the text says which of the possible causes it is."""

    code = 10005
    remedy = "create the topic (mqadmin updateTopic), or check its name"

    def __init__(self, text: str, *, remedy: str | None = None, retriable: bool = False) -> None:
        super().__init__(text)
        self.retriable = retriable
        if remedy is not None:
            self.remedy = remedy


class NoBroker(ClientError):
    """Raised when the broker that is needed has no address in the routes."""

    code = 10003
    retriable = True
    remedy = "wait until the broker has registered again, or check the nameserver's clusterList"


class Unsupported(ClientError):
    """Raised when the broker would accept a request and silently not do what it asks for."""

    code = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


class InvalidMessage(ClientError, ValueError):
    """Raised when a message cannot be sent as it is."""

    code = int(ResponseCode.MESSAGE_ILLEGAL)


class InvalidSubscription(ClientError, ValueError):
    """Raised when a subscription cannot be understood."""

    code = int(ResponseCode.SUBSCRIPTION_PARSE_FAILED)


class GroupInUse(ClientError):
    """Raised when a client has a producer or consumer of this group already."""

    remedy = "open another connect() for a second member of the group"


class Attempt(NamedTuple):
    """One try of a send."""

    broker_name: str
    error: Exception
    seconds: float

    def __str__(self) -> str:
        return f"{self.broker_name} after {self.seconds * 1000:.0f} ms: {self.error}"


class SendFailed(ClientError):
    """Raised when all tries of a send failed; raised from the last cause. The message may have been stored."""

    retriable = True
    remedy = "look at the attempts; the message may be stored, so send it again only if a repeat does no harm"

    def __init__(self, topic: str, attempts: list[Attempt]) -> None:
        self.topic = topic
        self.attempts = attempts
        self.code = getattr(attempts[-1].error, "code", None) if attempts else None
        tries = "; ".join(str(attempt) for attempt in attempts)
        super().__init__(f"message for {topic} not sent, {len(attempts)} attempts: {tries}")


class ReplyTimeout(ClientError, TimeoutError):
    """Raised when a request was sent and no reply came in time."""

    code = 10006
    remedy = "check that somebody consumes the topic and replies, or allow more time"


class CannotReply(ClientError):
    """Raised when a message that was received is no request: it does not say where a reply shall go."""

    code = 10007
    remedy = "reply only to messages that were sent by producer.request()"


class BrokerError(CometMQError):
    """Raised when a server refuses: its code, its remark and who it was."""

    by_code: ClassVar[dict[int, type["BrokerError"]]] = {}

    def __init__(self, code: int, remark: str | None, address: str, request_code: int | None = None) -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        asked = f" to {request_name(request_code)}" if request_code is not None else ""
        super().__init__(f"{address} answered {_code_name(code)}{asked}: {self.remark or 'no remark'}")

    def __init_subclass__(cls, codes: tuple[ResponseCode, ...] = (), **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for code in codes:
            BrokerError.by_code[int(code)] = cls

    @staticmethod
    def of(answer: "Answer", address: str) -> "BrokerError":
        """The error that an answer stands for."""
        kind = BrokerError.by_code.get(answer.code, BrokerError)
        return kind(answer.code, answer.remark, address, answer.request_code)


def own_copy(error: Exception) -> Exception:
    """The same error for one more who shares its cause: a single one would collect the tracebacks of all."""
    copy: Exception
    if isinstance(error, SendFailed):
        copy = SendFailed(error.topic, error.attempts)
    elif isinstance(error, BrokerError):
        copy = type(error)(error.code or 0, error.remark, error.address)
    else:
        return error
    copy.__cause__ = error.__cause__
    return copy


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return str(code)


class BrokerFailed(BrokerError, codes=(ResponseCode.SYSTEM_ERROR,)):
    """Raised when a server met an error of its own."""

    retriable = True


class BrokerBusy(BrokerError, codes=(ResponseCode.SYSTEM_BUSY,)):
    """Raised when a server has more to do than it can; it stored nothing."""

    retriable = True
    remedy = "send slower, or add brokers"


class NotSupported(BrokerError, codes=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)):
    """Raised when a server does not know a request: it is older, or the feature is switched off."""


class MessageRefused(BrokerError, codes=(ResponseCode.MESSAGE_ILLEGAL,)):
    """Raised when a broker does not take a message: too large, too many properties, or a timer that it cannot keep."""

    remedy = "make the message smaller, or raise maxMessageSize on the broker"


class ServiceUnavailable(BrokerError, codes=(ResponseCode.SERVICE_NOT_AVAILABLE,)):
    """Raised when a broker cannot store: its disk is full, or it shuts down."""

    retriable = True


class AccessDenied(BrokerError, codes=(ResponseCode.NO_PERMISSION,)):
    """Raised when a request is not allowed: by the permission of broker or topic, or by the access rules."""

    remedy = "check the credentials, the access rules, and the permission of the topic"


class TopicNotFound(BrokerError, codes=(ResponseCode.TOPIC_NOT_EXIST,)):
    """Raised when a server does not have a topic."""

    remedy = "create the topic with mqadmin updateTopic, or enable autoCreateTopicEnable on the broker"


class GroupNotFound(BrokerError, codes=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,)):
    """Raised when a broker does not have a consumer group and does not make it."""

    remedy = "create the group with mqadmin updateSubGroup, or enable autoCreateSubscriptionGroup on the broker"


class OffsetNotFound(BrokerError, codes=(ResponseCode.QUERY_NOT_FOUND,)):
    """Raised when a group has no offset in a queue yet, or a query found nothing."""


class SubscriptionRefused(BrokerError, codes=(ResponseCode.SUBSCRIPTION_PARSE_FAILED,)):
    """Raised when a broker cannot use a subscription's expression."""


class ConsumerOffline(BrokerError, codes=(ResponseCode.CONSUMER_NOT_ONLINE,)):
    """Raised when nobody consumes in a group."""


class RetryLater(Exception):
    """Raised by a handler to get the message again, after the delay of a level of its choice."""

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"retry with delay level {delay_level}")
        self.delay_level = delay_level


class RetryFrom(Exception):
    """Raised by a batch handler: the messages before `index` are done, the others come again."""

    def __init__(self, index: int, delay_level: int = 0) -> None:
        super().__init__(f"retry from message {index} on")
        self.index = index
        self.delay_level = delay_level
