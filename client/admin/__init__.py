"""The admin client: topics, groups, offsets, connections, queries, brokers and nameservers, as typed coroutines.

`mqadmin` is a thin shell over it. The names are loaded when they are used.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.client.admin.admin import Admin
    from cometmq.client.admin.errors import NoMessage, NoProgress, UnknownBroker, UnknownCluster
    from cometmq.client.admin.offsets import MovedOffset
    from cometmq.client.admin.queries import MessageTrack, TrackType
    from cometmq.client.admin.versions import version_name

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    admin="Admin",
    errors="NoMessage NoProgress UnknownBroker UnknownCluster",
    offsets="MovedOffset",
    queries="MessageTrack TrackType",
    versions="version_name",
)

__all__ = [
    "Admin",
    "MessageTrack",
    "MovedOffset",
    "NoMessage",
    "NoProgress",
    "TrackType",
    "UnknownBroker",
    "UnknownCluster",
    "version_name",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
