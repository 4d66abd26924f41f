"""The bodies of requests and responses as types, a module for each subject; `by_code` says who carries which.

All names are here too, and each is loaded when it is used.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.protocol.bodies.auth import AclInfo, AclInfoList, PolicyEntryInfo, PolicyInfo, UserInfo, UserInfoList
    from cometmq.protocol.bodies.base import Body
    from cometmq.protocol.bodies.by_code import REQUEST_BODIES, RESPONSE_BODIES
    from cometmq.protocol.bodies.config import ConfigText
    from cometmq.protocol.bodies.connections import (
        Connection,
        ConsumeMessageDirectlyResult,
        ConsumerConnection,
        ConsumeResult,
        ConsumerRunningInfo,
        ConsumeStatus,
        PopProcessQueueInfo,
        ProcessQueueInfo,
        ProducerConnection,
    )
    from cometmq.protocol.bodies.groups import (
        CustomizedRetryPolicy,
        ExponentialRetryPolicy,
        GroupForbidden,
        GroupRetryPolicy,
        GroupRetryPolicyType,
        SimpleSubscriptionData,
        SubscriptionGroupConfig,
        SubscriptionGroupList,
        SubscriptionGroupWrapper,
    )
    from cometmq.protocol.bodies.heartbeat import (
        CheckClientRequestBody,
        ConsumeFromWhere,
        ConsumerData,
        ConsumeType,
        ExpressionType,
        HeartbeatData,
        MessageModel,
        ProducerData,
        SubscriptionData,
    )
    from cometmq.protocol.bodies.lists import (
        GetConsumerListByGroupResponseBody,
        GroupList,
        ProducerInfo,
        ProducerTableInfo,
        TopicList,
    )
    from cometmq.protocol.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
    from cometmq.protocol.bodies.message_queue import MessageQueue, MessageQueueForC
    from cometmq.protocol.bodies.offsets import (
        ConsumerOffsetSerializeWrapper,
        DelayOffsetSerializeWrapper,
        GetConsumerStatusBody,
        QueryCorrectionOffsetBody,
        ResetOffsetBody,
        ResetOffsetBodyForC,
    )
    from cometmq.protocol.bodies.pop import (
        BatchAck,
        BatchAckMessageRequestBody,
        MessageQueueAssignment,
        MessageRequestMode,
        MessageRequestModeSerializeWrapper,
        QueryAssignmentRequestBody,
        QueryAssignmentResponseBody,
        SetMessageRequestModeRequestBody,
    )
    from cometmq.protocol.bodies.registration import (
        DataVersion,
        KVTable,
        RegisterBrokerBody,
        TopicConfig,
        TopicConfigAndMappingSerializeWrapper,
        TopicConfigList,
        TopicConfigSerializeWrapper,
        TopicFilterType,
    )
    from cometmq.protocol.bodies.route import (
        MASTER_ID,
        BrokerData,
        BrokerMemberGroup,
        ClusterInfo,
        GetBrokerMemberGroupResponseBody,
        QueueData,
        TopicRouteData,
    )
    from cometmq.protocol.bodies.static_topic import (
        LogicQueueMappingItem,
        TopicQueueMappingDetail,
        TopicQueueMappingInfo,
    )
    from cometmq.protocol.bodies.stats import (
        BrokerStatsData,
        BrokerStatsItem,
        CheckRocksdbCqWriteResult,
        ConsumeQueueData,
        ConsumeStats,
        ConsumeStatsList,
        HAClientRuntimeInfo,
        HAConnectionRuntimeInfo,
        HARuntimeInfo,
        OffsetWrapper,
        QueryConsumeQueueResponseBody,
        QueryConsumeTimeSpanBody,
        QuerySubscriptionResponseBody,
        QueueTimeSpan,
        TopicOffset,
        TopicStatsTable,
    )
    from cometmq.protocol.bodies.timers import TimerCheckpoint, TimerMetric, TimerMetrics

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    auth="AclInfo AclInfoList PolicyEntryInfo PolicyInfo UserInfo UserInfoList",
    base="Body",
    by_code="REQUEST_BODIES RESPONSE_BODIES",
    config="ConfigText",
    connections=(
        "Connection ConsumeMessageDirectlyResult ConsumerConnection ConsumeResult ConsumerRunningInfo ConsumeStatus "
        "PopProcessQueueInfo ProcessQueueInfo ProducerConnection"
    ),
    groups=(
        "CustomizedRetryPolicy ExponentialRetryPolicy GroupForbidden GroupRetryPolicy GroupRetryPolicyType "
        "SimpleSubscriptionData SubscriptionGroupConfig SubscriptionGroupList SubscriptionGroupWrapper"
    ),
    heartbeat=(
        "CheckClientRequestBody ConsumeFromWhere ConsumerData ConsumeType ExpressionType HeartbeatData MessageModel "
        "ProducerData SubscriptionData"
    ),
    lists="GetConsumerListByGroupResponseBody GroupList ProducerInfo ProducerTableInfo TopicList",
    locks="LockBatchRequestBody LockBatchResponseBody UnlockBatchRequestBody",
    message_queue="MessageQueue MessageQueueForC",
    offsets=(
        "ConsumerOffsetSerializeWrapper DelayOffsetSerializeWrapper GetConsumerStatusBody QueryCorrectionOffsetBody "
        "ResetOffsetBody ResetOffsetBodyForC"
    ),
    pop=(
        "BatchAck BatchAckMessageRequestBody MessageQueueAssignment MessageRequestMode "
        "MessageRequestModeSerializeWrapper QueryAssignmentRequestBody QueryAssignmentResponseBody "
        "SetMessageRequestModeRequestBody"
    ),
    registration=(
        "DataVersion KVTable RegisterBrokerBody TopicConfig TopicConfigAndMappingSerializeWrapper TopicConfigList "
        "TopicConfigSerializeWrapper TopicFilterType"
    ),
    route=(
        "MASTER_ID BrokerData BrokerMemberGroup ClusterInfo GetBrokerMemberGroupResponseBody QueueData TopicRouteData"
    ),
    static_topic="LogicQueueMappingItem TopicQueueMappingDetail TopicQueueMappingInfo",
    stats=(
        "BrokerStatsData BrokerStatsItem CheckRocksdbCqWriteResult ConsumeQueueData ConsumeStats ConsumeStatsList "
        "HAClientRuntimeInfo HAConnectionRuntimeInfo HARuntimeInfo OffsetWrapper QueryConsumeQueueResponseBody "
        "QueryConsumeTimeSpanBody QuerySubscriptionResponseBody QueueTimeSpan TopicOffset TopicStatsTable"
    ),
    timers="TimerCheckpoint TimerMetric TimerMetrics",
)

__all__ = [
    "MASTER_ID",
    "REQUEST_BODIES",
    "RESPONSE_BODIES",
    "AclInfo",
    "AclInfoList",
    "BatchAck",
    "BatchAckMessageRequestBody",
    "Body",
    "BrokerData",
    "BrokerMemberGroup",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientRequestBody",
    "CheckRocksdbCqWriteResult",
    "ClusterInfo",
    "ConfigText",
    "Connection",
    "ConsumeFromWhere",
    "ConsumeMessageDirectlyResult",
    "ConsumeQueueData",
    "ConsumeResult",
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumeStatus",
    "ConsumeType",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerOffsetSerializeWrapper",
    "ConsumerRunningInfo",
    "CustomizedRetryPolicy",
    "DataVersion",
    "DelayOffsetSerializeWrapper",
    "ExponentialRetryPolicy",
    "ExpressionType",
    "GetBrokerMemberGroupResponseBody",
    "GetConsumerListByGroupResponseBody",
    "GetConsumerStatusBody",
    "GroupForbidden",
    "GroupList",
    "GroupRetryPolicy",
    "GroupRetryPolicyType",
    "HAClientRuntimeInfo",
    "HAConnectionRuntimeInfo",
    "HARuntimeInfo",
    "HeartbeatData",
    "KVTable",
    "LockBatchRequestBody",
    "LockBatchResponseBody",
    "LogicQueueMappingItem",
    "MessageModel",
    "MessageQueue",
    "MessageQueueAssignment",
    "MessageQueueForC",
    "MessageRequestMode",
    "MessageRequestModeSerializeWrapper",
    "OffsetWrapper",
    "PolicyEntryInfo",
    "PolicyInfo",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTableInfo",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "QueryConsumeQueueResponseBody",
    "QueryConsumeTimeSpanBody",
    "QueryCorrectionOffsetBody",
    "QuerySubscriptionResponseBody",
    "QueueData",
    "QueueTimeSpan",
    "RegisterBrokerBody",
    "ResetOffsetBody",
    "ResetOffsetBodyForC",
    "SetMessageRequestModeRequestBody",
    "SimpleSubscriptionData",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
    "TimerCheckpoint",
    "TimerMetric",
    "TimerMetrics",
    "TopicConfig",
    "TopicConfigAndMappingSerializeWrapper",
    "TopicConfigList",
    "TopicConfigSerializeWrapper",
    "TopicFilterType",
    "TopicList",
    "TopicOffset",
    "TopicQueueMappingDetail",
    "TopicQueueMappingInfo",
    "TopicRouteData",
    "TopicStatsTable",
    "UnlockBatchRequestBody",
    "UserInfo",
    "UserInfoList",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
