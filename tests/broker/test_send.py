"""Sends over real sockets into a real store: what is stored, what is answered, and in which order."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.handlers import send
from cometmq.broker.store.clock import FakeClock
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.message_id import decode_message_id, unpack_host
from cometmq.protocol.properties import decode_properties, encode_properties, in_java_order
from support import golden, golden_store
from support.raw_peer import Frame, RawPeer, binary_request, request
from support.small_broker import SmallBroker

SEND, SEND_V2, BATCH = 10, 310, 320
UNIQUE = "C00002023CC74E0E2F2A50D260960000"
TEXT = f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def short(**changes: str | None) -> dict[str, str]:
    """The keys of a send in the short form; None leaves one out."""
    keys = {
        "a": "PG",
        "b": "TopicTest",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": TEXT,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    } | changes
    return {key: value for key, value in keys.items() if value is not None}


def message(body: bytes = b"hello", *, opaque: int = 1, flag: int = 0, **changes: str | None) -> bytes:
    return request(SEND_V2, short(**changes), body, opaque=opaque, flag=flag, version=479)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing tells a test that a oneway message was stored
            await asyncio.sleep(0.005)


@pytest.fixture
async def broker(tmp_path: Path):  # type: ignore[no-untyped-def]
    async with SmallBroker(tmp_path, [send.rows]) as running:
        yield running


@pytest.fixture
async def peer(broker: SmallBroker) -> RawPeer:
    return await broker.peer()


class TestPlain:
    async def test_a_message_is_stored_and_its_place_is_answered(self, broker: SmallBroker, peer: RawPeer) -> None:
        answer = await peer.ask(message(b"body"))
        assert answer.code == 0
        assert answer.remark is None
        record = broker.records("TopicTest")[0]
        assert answer.ext == {
            "msgId": f"7F000001{broker.config.listen_port:08X}{0:016X}",
            "queueId": "0",
            "queueOffset": "0",
            "transactionId": UNIQUE,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        assert record.body == b"body"
        assert record.born_timestamp == 1700000000000
        assert unpack_host(record.born_host) == peer.address
        assert record.reconsume_times == 0

    async def test_the_long_form_means_the_same(self, broker: SmallBroker, peer: RawPeer) -> None:
        keys = {
            "producerGroup": "PG",
            "topic": "TopicTest",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "2",
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "7",
            "properties": TEXT,
        }
        answer = await peer.ask(request(SEND, keys, b"go"))
        assert (answer.code, answer.ext["queueId"]) == (0, "2")
        assert broker.records("TopicTest", 2)[0].flag == 7

    async def test_a_binary_header_is_answered_in_kind(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(2):
            answer = await peer.ask(binary_request(SEND_V2, short(), b"x"))
            assert answer.kind == 1
            assert UNIQUE.encode() in answer.raw_header
        assert len(broker.records("TopicTest")) == 2

    async def test_messages_of_one_connection_keep_their_order(self, broker: SmallBroker, peer: RawPeer) -> None:
        frames = [
            message(b"%d" % number, opaque=number, i=f"UNIQ_KEY\x01{number:032d}\x02TAGS\x01T{number % 3}\x02")
            for number in range(300)
        ]
        await peer.send(b"".join(frames))
        answers = [await peer.frame() for _ in frames]
        assert [answer.opaque for answer in answers] == list(range(300))
        assert [int(answer.ext["queueOffset"]) for answer in answers] == list(range(300))
        assert [answer.ext["transactionId"] for answer in answers] == [f"{number:032d}" for number in range(300)]
        assert [record.body for record in broker.records("TopicTest")] == [b"%d" % number for number in range(300)]

    async def test_ids_tell_where_the_record_is(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(3):
            answer = await peer.ask(message())
        offset = decode_message_id(answer.ext["msgId"]).physical_offset
        assert offset == broker.records("TopicTest")[2].physical_offset

    async def test_a_oneway_message_is_stored_and_not_answered(self, broker: SmallBroker, peer: RawPeer) -> None:
        await peer.send(message(b"one", flag=2) + message(b"bad", flag=2, b="bad topic") + message(b"two", opaque=9))
        assert (await peer.frame()).opaque == 9
        assert [record.body for record in broker.records("TopicTest")] == [b"one", b"two"]

    async def test_a_negative_queue_means_any(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("TopicTest", 4)
        chosen = {(await peer.ask(message(e="-1"))).ext["queueId"] for _ in range(64)}
        assert chosen <= {"0", "1", "2", "3"}
        assert len(chosen) > 1

    async def test_a_read_only_topic_can_be_written_directly(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("TopicTest", 1, perm=4)
        assert (await peer.ask(message())).code == 0

    async def test_topics_with_many_tags_mark_their_messages(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("TopicTest", 1, topic_filter_type="MULTI_TAG")
        for _ in range(2):
            await peer.ask(message(f="1"))
        assert [record.sys_flag for record in broker.records("TopicTest")] == [3, 3]

    async def test_a_topic_that_shrinks_or_goes_is_checked_anew(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("TopicTest", 4)
        assert (await peer.ask(message(e="3"))).code == 0
        broker.topic("TopicTest", 2)
        assert (await peer.ask(message(e="3"))).code == 29
        broker.state.topics.delete("TopicTest")
        assert (await peer.ask(message(c="NoSuchTemplate"))).code == 17

    async def test_a_dynamic_key_changes_the_next_answer(self, broker: SmallBroker, peer: RawPeer) -> None:
        await peer.ask(message())
        await broker.state.update_config({"regionId": "north", "traceOn": "false"})
        answer = await peer.ask(message())
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("north", "false")
        stored = decode_properties(broker.records("TopicTest")[1].properties)
        assert (stored["MSG_REGION"], stored["TRACE_ON"]) == ("north", "false")

    async def test_sends_are_counted(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(3):
            await peer.ask(message(b"x" * 100))
        await peer.ask(message(b"", opaque=2))
        assert broker.state.stats.failed_puts == 1
        assert broker.state.stats.totals().put == 3
        assert broker.state.overload.open_sends == 0

    async def test_an_answer_that_fails_does_not_cost_the_others_theirs(
        self, broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        peer = await broker.peer()
        await peer.ask(message())
        counted = broker.state.stats.put

        def fail_once(*arguments: int) -> None:
            monkeypatch.setattr(broker.state.stats, "put", counted)
            raise RuntimeError("no")

        monkeypatch.setattr(broker.state.stats, "put", fail_once)
        await peer.send(b"".join(message(opaque=number) for number in range(10, 20)))
        answers = {frame.opaque: frame.code for frame in [await peer.frame() for _ in range(10)]}
        assert sorted(answers) == list(range(10, 20))
        assert broker.server.open_replies == 0
        assert broker.state.overload.open_sends == 0


class TestChecks:
    """Rows of the table of checks, in RocketMQ's order, with its codes and remarks."""

    @staticmethod
    def refused(answer: Frame, code: int, remark: str) -> None:
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

    async def test_not_before_the_broker_may_take_messages(self, tmp_path: Path) -> None:
        clock = FakeClock(wall=1_700_000_000_000)
        start = str(1_700_000_001_234)
        async with SmallBroker(tmp_path, [send.rows], clock=clock, startAcceptSendRequestTimeStamp=start) as broker:
            peer = await broker.peer()
            answer = await peer.ask(message())
            self.refused(answer, 1, "broker unable to service, until 2023-11-14 22:13:21,234")
            clock.advance(2)
            assert (await peer.ask(message())).code == 0

    async def test_an_order_topic_on_a_broker_that_may_not_write(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("Ordered", 1, order=True)
        assert (await peer.ask(message(b="Ordered"))).code == 0
        await broker.state.update_config({"brokerPermission": "4"})
        answer = await peer.ask(message(b="Ordered"))
        self.refused(answer, 16, "the broker[127.0.0.1] sending message is forbidden")
        assert (await peer.ask(message())).code == 0

    @pytest.mark.parametrize(
        ("topic", "remark"),
        [
            ("", "The specified topic is blank."),
            ("  ", "The specified topic is blank."),
            ("bad topic!", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
            ("../up", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
            ("t" * 128, "The specified topic is longer than topic max length."),
            ("%RETRY%" + "t" * 249, "The specified topic is longer than topic max length."),
        ],
    )
    async def test_names_that_no_topic_may_have(self, peer: RawPeer, topic: str, remark: str) -> None:
        self.refused(await peer.ask(message(b=topic)), 29, remark)

    @pytest.mark.parametrize(
        "topic",
        [
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
        ],
    )
    async def test_topics_that_nobody_may_send_to(self, peer: RawPeer, topic: str) -> None:
        self.refused(await peer.ask(message(b=topic)), 16, f"Sending message to topic[{topic}] is forbidden.")

    async def test_an_unknown_topic_is_made_after_its_template(self, broker: SmallBroker, peer: RawPeer) -> None:
        answer = await peer.ask(message(b="Fresh", e="3", d="4"))
        assert answer.code == 0
        made = broker.state.topics.get("Fresh")
        assert made is not None
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)

    async def test_an_unknown_topic_without_a_template(self, peer: RawPeer) -> None:
        answer = await peer.ask(message(b="Fresh", c="NoSuchDefault"))
        remark = (
            "topic[Fresh] not exist, apply first please!"
            "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )
        self.refused(answer, 17, remark)

    async def test_an_unknown_topic_where_none_is_made(self, tmp_path: Path) -> None:
        async with SmallBroker(tmp_path, [send.rows], autoCreateTopicEnable="false") as broker:
            peer = await broker.peer()
            assert (await peer.ask(message(b="Fresh"))).code == 17
            assert broker.state.topics.get("Fresh") is None
            # The retry topic of a group is always made.
            assert (await peer.ask(message(b="%RETRY%CG"))).code == 0
            assert broker.state.topics.get("%RETRY%CG").write_queue_nums == 1

    async def test_a_queue_that_the_topic_does_not_have(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("TopicRaw", 1)
        for _ in range(2):
            answer = await peer.ask(message(b="TopicRaw", e="99"))
            host, port = peer.address
            remark = (
                "request queueId[99] is illegal, TopicConfig [topicName=TopicRaw, readQueueNums=1, writeQueueNums=1,"
                " perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]"
                f" Producer: {host}:{port}"
            )
            self.refused(answer, 29, remark)

    async def test_the_larger_of_both_queue_numbers_counts(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.state.topics.update(TopicConfig(topic_name="TopicRaw", read_queue_nums=3, write_queue_nums=1))
        assert (await peer.ask(message(b="TopicRaw", e="2"))).code == 0
        assert (await peer.ask(message(b="TopicRaw", e="3"))).code == 29

    async def test_a_topic_without_write_queues_cannot_choose_one(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.state.topics.update(TopicConfig(topic_name="TopicRaw", read_queue_nums=3, write_queue_nums=0))
        answer = await peer.ask(message(b="TopicRaw", e="-1"))
        assert answer.code == 29
        assert "has no write queue" in (answer.remark or "")

    async def test_a_compaction_topic_needs_keys(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("Compact", 1, attributes={"+cleanup.policy": "COMPACTION"})
        self.refused(await peer.ask(message(b="Compact")), 13, "Required message key is missing")
        assert (await peer.ask(message(b="Compact", i=TEXT + "KEYS\x01k\x02"))).code == 0

    async def test_half_messages_are_refused_with_the_reason(self, broker: SmallBroker, peer: RawPeer) -> None:
        half = await peer.ask(message(f="4", i=TEXT + "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"))
        self.refused(half, 16, "the broker[127.0.0.1] does not have transactions in this version")
        assert (await peer.ask(message(f="4"))).code == 16
        assert (await peer.ask(message(i=TEXT + "TRAN_MSG\x01false\x02"))).code == 0
        await broker.state.update_config({"rejectTransactionMessage": "true"})
        half = await peer.ask(message(f="4", i=TEXT + "TRAN_MSG\x01true\x02"))
        self.refused(half, 16, "the broker[127.0.0.1] sending transaction message is forbidden")
        assert len(broker.records("TopicTest")) == 1

    @pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
    async def test_timers_are_refused_with_the_reason(self, peer: RawPeer, name: str) -> None:
        answer = await peer.ask(message(i=TEXT + f"{name}\x012\x02"))
        assert answer.code == 13
        assert name in (answer.remark or "")
        assert answer.ext["MSG_REGION"] == "DefaultRegion"

    async def test_a_bad_header_names_the_field(self, peer: RawPeer) -> None:
        for changes, named in (({"b": None}, "topic"), ({"e": "one"}, "queue_id"), ({"g": "1" * 30}, "born_timestamp")):
            answer = await peer.ask(message(**changes))  # type: ignore[arg-type]
            assert answer.code == 1
            assert named in (answer.remark or "") or next(iter(changes)) in (answer.remark or "")
        assert (await peer.ask(message(i=None, j=None, k=None, m=None))).code == 0


class TestRetries:
    async def test_a_message_for_a_retry_topic_is_stored_there(self, broker: SmallBroker, peer: RawPeer) -> None:
        answer = await peer.ask(message(b="%RETRY%CG", j="1", l="16"))
        assert answer.code == 0
        assert broker.records("%RETRY%CG")[0].reconsume_times == 1

    async def test_after_the_last_time_it_goes_to_the_dead_letters(self, broker: SmallBroker, peer: RawPeer) -> None:
        delayed = TEXT + "DELAY\x013\x02"
        assert (await peer.ask(message(b="%RETRY%CG", j="3", l="3"))).code == 0
        answer = await peer.ask(message(b="%RETRY%CG", j="4", l="3", i=delayed))
        assert answer.code == 0
        dead = broker.records("%DLQ%CG")[0]
        assert decode_properties(dead.properties)["DELAY"] == "-1"
        assert dead.reconsume_times == 4

    async def test_an_unknown_group_where_none_is_made(self, tmp_path: Path) -> None:
        async with SmallBroker(tmp_path, [send.rows], autoCreateSubscriptionGroup="false") as broker:
            answer = await (await broker.peer()).ask(message(b="%RETRY%CG"))
            assert answer.code == 26
            assert (answer.remark or "").startswith("subscription group not exist, CG ")


class TestPutResults:
    """How the end of a put is answered."""

    LIMITS = (
        "the message is illegal, maybe msg body or properties length not matched."
        " msg body length limit 4194304B, msg properties length limit 32KB."
    )

    async def test_a_body_that_is_too_long(self, peer: RawPeer) -> None:
        answer = await peer.ask(message(b"x" * (4 * 1024 * 1024 + 1)))
        assert (answer.code, answer.remark) == (13, self.LIMITS)
        assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert (await peer.ask(message(b"x" * (4 * 1024 * 1024)))).code == 0

    async def test_properties_that_are_too_long(self, peer: RawPeer) -> None:
        for _ in range(2):
            answer = await peer.ask(message(i=TEXT + "k\x01" + "v" * 40000 + "\x02"))
            assert (answer.code, answer.remark) == (13, self.LIMITS)

    async def test_no_body(self, peer: RawPeer) -> None:
        for _ in range(2):
            answer = await peer.ask(message(b""))
            assert answer.code == 13
            assert (answer.remark or "").startswith(self.LIMITS)
            assert "no body" in (answer.remark or "")

    async def test_a_store_that_takes_nothing(self, broker: SmallBroker, peer: RawPeer) -> None:
        await peer.ask(message())
        broker.store.puts.shut = "the store is closed"
        for _ in range(2):
            answer = await peer.ask(message())
            assert answer.code == 14
            assert (answer.remark or "").startswith(
                "service not available now. It may be caused by one of the following reasons:"
                " the broker's disk is full [CL: "
            )
            assert "the store is closed" in (answer.remark or "")
        broker.store.puts.shut = None
        assert (await peer.ask(message())).code == 0


class TestBatches:
    ITEMS = tuple(
        BatchItem(number, b"item%d" % number, encode_properties({"UNIQ_KEY": f"{number:032d}", "TAGS": "TagB"}))
        for number in range(5)
    )

    async def test_items_become_messages_of_one_queue(self, broker: SmallBroker, peer: RawPeer) -> None:
        await peer.ask(message(e="1"))
        body = encode_batch(self.ITEMS)
        keys = short(e="1", m="true", i=f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02")
        answer = await peer.ask(request(BATCH, keys, body))
        assert answer.code == 0
        assert answer.ext["queueOffset"] == "1"
        assert answer.ext["transactionId"] == UNIQUE
        assert "batchUniqId" not in answer.ext
        records = broker.records("TopicTest", 1)[1:]
        ids = [decode_message_id(text).physical_offset for text in answer.ext["msgId"].split(",")]
        assert ids == [record.physical_offset for record in records]
        assert [record.body for record in records] == [item.body for item in self.ITEMS]
        assert [record.flag for record in records] == [0, 1, 2, 3, 4]
        for number, record in enumerate(records):
            stored = decode_properties(record.properties)
            assert stored["UNIQ_KEY"] == f"{number:032d}"
            assert stored["CLUSTER"] == "DefaultCluster"
            assert stored["MSG_REGION"] == "DefaultRegion"

    async def test_the_header_decides_and_not_the_code(self, broker: SmallBroker, peer: RawPeer) -> None:
        body = encode_batch(self.ITEMS)
        assert "," in (await peer.ask(request(SEND_V2, short(m="true"), body))).ext["msgId"]
        assert "," not in (await peer.ask(request(BATCH, short(m="false"), body))).ext["msgId"]
        assert broker.records("TopicTest")[-1].body == body

    async def test_a_wrapper_without_a_key_gets_none(self, peer: RawPeer) -> None:
        keys = short(m="true", i="WAIT\x01true")
        answer = await peer.ask(request(BATCH, keys, encode_batch(self.ITEMS)))
        assert answer.code == 0
        assert "transactionId" not in answer.ext

    async def test_an_inner_batch_is_one_record(self, broker: SmallBroker, peer: RawPeer) -> None:
        broker.topic("Inner", 1, attributes={"+queue.type": "BatchCQ"})
        body = encode_batch(self.ITEMS)
        answer = await peer.ask(request(BATCH, short(b="Inner", m="true"), body))
        assert (answer.code, answer.ext["batchUniqId"]) == (0, UNIQUE)
        assert "," not in answer.ext["msgId"]
        with broker.store.message_at(0) as found:  # type: ignore[union-attr]
            stored = found.read()
        assert body in stored
        assert b"INNER_NUM\x015\x02" in stored
        assert (await peer.ask(request(BATCH, short(b="Inner", m="true"), b"notabatch"))).code == 13

    @pytest.mark.parametrize(
        "body",
        [
            b"notabatch",
            encode_batch(ITEMS)[:-1],
            encode_batch(ITEMS)[:20],
            b"\xff" * 40,
            b"\x00" * 40,
            encode_batch(ITEMS) + b"\x00",
            b"\x7f\xff\xff\xff" + encode_batch(ITEMS)[4:],
        ],
    )
    async def test_a_body_that_lies_stores_nothing(self, broker: SmallBroker, peer: RawPeer, body: bytes) -> None:
        answer = await peer.ask(request(BATCH, short(m="true"), body))
        assert answer.code == 13
        assert answer.ext["MSG_REGION"] == "DefaultRegion"
        assert broker.records("TopicTest") == []
        assert (await peer.ask(message())).code == 0

    async def test_an_empty_batch(self, peer: RawPeer) -> None:
        assert (await peer.ask(request(BATCH, short(m="true"), b""))).code == 13

    async def test_a_batch_cannot_be_retried_delayed_or_half(self, peer: RawPeer) -> None:
        body = encode_batch(self.ITEMS)
        answer = await peer.ask(request(BATCH, short(b="%RETRY%CG", m="true"), body))
        assert (answer.code, answer.remark) == (13, "batch request does not support retry group %RETRY%CG")
        answer = await peer.ask(request(BATCH, short(b="%DLQ%" + "t" * 130, m="true"), body))
        assert (answer.code, answer.remark) == (13, "message topic length too long 135")
        assert (await peer.ask(request(BATCH, short(m="true", i=TEXT + "DELAY\x013\x02"), body))).code == 13
        assert (await peer.ask(request(BATCH, short(m="true", f="4"), body))).code == 13


class TestStoredText:
    """Byte for byte what RocketMQ 5.3.3 stores."""

    async def test_the_order_is_that_of_a_java_map(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(2):
            await peer.ask(message(i=f"KEYS\x01k1 k2\x02{TEXT}"))
        expected = (
            f"MSG_REGION\x01DefaultRegion\x02UNIQ_KEY\x01{UNIQUE}\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA\x02"
            "KEYS\x01k1 k2\x02WAIT\x01true\x02TRACE_ON\x01true\x02"
        )
        assert [record.properties for record in broker.records("TopicTest")] == [expected.encode()] * 2

    async def test_a_missing_key_is_made(self, broker: SmallBroker, peer: RawPeer) -> None:
        answers = [await peer.ask(message(i=text)) for text in (None, "", "TAGS\x01T\x02", "UNIQ_KEY\x01\x02")]
        made = [answer.ext["transactionId"] for answer in answers]
        assert len(set(made)) == 4
        stored = [decode_properties(record.properties)["UNIQ_KEY"] for record in broker.records("TopicTest")]
        assert stored == made

    async def test_receipts_of_pop_consumers_are_not_stored(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(2):
            await peer.ask(message(i=TEXT + "POP_CK\x01x y z\x02"))
        assert all(b"POP_CK" not in record.properties for record in broker.records("TopicTest"))

    async def test_a_sender_cannot_pretend_another_region(self, broker: SmallBroker, peer: RawPeer) -> None:
        for _ in range(2):
            await peer.ask(message(i=TEXT + "CLUSTER\x01other\x02MSG_REGION\x01moon\x02TRACE_ON\x01no\x02"))
        stored = decode_properties(broker.records("TopicTest")[1].properties)
        assert (stored["CLUSTER"], stored["MSG_REGION"], stored["TRACE_ON"]) == (
            "DefaultCluster",
            "DefaultRegion",
            "true",
        )

    async def test_known_shapes_give_what_a_search_gives(self, broker: SmallBroker, peer: RawPeer) -> None:
        """Texts that look like one another are told apart."""
        first = f"UNIQ_KEY\x01{UNIQUE}\x02KEYS\x01abc\x02TAGS\x01T\x02"
        texts = [
            first,
            first.replace("abc", "a much longer key"),
            first.replace("abc", "a\x02KEYS\x01b"),
            first.replace("abc", ""),
            first.replace(UNIQUE, UNIQUE[:-6] + "\x02X\x01a\x02"),
            first[:-1],
            first + "X\x01\x02",
            first + "杭\x01州\x02",
            f"KEYS\x01abc\x02UNIQ_KEY\x01{UNIQUE}\x02",
            f"KEYS\x01d\x02UNIQ_KEY\x01{UNIQUE[::-1]}\x02",
            f"MYKEYS\x01d\x02UNIQ_KEY\x01{UNIQUE}\x02",
        ]
        for text in texts * 2:
            assert (await peer.ask(message(i=text))).code == 0
        for text, record in zip(texts * 2, broker.records("TopicTest"), strict=True):
            wanted = decode_properties(text.encode())
            stored = decode_properties(record.properties)
            added = {"MSG_REGION", "TRACE_ON", "CLUSTER"} | ({"UNIQ_KEY"} - wanted.keys())
            assert {key: value for key, value in stored.items() if key not in added} == wanted
            assert list(stored) == list(in_java_order(stored))

    @pytest.mark.parametrize("name", ["producer-basic-json", "producer-basic-bin"])
    async def test_captured_sends_store_what_the_real_broker_stored(self, tmp_path: Path, name: str) -> None:
        """The answers tell offsets, and with them the sizes of the records that the real broker wrote."""
        async with SmallBroker(tmp_path, [send.rows], messageDelayLevel="1s 2s 3s") as broker:
            peer = await broker.peer()
            compared = 0
            for exchange in golden.exchanges(name):
                sent, real = exchange.request, exchange.response
                if sent.code not in (SEND_V2, BATCH) or not sent.whole or "TIMER_" in sent.ext.get("i", ""):
                    continue
                before = broker.store.commit_log.max_offset
                await peer.send(sent.raw or b"")
                if real is None:
                    await eventually(lambda before=before: broker.store.commit_log.max_offset > before)
                    continue
                answer = await peer.frame()
                if answer.kind == 0:
                    ours = dict(answer.ext, msgId="")
                    assert ours == dict(real.ext, msgId="", queueOffset=answer.ext["queueOffset"])
                compared += 1
            assert compared >= 8

    async def test_golden_records_come_out_of_the_same_input(self, tmp_path: Path) -> None:
        """What the real broker has in its log, sent again as its client sent it, gives the same property bytes."""
        added = {"MSG_REGION", "TRACE_ON", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET"}
        messages = [
            each
            for each in golden_store.manifest("clean").messages
            if each.topic in ("StoreTopic", "StoreBig") and each.reconsume_times == 0
        ][:400]
        log = golden_store.files("clean")
        async with SmallBroker(tmp_path, [send.rows]) as broker:
            peer = await broker.peer()
            for each in messages:
                text = "".join(f"{key}\x01{value}\x02" for key, value in each.properties.items() if key not in added)
                record = _golden_record(log, each.physical_offset, each.store_size)
                before = broker.store.commit_log.max_offset
                answer = await peer.ask(message(b"x", b=each.topic, e="0", i=text))
                assert answer.code == 0
                with broker.store.message_at(before) as found:  # type: ignore[union-attr]
                    ours = found.read()
                length = int.from_bytes(ours[-_text_length(ours) - 2 : -_text_length(ours)], "big")
                assert record.endswith(ours[-length:])
        assert messages


def _golden_record(log: dict[str, bytes], offset: int, size: int) -> bytes:
    start = offset - offset % 1048576
    return log[f"commitlog/{start:020d}"][offset - start : offset - start + size]


def _text_length(record: bytes) -> int:
    from cometmq.protocol.record import decode_record

    return len(decode_record(record).properties)


class TestRawCases:
    """Odd sends that were made to the real broker: the same codes, remarks and keys come from ours."""

    #: Where the real one answers with the text of a Java exception, ours names the reason with these codes.
    OURS = {
        "send-v2-empty-ext": 1,
        "send-v2-missing-topic": 1,
        "send-v2-not-a-number": 1,
        "send-empty-body": 13,
        "send-batch-garbage": 13,
    }

    async def test_each_is_answered_alike(self, broker: SmallBroker) -> None:
        broker.topic("TopicRaw", 1)
        broker.topic("TopicRO", 1, perm=4)
        compared = 0
        for case in golden.raw_cases("raw-cases"):
            if not case.case.startswith("send-") or case.case == "send-back-unknown" or case.cut or not case.answers:
                continue
            peer = await broker.peer()
            answer = await peer.ask(case.sent)
            real, _, _ = case.answers[0]
            compared += 1
            if case.case in self.OURS:
                assert answer.code == self.OURS[case.case], case.case
                assert answer.remark
                continue
            assert answer.code == real["code"], case.case
            remark = real.get("remark")
            if remark and "Producer: " in remark:
                remark = remark.rpartition(":")[0] + f":{peer.address[1]}"
            assert answer.remark == remark, case.case
            assert answer.ext.keys() == real["extFields"].keys(), case.case
        assert compared >= 18
