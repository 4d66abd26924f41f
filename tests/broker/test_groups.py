"""Consumer groups as operators see them, over real sockets: create, change, show, delete, forbid; and over restarts."""

import json

import pytest

from support import golden
from support.client_broker import ClientBroker, answer_of
from support.raw_peer import request

UPDATE, GET_ALL, DELETE, UPDATE_LIST, GET, FORBID = 200, 201, 207, 225, 352, 353


@pytest.fixture
async def broker(tmp_path):
    async with ClientBroker(tmp_path) as broker:
        yield broker


async def ask(peer, code, ext=None, body=b""):
    return await answer_of(peer, request(code, ext, body))


def group(name="G", **more):
    return json.dumps({"groupName": name, "retryMaxTimes": 3} | more).encode()


async def test_the_commands_of_mqadmin_are_answered_as_rocketmq_answers_them(broker):
    peer = await broker.peer()
    codes = {UPDATE, UPDATE_LIST, DELETE}
    compared = set()
    for exchange in golden.exchanges("admin"):
        asked, told = exchange.request, exchange.response
        if told is not None and asked.code in codes:
            answer = await ask(peer, asked.code, asked.ext, asked.body)
            assert (answer.code, answer.remark, answer.body) == (told.code, None, b"")
            compared.add(asked.code)
        elif told is not None and asked.code == GET_ALL and asked.cmd == "getConsumerConfig":
            answer = await ask(peer, GET_ALL)
            ours, theirs = json.loads(answer.body), json.loads(told.body)
            assert list(ours) == list(theirs)
            assert answer.ext == {}
            for name in ("AdmGroup", "AdmGroup2", "TOOLS_CONSUMER"):
                assert ours["subscriptionGroupTable"][name] == theirs["subscriptionGroupTable"][name]
            compared.add(GET_ALL)
    assert compared == codes | {GET_ALL}
    assert "AdmGroup" not in broker.state.groups.table
    assert "GroupListA" in broker.state.groups.table


async def test_an_unknown_group_is_made_when_it_is_asked_for(broker):
    captured = next(each for each in golden.raw_cases("raw-cases") if each.case == "group-config-unknown")
    answer = await answer_of(await broker.peer(), captured.sent)
    assert answer.code == 0
    ((_, body, _),) = captured.answers
    ours, theirs = json.loads(answer.body), json.loads(body)
    assert ours == theirs
    assert ours["groupName"] in broker.state.groups.table


async def test_an_unknown_group_is_an_error_when_it_may_not_be_made(tmp_path):
    async with ClientBroker(tmp_path, autoCreateSubscriptionGroup="false") as broker:
        peer = await broker.peer()
        answer = await ask(peer, GET, {"group": "G"})
        assert (answer.code, answer.remark) == (26, "No group in this broker. group: G")
        long = await ask(peer, GET, {"group": "g" * (1 << 20)})
        assert long.code == 26
        assert len(long.remark) < 300


async def test_a_group_outlives_a_restart(tmp_path):
    async with ClientBroker(tmp_path) as broker:
        peer = await broker.peer()
        assert (await ask(peer, UPDATE, None, group(consumeEnable=False))).code == 0
        saved = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
        assert saved["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    async with ClientBroker(tmp_path) as broker:
        found = broker.state.groups.get("G")
        assert (found.retry_max_times, found.consume_enable) == (3, False)


async def test_an_unchanged_group_is_a_success_without_a_new_version(broker):
    peer = await broker.peer()
    for _ in range(3):
        assert (await ask(peer, UPDATE, None, group())).code == 0
    assert broker.state.groups.data_version.counter == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 1),
        (b"{", 1),
        (b"[]", 1),
        (b"7", 1),
        (b"{}", 29),
        (group(""), 29),
        (group("a b"), 29),
        (group("g" * 121), 29),
        (group("DEFAULT_CONSUMER"), 29),
        (group("DEFAULT_PRODUCER"), 29),
        (group(retryQueueNums=-1), 29),
        (group(retryQueueNums=2**31 - 1), 29),
        (group(retryQueueNums=2**31), 1),
        (group(retryMaxTimes="many"), 1),
        (group(groupRetryPolicy=7), 1),
        (group(attributes={"+priority.factor": "1"}), 1),
        (group(attributes={"x": "1"}), 1),
        (group("g" * (10 << 20)), 1),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else "",
)
async def test_what_cannot_be_is_refused_with_a_reason(broker, body, code):
    peer = await broker.peer()
    answer = await ask(peer, UPDATE, None, body)
    assert answer.code == code
    assert answer.remark
    assert len(answer.remark) < 500
    several = b'{"groupConfigList":[{"groupName":"Good"},' + body + b"]}"
    answer = await ask(peer, UPDATE_LIST, None, several)
    assert answer.code in (1, 29) or body == b""
    assert broker.state.groups.data_version.counter == 0 or body == b""


async def test_pages_are_sorted_and_counted(broker):
    peer = await broker.peer()
    everything = sorted(broker.state.groups.table)
    first = await ask(peer, GET_ALL, {"groupSeq": "0", "maxGroupNum": "3", "dataVersion": ""})
    assert first.ext == {"totalGroupNum": str(len(everything))}
    page = json.loads(first.body)
    assert list(page["subscriptionGroupTable"]) == everything[:3]
    seen = json.dumps(page["dataVersion"])
    second = await ask(peer, GET_ALL, {"groupSeq": "3", "dataVersion": seen})
    assert list(json.loads(second.body)["subscriptionGroupTable"]) == everything[3:]
    broker.state.groups.find("New")
    again = await ask(peer, GET_ALL, {"groupSeq": "3", "maxGroupNum": "2", "dataVersion": seen})
    assert list(json.loads(again.body)["subscriptionGroupTable"]) == sorted(broker.state.groups.table)[:2]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_deleted_group_takes_its_offsets_with_it_if_asked_to(tmp_path, clean):
    async with ClientBroker(tmp_path) as broker:
        peer = await broker.peer()
        broker.state.groups.find("G")
        broker.state.offsets.commit("G", "T", 0, 5)
        broker.state.offsets.commit("H", "T", 0, 6)
        broker.state.offsets.save()
        answer = await ask(peer, DELETE, {"groupName": "G", "cleanOffset": str(clean).lower()})
        assert (answer.code, answer.remark) == (0, None)
        assert (await ask(peer, DELETE, {"groupName": "G"})).code == 0
        assert broker.state.groups.get("G") is None
    async with ClientBroker(tmp_path) as broker:
        assert broker.state.groups.get("G") is None
        assert broker.state.offsets.query("G", "T", 0) == (-1 if clean else 5)
        assert broker.state.offsets.query("H", "T", 0) == 6


class TestForbidden:
    async def test_a_group_is_kept_from_a_topic_and_let_in_again(self, tmp_path):
        async with ClientBroker(tmp_path) as broker:
            peer = await broker.peer()
            asked = {"group": "G", "topic": "T"}
            answer = await ask(peer, FORBID, asked)
            assert json.loads(answer.body) == {"group": "G", "readable": True, "topic": "T"}
            for topic in "TU":
                answer = await ask(peer, FORBID, asked | {"topic": topic, "readable": "false"})
                assert json.loads(answer.body)["readable"] is False
            shown = json.loads((await ask(peer, GET_ALL)).body)
            assert shown["forbiddenTable"] == {"G": {"T": 4, "U": 4}}
            await ask(peer, FORBID, asked | {"readable": "true"})
        async with ClientBroker(tmp_path) as broker:
            groups = broker.state.groups
            assert (groups.is_forbidden("G", "T"), groups.is_forbidden("G", "U")) == (False, True)

    @pytest.mark.parametrize(
        ("ext", "code"),
        [
            ({"group": "a b", "topic": "T", "readable": "false"}, 29),
            ({"group": "G", "topic": "a b", "readable": "false"}, 29),
            ({"group": "G", "topic": "t" * (1 << 20), "readable": "false"}, 29),
            ({"group": "G"}, 1),
            ({"topic": "T"}, 1),
            ({"group": "G", "topic": "T", "readable": "maybe"}, 1),
        ],
        ids=lambda value: str(value)[:50],
    )
    async def test_bad_input_is_refused_and_forbids_nothing(self, broker, ext, code):
        answer = await ask(await broker.peer(), FORBID, ext)
        assert answer.code == code
        assert answer.remark
        assert broker.state.groups.forbidden == {}
