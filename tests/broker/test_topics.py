"""Topics as operators see them, over real sockets: create, change, show, delete, clean; and over restarts."""

import json

import pytest

from cometmq.broker.handlers.topics import MAX_QUEUES
from cometmq.broker.store.disk import RealDisk
from support import golden
from support.client_broker import ClientBroker, answer_of
from support.raw_peer import request
from support.store_kit import message
from support.wire import until

UPDATE, UPDATE_LIST, GET_ALL, GET, DELETE, SYSTEM, CLEAN_QUEUES, CLEAN_UNUSED, CLEAN_LOG = (
    17,
    18,
    21,
    351,
    215,
    305,
    306,
    316,
    329,
)


@pytest.fixture
async def broker(tmp_path):
    async with ClientBroker(tmp_path) as broker:
        yield broker


def fields(topic="T", queues=4, **more):
    """The header of UPDATE_AND_CREATE_TOPIC as mqadmin sends it."""
    header = {
        "topic": topic,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "",
        "force": "false",
        "defaultTopic": "TBW102",
    } | more
    return {key: str(value) for key, value in header.items() if value is not None}


async def ask(peer, code, ext=None, body=b""):
    return await answer_of(peer, request(code, ext, body))


class TestCaptured:
    async def test_the_commands_of_mqadmin_are_answered_as_rocketmq_answers_them(self, broker):
        """Codes, bodies of shown topics; remarks on success are left out (ruling 28)."""
        peer = await broker.peer()
        codes = {UPDATE, UPDATE_LIST, GET, DELETE, CLEAN_QUEUES, CLEAN_UNUSED, CLEAN_LOG}
        broker.topic("TopicAdmin", 4)
        broker.topic("%RETRY%CG_admin", 1)
        compared = set()
        for exchange in golden.exchanges("admin"):
            asked, told = exchange.request, exchange.response
            if asked.code not in codes or told is None:
                continue
            answer = await ask(peer, asked.code, asked.ext, asked.body)
            assert (answer.code, answer.remark) == (told.code, None if told.code == 0 else told.header["remark"])
            if asked.code == GET and told.body:
                # The captured broker was told by its nameserver which topics are ordered.
                assert json.loads(answer.body) == json.loads(told.body) | {"order": False}
            compared.add(asked.code)
        assert compared == codes
        assert {"AdmTopic2", "AdmFifo", "TopicListA", "TopicListB"} <= set(broker.state.topics.table)
        assert broker.state.topics.get("AdmTopic") is None
        assert broker.state.topics.get("AdmTopic2").order
        assert broker.state.topics.get("AdmFifo").attributes == {"message.type": "FIFO"}

    @pytest.mark.parametrize(
        "case", ["topic-config-unknown", "create-topic-system", "create-topic-illegal", "delete-topic-system"]
    )
    async def test_refusals_are_worded_as_rocketmq_words_them(self, broker, case):
        captured = next(each for each in golden.raw_cases("raw-cases") if each.case == case)
        answer = await answer_of(await broker.peer(), captured.sent)
        ((header, _, _),) = captured.answers
        assert (answer.code, answer.remark) == (header["code"], header["remark"])

    async def test_the_system_topics_are_those_of_rocketmq(self, broker):
        theirs = next(each for each in golden.exchanges("admin") if each.request.code == SYSTEM).response
        answer = await ask(await broker.peer(), SYSTEM)
        assert sorted(json.loads(answer.body)["topicList"]) == sorted(json.loads(theirs.body)["topicList"])

    async def test_all_topics_have_the_form_of_rocketmq(self, broker):
        theirs = next(each for each in golden.exchanges("admin") if each.request.code == GET_ALL).response
        answer = await ask(await broker.peer(), GET_ALL)
        ours, theirs = json.loads(answer.body), json.loads(theirs.body)
        assert list(ours) == list(theirs)
        assert ours["topicConfigTable"]["TBW102"] == theirs["topicConfigTable"]["TBW102"]
        assert answer.ext == {}


class TestUpdates:
    async def test_a_topic_is_on_disk_when_its_creation_is_answered(self, broker, tmp_path):
        peer = await broker.peer()
        assert (await ask(peer, UPDATE, fields(queues=3, order="true", topicSysFlag=2))).code == 0
        # A broker that died now would find it.
        saved = json.loads((tmp_path / "config" / "topics.json").read_text())
        topic = saved["topicConfigTable"]["T"]
        assert (topic["readQueueNums"], topic["order"], topic["topicSysFlag"]) == (3, True, 2)
        assert saved["dataVersion"]["counter"] == 1

    async def test_an_unchanged_topic_is_a_success_without_a_new_version(self, broker):
        peer = await broker.peer()
        told = []
        broker.state.topics.on_changed.append(lambda topic: told.append(topic.topic_name))
        for _ in range(3):
            assert (await ask(peer, UPDATE, fields())).code == 0
        assert (broker.state.topics.data_version.counter, told) == (1, ["T"])

    @pytest.mark.parametrize(
        ("change", "code", "remark"),
        [
            ({"topic": ""}, 29, "The specified topic is blank."),
            ({"topic": "  "}, 29, "The specified topic is blank."),
            ({"topic": "a b"}, 29, "The specified topic contains illegal characters, allowing only"),
            ({"topic": "../etc"}, 29, "The specified topic contains illegal characters, allowing only"),
            ({"topic": "ä"}, 29, "The specified topic contains illegal characters, allowing only"),
            ({"topic": "t" * 128}, 29, "The specified topic is longer than topic max length."),
            ({"topic": "t" * (10 << 20)}, 29, "The specified topic is longer than topic max length."),
            ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
            ({"topic": "broker-a"}, 29, "The topic[broker-a] is conflict with system topic."),
            ({"topic": "rmq_sys_x"}, 29, "The topic[rmq_sys_x] is conflict with system topic."),
            ({"topic": None}, 1, "UPDATE_AND_CREATE_TOPIC (17): field 'topic' is missing"),
            ({"perm": None}, 1, "UPDATE_AND_CREATE_TOPIC (17): field 'perm' is missing"),
            ({"perm": "x"}, 1, "UPDATE_AND_CREATE_TOPIC (17): field 'perm' is 'x', expected an integer"),
            ({"perm": 16}, 29, "The topic[T] can not have the permission 16."),
            ({"perm": -1}, 29, "The topic[T] can not have the permission -1."),
            ({"readQueueNums": -1}, 29, "The topic[T] can not have -1 queues"),
            ({"writeQueueNums": MAX_QUEUES + 1}, 29, f"The topic[T] can not have {MAX_QUEUES + 1} queues"),
            ({"writeQueueNums": 2**31}, 1, "UPDATE_AND_CREATE_TOPIC (17): field 'writeQueueNums' is '2147483648'"),
            ({"topicFilterType": "NO_TAG"}, 29, "The topic[T] can not have the filter type NO_TAG."),
            ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
            ({"attributes": "+message.type=WRONG"}, 1, "value is not in set: "),
            ({"attributes": "message.type=FIFO"}, 1, "add/alter attribute format is wrong: message.type"),
            ({"attributes": "-message.type"}, 1, "only add attribute is supported while creating topic."),
            ({"attributes": "+reserve.time=1"}, 1, "reserve.time needs tiered storage"),
        ],
        ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
    )
    async def test_what_cannot_be_is_refused_with_a_reason(self, broker, change, code, remark):
        answer = await ask(await broker.peer(), UPDATE, fields(**change))
        assert answer.code == code
        assert answer.remark.startswith(remark)
        assert len(answer.remark) < 300
        assert broker.state.topics.data_version.counter == 0

    async def test_what_the_settings_allow_is_allowed(self, tmp_path):
        settings = {"enableMixedMessageType": "true", "validateSystemTopicWhenUpdateTopic": "false"}
        async with ClientBroker(tmp_path, **settings) as broker:
            peer = await broker.peer()
            assert (await ask(peer, UPDATE, fields(attributes="+message.type=MIXED"))).code == 0
            assert (await ask(peer, UPDATE, fields("BenchmarkTest", 8))).code == 0
            assert broker.state.topics.get("BenchmarkTest").write_queue_nums == 8

    @pytest.mark.parametrize("name", ["%RETRY%" + "g" * 248, "%DLQ%g", "a|b", "%LMQ%x", "t" * 127, "-_-"])
    async def test_every_allowed_name_is_allowed(self, broker, name):
        assert (await ask(await broker.peer(), UPDATE, fields(name))).code == 0

    async def test_a_disk_that_fails_is_an_error_and_changes_nothing(self, tmp_path):
        class Failing(RealDisk):
            broken = False

            def write_file(self, path, data, *, backup):
                if self.broken:
                    raise OSError(28, "No space left on device")
                super().write_file(path, data, backup=backup)

        disk = Failing()
        async with ClientBroker(tmp_path, disk=disk) as broker:
            peer = await broker.peer()
            disk.broken = True
            answer = await ask(peer, UPDATE, fields())
            assert answer.code == 1
            assert "No space left" in answer.remark
            assert broker.state.topics.get("T") is None
            disk.broken = False
            assert (await ask(peer, UPDATE, fields())).code == 0


class TestLists:
    def body(self, *topics):
        return json.dumps({"topicConfigList": list(topics)}).encode()

    def topic(self, name, **more):
        return {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "attributes": {}} | more

    async def test_an_unchanged_topic_does_not_keep_the_others_from_being_made(self, broker):
        peer = await broker.peer()
        await ask(peer, UPDATE_LIST, None, self.body(self.topic("A")))
        answer = await ask(peer, UPDATE_LIST, None, self.body(self.topic("A"), self.topic("B")))
        assert answer.code == 0
        assert broker.state.topics.get("B") is not None
        assert broker.state.topics.data_version.counter == 2

    @pytest.mark.parametrize("bad", [{"topicName": "a b"}, {"topicName": "TBW102"}, {"perm": 99}])
    async def test_a_bad_topic_spoils_the_list(self, broker, bad):
        peer = await broker.peer()
        answer = await ask(peer, UPDATE_LIST, None, self.body(self.topic("A"), self.topic("B") | bad))
        assert answer.code == 29
        assert answer.remark
        assert broker.state.topics.get("A") is None

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b"7", b'{"topicConfigList":7}', b'{"topicConfigList":[7]}', b"x" * (5 << 20)],
        ids=lambda body: repr(body[:30]),
    )
    async def test_a_body_that_is_none_is_refused(self, broker, body):
        answer = await ask(await broker.peer(), UPDATE_LIST, None, body)
        assert answer.code == 1
        assert answer.remark

    async def test_an_empty_list_does_nothing(self, broker):
        assert (await ask(await broker.peer(), UPDATE_LIST, None, b"{}")).code == 0
        assert broker.state.topics.data_version.counter == 0


class TestShowing:
    async def test_pages_are_sorted_and_counted_and_begin_anew_after_a_change(self, broker):
        peer = await broker.peer()
        for name in "CAB":
            broker.topic(name)
        everything = sorted(broker.state.topics.table)
        first = await ask(peer, GET_ALL, {"topicSeq": "0", "maxTopicNum": "5", "dataVersion": ""})
        assert first.ext == {"totalTopicNum": str(len(everything))}
        page = json.loads(first.body)
        assert list(page["topicConfigTable"]) == everything[:5]
        seen = json.dumps(page["dataVersion"])
        second = await ask(peer, GET_ALL, {"topicSeq": "5", "maxTopicNum": "500", "dataVersion": seen})
        assert list(json.loads(second.body)["topicConfigTable"]) == everything[5:]
        broker.topic("D")
        again = await ask(peer, GET_ALL, {"topicSeq": "5", "maxTopicNum": "2", "dataVersion": seen})
        assert list(json.loads(again.body)["topicConfigTable"]) == sorted(broker.state.topics.table)[:2]

    @pytest.mark.parametrize(
        ("ext", "count"),
        [
            ({"topicSeq": "-5"}, 13),
            ({"topicSeq": "99999"}, 0),
            ({"maxTopicNum": "0"}, 13),
            ({"maxTopicNum": "-1"}, 13),
            ({"maxTopicNum": "2147483647"}, 13),
            ({"dataVersion": '{"counter":7}', "topicSeq": "12"}, 13),
        ],
    )
    async def test_odd_pages(self, broker, ext, count):
        answer = await ask(await broker.peer(), GET_ALL, ext)
        assert len(json.loads(answer.body)["topicConfigTable"]) == count

    async def test_a_version_that_is_none_is_refused(self, broker):
        answer = await ask(await broker.peer(), GET_ALL, {"dataVersion": "{nonsense"})
        assert answer.code == 1
        assert answer.remark

    async def test_a_long_unknown_name_is_not_sent_back(self, broker):
        answer = await ask(await broker.peer(), GET, {"topic": "t" * (1 << 20)})
        assert answer.code == 17
        assert len(answer.remark) < 400


class TestDeleting:
    async def filled(self, broker, *topics):
        for topic in topics:
            broker.topic(topic, 1)
            broker.store.put(message(topic, 0, b"x"))
        await until(lambda: all(broker.store.max_offset(topic, 0) == 1 for topic in topics))

    async def test_a_deleted_topic_leaves_neither_queue_nor_offset_nor_waiting_pull(self, broker, tmp_path):
        await self.filled(broker, "T", "U")
        offsets = broker.state.offsets
        for topic in "TU":
            offsets.commit("G", topic, 0, 1)
        peer = await broker.peer()
        assert (await ask(peer, DELETE, {"topic": "T"})).code == 0
        assert (await ask(peer, GET, {"topic": "T"})).code == 17
        assert broker.store.max_offset("T", 0) == 0
        assert not (tmp_path / "consumequeue" / "T").exists()
        assert (tmp_path / "consumequeue" / "U").exists()
        assert (offsets.query("G", "T", 0), offsets.query("G", "U", 0)) == (-1, 1)
        assert broker.held_pulls.woken == ["T"]
        saved = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert "T" not in saved["topicConfigTable"]

    async def test_neither_topic_nor_offsets_come_back_with_a_restart(self, tmp_path):
        async with ClientBroker(tmp_path) as broker:
            await self.filled(broker, "T", "U")
            broker.state.offsets.commit("G", "T", 0, 1)
            broker.state.offsets.save()
            assert (await ask(await broker.peer(), DELETE, {"topic": "T"})).code == 0
        async with ClientBroker(tmp_path) as broker:
            assert broker.state.topics.get("T") is None
            assert broker.state.topics.get("U") is not None
            assert broker.store.max_offset("T", 0) == 0
            assert broker.store.max_offset("U", 0) == 1
            assert broker.state.offsets.query("G", "T", 0) == -1

    async def test_a_topic_of_the_same_name_begins_anew(self, broker):
        await self.filled(broker, "T")
        peer = await broker.peer()
        await ask(peer, DELETE, {"topic": "T"})
        await self.filled(broker, "T")
        assert [record.queue_offset for record in broker.records("T")] == [0]

    async def test_retry_topics_of_pop_go_with_it(self, broker):
        for name in ("T", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%G", "%RETRY%H_T"):
            broker.topic(name)
        broker.state.offsets.commit("G", "T", 0, 1)
        await ask(await broker.peer(), DELETE, {"topic": "T"})
        left = {name for name in broker.state.topics.table if name.startswith("%RETRY%")}
        assert left == {"%RETRY%G", "%RETRY%H_T"}

    @pytest.mark.parametrize(
        ("topic", "code"),
        [("", 29), ("  ", 29), ("TBW102", 29), ("SCHEDULE_TOPIC_XXXX", 29), ("broker-a", 29), ("Unknown", 0)],
    )
    async def test_what_may_be_deleted(self, broker, topic, code):
        await self.filled(broker, "T")
        answer = await ask(await broker.peer(), DELETE, {"topic": topic})
        assert answer.code == code
        assert bool(answer.remark) == bool(code)
        assert broker.store.max_offset("T", 0) == 1

    @pytest.mark.parametrize("topic", ["../T", "../../config", ".", "..", "/", "T/0", "a\x00b", "t" * (10 << 20)])
    async def test_no_name_reaches_other_files(self, broker, tmp_path, topic):
        await self.filled(broker, "T")
        before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
        answer = await ask(await broker.peer(), DELETE, {"topic": topic})
        assert answer.code in (0, 29)
        after = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
        assert [path for path in before if path not in after] == []
        assert broker.store.max_offset("T", 0) == 1


class TestCleaning:
    async def test_queues_without_a_topic_are_removed_and_others_stay(self, broker, tmp_path):
        for topic in ("T", "Stray"):
            broker.topic(topic, 1)
            broker.store.put(message(topic, 0, b"x"))
        await until(lambda: broker.store.max_offset("Stray", 0) == broker.store.max_offset("T", 0) == 1)
        broker.state.topics.delete("Stray")
        assert (await ask(await broker.peer(), CLEAN_UNUSED)).code == 0
        assert not (tmp_path / "consumequeue" / "Stray").exists()
        assert broker.store.max_offset("T", 0) == 1

    @pytest.mark.parametrize("code", [CLEAN_QUEUES, CLEAN_LOG])
    async def test_what_is_not_expired_stays(self, broker, code):
        broker.topic("T", 1)
        broker.store.put(message("T", 0, b"x"))
        await until(lambda: broker.store.max_offset("T", 0) == 1)
        assert (await ask(await broker.peer(), code)).code == 0
        assert len(broker.records("T")) == 1
