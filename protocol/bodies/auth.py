"""Users and rules of the access control of 5.x. Requests 3001 to 3010."""

from cometmq.protocol.bodies.base import ArrayBody, Body, always_new


class UserInfo(Body, frozen=True, kw_only=True):
    """A user. What is None stays as it is in an update."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class PolicyEntryInfo(Body, frozen=True, kw_only=True):
    """What is allowed or denied on a resource, from which addresses."""

    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body, frozen=True, kw_only=True):
    """The entries of one kind of policy."""

    entries: list[PolicyEntryInfo] | None = None
    policy_type: str | None = None


class AclInfo(Body, frozen=True, kw_only=True):
    """The policies of a subject, `User:name`."""

    policies: list[PolicyInfo] | None = None
    subject: str | None = None


class UserInfoList(ArrayBody, frozen=True, kw_only=True):
    """The answer of AUTH_LIST_USER."""

    users: list[UserInfo] = always_new(list)


class AclInfoList(ArrayBody, frozen=True, kw_only=True):
    """The answer of AUTH_LIST_ACL."""

    acls: list[AclInfo] = always_new(list)
