"""Headers of creating, showing and deleting topics and consumer groups on a broker.

What a nameserver does about topics is in `namesrv`; what a slave asks for to copy all of it is in `replication`.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, Header, NoHeader, Operation


class CreateTopic(Header, frozen=True):
    """Creates a topic or changes it."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class DeleteTopic(Header, frozen=True):
    """Deletes a topic of this broker."""

    topic: str


class GetTopicConfig(Header, frozen=True):
    """Asks for the configuration of a topic."""

    topic: str


class GetGroupConfig(Header, frozen=True):
    """Asks for the configuration of a consumer group."""

    group: str


class DeleteGroup(Header, frozen=True):
    """Deletes a consumer group, with its offsets if asked to."""

    group_name: str
    clean_offset: bool = False


class UpdateGroupForbidden(Header, frozen=True):
    """Forbids or allows a group to read a topic; without `readable` only asks."""

    group: str
    topic: str
    readable: bool | None = None


_ADMIN = "admin → broker"

OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, CreateTopic, NoHeader, _ADMIN),
    Operation(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic, NoHeader, _ADMIN),
    Operation(RequestCode.GET_TOPIC_CONFIG, GetTopicConfig, NoHeader, _ADMIN),
    Operation(RequestCode.GET_TOPIC_CONFIG_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_TOPIC_NAME_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig, NoHeader, _ADMIN),
    Operation(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, UpdateGroupForbidden, NoHeader, _ADMIN),
)
