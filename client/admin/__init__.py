"""The admin client: topics, groups, offsets, connections, queries, brokers and nameservers, as typed coroutines.

`mqadmin` is a thin shell over it.
"""

from cometmq.client.admin.admin import Admin
from cometmq.client.admin.errors import NoMessage, NoProgress, UnknownBroker, UnknownCluster
from cometmq.client.admin.offsets import MovedOffset
from cometmq.client.admin.queries import MessageTrack, TrackType
from cometmq.client.admin.versions import version_name

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
