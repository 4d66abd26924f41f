"""The options of the source: every one declared, parsed and checked once, before anything is read.

What comes of them is in `source_options`: executors get that and need nothing of this. Nothing here asks the cluster:
whether a topic exists is `cluster`'s business. The names are those of RocketMQ's old connector where it had one, of
Kafka's source where that has one, and else our own.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from cometmq.spark.access import DEFAULT_GROUP
from cometmq.spark.access_options import ACCESS, access_of
from cometmq.spark.errors import OptionError
from cometmq.spark.limits import Limits
from cometmq.spark.option_texts import Option, OptionTexts, declared
from cometmq.spark.read_options import FAIL, MASTER, RAW, SKIP, SLAVE, SQL92, TAG, ReadOptions
from cometmq.spark.source_options import Options
from cometmq.spark.splits import Splitting
from cometmq.spark.starting import LATEST, AtTime, Place, numbers_of_json, place_of_text, time_of_text
from cometmq.spark.topics import Topics, topics_of_assign, topics_of_list, topics_of_pattern

#: All options of the source.
SOURCE: Final = ACCESS | declared(
    Option("subscribe", "topics, separated by commas"),
    Option("topic", "the same as subscribe"),
    Option("subscribePattern", "a regular expression that the names of topics match as a whole"),
    Option("assign", 'queues, as JSON: {"topic":{"broker-a":[0,1]}}'),
    Option("startingOffsets", "earliest, latest, or JSON; a checkpoint goes first", "latest, batch: earliest"),
    Option(
        "startingTimestamp",
        "start with what was stored at that time or later (ms since 1970, or ISO 8601 with its zone)",
    ),
    Option("startingOffsetsByTimestamp", 'the same for each queue, as JSON: {"topic":{"0":1700000000000}}'),
    Option("startingOffsetsByTimestampStrategy", "error, or latest: what becomes of a queue without one", "error"),
    Option("endingOffsets", "where reading ends: latest, or JSON", "latest", only="batch"),
    Option("endingTimestamp", "read what was stored before that time", only="batch"),
    Option("endingOffsetsByTimestamp", "the same for each queue, as JSON", only="batch"),
    Option("maxOffsetsPerTrigger", "messages that a batch has at most", only="stream"),
    Option("maxBytesPerTrigger", "bytes that a batch has at most, by an estimate from samples", only="stream"),
    Option("minOffsetsPerTrigger", "messages that a batch waits for", only="stream"),
    Option("maxTriggerDelay", "how long it waits for them", "15m", only="stream"),
    Option("minPartitions", "tasks that a batch is split into at least"),
    Option("maxRecordsPerPartition", "messages that one task reads at most"),
    Option("minRecordsPerPartition", "queues with fewer messages share a task", "5000"),
    Option("failOnDataLoss", "whether messages that are gone before they were read end the query", "true"),
    Option("subExpression", "what the brokers let through: tags such as a || b, or an expression of SQL92", "*"),
    Option("expressionType", "TAG or SQL92", "TAG"),
    Option("consumerGroup", "the group that reads, and whose progress the brokers are told"),
    Option("groupIdPrefix", "the same, with a name made of this and of the topics"),
    Option("includeProperties", "whether there is a column with the properties", "true"),
    Option("propertiesAsJson", "whether that column is a text instead of a map", "false"),
    Option("readFrom", "master, or slave to spare the masters", "master"),
    Option("pullBatchSize", "messages that one pull asks for at most", str(ReadOptions().pull_count)),
    Option("pullBytes", "bytes that one pull asks for at most", str(ReadOptions().pull_bytes)),
    Option("pullTimeoutMs", "milliseconds that a broker has to answer a pull", "15000"),
    Option("pullRetries", "how often a failed pull is tried again, with growing pauses", str(ReadOptions().retries)),
    Option("batchRows", "rows of an Arrow batch at most", str(ReadOptions().batch_rows)),
    Option("batchBytes", "bytes of an Arrow batch, about", str(ReadOptions().batch_bytes)),
    Option("corruptMessages", "what becomes of a message whose body is damaged: fail, skip, or raw (as it is)", "fail"),
    Option("checkCrc", "whether bodies are held against their checksums", "true"),
    Option(
        "filterPushDown",
        "whether filters narrow what is read; take a fresh load() for each query",
        "false",
        only="batch",
    ),
    Option("discoveryInterval", "how often new topics, brokers and queues are looked for", "5s", only="stream"),
    Option("idleWait", "how long the driver waits for messages before it says there are none", "500ms", only="stream"),
    Option("unreachableTimeout", "how long a query waits for a broker that it needs", "2m, batch: 30s"),
)

_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_TOPICS: Final = ("subscribe", "topic", "subscribePattern", "assign")

#: Seconds: other sources of the same query wait as long.
_MAX_IDLE_WAIT: Final = 0.5

#: How long streams and batches wait for a broker unless told otherwise, in seconds: somebody sits in front of a batch.
_STREAM_PATIENCE: Final = 120.0
_BATCH_PATIENCE: Final = 30.0


def parse(options: Mapping[str, str]) -> Options:
    """All options of a source; the first one that cannot be used is raised as an OptionError."""
    texts = OptionTexts(options, SOURCE.values())
    texts.check_names()
    group = _group(texts)
    starting, ending = _place(texts, _STARTS), _place(texts, _ENDS) or LATEST
    _check_times(starting, ending)
    return Options(
        access=access_of(texts, group or DEFAULT_GROUP),
        read=_read_options(texts),
        topics=_topics(texts),
        starting=starting,
        ending=ending,
        limits=_limits(texts),
        splitting=Splitting(
            texts.maybe_integer("minPartitions"),
            texts.maybe_integer("maxRecordsPerPartition"),
            texts.integer("minRecordsPerPartition"),
        ),
        include_properties=texts.flag("includeProperties"),
        properties_as_json=texts.flag("propertiesAsJson"),
        filter_push_down=texts.flag("filterPushDown"),
        reports_progress=group is not None,
        discovery_interval=texts.seconds("discoveryInterval"),
        idle_wait=min(texts.seconds("idleWait"), _MAX_IDLE_WAIT),
        unreachable_timeout=_patience(texts, _STREAM_PATIENCE),
        batch_patience=_patience(texts, _BATCH_PATIENCE),
        batch_only=_given_only(texts, "batch"),
        stream_only=_given_only(texts, "stream"),
    )


def _patience(texts: OptionTexts, default: float) -> float:
    return texts.seconds("unreachableTimeout") if texts.given("unreachableTimeout") else default


def _given_only(texts: OptionTexts, kind: str) -> tuple[str, ...]:
    return tuple(texts.given(*(name for name, option in SOURCE.items() if option.only == kind)))


def _read_options(texts: OptionTexts) -> ReadOptions:
    expression_type = texts.one_of("expressionType", TAG, SQL92)
    if expression_type == SQL92 and not texts.given("subExpression"):
        raise OptionError("expressionType", SQL92, "subExpression is missing, e.g. price > 10 and region = 'north'")
    expression = texts.text("subExpression")
    if expression_type == TAG:
        _check_tags(expression)
    return ReadOptions(
        sub_expression=expression,
        expression_type=expression_type,
        fail_on_data_loss=texts.flag("failOnDataLoss"),
        pull_bytes=texts.integer("pullBytes", low=1024, high=64 * 1024 * 1024),
        pull_count=texts.integer("pullBatchSize", high=1_000_000),
        pull_timeout=texts.integer("pullTimeoutMs", high=3_600_000) / 1000,
        retries=texts.integer("pullRetries", low=0, high=10_000),
        read_from=texts.one_of("readFrom", MASTER, SLAVE),
        batch_rows=texts.integer("batchRows", high=10_000_000),
        batch_bytes=texts.integer("batchBytes", low=1024, high=1024**3),
        corrupt=texts.one_of("corruptMessages", FAIL, SKIP, RAW),
        check_crc=texts.flag("checkCrc"),
    )


def _check_tags(expression: str) -> None:
    """OptionError for what no tag is meant by: brokers would let nothing through, and nobody would say why."""
    tags = [tag.strip() for tag in expression.split("||")]
    odd = [tag for tag in tags if "|" in tag or "&&" in tag]
    if odd or (expression.strip() and not any(tags)):
        problem = f"{odd[0]!r} is no tag" if odd else "it names no tag"
        remedy = "write a || b, * for all, or an expression with expressionType=SQL92"
        raise OptionError("subExpression", expression, f"{problem}; {remedy}")


def _topics(texts: OptionTexts) -> Topics:
    given = texts.given(*_TOPICS)
    if len(given) != 1:
        problem = f"only one of {', '.join(given)} can be given" if given else "no topic is named"
        raise OptionError(
            given[0] if given else "subscribe", "", f"{problem}; use subscribe, subscribePattern or assign"
        )
    name, text = given[0], texts.text(given[0])
    if name == "assign":
        return topics_of_assign(text)
    return topics_of_pattern(text) if name == "subscribePattern" else topics_of_list(name, text)


def _place(texts: OptionTexts, names: tuple[str, str, str]) -> Place | None:
    """Where to start, or to end: at most one of three options says it."""
    given = texts.given(*names)
    if len(given) > 1:
        raise OptionError(given[0], "", f"{given[1]} says something else; give one of them")
    strategy = texts.one_of("startingOffsetsByTimestampStrategy", "error", "latest")
    # Reading up to a time that no message has reached yet is reading everything.
    or_latest = strategy == "latest" or names is _ENDS
    if not given:
        return None
    name, text = given[0], texts.text(given[0])
    if name.endswith("Timestamp") and "Offsets" not in name:
        return AtTime(name, time_of_text(name, text), or_latest=or_latest)
    if name.endswith("ByTimestamp"):
        return AtTime(name, numbers=numbers_of_json(name, text), or_latest=or_latest)
    return place_of_text(name, text, earliest=names is _STARTS)


def _check_times(starting: Place | None, ending: Place) -> None:
    """OptionError when a range of time ends before it starts."""
    if not isinstance(starting, AtTime) or not isinstance(ending, AtTime):
        return
    if starting.time is not None and ending.time is not None and ending.time < starting.time:
        raise OptionError(
            ending.option, str(ending.time), f"it is before {starting.option}={starting.time}; swap the two times"
        )


def _limits(texts: OptionTexts) -> Limits:
    limits = Limits(
        texts.maybe_integer("maxOffsetsPerTrigger"),
        texts.maybe_integer("maxBytesPerTrigger"),
        texts.maybe_integer("minOffsetsPerTrigger"),
        texts.seconds("maxTriggerDelay"),
    )
    if limits.max_offsets is not None and limits.min_offsets is not None and limits.min_offsets > limits.max_offsets:
        raise OptionError(
            "minOffsetsPerTrigger", str(limits.min_offsets), f"it is above maxOffsetsPerTrigger={limits.max_offsets}"
        )
    return limits


def _group(texts: OptionTexts) -> str | None:
    """The group whose progress is told; one that is made of a prefix stays the same when the query starts again."""
    group, prefix = texts.text("consumerGroup"), texts.text("groupIdPrefix")
    if group and prefix:
        raise OptionError("groupIdPrefix", prefix, f"consumerGroup={group} says the whole name; give one of them")
    if prefix:
        chosen = "\n".join(f"{name}={texts.text(name)}" for name in texts.given(*_TOPICS))
        group = f"{prefix}-{hashlib.sha256(chosen.encode()).hexdigest()[:8]}"
    if group and not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,255}", group):
        name = "groupIdPrefix" if prefix else "consumerGroup"
        raise OptionError(name, prefix or group, "a group has letters, digits, - and _, and at most 255 of them")
    return group or None
