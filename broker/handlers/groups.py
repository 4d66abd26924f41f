"""Consumer groups as operators see them: create, change, show, delete, and keep from topics.

Requests 200, 201, 207, 225, 352 and 353. Mirrors a part of RocketMQ's AdminBrokerProcessor.
"""

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.groups import check_group_name
from cometmq.broker.handlers.clients import bounded
from cometmq.broker.handlers.pages import page_of
from cometmq.broker.handlers.row import Row
from cometmq.broker.handlers.topics import MAX_QUEUES, TopicRefused
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests.replication import GetAllGroupConfig, GetAllGroupConfigAnswer
from cometmq.protocol.requests.topics import DeleteGroup, GetGroupConfig, UpdateGroupForbidden
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Longest bodies, in bytes: a group with some hundred prescribed subscriptions; some thousand groups.
MAX_GROUP: Final = 256 * 1024
MAX_LIST: Final = 4 * 1024 * 1024

_SUCCESS = Response()

log = logging.getLogger(__name__)


def rows(state: "BrokerState") -> list[Row]:
    requests = GroupRequests(state)
    update = Permission("Update", "Group")
    return [
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, requests.update, update),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, requests.update_list, update),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, requests.get_all, Permission("List", "Group")),
        (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, requests.get, Permission("Get", "Group", "group")),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, requests.delete, Permission("Delete", "Group", "group_name")),
        (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, requests.forbid, Permission("Update", "Group", "group")),
    ]


class GroupRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    def update(self, request: Request[NoHeader]) -> Response:
        """Create a group or change it; what is so already is a success too."""
        self._update(request, [SubscriptionGroupConfig.decode(bounded(request, MAX_GROUP))])
        return _SUCCESS

    def update_list(self, request: Request[NoHeader]) -> Response:
        """Many groups, all or none."""
        self._update(request, SubscriptionGroupList.decode(bounded(request, MAX_LIST)).group_config_list)
        return _SUCCESS

    def get_all(self, request: Request[GetAllGroupConfig]) -> Response:
        header, groups = request.header, self._state.groups
        table = dict(groups.table)
        answer = None
        if (header.group_seq, header.max_group_num, header.data_version) != (None, None, None):
            answer = GetAllGroupConfigAnswer(total_group_num=len(table))
            table = page_of(table, groups.data_version, header.group_seq, header.max_group_num, header.data_version)
        wrapper = SubscriptionGroupWrapper(
            data_version=groups.data_version,
            forbidden_table={group: dict(topics) for group, topics in groups.forbidden.items()},
            subscription_group_table=table,
        )
        return Response(header=answer, body=wrapper.encode())

    def get(self, request: Request[GetGroupConfig]) -> Response:
        """A group; one that is new is made where that is allowed."""
        name = request.header.group
        group = self._state.groups.find(name)
        if group is None:
            remark = f"No group in this broker. group: {name[: names.MAX_TOPIC_LENGTH]}"
            return Response(int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), remark=remark)
        return Response(body=group.encode())

    def delete(self, request: Request[DeleteGroup]) -> Response:
        """A group, with its offsets if asked to; unknown ones too. Its retry topic is the operator's to delete."""
        header, state = request.header, self._state
        state.groups.delete(header.group_name)
        if header.clean_offset:
            state.offsets.remove_group(header.group_name)
            # A group of the same name begins anew: old offsets must not come back with a restart.
            state.offsets.save()
        if state.config.auto_delete_unused_stats:
            state.stats.group_deleted(header.group_name)
        log.info("%s: deleted the group %s", request.connection, header.group_name[:200])
        return _SUCCESS

    def forbid(self, request: Request[UpdateGroupForbidden]) -> Response:
        """Keep a group from a topic, or let it read again, or only ask."""
        header, groups = request.header, self._state.groups
        if header.readable is not None:
            check_group_name(header.group)
            names.validate_topic(header.topic)
            groups.set_readable(header.group, header.topic, header.readable)
        readable = not groups.is_forbidden(header.group, header.topic)
        return Response(body=GroupForbidden(group=header.group, topic=header.topic, readable=readable).encode())

    def _update(self, request: Request[NoHeader], groups: list[SubscriptionGroupConfig]) -> None:
        for group in groups:
            check_group_name(group.group_name)
            if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
                what = f"{group.retry_queue_nums} retry queues, at most {MAX_QUEUES}"
                raise TopicRefused(f"The group[{group.group_name}] can not have {what}.")
        changed = self._state.groups.update_all(groups)
        log.info("%s: created or changed %d of %d groups", request.connection, len(changed), len(groups))
