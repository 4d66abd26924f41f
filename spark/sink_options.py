"""The options of the sink: those of access, which the source has too, and how rows are sent.

Parsed and checked in the driver; `SinkOptions` pickles with the writer. Kafka's sink takes `kafka.*`; RocketMQ's
DefaultMQProducer has the same under other names.
"""

import re
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.protocol import names
from cometmq.protocol.errors import CometMQError
from cometmq.spark.access import DEFAULT_GROUP, Access
from cometmq.spark.access_options import ACCESS, access_of
from cometmq.spark.errors import OptionError
from cometmq.spark.option_texts import Option, OptionTexts, declared

#: Bytes of a request of several rows at most: as it comes, a broker refuses what is larger (maxMessageSize).
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024

#: All options of the sink.
SINK: Final = ACCESS | declared(
    Option("topic", "where rows go that have no column topic, or nothing in it"),
    Option("producerGroup", "the group that the brokers see as the sender", DEFAULT_GROUP),
    Option("sendTimeoutMs", "milliseconds that one request may take", "10000"),
    Option("sendRetries", "how often a request that failed is sent again, with growing pauses", "5"),
    Option("sendBytes", "bytes of the rows that go out together in one request, about", "262144"),
    Option("maxInFlight", "requests of one task that wait for their acknowledgement at most", "16"),
    Option("maxInFlightBytes", "bytes that one task has on the way at most", "16777216"),
    Option("reservedProperties", "drop or fail: what becomes of properties that RocketMQ itself writes", "drop"),
    Option("writeId", "what the stamps say in place of the query's id", "the query's id; a batch: a new one"),
    Option("exactlyOnce", "only false, so far", "false"),
)


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How rows are sent."""

    access: Access
    #: Empty: every row names its own.
    topic: str
    #: Seconds.
    send_timeout: float
    retries: int
    send_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    drops_reserved: bool
    #: The query of the stamps if the user names it, else empty.
    write_id: str
    #: The query of the stamps of a write that belongs to no streaming query.
    new_id: str


def parse(options: Mapping[str, str]) -> SinkOptions:
    """All options of a sink; the first one that cannot be used is raised as an OptionError."""
    texts = OptionTexts(options, SINK.values())
    texts.check_names()
    if texts.flag("exactlyOnce"):
        raise OptionError(
            "exactlyOnce", "true", "the sink delivers at least once: leave it out, and read with without_repeats()"
        )
    return SinkOptions(
        access=access_of(texts, _group(texts)),
        topic=_topic(texts),
        send_timeout=texts.integer("sendTimeoutMs", high=600_000) / 1000,
        retries=texts.integer("sendRetries", low=0, high=1000),
        send_bytes=texts.integer("sendBytes", high=MAX_REQUEST_BYTES),
        max_in_flight=texts.integer("maxInFlight", high=4096),
        max_in_flight_bytes=texts.integer("maxInFlightBytes"),
        drops_reserved=texts.one_of("reservedProperties", "drop", "fail") == "drop",
        write_id=_write_id(texts),
        new_id=str(uuid.uuid4()),
    )


def _topic(texts: OptionTexts) -> str:
    topic = texts.text("topic")
    if topic:
        check_topic(topic)
    return topic


def check_topic(topic: str) -> None:
    """Refuse a topic that nobody may send to."""
    try:
        names.validate_topic(topic)
    except CometMQError as error:
        raise OptionError("topic", topic, str(error)) from None
    if topic in names.SEND_FORBIDDEN_TOPICS:
        raise OptionError("topic", topic, "it belongs to the system; choose a topic of your own")


def _group(texts: OptionTexts) -> str:
    group = texts.text("producerGroup")
    try:
        names.validate_group(group)
    except CometMQError as error:
        raise OptionError("producerGroup", group, str(error)) from None
    return group


def _write_id(texts: OptionTexts) -> str:
    given = texts.text("writeId") if texts.given("writeId") else ""
    if given and not re.fullmatch(r"[\w.-]{1,128}", given, re.ASCII):
        raise OptionError("writeId", given, "give letters, digits, dots, - and _, and at most 128 of them")
    return given
