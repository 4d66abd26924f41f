"""Values in the words of Java's tools: what scripts grep for. Only text; nothing here asks anybody.

RocketMQ's toString methods, and the order in which a Java HashMap gives its keys.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cometmq.client.message import ReceivedMessage, SendReceipt
from cometmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRouteData,
)
from cometmq.protocol.hashing import hash_code
from cometmq.protocol.message_id import unpack_host


def boolean(value: bool) -> str:
    return "true" if value else "false"


def optional(value: object) -> str:
    return "null" if value is None else str(value)


def hash_order(keys: Iterable[str], *, capacity: int = 16) -> list[str]:
    """Keys in the order of a Java HashMap that was made with this capacity."""
    found = list(keys)
    size = capacity
    while len(found) > size * 3 // 4:
        size *= 2

    def bucket(key: str) -> int:
        code = hash_code(key) & 0xFFFFFFFF
        return (code ^ code >> 16) & (size - 1)

    return sorted(found, key=bucket)


def text_of_map(pairs: Mapping[str, str], *, capacity: int = 16) -> str:
    """Java's text of a map: `{a=b, c=d}`."""
    return "{" + ", ".join(f"{key}={pairs[key]}" for key in hash_order(pairs, capacity=capacity)) + "}"


#: The decoder of properties makes its map with this capacity.
PROPERTIES_CAPACITY = 128


def properties_text(pairs: Mapping[str, str]) -> str:
    return text_of_map(pairs, capacity=PROPERTIES_CAPACITY)


def human_time(millis: int) -> str:
    """Local time with milliseconds: `2026-11-16 16:43:52,656`."""
    return f"{plain_time(millis)},{millis % 1000:03d}"


def plain_time(millis: int) -> str:
    """Local time in seconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(millis // 1000))


def perm_text(perm: int) -> str:
    return f"{'R' if perm & 4 else '-'}{'W' if perm & 2 else '-'}{'X' if perm & 1 else '-'}"


def topic_config_text(config: TopicConfig) -> str:
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={boolean(config.order)}, attributes={text_of_map(config.attributes)}]"
    )


def retry_policy_text(policy: GroupRetryPolicy) -> str:
    exponential, customized = policy.exponential_retry_policy, policy.customized_retry_policy
    first = "null"
    if exponential is not None:
        first = (
            f"ExponentialRetryPolicy{{initial={exponential.initial}, max={exponential.max}, "
            f"multiplier={exponential.multiplier}}}"
        )
    second = "null" if customized is None else f"CustomizedRetryPolicy{{next={customized.next}}}"
    return f"GroupRetryPolicy{{type={policy.type}, exponentialRetryPolicy={first}, customizedRetryPolicy={second}}}"


def group_config_fields(config: SubscriptionGroupConfig) -> list[tuple[str, str]]:
    """The fields of a group's configuration in Java's order."""
    subscriptions = config.subscription_data_set
    return [
        ("groupName", config.group_name),
        ("consumeEnable", boolean(config.consume_enable)),
        ("consumeFromMinEnable", boolean(config.consume_from_min_enable)),
        ("consumeBroadcastEnable", boolean(config.consume_broadcast_enable)),
        ("consumeMessageOrderly", boolean(config.consume_message_orderly)),
        ("retryQueueNums", str(config.retry_queue_nums)),
        ("retryMaxTimes", str(config.retry_max_times)),
        ("groupRetryPolicy", retry_policy_text(config.group_retry_policy)),
        ("brokerId", str(config.broker_id)),
        ("whichBrokerWhenConsumeSlowly", str(config.which_broker_when_consume_slowly)),
        ("notifyConsumerIdsChangedEnable", boolean(config.notify_consumer_ids_changed_enable)),
        ("groupSysFlag", str(config.group_sys_flag)),
        ("consumeTimeoutMinute", str(config.consume_timeout_minute)),
        ("subscriptionDataSet", "null" if subscriptions is None else str([each.topic for each in subscriptions])),
        ("attributes", text_of_map(config.attributes)),
    ]


def group_config_text(config: SubscriptionGroupConfig) -> str:
    return (
        "SubscriptionGroupConfig{" + ", ".join(f"{name}={value}" for name, value in group_config_fields(config)) + "}"
    )


def host_text(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}"


def message_text(message: ReceivedMessage, properties: Mapping[str, str]) -> str:
    """A whole message; `properties` are those that it is shown with."""
    record = message.record
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    transaction = optional(message.transaction_id)
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={record.queue_id}, storeSize={record.size}, "
        f"queueOffset={record.queue_offset}, sysFlag={record.sys_flag}, bornTimestamp={record.born_timestamp}, "
        f"bornHost=/{host_text(record.born_host)}, storeTimestamp={record.store_timestamp}, "
        f"storeHost=/{host_text(record.store_host)}, msgId={message.offset_message_id}, "
        f"commitLogOffset={record.physical_offset}, bodyCRC={record.body_crc}, "
        f"reconsumeTimes={record.reconsume_times}, "
        f"preparedTransactionOffset={record.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{record.topic}', flag={record.flag}, "
        f"properties={properties_text(properties)}, body=[{body}], transactionId='{transaction}'}}]"
    )


def send_result_text(receipt: SendReceipt) -> str:
    return (
        f"SendResult [sendStatus={receipt.status}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, messageQueue={receipt.queue}, "
        f"queueOffset={receipt.queue_offset}, recallHandle={optional(receipt.recall_handle)}]"
    )


def direct_result_text(result: ConsumeMessageDirectlyResult) -> str:
    return (
        f"ConsumeMessageDirectlyResult [order={boolean(result.order)}, autoCommit={boolean(result.auto_commit)}, "
        f"consumeResult={optional(result.consume_result)}, remark={optional(result.remark)}, "
        f"spentTimeMills={result.spent_time_mills}]"
    )


def pretty_json(value: Any, depth: int = 0) -> str:
    """fastjson's pretty form: tabs, and maps with numbers for keys on one line."""
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, dict) and value:
        if all(isinstance(key, int) for key in value):
            pairs = ",".join(f"{key}:{pretty_json(each, depth + 1)}" for key, each in value.items())
            return "{" + pairs + outer + "}"
        pairs = ",".join(f"{inner}{json.dumps(key)}:{pretty_json(each, depth + 1)}" for key, each in value.items())
        return "{" + pairs + outer + "}"
    if isinstance(value, list) and value:
        return "[" + ",".join(inner + pretty_json(each, depth + 1) for each in value) + outer + "]"
    return json.dumps(value, ensure_ascii=False)


def route_text(route: TopicRouteData) -> str:
    return pretty_json(msgspec.to_builtins(route))
