"""What `mqadmin` says to wrong usage (exit 2) and to failures (exit 1): one line, what, why, what to do."""

import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cometmq.admin import catalogue
from cometmq.admin.__main__ import main
from cometmq.admin.arguments import attributes_of, timestamp
from cometmq.admin.command import Session, command, option
from cometmq.client.errors import TopicNotFound
from cometmq.testing import EmbeddedBroker

Run = Callable[..., Result]

WRONG = {
    "unknown command": (["nosuch"], "The sub command nosuch not exist."),
    "a command nearly right": (["topicStats"], "did you mean topicStatus"),
    "help of an unknown command": (["help", "nosuch"], "The sub command nosuch not exist."),
    "unknown option": (["topicList", "--nosuch"], "--nosuch"),
    "no topic": (["topicRoute"], "'-t' / '--topic'"),
    "neither broker nor cluster": (["updateTopic", "-t", "T"], "one of -b (a broker) and -c (a cluster)"),
    "no number": (["updateTopic", "-b", "b", "-t", "T", "-r", "many"], "'many' is not a valid int"),
    "negative number": (["updateTopic", "-b", "b", "-t", "T", "-r", "-4"], "-4"),
    "permission": (["updateTopic", "-b", "b", "-t", "T", "-p", "7"], "'7' is not one of"),
    "neither true nor false": (["updateTopic", "-b", "b", "-t", "T", "-o", "perhaps"], "'perhaps' is not a valid bool"),
    "address": (["brokerStatus", "-b", "host:port"], "has no port between 0 and 65535"),
    "nameserver": (["topicList", "-n", "host"], "is not of the form host:port"),
    "system property": (["topicList", "-D", "novalue"], "-D takes key=value"),
    "attribute": (["updateTopic", "-b", "b", "-t", "T", "-a", "a=b"], "write +name=value to set one"),
    "attribute twice": (["updateTopic", "-b", "b", "-t", "T", "-a", "+a=b,-a"], "'a' is given twice"),
    "time": (["resetOffsetByTime", "-g", "G", "-t", "T", "-s", "yesterday"], "'yesterday' is no time"),
    "queue without broker": (["sendMessage", "-t", "T", "-p", "x", "-i", "1"], "Broker name must be set"),
    "order conf without value": (["updateOrderConf", "-t", "T", "-m", "put"], "please set orderConf with option -v"),
    "method": (["updateOrderConf", "-t", "T", "-m", "look"], "'look' is not one of"),
    "no file": (["updateTopicList", "-b", "b", "-f", "/no/such/file"], "/no/such/file does not exists"),
    "no directory": (["checkStore", "/no/such/directory"], "there is no directory /no/such/directory"),
    "charset": (["printMsg", "-t", "T", "-c", "klingon"], "there is no charset 'klingon'"),
    "charset of a body": (["queryMsgById", "-i", "x", "-f", "klingon"], "there is no charset 'klingon'"),
    "retry policy": (["updateSubGroup", "-b", "b", "-g", "G", "-p", "{"], "-p: GroupRetryPolicy"),
    "half a user": (["topicList", "-n", "h:1", "--access-key", "a"], "a user needs both"),
    "no messages": (["consumeMessage", "-t", "T", "-c", "0"], "Please input a positive messageNumber!"),
    "queue before broker": (["consumeMessage", "-t", "T", "-i", "0"], "Please set the brokerName before queueId!"),
    "offset before queue": (["consumeMessage", "-t", "T", "-o", "0"], "Please set queueId before offset!"),
    "future": (["consumeMessage", "-t", "T", "-s", "9999999999999"], "Please set the beginTimestamp before now!"),
    "future end": (["consumeMessage", "-t", "T", "-d", "9999999999999"], "Please set the endTimestamp before now!"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_is_told_in_one_line(mqadmin: Run, name: str) -> None:
    arguments, text = WRONG[name]
    result = mqadmin(*arguments, nameserver=None)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert result.stderr.startswith("mqadmin")
    assert result.stderr.count("\n") == 1


UNKNOWN = {
    "topic": (["topicStatus", "-t", "NoTopic"], "CODE: 17  DESC: No topic route info in name server"),
    "group": (["consumerProgress", "-g", "NoGroup"], "check the name of the group"),
    "cluster": (["updateTopic", "-c", "NoCluster", "-t", "T"], "there is no cluster 'NoCluster'"),
    "cluster to list": (["clusterList", "-c", "NoCluster"], "there is no cluster 'NoCluster'"),
    "broker": (["wipeWritePerm", "-b", "nobody"], "there is no broker 'nobody'"),
    "broker that is down": (["brokerStatus", "-b", "127.0.0.1:1"], "127.0.0.1:1 could not be connected"),
    "group in no broker": (["getConsumerConfig", "-g", "NoGroup"], "no broker has a group NoGroup"),
    "order conf": (["updateOrderConf", "-t", "NoTopic", "-m", "get"], "has no order conf"),
    "broker of a topic": (
        ["resetOffsetByTime", "-g", "G", "-t", "TBW102", "-s", "-1", "-b", "other:1", "-q", "0"],
        "TBW102 has no queue on broker other:1",
    ),
    "offset": (["queryMsgByOffset", "-t", "TBW102", "-b", "broker-a", "-i", "0", "-o", "7"], "no message at 7"),
    "id of another broker": (["queryMsgById", "-i", "7F0000010000000100000000000000FF"], "127.0.0.1:1"),
    "no id": (["queryMsgById", "-i", "nonsense"], "is not an offset message id"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_failure_is_told_in_one_line(mqadmin: Run, name: str) -> None:
    arguments, text = UNKNOWN[name]
    result = mqadmin(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr
    assert result.stderr.startswith(f"mqadmin {arguments[0]}: ")
    assert result.stderr.count("\n") == 1


def test_no_nameserver_says_the_ways_to_give_one(mqadmin: Run) -> None:
    result = mqadmin("topicList", nameserver=None)
    assert result.exit_code == 1
    assert "no nameserver was given; give -n host:port, set NAMESRV_ADDR" in result.stderr


def test_nameserver_that_is_down_is_named(mqadmin: Run) -> None:
    result = mqadmin("clusterList", nameserver="127.0.0.1:1;127.0.0.1:2")
    assert result.exit_code == 1
    assert "no nameserver answered" in result.stderr
    assert "127.0.0.1:1: " in result.stderr
    assert "127.0.0.1:2: " in result.stderr


def test_one_of_two_nameservers_is_enough(mqadmin: Run, broker: EmbeddedBroker) -> None:
    result = mqadmin("topicList", nameserver=f"127.0.0.1:1;{broker.nameserver}")
    assert result.exit_code == 0, result.stderr


def test_broker_that_is_down_leaves_a_row_of_zeros(mqadmin: Run) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-d", "brokerIP1": "127.0.0.9"}) as own:
        result = mqadmin("clusterList", nameserver=own.nameserver)
    assert result.exit_code == 0
    assert "broker-d" in result.stdout
    if "V5_3_3" not in result.stdout:  # systems whose loopback network is one address
        assert result.stderr.startswith("mqadmin clusterList: 127.0.0.9:")


def test_the_nameserver_comes_from_many_places(
    mqadmin: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ["-n", broker.nameserver, "topicClusterList", "-t", "TBW102"]
    assert mqadmin(*before, nameserver=None).stdout == "DefaultCluster\n"
    long_option = ["topicClusterList", "--topic=TBW102", "--namesrvAddr", broker.nameserver]
    assert mqadmin(*long_option, nameserver=None).stdout == "DefaultCluster\n"
    one_dash = ["TOPICCLUSTERLIST", "-topic", "TBW102", "-namesrvAddr", broker.nameserver]
    assert mqadmin(*one_dash, nameserver=None).stdout == "DefaultCluster\n"
    defined = ["topicClusterList", "-t", "TBW102", "-D", f"rocketmq.namesrv.addr={broker.nameserver}"]
    assert mqadmin(*defined, nameserver=None).stdout == "DefaultCluster\n"
    monkeypatch.setenv("NAMESRV_ADDR", broker.nameserver)
    assert mqadmin("topicClusterList", "-t", "TBW102", nameserver=None).stdout == "DefaultCluster\n"


def test_user_comes_from_the_file_of_rocketmqs_tools(
    mqadmin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("# user\naccessKey: rocketmq2\nsecretKey: '12345678'\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert mqadmin("topicClusterList", "-t", "TBW102").stdout == "DefaultCluster\n"
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: rocketmq2\n")
    assert mqadmin("topicClusterList", "-t", "TBW102").exit_code == 2


def test_json_anywhere(mqadmin: Run, broker: EmbeddedBroker) -> None:
    for arguments in (
        ["topicList"],
        ["topicRoute", "-t", "TBW102"],
        ["topicStatus", "-t", "TBW102"],
        ["clusterList"],
        ["brokerStatus", "-b", broker.address],
        ["getBrokerConfig", "-b", broker.address],
        ["getNamesrvConfig"],
        ["statsAll"],
        ["consumerProgress"],
        ["updateTopic", "-b", broker.address, "-t", "JsonTopic"],
        ["updateSubGroup", "-b", broker.address, "-g", "JsonGroup"],
        ["updateKvConfig", "-s", "Json", "-k", "k", "-v", "v"],
    ):
        after, before = mqadmin(*arguments, "--json"), mqadmin("--json", *arguments)
        assert json.loads(after.stdout) is not None, arguments
        assert type(json.loads(before.stdout)) is type(json.loads(after.stdout)), arguments


# Help and the list of commands


def test_commands_are_listed_by_subject(mqadmin: Run) -> None:
    listed = mqadmin(nameserver=None)
    assert listed.exit_code == 0
    assert listed.stdout.startswith("The most commonly used mqadmin commands are:\n")
    assert "   topicRoute                          Examine topic route info.\n" in listed.stdout
    for section in ("Topics:", "Consumer groups:", "Messages:", "Name servers:"):
        assert f"\n{section}\n" in listed.stdout
    assert mqadmin("-h", nameserver=None).stdout.startswith(listed.stdout.rstrip("\n"))
    assert mqadmin("help", nameserver=None).exit_code == 0


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.name)
def test_every_command_is_there_and_helps(mqadmin: Run, entry: catalogue.Entry) -> None:
    found = catalogue.load(entry.name.upper())
    assert found is not None
    assert found.name == entry.name
    shown = mqadmin(entry.name, "-h", nameserver=None)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"Usage: mqadmin {entry.name} ")
    assert "-n, --namesrvAddr" in shown.stdout
    assert mqadmin("help", entry.name, nameserver=None).stdout == shown.stdout


# Plug-ins


@command("greet", option("-w", "--who", "who", default="you", help="whom"), help="A command of another package.")
async def greet(session: Session, *, who: str) -> None:
    session.out.line(f"{who}: {len(await session.admin.nameservers())} nameserver")


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "greet": EntryPoint("greet", "greetings:greet", catalogue.PLUG_INS),
        "broken": EntryPoint("broken", "no_such_package:greet", catalogue.PLUG_INS),
        "text": EntryPoint("text", "json:__name__", catalogue.PLUG_INS),
        "topicList": EntryPoint("topicList", "json:dumps", catalogue.PLUG_INS),
    }
    monkeypatch.setattr(catalogue, "entry_points", lambda group: list(points.values()))
    monkeypatch.setitem(sys.modules, "greetings", _Greetings)


class _Greetings:
    greet = greet


def test_plug_ins_are_commands_too(mqadmin: Run, plugged: None) -> None:
    assert mqadmin("greet", "-w", "me").stdout == "me: 1 nameserver\n"
    assert "Plug-ins:" in mqadmin(nameserver=None).stdout
    assert "TBW102" in mqadmin("topicList").stdout  # ours cannot be replaced


def test_plug_in_that_cannot_be_loaded_is_named(mqadmin: Run, plugged: None) -> None:
    broken = mqadmin("broken", nameserver=None)
    assert broken.exit_code == 1
    assert "the plug-in broken (no_such_package:greet) cannot be loaded" in broken.stderr
    assert "is no command but str" in mqadmin("text", nameserver=None).stderr


# Values of options


def test_times_are_read_as_rocketmq_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timestamp("-1") == ("-1", -1)
    assert timestamp("1794843771300") == ("1794843771300", 1794843771300)
    text, millis = timestamp("2026-11-16#16:42:51:300")
    assert text == "2026-11-16#16:42:51:300"
    assert millis % 1000 == 300
    assert timestamp("now")[1] > 1_700_000_000_000
    for wrong in ("", "12x", "2026-11-16", "2026-11-16#16:42:51", "9" * 30):
        with pytest.raises(click.BadParameter, match="is no time"):
            timestamp(wrong)


def test_attributes_are_changes() -> None:
    assert attributes_of("+a=b, -c") == {"+a": "b", "-c": ""}
    assert attributes_of(None) == {}
    for wrong in ("a", "+a", "-a=b", "+", "-"):
        with pytest.raises(click.UsageError):
            attributes_of(wrong)


def test_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "load", interrupted)
    result = CliRunner().invoke(main, ["topicList"])
    assert result.exit_code == 130
    assert "Traceback" not in result.output


# The guide


def python_blocks() -> list[str]:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "mqadmin.md"
    return re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)


def test_examples_of_the_guide_work(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    calls, plug_in = python_blocks()
    names: dict[str, Any] = {}
    exec(calls.replace("127.0.0.1:9876", broker.nameserver), names)
    assert capsys.readouterr().out == "0\n"

    exec(plug_in, names)
    result = CliRunner().invoke(names["lag_of"], ["-g", "NoGroup", "-n", broker.nameserver])
    assert isinstance(result.exception, TopicNotFound)
