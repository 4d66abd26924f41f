"""The commands of the jobs: their options, in RocketMQ's spelling where it has one, and how they call the library."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cometmq.spark.jobs.command import (
    Settings,
    chart_file,
    duration,
    job,
    pairs,
    time,
    wrong_usage,
)
from cometmq.spark.jobs.signals import stopped_by_signals

if TYPE_CHECKING:
    from cometmq.spark.jobs.messages import Messages
    from cometmq.spark.jobs.metrics import Metrics

_Body = TypeVar("_Body", bound=Callable[..., Any])

_CONTINUOUS = "continuous"
_TRIGGERS = click.Choice(["available-now", "once", _CONTINUOUS])

_TIME = "2026-01-31T08:00:00Z (UTC if no zone is given), or milliseconds since 1970"

_topics = click.option(
    "-t", "--topic", "topics", multiple=True, help="A topic, or several separated by commas; may be repeated"
)
_since = click.option(
    "-b", "--begin", "since", callback=time, metavar="TIME", help=f"From what was stored at that time on: {_TIME}"
)
_until = click.option(
    "-e", "--end", "until", callback=time, metavar="TIME", help=f"Up to what was stored before that time: {_TIME}"
)


def _checkpoint(default: str) -> Callable[[_Body], _Body]:
    return click.option("--checkpoint", help=f"Where the job notes how far it is; {default} unless given")


def _trigger(interval: str, default: str | None = "available-now") -> Callable[[_Body], _Body]:
    when = click.option("--trigger", type=_TRIGGERS, default=default, help="All there is, one batch, or on and on")
    every = click.option(
        "--interval", default=interval, callback=duration, help="Between the starts of batches of a continuous run"
    )
    return lambda body: when(every(body))


def _checked(
    settings: Settings, topics: tuple[str, ...], since: datetime | None = None, until: datetime | None = None
) -> "Messages":
    """The topics, after they were looked for: Spark takes seconds to start, a nameserver answers at once."""
    from cometmq.spark.errors import SparkSourceError
    from cometmq.spark.jobs.messages import Messages
    from cometmq.spark.options import parse

    with wrong_usage(SparkSourceError):
        messages = Messages.of(",".join(topics), settings.name_server, settings.options, since, until)
        parse(messages.source_options)
    messages.check()
    return messages


@job("archive", "Topics to Parquet by topic, day and hour (UTC), each message exactly once.")
@_topics
@click.option("-o", "--output", required=True, help="The archive: a directory")
@_since
@_checkpoint("<output>.checkpoint")
@_trigger("1 minute")
@click.option("--compact", is_flag=True, help="Only join the small files of an archive, of all of its hours")
@click.option("--compact-closed/--no-compact-closed", default=True, help="Join the small files of hours that are over")
@click.option("--file-size", default=128, type=click.IntRange(1), help="MiB of a joined file")
def archive(
    settings: Settings,
    topics: tuple[str, ...],
    output: str,
    since: datetime | None,
    checkpoint: str | None,
    trigger: str,
    interval: str,
    compact: bool,
    compact_closed: bool,
    file_size: int,
) -> "Metrics":
    from cometmq.spark.jobs.archive_job import archive as run
    from cometmq.spark.jobs.archive_job import compact_archive

    if compact:
        if topics:
            raise click.UsageError("--compact joins files and reads no topics: leave -t away")
        spark = settings.session("archive")
        return compact_archive(spark, output, file_size=file_size * 1024**2, display=settings.display())
    if not topics:
        raise click.UsageError("Missing option '-t' / '--topic'")
    _checked(settings, topics, since)
    spark = settings.session("archive")
    with stopped_by_signals() as stop:
        done = run(
            spark,
            ",".join(topics),
            output,
            name_server=settings.name_server,
            checkpoint=checkpoint,
            trigger=trigger,
            interval=interval,
            since=since,
            options=settings.options,
            compact_closed=compact_closed,
            file_size=file_size * 1024**2,
            display=settings.display(),
            stop=stop,
        )
        return done if trigger == _CONTINUOUS else stop.ended(done)


@job("replay", "An archive, or a range of time of topics, to a topic: in queue order, at a rate, resumable.")
@_topics
@click.option("--archive", "archive_dir", help="Replay this archive; -t then chooses among its topics")
@click.option("--to", "target", required=True, help="The topic to send to; brokers that make topics may make it")
@click.option("--to-namesrvAddr", "to_name_server", help="Nameservers of the target, when it is another cluster")
@_since
@_until
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages a second, evenly; may change")
@_checkpoint("<archive or topics>.replay-to-<target>, -at-<nameservers> with --to-namesrvAddr")
def replay(
    settings: Settings,
    topics: tuple[str, ...],
    archive_dir: str | None,
    target: str,
    to_name_server: str | None,
    since: datetime | None,
    until: datetime | None,
    rate: float | None,
    checkpoint: str | None,
) -> "Metrics":
    from cometmq.spark.jobs.replay_job import replay as run
    from cometmq.spark.jobs.replay_job import sink_of, target_queues

    if archive_dir is None:
        if not topics:
            raise click.UsageError("Missing option '-t' / '--topic' or '--archive'")
        _checked(settings, topics, since, until)
    target_queues(sink_of(target, settings.name_server, to_name_server, settings.options))
    spark = settings.session("replay")
    with stopped_by_signals() as stop:
        done = run(
            spark,
            target,
            ",".join(topics),
            archive=archive_dir,
            since=since,
            until=until,
            rate=rate,
            name_server=settings.name_server,
            to_name_server=to_name_server,
            checkpoint=checkpoint,
            options=settings.options,
            display=settings.display(),
            stop=stop,
        )
        return stop.ended(done)


@job("etl", "Topics, through SQL or a function on the DataFrame, to a topic or a table.")
@_topics
@click.option("--sql", help="A query over the view `messages`: the source's columns, `text`, and `json`")
@click.option("--function", help="package.module:function, which takes and returns a DataFrame")
@click.option("--json-schema", help="Columns of the bodies, as in SQL: 'id string, amount int'")
@click.option("--to", "to_topic", help="The topic to send to; the result has at least a column `body`")
@click.option("-o", "--output", help="The directory to write to")
@click.option("--table", help="The table of Spark's catalogue to write to")
@click.option("--format", "format", default="parquet", help="The format of output or table")
@click.option("--partition-by", multiple=True, help="A column to partition files by; may be repeated")
@click.option("--output-mode", type=click.Choice(["append", "update", "complete"]), default="append", help="Spark's")
@click.option(
    "--output-option",
    "output_options",
    callback=pairs,
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the format; may be repeated",
)
@click.option("--to-namesrvAddr", "to_name_server", help="Nameservers of the target, when it is another cluster")
@_since
@_checkpoint("<output>.checkpoint or etl-<topic or table>.checkpoint")
@_trigger("10 seconds")
def etl(settings: Settings, topics: tuple[str, ...], since: datetime | None, **values: Any) -> "Metrics":
    from cometmq.spark.jobs.etl_job import check_name
    from cometmq.spark.jobs.etl_job import etl as run

    if not topics:
        raise click.UsageError("Missing option '-t' / '--topic'")
    if (values["sql"] is None) == (values["function"] is None):
        raise click.UsageError("give one of --sql and --function")
    if sum(values[name] is not None for name in ("to_topic", "output", "table")) != 1:
        raise click.UsageError("give one of --to, --output and --table")
    if values["function"] is not None:
        check_name(values["function"])
    _checked(settings, topics, since)
    spark = settings.session("etl")
    with stopped_by_signals() as stop:
        done = run(
            spark,
            ",".join(topics),
            since=since,
            name_server=settings.name_server,
            options=settings.options,
            display=settings.display(),
            stop=stop,
            **values,
        )
        return done if values["trigger"] == _CONTINUOUS else stop.ended(done)


@job("audit", "What was lost, repeated or out of order, by the numbers that the SDK's SendAudit stamps.")
@_topics
@click.option("--archive", "archive_dir", help="Audit this archive; -t then chooses among its topics")
@_since
@_until
@click.option("--from-the-first", is_flag=True, help="Every producer is expected to begin with number 0")
@click.option("-o", "--output", help="A directory for all findings, as Parquet")
@click.option("--limit", default=20, type=click.IntRange(0), help="Findings that are shown")
@click.option("--fail-on-loss", is_flag=True, help="Exit with 1 when something was lost")
def audit(
    settings: Settings,
    topics: tuple[str, ...],
    archive_dir: str | None,
    since: datetime | None,
    until: datetime | None,
    from_the_first: bool,
    output: str | None,
    limit: int,
    fail_on_loss: bool,
) -> "Metrics":
    from cometmq.spark.jobs.audit_job import audit as run
    from cometmq.spark.jobs.command import complain, show

    names = [name for text in topics for name in text.split(",") if name]
    if archive_dir is None:
        if not names:
            raise click.UsageError("Missing option '-t' / '--topic' or '--archive'")
        _checked(settings, topics, since, until)
    found = run(
        settings.session("audit"),
        names,
        archive=archive_dir,
        name_server=settings.name_server,
        since=since,
        until=until,
        from_the_first=from_the_first,
        output=output,
        options=settings.options,
        limit=limit,
        display=settings.display(),
    )
    if fail_on_loss and found.details["lost"]:
        show(found, as_json=settings.json)
        complain(f"audit: {found.details['lost']} messages were lost; the table lostNumbers says which", 1)
    return found


@job("trace", "Message traces to latencies by topic and group, failures and slow consumers, over time.")
@click.option("-t", "--topic", "topic", default="RMQ_SYS_TRACE_TOPIC", help="The topic of the traces")
@_since
@_until
@click.option("--window", default="1 minute", callback=duration, help="The time that one row is about")
@click.option("--slow", default=1.0, help="Seconds of processing (95th percentile) from which a consumer is slow")
@click.option("-o", "--output", help="A directory for the table, as Parquet")
@click.option("--chart", callback=chart_file, help="A file for the chart: .html, .svg or .png")
@_trigger("1 minute", default=None)
@click.option(
    "--watermark",
    default="1 minute",
    callback=duration,
    help="How late traces may come in a stream: a window is written when a trace, of whomever, is newer than its end "
    "by that",
)
@click.option(
    "--horizon",
    default="1 hour",
    callback=duration,
    help="How long a stream remembers sends; nothing waits for it. What is processed later is of topic ?, without "
    "latency",
)
@_checkpoint("<output>.checkpoint")
def trace(settings: Settings, topic: str, since: datetime | None, until: datetime | None, **values: Any) -> "Metrics":
    from cometmq.spark.jobs.trace_job import trace as run

    if values["trigger"] is not None and until is not None:
        raise click.UsageError("a stream has no end: leave --end or --trigger away")
    if values["trigger"] is not None and values["output"] is None:
        raise click.UsageError("a stream needs a table to add to: give --output")
    _checked(settings, (topic,), since, until)
    settings_of_run = dict(
        values,
        name_server=settings.name_server,
        topic=topic,
        since=since,
        until=until,
        options=settings.options,
        display=settings.display(),
    )
    spark = settings.session("trace")
    if values["trigger"] is None:  # nothing to be saved: Ctrl-C ends it at once
        return run(spark, **settings_of_run)
    with stopped_by_signals() as stop:
        done = run(spark, stop=stop, **settings_of_run)
        return done if values["trigger"] == _CONTINUOUS else stop.ended(done)


@job("lag", "The backlog of consumer groups, sampled over time to a table and a chart.")
@click.option("-g", "--group", "groups", multiple=True, help="A group; may be repeated. Without one, all groups")
@click.option("-o", "--output", required=True, help="The table: a directory of Parquet that samples are added to")
@click.option("--interval", default=10.0, type=click.FloatRange(0.1), help="Seconds between two samples")
@click.option("--samples", type=click.IntRange(1), help="How many; without it, until Ctrl-C")
@click.option("--chart", callback=chart_file, help="A file for the chart: .html, .svg or .png")
def lag(
    settings: Settings,
    groups: tuple[str, ...],
    output: str,
    interval: float,
    samples: int | None,
    chart: str | None,
) -> "Metrics":
    from cometmq.spark.errors import OptionError
    from cometmq.spark.jobs.lag_job import check_groups
    from cometmq.spark.jobs.lag_job import lag as run

    with wrong_usage(OptionError):
        check_groups(groups, settings.name_server, settings.options)
    spark = settings.session("lag")
    with stopped_by_signals() as stop:
        done = run(
            spark,
            output,
            groups,
            name_server=settings.name_server,
            interval=interval,
            samples=samples,
            chart=chart,
            options=settings.options,
            display=settings.display(),
            stop=stop,
        )
        if samples is None:
            return done
        return stop.ended_with(done, samples - done.details["samples"] - done.details["missedSamples"])


COMMANDS = {each.name: each for each in (archive, replay, etl, audit, trace, lag)}
