"""On the data of the real cluster `mqadmin` prints what the real one printed, byte for byte.

A recorded nameserver and broker answer (see `support.recorded_cluster`). What cannot be equal is said at each test:
ends of lines that RocketMQ leaves out, the order of rows where Java's is that of a hash table, and texts of exceptions.
"""

import re
import shlex
import tempfile
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from cometmq.admin.__main__ import main
from support.admin_output import FOLDER, Printed, golden
from support.recorded_cluster import RecordedCluster


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recording was made in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def replay(name: str) -> tuple[Result, str]:
    """Run a recorded command; the result, and stdout as the recording would have it."""
    line = (FOLDER / f"{name}.txt").read_text().splitlines()[0]
    assert line.startswith("$ mqadmin ")
    with RecordedCluster(name) as cluster:
        arguments = [cluster.arguments(part) for part in shlex.split(line)[2:]]
        result = CliRunner().invoke(main, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        out = cluster.recorded(result.stdout).replace(f"{tempfile.gettempdir()}/rocketmq", "/tmp/rocketmq")
        out = out.replace("/srv/rmq/k5", "BASE").replace("/usr/rmq/home5", "ROCKETMQ_HOME")
        if not result.exit_code:
            assert cluster.unanswered == []
    return result, out


#: Everything is equal but the last end of line, which RocketMQ often leaves out.
SAME = [
    "updateTopic",
    "updateTopic-cluster",
    "updateTopic-attributes",
    "updateTopicPerm",
    "updateTopicPerm-cluster",
    "updateKvConfig",
    "deleteKvConfig",
    "updateOrderConf-get",
    "updateOrderConf-put",
    "updateOrderConf-delete",
    "updateSubGroup",
    "updateSubGroup-cluster",
    "updateBrokerConfig",
    "updateBrokerConfig-unknown-key",
    "updateNamesrvConfig",
    "deleteTopic",
    "deleteTopic-unknown",
    "deleteSubGroup",
    "deleteSubGroup-cluster",
    "topicList",
    "topicRoute",
    "topicRoute-l",
    "topicRoute-wiped",
    "topicClusterList",
    "clusterList-m",
    "consumerProgress",
    "consumerProgress-g",
    "consumerProgress-gs",
    "consumerConnection",
    "producerConnection",
    "producer",
    "getConsumerConfig",
    "queryMsgByKey",
    "consumeMessage-queue",
    "printMsgByQueue",
    "brokerStatus",
    "brokerStatus-cluster",
    "brokerConsumeStats",
    "wipeWritePerm",
    "addWritePerm",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "deleteExpiredCommitLog",
    "cloneGroupOffset",
    "statsAll-t",
]


@pytest.mark.parametrize("name", SAME)
def test_output_is_the_recorded_one(name: str) -> None:
    result, out = replay(name)
    assert result.exit_code == 0, result.stderr
    assert out.rstrip("\n").split("\n") == golden(name).out.rstrip("\n").split("\n")


#: The rows come in another order: Java's is that of a hash table, ours is sorted.
SAME_ROWS = [
    "getNamesrvConfig",
    "getBrokerConfig",
    "resetOffsetByTime",
    "resetOffsetByTime-now-offline",
    "skipAccumulatedMessage",
]


@pytest.mark.parametrize("name", SAME_ROWS)
def test_rows_are_the_recorded_ones(name: str) -> None:
    result, out = replay(name)
    assert result.exit_code == 0, result.stderr
    now = r"timestamp\(long\)\[\d+\]"  # `now` was another time then
    printed, recorded = re.sub(now, "", out), re.sub(now, "", golden(name).out)
    assert sorted(filter(None, printed.splitlines())) == sorted(filter(None, recorded.splitlines()))


@pytest.mark.parametrize("name", ["clusterList", "clusterList-c"])
def test_load_of_brokers_is_the_recorded_one(name: str) -> None:
    """The hours since the first message grow, everything else is equal."""
    _, out = replay(name)
    hours = r"\d+\.\d\d +(?=0\.1500)"
    assert re.sub(hours, "", out).rstrip("\n") == re.sub(hours, "", golden(name).out).rstrip("\n")


def test_ends_of_queues_are_the_recorded_ones_and_the_rate_is_the_sum() -> None:
    """Java never fills the rate in; the brokers had told it."""
    _, out = replay("topicStatus")
    recorded = golden("topicStatus").out.replace("Topic Put TPS: 0.0", "Topic Put TPS: 1.0166666666666666")
    assert out == recorded.rstrip("\n") + "\n"


@pytest.mark.parametrize("name", ["queryMsgById", "queryMsgById-format", "queryMsgByUniqueKey", "queryMsgByOffset"])
def test_messages_are_shown_as_recorded(name: str) -> None:
    """All fields are equal, and what the group did. What Java says about a group without a route is a stack frame."""
    result, out = replay(name)
    assert result.exit_code == 0, result.stderr
    track = r"MessageTrack \[consumerGroup=TopicAdmin, .*?\](?=Mess|\n|$)"
    printed = re.sub(track, "", out)
    recorded = re.sub(track, "", golden(name).out, flags=re.DOTALL)
    assert printed.rstrip("\n") == recorded.rstrip("\n")
    assert "[consumerGroup=TopicAdmin, trackType=UNKNOWN, exceptionDesc=CODE: 17  DESC: No topic route info" in out


#: What goes wrong is told with the recorded code and text.
FAILURES = [
    "updateTopic-illegal",
    "topicRoute-unknown",
    "consumerProgress-unknown",
    "consumerConnection-unknown",
    "producerConnection-unknown",
    "queryMsgById-unknown",
    "queryMsgByKey-none",
    "queryMsgByUniqueKey-none",
    "updateBrokerConfig-forbidden",
    "updateNamesrvConfig-forbidden",
    "deleteTopic-system",
]


@pytest.mark.parametrize("name", FAILURES)
def test_failures_have_the_recorded_code_and_words(name: str) -> None:
    result, out = replay(name)
    assert (result.exit_code, out) == (1, "")
    cause, recorded = Printed("", result.stderr).cause, golden(name).cause
    assert cause is not None
    assert recorded is not None
    assert cause[0] == recorded[0]
    assert cause[1].partition(";")[0].partition(" BROKER:")[0] == recorded[1].partition(" BROKER:")[0]
    assert result.stderr.count("\n") == 1
