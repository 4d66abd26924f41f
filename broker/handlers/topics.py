"""Topics as operators see them: create, change, show, delete, and clean what no topic needs any more.

Requests 17, 18, 21, 215, 305, 306, 316, 329 and 351. Mirrors a part of RocketMQ's AdminBrokerProcessor.
"""

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from cometmq.broker import attributes
from cometmq.broker.handlers.clients import bounded
from cometmq.broker.handlers.pages import page_of
from cometmq.broker.handlers.row import Row
from cometmq.protocol import names
from cometmq.protocol.bodies.lists import TopicList
from cometmq.protocol.bodies.registration import (
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigList,
    TopicFilterType,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.header import NoHeader
from cometmq.protocol.names import InvalidName
from cometmq.protocol.requests.replication import GetAllTopicConfig, GetAllTopicConfigAnswer
from cometmq.protocol.requests.topics import CreateTopic, DeleteTopic, GetTopicConfig
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Longest body of a list of topics, in bytes: about 10,000 topics.
MAX_LIST: Final = 4 * 1024 * 1024
#: Most queues of a topic. Each costs a directory, and whoever asks for a topic's figures gets a line for each.
MAX_QUEUES: Final = 16_384
#: All bits of a permission: priority, read, write, inherit.
MAX_PERM: Final = 15

_SUCCESS = Response()

log = logging.getLogger(__name__)


class TopicRefused(ProtocolError):
    """Raised when a topic cannot be as it is asked for."""

    code = int(ResponseCode.INVALID_PARAMETER)
    remedy = "see the remark; names and figures are those of mqadmin updateTopic"


def rows(state: "BrokerState") -> list[Row]:
    requests = TopicRequests(state)
    listing, update = Permission("List", "Topic"), Permission("Update", "Cluster")
    return [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, requests.update, Permission("Create", "Topic", "topic")),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, requests.update_list, Permission("Create", "Topic")),
        (RequestCode.GET_ALL_TOPIC_CONFIG, requests.get_all, listing),
        (RequestCode.GET_TOPIC_CONFIG, requests.get, Permission("Get", "Topic", "topic")),
        (RequestCode.DELETE_TOPIC_IN_BROKER, requests.delete, Permission("Delete", "Topic", "topic")),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, requests.get_system, listing),
        (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, requests.clean_expired_queues, update),
        (RequestCode.CLEAN_UNUSED_TOPIC, requests.clean_unused, update),
        (RequestCode.DELETE_EXPIRED_COMMITLOG, requests.delete_expired_log, update),
    ]


async def _success_after(announcement: Awaitable[None]) -> Response:
    await announcement
    return _SUCCESS


class TopicRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    def update(self, request: Request[CreateTopic]) -> Response | Awaitable[Response]:
        """Create a topic or change it; what is so already is a success too."""
        header = request.header
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
            attributes=attributes.parse(header.attributes),
        )
        self._check(topic)
        if self._state.topics.update(topic):
            log.info("%s: %s is %s now", request.connection, topic.topic_name, self._state.topics.get(topic.topic_name))
        return self._announced()

    def update_list(self, request: Request[NoHeader]) -> Response | Awaitable[Response]:
        """Many topics, all or none. RocketMQ stops at the first that is so already and leaves the rest: a defect."""
        topics = TopicConfigList.decode(bounded(request, MAX_LIST)).topic_config_list
        for topic in topics:
            self._check(topic)
        changed = self._state.topics.update_all(topics)
        log.info("%s: created or changed %d of %d topics", request.connection, len(changed), len(topics))
        return self._announced()

    def _announced(self) -> Response | Awaitable[Response]:
        """Success, once the nameservers know it: whoever made a topic may look for it there next."""
        announcement = self._state.announcement()
        return _SUCCESS if announcement is None else _success_after(announcement)

    def get_all(self, request: Request[GetAllTopicConfig]) -> Response:
        header, topics = request.header, self._state.topics
        table = dict(topics.table)
        answer = None
        if (header.topic_seq, header.max_topic_num, header.data_version) != (None, None, None):
            answer = GetAllTopicConfigAnswer(total_topic_num=len(table))
            table = page_of(table, topics.data_version, header.topic_seq, header.max_topic_num, header.data_version)
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=topics.data_version, topic_config_table=table)
        return Response(header=answer, body=wrapper.encode())

    def get(self, request: Request[GetTopicConfig]) -> Response:
        name = request.header.topic
        topic = self._state.topics.get(name)
        if topic is None:
            remark = f"No topic in this broker. topic: {name[: names.MAX_RETRY_TOPIC_LENGTH]}"
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=remark)
        return Response(body=topic.encode())

    def delete(self, request: Request[DeleteTopic]) -> Response:
        """A topic with its queues and offsets; its records stay in the log until they expire. Unknown ones too."""
        topic = request.header.topic
        if not topic or topic.isspace():
            raise InvalidName("The specified topic is blank.")
        self._refuse_system(topic)
        gone = [topic]
        if self._state.config.clear_retry_topic_when_delete_topic:
            gone += self._pop_retry_topics(topic)
        self._forget(gone)
        log.info("%s: deleted %s", request.connection, ", ".join(gone)[:300])
        return _SUCCESS

    def get_system(self, request: Request[NoHeader]) -> Response:
        return Response(body=TopicList(topic_list=sorted(self._state.topics.system_topics)).encode())

    def clean_expired_queues(self, request: Request[NoHeader]) -> Response:
        removed = self._state.store.clean_expired_queues()
        log.info("%s: removed %d expired consume queues", request.connection, len(removed))
        return _SUCCESS

    def clean_unused(self, request: Request[NoHeader]) -> Response:
        removed = self._state.store.clean_unused_topics(self._state.topics.table)
        log.info("%s: removed the queues of %d topics that do not exist", request.connection, len(removed))
        return _SUCCESS

    def delete_expired_log(self, request: Request[NoHeader]) -> Response:
        self._state.store.clean()
        return _SUCCESS

    def _check(self, topic: TopicConfig) -> None:
        """Raises what a topic is refused with."""
        name, config = topic.topic_name, self._state.config
        names.validate_topic(name)
        self._refuse_system(name)
        for number in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= number <= MAX_QUEUES:
                raise TopicRefused(f"The topic[{name}] can not have {number} queues, at most {MAX_QUEUES}.")
        if not 0 <= topic.perm <= MAX_PERM:
            raise TopicRefused(f"The topic[{name}] can not have the permission {topic.perm}.")
        if topic.topic_filter_type not in set(TopicFilterType):
            raise TopicRefused(f"The topic[{name}] can not have the filter type {topic.topic_filter_type[:100]}.")
        wanted = topic.attributes.get(f"+{attributes.MESSAGE_TYPE}")
        if wanted == attributes.MIXED and not config.enable_mixed_message_type:
            raise TopicRefused("MIXED message type is not supported.")

    def _refuse_system(self, topic: str) -> None:
        if self._state.config.validate_system_topic_when_update_topic and self._state.topics.is_system(topic):
            raise InvalidName(f"The topic[{topic}] is conflict with system topic.")

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """Where groups that popped the topic have their retries, in both of RocketMQ's spellings."""
        groups = self._state.offsets.groups_of(topic)
        wanted = (f"{names.retry_topic(group)}{sign}{topic}" for group in groups for sign in "_+")
        return [name for name in wanted if self._state.topics.get(name) is not None]

    def _forget(self, topics: list[str]) -> None:
        """First the configuration: what is left of a topic without one is cleaned away, and no request finds it."""
        state = self._state
        state.topics.delete_all(topics)
        for topic in topics:
            state.offsets.remove_topic(topic)
            state.store.delete_topic(topic)
            state.stats.topic_deleted(topic)
            state.held_pulls.wake_topic(topic)
        # A topic of the same name begins anew: old offsets must not come back with a restart.
        state.offsets.save()
