"""The commands of `mqadmin`: which there are, where they live, and what they do in a line each.

One table; nothing of a command is loaded before it is used. A command lives in `cometmq.admin.commands.<module>` under
its name in Python's spelling: topicRoute is `topic_route`.
"""

import importlib
import re
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import click

from cometmq.protocol.errors import CometMQError

#: Commands of other packages.
PLUG_INS = "cometmq.admin_commands"


class Entry(NamedTuple):
    """One command."""

    section: str
    module: str
    name: str
    summary: str


ENTRIES = (
    Entry("Topics", "topic_changes", "updateTopic", "Update or create topic."),
    Entry("Topics", "topic_changes", "updateTopicList", "create or update topic in batch"),
    Entry("Topics", "topic_changes", "deleteTopic", "Delete topic from broker and NameServer."),
    Entry("Topics", "topic_changes", "updateTopicPerm", "Update topic perm."),
    Entry("Topics", "topics", "topicList", "Fetch all topic list from name server."),
    Entry("Topics", "topics", "topicRoute", "Examine topic route info."),
    Entry("Topics", "topics", "topicStatus", "Examine topic Status info."),
    Entry("Topics", "topics", "topicClusterList", "Get cluster info for topic."),
    Entry("Topics", "topics", "allocateMQ", "Allocate MQ."),
    Entry("Topics", "topic_changes", "updateOrderConf", "Create or update or delete order conf."),
    Entry("Consumer groups", "groups", "updateSubGroup", "Update or create subscription group."),
    Entry("Consumer groups", "groups", "updateSubGroupList", "Update or create subscription group in batch"),
    Entry("Consumer groups", "groups", "deleteSubGroup", "Delete subscription group from broker."),
    Entry("Consumer groups", "groups", "getConsumerConfig", "Get consumer config by subscription group name."),
    Entry("Consumer groups", "progress", "consumerProgress", "Query consumer's progress, speed."),
    Entry("Consumer groups", "offsets", "resetOffsetByTime", "Reset consumer offset by timestamp."),
    Entry("Consumer groups", "offsets", "skipAccumulatedMessage", "Skip all messages that are accumulated currently."),
    Entry("Consumer groups", "offsets", "cloneGroupOffset", "Clone offset from other group."),
    Entry("Connections", "connections", "consumerConnection", "Query consumer's connections and subscription."),
    Entry("Connections", "connections", "producerConnection", "Query producer's connections and client version."),
    Entry("Connections", "connections", "producer", "Query producer's instances, connection, status, etc."),
    Entry("Messages", "queries", "queryMsgById", "Query Message by Id."),
    Entry("Messages", "queries", "queryMsgByKey", "Query Message by Key."),
    Entry("Messages", "queries", "queryMsgByUniqueKey", "Query Message by Unique key."),
    Entry("Messages", "queries", "queryMsgByOffset", "Query Message by offset."),
    Entry("Messages", "reading", "printMsg", "Print Message Detail."),
    Entry("Messages", "reading", "printMsgByQueue", "Print Message Detail by queueId."),
    Entry("Messages", "reading", "consumeMessage", "Consume message."),
    Entry("Messages", "sending", "sendMessage", "Send a message."),
    Entry("Cluster and brokers", "cluster", "clusterList", "List cluster infos."),
    Entry("Cluster and brokers", "brokers", "brokerStatus", "Fetch broker runtime status data."),
    Entry("Cluster and brokers", "brokers", "getBrokerConfig", "Get broker config by cluster or special broker."),
    Entry("Cluster and brokers", "brokers", "updateBrokerConfig", "Update broker's config."),
    Entry("Cluster and brokers", "brokers", "cleanExpiredCQ", "Clean expired ConsumeQueue on broker."),
    Entry("Cluster and brokers", "brokers", "cleanUnusedTopic", "Clean unused topic on broker."),
    Entry("Cluster and brokers", "brokers", "deleteExpiredCommitLog", "Delete expired CommitLog files."),
    Entry("Cluster and brokers", "progress", "brokerConsumeStats", "Fetch broker consume stats data."),
    Entry("Cluster and brokers", "statistics", "statsAll", "Topic and Consumer tps stats."),
    Entry("Name servers", "nameserver", "getNamesrvConfig", "Get configs of name server."),
    Entry("Name servers", "nameserver", "updateNamesrvConfig", "Update configs of name server."),
    Entry("Name servers", "nameserver", "updateKvConfig", "Create or update KV config."),
    Entry("Name servers", "nameserver", "deleteKvConfig", "Delete KV config."),
    Entry("Name servers", "nameserver", "wipeWritePerm", "Wipe write perm of broker in all name servers."),
    Entry("Name servers", "nameserver", "addWritePerm", "Add write perm of broker in all name servers."),
    Entry("Files", "store", "checkStore", "Verify a store directory that no broker runs."),
)

_BY_NAME = {entry.name.lower(): entry for entry in ENTRIES}


class BadPlugIn(CometMQError):
    """Raised when a plug-in cannot be loaded, or is no command."""

    remedy = "remove or mend the package that brings it"


def plug_ins() -> dict[str, EntryPoint]:
    """The commands of other packages by name. Ours cannot be replaced."""
    return {point.name: point for point in entry_points(group=PLUG_INS) if point.name.lower() not in _BY_NAME}


def load(name: str) -> click.Command | None:
    """A command by its name in any case; None when there is none."""
    entry = _BY_NAME.get(name.lower())
    if entry is not None:
        module = importlib.import_module(f"cometmq.admin.commands.{entry.module}")
        found: click.Command = getattr(module, python_name(entry.name))
        return found
    for known, point in plug_ins().items():
        if known.lower() == name.lower():
            return _loaded(point)
    return None


def _loaded(point: EntryPoint) -> click.Command:
    try:
        found = point.load()
    except Exception as error:  # whatever a foreign package does when it is imported
        raise BadPlugIn(f"the plug-in {point.name} ({point.value}) cannot be loaded: {error!r}") from error
    if not isinstance(found, click.Command):
        raise BadPlugIn(f"the plug-in {point.name} ({point.value}) is no command but {type(found).__name__}")
    return found


def python_name(name: str) -> str:
    """`topicRoute` -> `topic_route`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def overview() -> str:
    """The commands by subject."""
    lines = ["The most commonly used mqadmin commands are:"]
    for section in dict.fromkeys(entry.section for entry in ENTRIES):
        lines += ["", f"{section}:"]
        lines += [f"   {entry.name:<35} {entry.summary}" for entry in ENTRIES if entry.section == section]
    if others := plug_ins():
        lines += ["", "Plug-ins:", *(f"   {name:<35} {point.value}" for name, point in sorted(others.items()))]
    return "\n".join([*lines, "", "See 'mqadmin help <command>' for more information on a specific command."])
