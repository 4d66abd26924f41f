"""Headers of users and access rules; the details are in the bodies.

The 5.x family (users and policies) has keys; that of 4.9 (one file of accounts, removed in 5.3) is known by number.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import Header, NoHeader, Operation


class User(Header, frozen=True):
    """Names the user that is created, changed, deleted or shown."""

    username: str


class ListUsers(Header, frozen=True):
    """Asks for the users whose names match."""

    filter: str | None = None


class Subject(Header, frozen=True):
    """Names the subject (`User:name`) whose rules are created, changed or shown."""

    subject: str


class DeleteAcl(Header, frozen=True):
    """Deletes the rules of a subject; all, or those of one kind or resource."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class ListAcls(Header, frozen=True):
    """Asks for the rules whose subject and resource match."""

    subject_filter: str | None = None
    resource_filter: str | None = None


_ADMIN = "admin → broker"

OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.AUTH_CREATE_USER, User, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_UPDATE_USER, User, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_DELETE_USER, User, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_GET_USER, User, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_LIST_USER, ListUsers, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_CREATE_ACL, Subject, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_UPDATE_ACL, Subject, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_DELETE_ACL, DeleteAcl, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_GET_ACL, Subject, NoHeader, _ADMIN),
    Operation(RequestCode.AUTH_LIST_ACL, ListAcls, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.DELETE_ACL_CONFIG, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, NoHeader, NoHeader, _ADMIN),
)
