"""fastjson's leniency towards what peers send, and errors that name the body and the field."""

import time

import pytest

from cometmq.protocol.bodies import (
    BatchAckMessageRequestBody,
    Body,
    BrokerData,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    HeartbeatData,
    KVTable,
    MessageQueue,
    ProcessQueueInfo,
    QueueData,
    SubscriptionData,
    SubscriptionGroupWrapper,
    TopicRouteData,
    TopicStatsTable,
)
from cometmq.protocol.errors import BodyError


def broker(**fields: object) -> TopicRouteData:
    return TopicRouteData(broker_datas=[BrokerData(**fields)])  # type: ignore[arg-type]


def queue(**fields: object) -> TopicRouteData:
    return TopicRouteData(queue_datas=[QueueData(**fields)])  # type: ignore[arg-type]


def test_go_heartbeat() -> None:
    """Hash codes as text, a version in nanoseconds, no type of expression, no fields of 5.x, blanks."""
    text = """{"clientID": "10.0.0.1@7#1", "producerDataSet": [], "consumerDataSet": [{"groupName": "g",
    "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "UNKNOWN", "unitMode": false,
    "subscriptionDataSet": [{"classFilterMode": false, "topic": "t", "subString": "a||b", "tagsSet": ["a", "b"],
    "codeSet": ["97", "-98"], "subVersion": 1794847366641000000, "expressionType": ""}]}]}"""
    data = HeartbeatData.decode(text.encode())
    (consumer,) = data.consumer_data_set
    (subscription,) = consumer.subscription_data_set
    assert consumer.consume_from_where == "UNKNOWN"
    assert (data.heartbeat_fingerprint, data.without_sub) == (0, False)
    assert subscription == SubscriptionData(
        topic="t",
        sub_string="a||b",
        tags_set=["a", "b"],
        code_set=[97, -98],
        sub_version=1794847366641000000,
        expression_type="",
    )


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"brokerDatas":null,"queueDatas":null,"filterServerTable":null,"orderTopicConf":null}', TopicRouteData()),
        ('{"queueDatas":[null,{"perm":null,"brokerName":null}]}', queue()),
        ('{"queueDatas":[{"perm":"6","readQueueNums":"4"}]}', queue(perm=6, read_queue_nums=4)),
        ('{"queueDatas":[{"perm":6.0,"brokerName":7}]}', queue(perm=6, broker_name="7")),
        ('{"queueDatas":[{"perm":"","readQueueNums":"null"}],"unknown":{"x":[]}}', queue()),
        ('{"orderTopicConf":5}', TopicRouteData(order_topic_conf="5")),
        ('{"brokerDatas":[{"enableActingMaster":"true"}]}', broker(enable_acting_master=True)),
        (
            '{"brokerDatas":[{"enableActingMaster":1,"cluster":true}]}',
            broker(enable_acting_master=True, cluster="true"),
        ),
        (
            '{"brokerDatas":[{"enableActingMaster":"Y"},{"enableActingMaster":"f"}]}',
            TopicRouteData(broker_datas=[BrokerData(enable_acting_master=True), BrokerData()]),
        ),
        ('{"brokerDatas":[{"brokerAddrs":{"0":"a",1:"b"}}]}', broker(broker_addrs={0: "a", 1: "b"})),
        (
            '{"table":{"a":1,"b":true,"c":1.5,"d":null,5:"e"}}',
            KVTable(table={"a": "1", "b": "true", "c": "1.5", "5": "e"}),
        ),
        ('{"dataVersion":null,"forbiddenTable":null,"subscriptionGroupTable":null}', SubscriptionGroupWrapper()),
        ('{"consumeTps":"1.5","offsetTable":{}}', ConsumeStats(consume_tps=1.5)),
        ('{"consumeTps":2}', ConsumeStats(consume_tps=2.0)),
        ('{"consumeTps":null}', ConsumeStats()),
    ],
)
def test_leniency(text: str, body: Body) -> None:
    assert type(body).decode(text.encode()) == body


def test_directly_consumed_result_of_go_is_an_ordinal() -> None:
    assert ConsumeMessageDirectlyResult.decode(b'{"consumeResult":4}').consume_result == "CR_THROW_EXCEPTION"
    assert ConsumeMessageDirectlyResult.decode(b'{"consumeResult":"0"}').consume_result == "CR_SUCCESS"
    assert ConsumeMessageDirectlyResult.decode(b'{"consumeResult":"CR_NEW"}').consume_result == "CR_NEW"
    assert ConsumeMessageDirectlyResult.decode(b'{"consumeResult":9}').consume_result == "9"


@pytest.mark.parametrize("name", ["droped", "dropped"])
def test_dropped_queue_in_both_spellings(name: str) -> None:
    text = f'{{"mqTable":{{{{"brokerName":"b","queueId":0,"topic":"t"}}:{{"{name}":true}}}},"properties":{{"n":5}}}}'
    info = ConsumerRunningInfo.decode(text.encode())
    assert info.mq_table == {MessageQueue(broker_name="b", topic="t"): ProcessQueueInfo(droped=True)}
    assert info.properties == {"n": "5"}
    assert b'"droped":true' in info.encode()


def test_references_inside_bodies() -> None:
    text = (
        b'{"brokerDatas":[{"brokerName":"a"},{"$ref":"$.brokerDatas[0]"}],"x":{"$ref":"$"},"queueDatas":{"$ref":"$.y"}}'
    )
    assert TopicRouteData.decode(text).broker_datas == [BrokerData(broker_name="a")] * 2


def test_references_cannot_blow_up_a_body() -> None:
    groups = ",".join(f'"g{i}":[]' for i in range(5_000))
    text = f'{{"consumeStatsList":[{{{groups}}}{",{0}" * 5_000}]}}'.replace("{0}", '{"$ref":"$.consumeStatsList[0]"}')
    start = time.process_time()
    with pytest.raises(BodyError, match="too many values through its references"):
        ConsumeStatsList.decode(text.encode())
    assert time.process_time() - start < 2


def test_many_values_need_no_references() -> None:
    text = b'{"queueDatas":[' + b"{}," * 150_000 + b'{"perm":"7"},{"perm":null}]}'
    queues = TopicRouteData.decode(text).queue_datas
    assert len(queues) == 150_002
    assert queues[-2:] == [QueueData(perm=7), QueueData()]


def test_references_to_themselves_end() -> None:
    text = b'{"brokerDatas":[{"$ref":"$"},{"$ref":".."},{"$ref":"@"}],"queueDatas":{"$ref":"$.brokerDatas"}}'
    with pytest.raises(BodyError, match=r"\$\.brokerDatas\[2\] expected an object, got an array"):
        TopicRouteData.decode(text)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (TopicRouteData, b"", "the body is empty"),
        (TopicRouteData, b"null", "$ expected an object, got None"),
        (TopicRouteData, b"[]", "$ expected an object, got an array"),
        (TopicRouteData, b"{", "JSON wants a key here (at character 1 of 1)"),
        (TopicRouteData, b'{"x":"\xff",}', "JSON is not UTF-8 at byte 6"),
        (TopicRouteData, b'{"queueDatas":{}}', "$.queueDatas expected an array, got an object"),
        (TopicRouteData, b'{"queueDatas":[{"perm":"x"}]}', "$.queueDatas[0].perm expected an integer, got text 'x'"),
        (TopicRouteData, b'{"queueDatas":[{},{"perm":1.5}]}', "$.queueDatas[1].perm expected an integer, got 1.5"),
        (TopicRouteData, b'{"queueDatas":[{"perm":2147483648}]}', "$.queueDatas[0].perm is out of range: 2147483648"),
        (
            TopicRouteData,
            b'{"brokerDatas":[{"brokerAddrs":{"x":"a"}}]}',
            "$.brokerDatas[0].brokerAddrs['x'] expected an integer, got text 'x'",
        ),
        (
            TopicRouteData,
            b'{"brokerDatas":[{"brokerAddrs":{0:[]}}]}',
            "$.brokerDatas[0].brokerAddrs[0] expected text, got an array",
        ),
        (
            TopicRouteData,
            b'{"brokerDatas":[{"enableActingMaster":"perhaps"}]}',
            "$.brokerDatas[0].enableActingMaster expected a boolean, got text 'perhaps'",
        ),
        (TopicStatsTable, b'{"topicPutTps":"fast"}', "$.topicPutTps expected a number, got text 'fast'"),
        (TopicStatsTable, b'{"offsetTable":{"mq":{}}}', "$.offsetTable['mq'] expected an object, got text 'mq'"),
        (
            TopicStatsTable,
            b'{"offsetTable":{{"queueId":"x"}:{}}}',
            "$.offsetTable[{'queueId': 'x'}].queueId expected an integer, got text 'x'",
        ),
        (TopicStatsTable, b'{"offsetTable":[1]}', "$.offsetTable expected an array of pairs of an object and a value"),
        (BatchAckMessageRequestBody, b'{"acks":[{"b":"*"}]}', "$.acks[0].b expected Base64, got text '*'"),
    ],
)
def test_errors_name_body_and_field(kind: type[Body], text: bytes, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        kind.decode(text)
    assert str(caught.value) == f"{kind.__name__}: {message}"
