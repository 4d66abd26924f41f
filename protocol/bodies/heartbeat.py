"""Heartbeats: which groups a client runs and what they subscribe to. Requests 34 and 46.

Enumerations travel by their names and are kept as text, so that a name that is unknown here survives; the enums below
give the names that RocketMQ knows.
"""

import enum

from cometmq.protocol.bodies.base import Body, Int64, always, always_new


class ConsumeFromWhere(enum.StrEnum):
    """Where a new consumer group starts."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeType(enum.StrEnum):
    """Who drives consumption: the application (pull), the client library (push), or the broker (pop)."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(enum.StrEnum):
    """Whether the members of a group share the messages or each get all."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ExpressionType(enum.StrEnum):
    """The language of a filter."""

    TAG = "TAG"
    SQL92 = "SQL92"


class SubscriptionData(Body, frozen=True, kw_only=True):
    """What a group wants of a topic."""

    class_filter_mode: bool = always(False)
    #: Java hash codes of the tags. Go hashes other bytes: recompute them from `tags_set` on the server.
    code_set: list[Int64] = always_new(list)
    #: Go may send the empty text for TAG.
    expression_type: str = always(ExpressionType.TAG.value)
    sub_string: str = always("")
    #: Milliseconds from Java, nanoseconds from Go.
    sub_version: Int64 = always(0)
    tags_set: list[str] = always_new(list)
    topic: str = always("")


class ProducerData(Body, frozen=True, kw_only=True):
    """A producer group of a client."""

    group_name: str = always("")


class ConsumerData(Body, frozen=True, kw_only=True):
    """A consumer group of a client."""

    consume_from_where: str | None = None
    consume_type: str | None = None
    group_name: str = always("")
    message_model: str | None = None
    subscription_data_set: list[SubscriptionData] = always_new(list)
    unit_mode: bool = always(False)


class HeartbeatData(Body, frozen=True, kw_only=True):
    """All groups of a client: the body of HEART_BEAT."""

    client_id: str = always("", name="clientID")
    consumer_data_set: list[ConsumerData] = always_new(list)
    #: 0 in heartbeats of the first version.
    heartbeat_fingerprint: Int64 = always(0)
    producer_data_set: list[ProducerData] = always_new(list)
    #: The second version leaves subscriptions out when the broker knows them already.
    without_sub: bool = always(False)


class CheckClientRequestBody(Body, frozen=True, kw_only=True):
    """A subscription that a client wants checked before it starts."""

    client_id: str = always("")
    group: str = always("")
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
