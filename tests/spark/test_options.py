"""Options as a user writes them: what each becomes, and that a mistake is told with the option's name and a remedy."""

import pickle

import pytest

from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.limits import Limits
from cometmq.spark.options import SOURCE, parse
from cometmq.spark.queue_range import QueueId
from cometmq.spark.read_options import ReadOptions
from cometmq.spark.splits import Splitting
from cometmq.spark.starting import EARLIEST, LATEST, AtOffsets, AtTime

pytestmark = pytest.mark.spark

NEEDED = {"nameServer": "127.0.0.1:9876", "subscribe": "orders"}


def test_only_server_and_topic_are_needed() -> None:
    options = parse(NEEDED)
    assert options.access.name_servers == ("127.0.0.1:9876",)
    assert options.topics.names == ("orders",)
    assert (options.stream_start, options.batch_start, options.ending) == (LATEST, EARLIEST, LATEST)
    assert options.read == ReadOptions()
    assert options.limits == Limits()
    assert options.splitting == Splitting()
    assert options.include_properties
    assert not options.reports_progress


def test_every_option_is_taken() -> None:
    options = parse(
        {
            "nameServer": "a:9876;b:9877, c:9878",
            "accessKey": "me",
            "secretKey": "hush",
            "securityToken": "t",
            "tls": "true",
            "tlsCa": "/ca.pem",
            "tlsCert": "/cert.pem",
            "tlsKey": "/key.pem",
            "tlsKeyPassword": "pass",
            "tlsVerify": "false",
            "namespace": "ns",
            "requestTimeoutMs": "1500",
            "topic": "a, b",
            "startingOffsets": "earliest",
            "endingOffsets": '{"a":9,"b":-1}',
            "maxOffsetsPerTrigger": "100",
            "maxBytesPerTrigger": "1000000",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "3m",
            "minPartitions": "7",
            "maxRecordsPerPartition": "50",
            "minRecordsPerPartition": "5",
            "failOnDataLoss": "false",
            "subExpression": "a || b",
            "expressionType": "tag",
            "consumerGroup": "g",
            "includeProperties": "false",
            "propertiesAsJson": "true",
            "readFrom": "slave",
            "pullBatchSize": "64",
            "pullBytes": "65536",
            "pullTimeoutMs": "2500",
            "pullRetries": "2",
            "batchRows": "100",
            "batchBytes": "4096",
            "corruptMessages": "skip",
            "checkCrc": "false",
            "discoveryInterval": "1s",
            "idleWait": "100ms",
            "unreachableTimeout": "2h",
        }
    )
    access = options.access
    assert access.name_servers == ("a:9876", "b:9877", "c:9878")
    assert (access.access_key, access.secret_key, access.security_token) == ("me", "hush", "t")
    assert (access.tls, access.tls_ca, access.tls_cert, access.tls_key) == (True, "/ca.pem", "/cert.pem", "/key.pem")
    assert (access.tls_key_password, access.tls_verify) == ("pass", False)
    assert (access.namespace, access.request_timeout, access.group) == ("ns", 1.5, "g")
    assert "hush" not in repr(options)
    assert options.topics.names == ("a", "b")
    assert options.batch_start == EARLIEST
    assert isinstance(options.ending, AtOffsets)
    assert options.limits == Limits(100, 1_000_000, 10, 180.0)
    assert options.splitting == Splitting(7, 50, 5)
    assert options.reports_progress
    assert (options.include_properties, options.properties_as_json) == (False, True)
    assert options.read == ReadOptions(
        sub_expression="a || b",
        fail_on_data_loss=False,
        pull_bytes=65536,
        pull_count=64,
        pull_timeout=2.5,
        retries=2,
        read_from="slave",
        batch_rows=100,
        batch_bytes=4096,
        corrupt="skip",
        check_crc=False,
    )
    assert (options.discovery_interval, options.idle_wait, options.unreachable_timeout) == (1.0, 0.1, 7200.0)
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_ignore_case_and_blanks_around_values() -> None:
    assert parse({"NAMESERVER": " x:1 ", "Subscribe": "t", "failondataloss": "FALSE"}).read.fail_on_data_loss is False


def test_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    assert parse({"subscribe": "t"}).access.name_servers == ("10.0.0.1:9876", "10.0.0.2:9876")


def test_the_group_of_a_prefix_is_the_same_after_a_restart() -> None:
    group = parse({**NEEDED, "groupIdPrefix": "etl"}).access.group
    assert group.startswith("etl-")
    assert group == parse({**NEEDED, "groupIdPrefix": "etl"}).access.group
    assert group != parse({**NEEDED, "subscribe": "others", "groupIdPrefix": "etl"}).access.group


QUEUE = QueueId("orders", "broker-a", 1)


@pytest.mark.parametrize(
    "text",
    [
        '{"orders":{"broker-a":{"0":3,"1":7}}}',  # RocketMQ's old connector
        '{"orders":{"0":3,"1":7}}',  # Kafka
        '{"orders.broker-a.1":7,"orders.broker-a.0":3}',
        '{"orders":{"broker-a":7}}',
        '{"orders":7}',
        '{"from":{},"q":{"orders":{"broker-a":{"0":3,"1":7}}},"v":1}',  # a query's progress
    ],
)
def test_all_spellings_of_offsets(text: str) -> None:
    place = parse({**NEEDED, "startingOffsets": text}).starting
    assert isinstance(place, AtOffsets)
    assert place.numbers.of(QUEUE) == 7


def test_the_closest_number_counts() -> None:
    place = parse({**NEEDED, "startingOffsets": '{"orders":{"broker-a":{"1":1},"broker-b":2,"0":-2}}'}).starting
    assert isinstance(place, AtOffsets)
    wanted = {("broker-a", 1): 1, ("broker-b", 0): 2, ("broker-c", 0): -2}
    assert {(b, q): place.numbers.of(QueueId("orders", b, q)) for b, q in wanted} == wanted
    with pytest.raises(OptionError, match="startingOffsets: it says nothing about queue 5 of topic orders on broker"):
        place.numbers.of(QueueId("orders", "broker-a", 5))


@pytest.mark.parametrize("text", ["1767225600000", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"])
def test_spellings_of_a_time(text: str) -> None:
    place = parse({**NEEDED, "startingTimestamp": text}).starting
    assert isinstance(place, AtTime)
    assert (place.of(QUEUE), place.or_latest) == (1_767_225_600_000, False)


def test_times_of_queues_and_what_to_do_without_a_message() -> None:
    options = parse(
        {
            **NEEDED,
            "startingOffsetsByTimestamp": '{"orders":{"broker-a":{"1":17}}}',
            "startingOffsetsByTimestampStrategy": "latest",
            "endingOffsetsByTimestamp": '{"orders":99}',
        }
    )
    assert isinstance(options.starting, AtTime)
    assert isinstance(options.ending, AtTime)
    assert (options.starting.of(QUEUE), options.starting.or_latest) == (17, True)
    assert (options.ending.of(QUEUE), options.ending.or_latest) == (99, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"maxOffsetPerTrigger": "1"},
            "maxoffsetpertrigger: there is no such option; did you mean maxOffsetsPer",
        ),
        ({"nameServer": "nowhere"}, "nameServer=nowhere: give host:port"),
        ({"nameServer": ""}, "nameServer: it is missing"),
        ({"subscribe": ""}, "subscribe: no topic is named"),
        ({"subscribe": " , "}, "subscribe=,: no topic is named"),
        ({"subscribe": "a b"}, "subscribe=a b: .*illegal characters"),
        ({"assign": '{"t":{"b":[0]}}'}, "subscribe: only one of subscribe, assign can be given"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern=.*: it is no regular expression"),
        ({"subscribe": "", "assign": "{"}, "assign={: it is not JSON"),
        ({"subscribe": "", "assign": "[]"}, "assign=.*: give an object"),
        ({"subscribe": "", "assign": '{"t":[0]}'}, "assign=.*: under t the brokers are missing"),
        ({"subscribe": "", "assign": '{"t":{"b":0}}'}, "assign=.*: under b a list of queues is expected"),
        ({"subscribe": "", "assign": '{"t":{"b":[-1]}}'}, "assign=.*: under b a list of queues is expected"),
        ({"startingOffsets": "first"}, "startingOffsets=first: give earliest, latest, or JSON"),
        ({"startingOffsets": "{"}, "startingOffsets={: it is not JSON"),
        ({"startingOffsets": "{}"}, "startingOffsets={}: give an object"),
        ({"startingOffsets": '{"orders":{"b":{"0":"7"}}}'}, 'startingOffsets=.*"7" stands where a whole number'),
        ({"startingOffsets": '{"orders":{"b":{"x":7}}}'}, "startingOffsets=.*'x' is no number of a queue"),
        ({"startingOffsets": '{"orders.x":7}'}, "startingOffsets=.*neither a topic nor topic.broker.queue"),
        ({"startingOffsets": '{"orders":-3}'}, "startingOffsets=.*-3 is no offset: -2 is earliest, -1 is latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest: give latest, or JSON"),
        ({"endingOffsets": '{"orders":-2}'}, "endingOffsets=.*-2 is no offset"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "startingOffsets: startingTimestamp says some"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp=yesterday: give milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp=.*give milliseconds"),
        (
            {"startingOffsetsByTimestampStrategy": "skip"},
            "startingOffsetsByTimestampStrategy=skip: give error or latest",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger=0: give a whole number of at least 1"),
        ({"maxOffsetsPerTrigger": "1e3"}, "maxOffsetsPerTrigger=1e3: give a whole number"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger=5: it is above max"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay=soon: give a duration such as 500ms"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss=yes: give true or false"),
        ({"expressionType": "REGEX"}, "expressionType=REGEX: give TAG or SQL92"),
        ({"expressionType": "SQL92"}, "expressionType=SQL92: subExpression is missing"),
        ({"subExpression": "||"}, r"subExpression=\|\|: it names no tag; write a \|\| b"),
        ({"subExpression": "a && b"}, "subExpression=a && b: 'a && b' is no tag; .*expressionType=SQL92"),
        ({"subExpression": "a | b"}, r"subExpression=a \| b: 'a \| b' is no tag"),
        ({"path": "orders"}, "path: there is none; name topics by the option subscribe"),
        ({"subscribe": "", "assign": "[" * 100_000}, "assign=.*: it is not JSON"),
        ({"startingOffsets": '{"a":' * 100_000}, "startingOffsets=.*: it is not JSON"),
        ({"readFrom": "disk"}, "readFrom=disk: give master or slave"),
        ({"corruptMessages": "x"}, "corruptMessages=x: give fail or skip or raw"),
        ({"accessKey": "me"}, "accessKey: it needs secretKey"),
        ({"secretKey": "me"}, "secretKey: it needs accessKey"),
        ({"tlsCa": "/x"}, "tlsCa: it has no use without tls=true"),
        ({"tls": "true", "tlsCert": "/x"}, "tlsCert: it needs tlsKey"),
        ({"tls": "true", "tlsKey": "/x"}, "tlsKey: it needs tlsCert"),
        ({"consumerGroup": "a b"}, "consumerGroup=a b: a group has letters"),
        ({"consumerGroup": "a", "groupIdPrefix": "b"}, "groupIdPrefix=b: consumerGroup=a says the whole name"),
        ({"pullBytes": "1"}, "pullBytes=1: give a whole number from 1024"),
    ],
)
def test_mistakes_name_the_option_and_the_remedy(changes: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}"):
        parse({**NEEDED, **changes})


def test_a_stream_has_no_end() -> None:
    options = parse({**NEEDED, "endingTimestamp": "17"})
    with pytest.raises(OptionError, match=r"^endingTimestamp: only spark.read has it"):
        options.check_for_stream()


def test_a_batch_does_not_start_at_the_end() -> None:
    with pytest.raises(OptionError, match=r"^startingOffsets=latest: a batch would be empty"):
        _ = parse({**NEEDED, "startingOffsets": "latest"}).batch_start


def test_options_say_what_they_are_for() -> None:
    assert all(option.meaning and option.name == name for name, option in SOURCE.items())
    assert {option.only for option in SOURCE.values()} == {"", "batch", "stream"}


def test_errors_travel_between_processes() -> None:
    for error in (OptionError("o", "v", "r"), DataLoss(QUEUE, 1, 2, "r")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.remedy) == (type(error), str(error), "r")
