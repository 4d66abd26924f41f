"""Configuration of consumer groups. Requests 200, 201, 225, 352 and 353, and the broker's file of groups."""

import enum

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.registration import DataVersion


class GroupRetryPolicyType(enum.StrEnum):
    """How the delay of a retry is chosen."""

    CUSTOMIZED = "CUSTOMIZED"
    EXPONENTIAL = "EXPONENTIAL"


class CustomizedRetryPolicy(Body, frozen=True, kw_only=True):
    """A delay in milliseconds for each retry; the last one repeats."""

    next: list[Int64] = always_new(list)


class ExponentialRetryPolicy(Body, frozen=True, kw_only=True):
    """Delays in milliseconds that grow by a factor."""

    initial: Int64 = always(5_000)
    max: Int64 = always(7_200_000)
    multiplier: Int64 = always(2)


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """The retry policy of a group."""

    customized_retry_policy: CustomizedRetryPolicy | None = None
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    type: str = always(GroupRetryPolicyType.CUSTOMIZED.value)


class SimpleSubscriptionData(Body, frozen=True, kw_only=True):
    """A subscription that the group's configuration prescribes."""

    expression: str = always("")
    expression_type: str = always("")
    topic: str = always("")
    version: Int64 = always(0)


class SubscriptionGroupConfig(Body, frozen=True, kw_only=True):
    """What a broker keeps about a consumer group."""

    attributes: dict[str, str] = always_new(dict)
    broker_id: Int64 = always(0)
    consume_broadcast_enable: bool = always(True)
    consume_enable: bool = always(True)
    consume_from_min_enable: bool = always(True)
    consume_message_orderly: bool = always(False)
    consume_timeout_minute: Int32 = always(15)
    group_name: str = always("")
    group_retry_policy: GroupRetryPolicy = always_new(GroupRetryPolicy)
    group_sys_flag: Int32 = always(0)
    notify_consumer_ids_changed_enable: bool = always(True)
    retry_max_times: Int32 = always(16)
    retry_queue_nums: Int32 = always(1)
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    which_broker_when_consume_slowly: Int64 = always(1)


class SubscriptionGroupList(Body, frozen=True, kw_only=True):
    """Groups to create or update together."""

    group_config_list: list[SubscriptionGroupConfig] = always_new(list)


class SubscriptionGroupWrapper(Body, frozen=True, kw_only=True):
    """All groups of a broker."""

    data_version: DataVersion = always_new(DataVersion)
    #: Group -> topic -> bits of what is forbidden.
    forbidden_table: dict[str, dict[str, Int32]] = always_new(dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = always_new(dict)


class GroupForbidden(Body, frozen=True, kw_only=True):
    """Whether a group may read a topic."""

    group: str = always("")
    readable: bool | None = None
    topic: str = always("")
