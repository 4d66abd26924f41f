"""Which request code carries which body.

Bodies that hold message records (sends, pulls, queries) are not JSON and not listed: see `cometmq.protocol.record` and
`cometmq.protocol.batch`.
"""

from collections.abc import Mapping

from cometmq.protocol.bodies.auth import AclInfo, AclInfoList, UserInfo, UserInfoList
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.config import ConfigText
from cometmq.protocol.bodies.connections import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
)
from cometmq.protocol.bodies.groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from cometmq.protocol.bodies.lists import GetConsumerListByGroupResponseBody, GroupList, ProducerTableInfo, TopicList
from cometmq.protocol.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.protocol.bodies.offsets import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    GetConsumerStatusBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
)
from cometmq.protocol.bodies.pop import (
    BatchAckMessageRequestBody,
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
)
from cometmq.protocol.bodies.route import ClusterInfo, GetBrokerMemberGroupResponseBody, TopicRouteData
from cometmq.protocol.bodies.static_topic import TopicQueueMappingDetail
from cometmq.protocol.bodies.stats import (
    BrokerStatsData,
    CheckRocksdbCqWriteResult,
    ConsumeStats,
    ConsumeStatsList,
    HARuntimeInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    TopicStatsTable,
)
from cometmq.protocol.bodies.timers import TimerCheckpoint, TimerMetrics
from cometmq.protocol.codes import RequestCode

#: Request code -> the body of the request. Codes that are missing here carry none, or message records.
REQUEST_BODIES: Mapping[int, type[Body]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: TopicConfigList,
    RequestCode.UPDATE_BROKER_CONFIG: ConfigText,
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: UnlockBatchRequestBody,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRouteData,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList,
    RequestCode.UPDATE_NAMESRV_CONFIG: ConfigText,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: SetMessageRequestModeRequestBody,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: TopicQueueMappingDetail,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: ConfigText,
    RequestCode.AUTH_CREATE_USER: UserInfo,
    RequestCode.AUTH_UPDATE_USER: UserInfo,
    RequestCode.AUTH_CREATE_ACL: AclInfo,
    RequestCode.AUTH_UPDATE_ACL: AclInfo,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckMessageRequestBody,
}

#: Request code -> the body of its successful response.
RESPONSE_BODIES: Mapping[int, type[Body]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigAndMappingSerializeWrapper,
    RequestCode.GET_BROKER_CONFIG: ConfigText,
    RequestCode.GET_BROKER_RUNTIME_INFO: KVTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupResponseBody,
    RequestCode.LOCK_BATCH_MQ: LockBatchResponseBody,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetSerializeWrapper,
    RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetSerializeWrapper,
    RequestCode.GET_TIMER_CHECK_POINT: TimerCheckpoint,
    RequestCode.GET_TIMER_METRICS: TimerMetrics,
    RequestCode.REGISTER_BROKER: KVTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper,
    RequestCode.GET_TOPIC_STATS_INFO: TopicStatsTable,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerConnection,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KVTable,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatusBody,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetBody,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatusBody,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanBody,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: QueryCorrectionOffsetBody,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyResult,
    RequestCode.GET_UNIT_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
    RequestCode.VIEW_BROKER_STATS_DATA: BrokerStatsData,
    RequestCode.GET_BROKER_CONSUME_STATS: ConsumeStatsList,
    RequestCode.GET_NAMESRV_CONFIG: ConfigText,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueueResponseBody,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.GET_ALL_PRODUCER_INFO: ProducerTableInfo,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: TopicList,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: QuerySubscriptionResponseBody,
    RequestCode.GET_TOPIC_CONFIG: TopicConfig,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: GroupForbidden,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: CheckRocksdbCqWriteResult,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentResponseBody,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: MessageRequestModeSerializeWrapper,
    RequestCode.GET_BROKER_MEMBER_GROUP: GetBrokerMemberGroupResponseBody,
    RequestCode.GET_BROKER_HA_STATUS: HARuntimeInfo,
    RequestCode.AUTH_GET_USER: UserInfo,
    RequestCode.AUTH_LIST_USER: UserInfoList,
    RequestCode.AUTH_GET_ACL: AclInfo,
    RequestCode.AUTH_LIST_ACL: AclInfoList,
}
