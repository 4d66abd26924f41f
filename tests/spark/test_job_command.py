"""The jobs as commands: help, exit codes, one line about what failed, results for machines; a kill in the middle."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import cometmq.spark
from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.spark.__main__ import main
from cometmq.spark.jobs import archive
from cometmq.spark.jobs.backlog import Sample
from cometmq.spark.jobs.command import Settings
from cometmq.spark.jobs.messages import time_of
from cometmq.spark.jobs.sample_table import SampleTable
from cometmq.testing import EmbeddedBroker
from support.server_process import wait_for
from support.spark_driver import SETTINGS
from support.spark_topics import TopicKit, rows_expected

pytestmark = pytest.mark.spark

JOBS = ("archive", "replay", "etl", "audit", "trace", "lag")


def run(*arguments: str) -> int:
    """Run a command in this process; Spark is the running session."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line that a command says when it cannot do something."""
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


def test_every_job_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    overview = capsys.readouterr().out
    for job in JOBS:
        assert job in overview
        assert run(job, "--help") == 0
        text = capsys.readouterr().out
        assert "--namesrvAddr" in text
        assert "--json" in text


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: python -m cometmq.spark [OPTIONS] COMMAND [ARGS]...\n")
    assert any(line.startswith("  archive ") for line in err.splitlines())


def test_times_are_what_their_writer_meant() -> None:
    for text in ("1700000000", "20261118", "0"):
        with pytest.raises(ValueError, match="before 2001"):
            time_of(text)
    assert time_of("1700000000000") == time_of("2023-11-14T22:13:20") == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert time_of("2023-11-14T23:13:20+01:00") == time_of("1700000000000")


def test_wrong_usage_is_told_before_spark_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for arguments, what in (
        (["frobnicate"], "No such command 'frobnicate'"),
        (["archive", "-t", "T"], "Missing option '-o'"),
        (["archive", "-o", out], "Missing option '-t'"),
        (["archive", "-o", out, "-t", "T", "--trigger", "never"], "'never' is not one of"),
        (["archive", "-o", out, "-t", "T", "--begin", "yesterday"], "'yesterday' is no time"),
        (["archive", "-o", out, "-t", "T", "--begin", "1700000000"], "milliseconds (not seconds) since 1970"),
        (["archive", "-o", out, "-t", "T", "--option", "x"], "'x' is not key=value"),
        (["archive", "-o", out, "-t", "T", "-n", "a:1", "--option", "consumerGruop=G"], "mean consumerGroup?"),
        (["archive", "-o", out, "-t", "T", "--interval", "soon"], "'soon'"),
        (["audit", "-t", "T", "-n", "a:1", "-b", "2026-01-02", "-e", "2026-01-01"], "swap the two times"),
        (["archive", "-o", out, "-t", "T", "--compact"], "leave -t away"),
        (["replay", "--to", "T"], "Missing option '-t' / '--topic' or '--archive'"),
        (["replay", "-t", "T", "--to", "U", "--rate", "0"], "0.0 is not in the range"),
        (["etl", "-t", "T", "-o", out], "--sql and --function"),
        (["etl", "-t", "T", "--sql", "select 1"], "--to, --output and --table"),
        (["audit"], "Missing option '-t'"),
        (["audit", "-t", "T", "--limit", "-1"], "'--limit': -1 is not in the range x>=0"),
        (["trace", "--trigger", "once"], "give --output"),
        (["trace", "--chart", "x.doc"], ".html, .svg or .png"),
        (["lag", "-o", out, "--chart", str(tmp_path / "nowhere" / "x.svg")], "its directory does not exist"),
        (["lag", "-o", out, "-n", "a:1", "--option", "acessKey=K"], "mean accessKey?"),
        (["trace", "--window", "soon"], "'--window': 'soon' is none; give a length of time such as 30s"),
        (["trace", "--window", "0s"], "'--window': '0s' is none"),
        (["trace", "--horizon", "1 hourz"], "'--horizon': '1 hourz' is none"),
        (["trace", "--watermark", "-1 minute"], "'--watermark'"),
        (["etl", "-t", "T", "--sql", "select 1", "-o", out, "--interval", "often"], "'--interval': 'often' is none"),
        (["lag"], "Missing option '-o'"),
    ):
        line = refused(capsys, 2, *arguments)
        assert what in line
        assert line.endswith("--help")


def test_a_job_keeps_the_java_options_that_were_set_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(cometmq.spark, "session", lambda name, master, config: given.update(config))
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -Dfrom=file\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)

    def options(**conf: str) -> str:
        settings = Settings(None, {}, None, conf, json=False, quiet=True, verbose=False)
        settings.session("archive")
        ours, _, others = given["spark.driver.extraJavaOptions"].partition(" ")
        assert ours.startswith("-Dlog4j2.configurationFile=file:")
        return others

    assert options() == "-Dfrom=file"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-java-options '-Dfrom=arguments -Xss4m' pyspark-shell")
    assert options() == "-Dfrom=arguments -Xss4m"
    assert options(**{"spark.driver.extraJavaOptions": "-Dfrom=here"}) == "-Dfrom=here"


def test_failures_are_one_line_that_says_what_to_do(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server, out = broker.nameserver, str(tmp_path / "out")
    topic = topics.made("COMMAND_BAD", [2])
    at = ["-n", server, "-t", topic]
    assert "no nameserver answers" in refused(capsys, 1, "archive", "-n", "127.0.0.1:1", "-t", "T", "-o", out)
    assert "updateTopic" in refused(capsys, 1, "archive", "-n", server, "-t", "NO_SUCH", "-o", out)
    assert "is no archive" in refused(capsys, 1, "archive", "--compact", "-o", str(tmp_path))
    assert "is no archive" in refused(capsys, 1, "replay", "--archive", out, "--to", topic, "-n", server)
    assert "cannot be imported" in refused(capsys, 1, "etl", *at, "--function", "nothing:f", "-o", out)
    assert "select from the view" in refused(capsys, 1, "etl", *at, "--sql", "select x from messages", "-o", out)
    assert "NO_GROUP has no offsets" in refused(capsys, 1, "lag", "-n", server, "-g", "NO_GROUP", "-o", out)
    # What only the executors can know comes out of Spark's stack of causes.
    sql = "select raise_error('bad row') as body from messages"
    told = refused(capsys, 1, "etl", *at, "--quiet", "--sql", sql, "-o", out)
    assert "bad row" in told
    assert len(told) < 400


@pytest.mark.slow
def test_results_for_people_and_for_machines(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic, out = topics.made("COMMAND", [7]), str(tmp_path / "archive")
    assert run("archive", "-n", broker.nameserver, "-t", topic, "-o", out, "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job"], found["rows"], found["backlog"]) == ("archive", 7, 0)
    assert found["bytes"] > 0
    assert found["seconds"] > 0
    assert run("audit", "--archive", out, "-t", topic) == 0
    table = capsys.readouterr().out
    assert topic in table
    assert "unstamped" in table


@pytest.mark.slow
def test_samples_that_were_not_taken_are_left_to_do(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topics: TopicKit,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    topic = topics.made("COMMAND_LAG", [3])

    async def consumed(mq: Client) -> None:
        await mq.admin().create_group("COMMAND_LAG")
        await mq.admin().commit_offset("COMMAND_LAG", MessageQueue(topic, "broker-a", 0), 3)

    topics.run(consumed)
    add, taken = SampleTable.add, []

    def add_and_stop(table: SampleTable, samples: Iterable[Sample]) -> None:
        add(table, samples)
        taken.append(samples)
        if len(taken) == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(SampleTable, "add", add_and_stop)
    asked = ["lag", "-n", broker.nameserver, "-g", "COMMAND_LAG", "--interval", "0.1", "--json", "--quiet"]
    assert run(*asked, "-o", str(tmp_path / "lag"), "--samples", "100") == 143
    out, err = capsys.readouterr()
    assert json.loads(out)["samples"] == 5
    assert "stopped by SIGTERM with 95 to go" in err
    taken.clear()
    assert run(*asked, "-o", str(tmp_path / "lag"), "--samples", "5") == 0, "it came too late to hinder anything"


def test_jobs_run_as_commands(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    topic, target = topics.made("COMMANDS", [7]), topics.make("COMMANDS_TO", 1)

    def result(job: str, *arguments: str) -> dict[str, Any]:
        place = [] if job == "lag" else ["--checkpoint", str(tmp_path / job)]
        assert run(job, "-n", broker.nameserver, "--json", "--quiet", *place, *arguments) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["job"] == job
        return found

    replayed = result("replay", "-t", topic, "--to", target, "--rate", "1000", "-b", "2026-01-01")
    assert (replayed["rows"], replayed["slicesLeft"], replayed["backlog"]) == (7, 0, 0)
    assert "once more" in result("replay", "-t", topic, "--to", target, "--rate", "1000", "-b", "2026-01-01")["note"]
    assert result("etl", "-t", topic, "--sql", "select body from messages", "--to", target)["rows"] == 7
    assert topics.ends(target) == {0: 14}
    assert result("trace", "-t", topic, "-o", str(tmp_path / "latencies"))["slowConsumers"] == []
    assert result("lag", "-o", str(tmp_path / "lag"), "--samples", "1")["samples"] == 1


# Signals, and a kill in the middle


@contextmanager
def archiving(nameserver: str, topic: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a session of its own: Java and the workers die with it."""
    with running(["archive", "-n", nameserver, "-t", topic, "-o", str(output)], output) as process:
        yield process


@contextmanager
def running(arguments: list[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    settings = ["--master", "local[2]", "--option", "maxOffsetsPerTrigger=40"]
    settings += [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "cometmq.spark", *arguments, *settings]
    environ = os.environ | {"PYTHONPATH": f"{output.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with open(output.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environ)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def files(output: Path) -> set[str]:
    return {file.name for file in output.rglob("*.parquet")}


def kill_in_the_middle(nameserver: str, topic: str, output: Path, more: int) -> None:
    """End a run with SIGKILL after it has added some files and before it has added all."""
    before = files(output)
    with archiving(nameserver, topic, output) as process:

        def ready() -> bool:
            assert process.poll() is None, output.with_suffix(".log").read_text()
            return len(files(output) - before) >= more

        wait_for(f"{more} more files in {output}", 90, ready, pause=0.01)
        os.killpg(process.pid, signal.SIGKILL)


def exact(output: Path) -> list[tuple[str, int, int, bytes]]:
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table()
    return sorted(zip(*(table[name].to_pylist() for name in ("topic", "queueId", "queueOffset", "body")), strict=True))


def group_of(leader: int) -> list[int]:
    """The processes of a group that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_signals_to_all_processes_of_a_job_stop_it(broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path) -> None:
    topic, output = topics.made("COMMAND_STOPPED", [1000]), tmp_path / "table"
    (tmp_path / "needs_spark.py").write_text(
        "from pyspark.sql import functions as F\n\n\n"
        "@F.udf('string')\ndef upper(text):\n    return text.upper()\n\n\n"
        "def changed(messages):\n    return messages.select(upper('text').alias('text'))\n"
    )
    asked = ["etl", "-n", broker.nameserver, "-t", topic, "--function", "needs_spark:changed", "-o", str(output)]
    log = output.with_suffix(".log")

    def ended(number: signal.Signals, ready: Callable[[int], bool]) -> tuple[int, str]:
        """Its code, and the last line that it said, of a job that got a signal when it was ready."""
        with running(asked, output) as process:
            wait_for("the job to be ready", 90, lambda: process.poll() is not None or ready(process.pid))
            assert process.poll() is None, log.read_text()
            os.killpg(process.pid, number)
            code = process.wait(60)
            wait_for("the end of Java", 30, lambda: not group_of(process.pid))
        assert "Traceback" not in log.read_text()
        return code, log.read_text().splitlines()[-1]

    code, line = ended(signal.SIGTERM, lambda leader: len(files(output)) > 2)
    assert (code, "stopped by SIGTERM with" in line, "start it again" in line) == (143, True, True)
    # While Spark starts: somebody else is in its group.
    code, line = ended(signal.SIGINT, lambda leader: len(group_of(leader)) > 1)
    assert (code, line) == (130, "python -m cometmq.spark etl: ended by SIGINT")


@pytest.mark.slow
@pytest.mark.timeout(900)  # Java starts anew for each kill, on machines that do other things, too
def test_a_killed_archive_goes_on_without_loss_or_repeat(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.made("COMMAND_KILLED", [1000, 1000])
    output = tmp_path / "archive"
    for number in range(6):
        kill_in_the_middle(broker.nameserver, topic, output, 1 + number % 3)
    assert len(exact(output)) < 2000, "it was not killed in the middle"
    archive(spark, topic, str(output), name_server=broker.nameserver)
    assert exact(output) == sorted(rows_expected(topic, {0: range(1000), 1: range(1000)}))
