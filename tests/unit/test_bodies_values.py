"""The body types themselves: order of fields, round trips of any value, the examples of the protocol, budgets."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from cometmq.protocol import bodies, fastjson
from cometmq.protocol.bodies import (
    REQUEST_BODIES,
    RESPONSE_BODIES,
    BatchAck,
    BatchAckMessageRequestBody,
    Body,
    BrokerData,
    ClusterInfo,
    ConfigText,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchResponseBody,
    MessageQueue,
    QueryAssignmentResponseBody,
    QueueData,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    SubscriptionGroupConfig,
    TimerCheckpoint,
    TopicList,
    TopicRouteData,
    UserInfoList,
)
from cometmq.protocol.bodies import base as base_module
from cometmq.protocol.errors import BodyError

#: Every type that the package exports.
TYPES = sorted(
    (kind for name in bodies.__all__ if isinstance(kind := getattr(bodies, name), type) and issubclass(kind, Body)),
    key=lambda kind: kind.__name__,
)
JSON_TYPES = [kind for kind in TYPES if kind not in (Body, ConfigText, TimerCheckpoint)]


@pytest.mark.parametrize("kind", JSON_TYPES, ids=lambda kind: kind.__name__)
def test_fields_are_declared_in_the_order_of_the_wire(kind: type[Body]) -> None:
    names = list(kind.__struct_encode_fields__)
    assert names == sorted(names)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_bodies_are_frozen_and_documented(kind: type[Body]) -> None:
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.omit_defaults
    assert kind.__doc__
    assert kind.__doc__.strip()


def test_every_type_is_exported() -> None:
    def subclasses(kind: type) -> set[type]:
        return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))

    ours = {kind for kind in subclasses(Body) if kind.__module__.startswith("cometmq.protocol.")}
    assert ours - {base_module.ArrayBody} == set(TYPES)
    assert {*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()} <= set(TYPES)


def test_only_none_is_left_out() -> None:
    assert TopicRouteData().encode() == b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    assert BrokerData().encode() == b'{"brokerAddrs":{},"brokerName":"","cluster":"","enableActingMaster":false}'
    assert TopicList(broker_addr="").encode() == b'{"brokerAddr":"","topicList":[]}'
    assert LockBatchResponseBody().encode() == b'{"lockOKMQSet":[]}'
    assert HeartbeatData().encode() == (
        b'{"clientID":"","consumerDataSet":[],"heartbeatFingerprint":0,"producerDataSet":[],"withoutSub":false}'
    )
    assert QueryAssignmentResponseBody().encode() == b"{}"
    assert QueryAssignmentResponseBody(message_queue_assignments=[]).encode() == b'{"messageQueueAssignments":[]}'


def test_collections_are_not_shared() -> None:
    first, second = TopicRouteData(), TopicRouteData.decode(b"{}")
    first.queue_datas.append(QueueData())
    first.filter_server_table["a"] = []
    assert second == TopicRouteData()


def test_defaults_of_a_group_are_java_defaults() -> None:
    assert SubscriptionGroupConfig(group_name="g").encode() == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},'
        b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def values(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    match info:
        case inspect.StructType(cls=kind, fields=fields):
            return st.fixed_dictionaries({field.name: values(field.type) for field in fields}).map(
                lambda kw: kind(**kw)
            )
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case inspect.ListType(item_type=item):
            return st.lists(values(item), max_size=3)
        case inspect.UnionType(types=types):
            return st.one_of(*map(values, types))
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
    return {
        inspect.NoneType: st.none(),
        inspect.StrType: st.text(max_size=8) | st.sampled_from(["0", "-1", '{"0":', ',"1":', "null", "é"]),
        inspect.BoolType: st.booleans(),
        inspect.BytesType: st.binary(max_size=8),
        inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    }[type(info)]


@pytest.mark.parametrize("kind", JSON_TYPES, ids=lambda kind: kind.__name__)
def test_any_value_survives_both_dialects(kind: type[Body]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(values(inspect.type_info(kind)))
    def check(body: Body) -> None:
        default, standard = body.encode(), body.encode(standard=True)
        assert standard.isascii()
        for text in (default, standard):
            if not fastjson.has_reference(text):
                assert kind.decode(text) == body
        # msgspec's text and that of our own writer are the same.
        value = body if not isinstance(body, base_module.ArrayBody) else msgspec.structs.astuple(body)[0]
        assert default == fastjson.dumps(value)
        assert standard == fastjson.dumps(value, standard=True)

    check()


# --- the examples of the protocol's description


def test_route_without_blanks() -> None:
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_addrs={0: "10.0.0.1:10911"}, broker_name="broker-a", cluster="DefaultCluster")],
        queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    assert TopicRouteData.decode(text) == route
    assert route.encode(standard=True) == text
    assert route.encode() == text.replace(b'{"0":', b"{0:")
    assert TopicRouteData.decode(route.encode()) == route


def test_standard_route_is_sorted_and_ascii() -> None:
    route = TopicRouteData(broker_datas=[BrokerData(broker_addrs={10: "c", 2: "b", 0: "a"}, broker_name="é")])
    assert route.encode(standard=True) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"a","2":"b","10":"c"},"brokerName":"\\u00e9","cluster":"",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[]}'
    )
    assert route.encode().startswith('{"brokerDatas":[{"brokerAddrs":{10:"c",2:"b",0:"a"},"brokerName":"é"'.encode())


def test_a_broker_may_be_called_by_a_number() -> None:
    """Only integer keys lose their quotes, not text that looks like one."""
    info = ClusterInfo(broker_addr_table={"0": BrokerData(broker_addrs={0: "a", 1: "b"})}, cluster_addr_table={"1": []})
    assert info.encode() == (
        b'{"brokerAddrTable":{"0":{"brokerAddrs":{0:"a",1:"b"},"brokerName":"","cluster":"","enableActingMaster":false}},'
        b'"clusterAddrTable":{"1":[]}}'
    )


def test_reset_offset_body() -> None:
    text = (
        b'{"offsetTable":{{"brokerName":"RaftNode00","queueId":0,"topic":"topicB"}:11110,'
        b'{"brokerName":"RaftNode00","queueId":1,"topic":"topicB"}:0}}'
    )
    queues = [MessageQueue(broker_name="RaftNode00", queue_id=queue_id, topic="topicB") for queue_id in (0, 1)]
    body = ResetOffsetBody(offset_table={queues[0]: 11110, queues[1]: 0})
    assert ResetOffsetBody.decode(text) == body
    assert body.encode() == text
    assert body.encode(standard=True) == text
    pairs = b'{"offsetTable":[[{"brokerName":"RaftNode00","queueId":0,"topic":"topicB"},11110]]}'
    assert ResetOffsetBody.decode(pairs) == ResetOffsetBody(offset_table={queues[0]: 11110})


def test_reset_offset_body_for_c() -> None:
    text = b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":0,"topic":"t"}]}'
    body = ResetOffsetBodyForC.decode(text)
    assert body.offset_table[0].offset == 7
    assert body.encode() == text


def test_consumer_status_by_client() -> None:
    text = (
        b'{"consumerTable":{"c@1":{{"brokerName":"b","queueId":0,"topic":"t"}:5}},'
        b'"messageQueueTable":{{"brokerName":"b","queueId":1,"topic":"t"}:6}}'
    )
    body = GetConsumerStatusBody.decode(text)
    assert body.consumer_table["c@1"] == {MessageQueue(broker_name="b", topic="t"): 5}
    assert body.message_queue_table == {MessageQueue(broker_name="b", queue_id=1, topic="t"): 6}
    assert body.encode() == text


def test_batch_acks_with_short_and_long_names() -> None:
    short = (
        b'{"acks":[{"b":"BQ==","c":"g","it":60000,"pt":1794847386754,"q":3,"r":"0","rq":2,"so":10,"t":"T"}],'
        b'"brokerName":"b"}'
    )
    long = (
        b'{"acks":[{"bitSet":"BQ==","consumerGroup":"g","invisibleTime":60000,"popTime":1794847386754,"queueId":3,'
        b'"retry":"0","reviveQueueId":2,"startOffset":10,"topic":"T"}],"brokerName":"b"}'
    )
    ack = BatchAck(
        bit_set=b"\x05",
        consumer_group="g",
        invisible_time=60000,
        pop_time=1794847386754,
        queue_id=3,
        retry="0",
        revive_queue_id=2,
        start_offset=10,
        topic="T",
    )
    body = BatchAckMessageRequestBody(acks=[ack], broker_name="b")
    assert BatchAckMessageRequestBody.decode(short) == body
    assert BatchAckMessageRequestBody.decode(long) == body
    assert body.encode() == short
    with pytest.raises(BodyError, match=r"BatchAckMessageRequestBody: \$\.acks\[0\]\.c is missing"):
        BatchAckMessageRequestBody.decode(b'{"acks":[{"b":""}]}')


def test_timer_checkpoint_is_seven_numbers() -> None:
    data = bytes.fromhex("000001a1e5431c18" + "00" * 32 + "000001a1e5431e82" + "000000000000001c")
    checkpoint = TimerCheckpoint.decode(data)
    assert checkpoint == TimerCheckpoint(last_read_time_ms=1794847743000, timestamp=1794847743618, counter=28)
    assert checkpoint.encode() == data
    with pytest.raises(BodyError, match="55 of 56 bytes"):
        TimerCheckpoint.decode(data[:55])


def test_lists_of_users_are_bare_arrays() -> None:
    text = b'[{"userStatus":"enable","username":"alice"},{"username":"bob"}]'
    body = UserInfoList.decode(text)
    assert [user.username for user in body.users] == ["alice", "bob"]
    assert body.encode() == text
    with pytest.raises(BodyError, match=r"UserInfoList: \$\.users expected an array, got an object"):
        UserInfoList.decode(b"{}")


def test_config_text() -> None:
    body = ConfigText.decode(b"a=1\n# comment\nb: two\n")
    assert body.properties == {"a": "1", "b": "two"}
    assert body.encode() == b"a=1\nb=two\n"


# --- budgets, in processor time and with room for a slow machine


def best_seconds(call: Any, rounds: int = 20) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(5):
            call()
        times.append((time.process_time() - start) / 5)
    return min(times)


@pytest.mark.parametrize("standard", [False, True])
def test_a_route_of_a_hundred_brokers_is_encoded_well_below_a_millisecond(standard: bool) -> None:
    names = [f"broker-{i}" for i in range(100)]
    route = TopicRouteData(
        broker_datas=[
            BrokerData(broker_addrs={0: f"10.0.0.{i}:10911", 1: f"10.0.1.{i}:10911"}, broker_name=name, cluster="c")
            for i, name in enumerate(names)
        ],
        queue_datas=[QueueData(broker_name=name, perm=6, read_queue_nums=8, write_queue_nums=8) for name in names],
    )
    assert TopicRouteData.decode(route.encode(standard=standard)) == route
    assert best_seconds(lambda: route.encode(standard=standard)) < 0.001


def test_a_heartbeat_is_decoded_in_microseconds() -> None:
    subscriptions = ",".join(
        f'{{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":{i},'
        f'"tagsSet":["TagA"],"topic":"t{i}"}}'
        for i in range(2)
    )
    text = (
        '{"clientID":"192.0.2.2@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{subscriptions}],"unitMode":false}}],"heartbeatFingerprint":0,'
        '"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}'
    ).encode()
    assert len(HeartbeatData.decode(text).consumer_data_set[0].subscription_data_set) == 2
    assert best_seconds(lambda: HeartbeatData.decode(text)) < 0.0001
