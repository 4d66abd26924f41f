"""Plug-ins of the broker: what they see, what they may refuse, and that a bad one harms nobody."""

import asyncio
import logging
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.hooks import BrokerHook, HookRefused, Hooks
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.pull import PullMessage
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.dispatch import Request, Response
from cometmq.remoting.pending import Answer
from cometmq.testing import EmbeddedBroker
from support import broker_calls


class Diary(BrokerHook):
    """Writes down what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def before_request(self, request: Request[Any]) -> None:
        self.seen.append(("before", request.code))

    def after_request(self, request: Request[Any], response: Response) -> None:
        self.seen.append(("after", request.code, response.code))

    def on_send(self, request: Request[Any]) -> None:
        self.seen.append(("send", request.header.topic, request.body))

    def on_consume(self, request: Request[Any], response: Response) -> None:
        body = response.body
        size = sum(len(part) for part in body) if isinstance(body, list | tuple) else len(body)
        self.seen.append(("consume", request.header.consumer_group, request.header.topic, size > 0))


class Clumsy(BrokerHook):
    """Raises wherever it can."""

    def before_request(self, request: Request[Any]) -> None:
        raise RuntimeError("before")

    def after_request(self, request: Request[Any], response: Response) -> None:
        raise RuntimeError("after")

    def on_send(self, request: Request[Any]) -> None:
        raise RuntimeError("send")

    def on_consume(self, request: Request[Any], response: Response) -> None:
        raise RuntimeError("consume")


async def pull(client: RemotingClient, address: str, topic: str, offset: int = 0, hold: int = 0) -> Answer:
    header = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=6 if hold else 4,  # 2: may be held, 4: the subscription is here
        commit_offset=0,
        suspend_timeout_millis=hold,
        sub_version=0,
        subscription="*",
    )
    return await client.request(address, RequestCode.PULL_MESSAGE, header, timeout=30)


async def test_plug_in_sees_requests_answers_and_messages() -> None:
    diary = Diary()
    async with EmbeddedBroker(hooks=(diary,)) as broker, RemotingClient() as client:
        await broker_calls.sent(client, broker.address, "T", b"hello")
        answer = await pull(client, broker.address, "T")
        assert (answer.code, b"hello" in answer.body) == (0, True)
    assert diary.seen == [
        ("before", 310),
        ("send", "T", b"hello"),
        ("after", 310, 0),
        ("before", 11),
        ("consume", "g", "T", True),
        ("after", 11, 0),
    ]


async def test_answers_that_come_late_are_seen_when_they_come() -> None:
    diary = Diary()
    async with EmbeddedBroker(hooks=(diary,)) as broker, RemotingClient() as client:
        await broker_calls.sent(client, broker.address, "T", b"1")
        held = asyncio.create_task(pull(client, broker.address, "T", offset=1, hold=20_000))
        await asyncio.to_thread(_until_held, broker)
        assert ("after", 11, 0) not in diary.seen
        await broker_calls.sent(client, broker.address, "T", b"2")
        answer = await held
        assert (answer.code, b"2" in answer.body) == (0, True)
        assert diary.seen.count(("after", 11, 0)) == 1
        assert diary.seen.count(("consume", "g", "T", True)) == 1


def _until_held(broker: EmbeddedBroker) -> None:
    from support.server_process import wait_for

    wait_for("a held pull", 20, lambda: broker.inspect(lambda b: b.state.held_pulls.count) == 1)


async def test_plug_in_that_raises_is_logged_counted_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedBroker(hooks=(Clumsy(), diary := Diary())) as broker, RemotingClient() as client:
        await broker_calls.sent(client, broker.address, "T", b"hello")
        assert b"hello" in (await pull(client, broker.address, "T")).body
        failures = broker.inspect(lambda b: dict(b.state.hooks.failures))
    assert failures == {
        ("Clumsy", "before_request"): 2,
        ("Clumsy", "after_request"): 2,
        ("Clumsy", "on_send"): 1,
        ("Clumsy", "on_consume"): 1,
    }
    assert len(diary.seen) == 6, "the others are called all the same"
    assert any("on_send of the plug-in Clumsy failed" in r.getMessage() for r in caplog.records)


class TestRefusals:
    async def test_before_a_request(self) -> None:
        class Guard(BrokerHook):
            def before_request(self, request: Request[Any]) -> None:
                if request.code == RequestCode.PULL_MESSAGE:
                    raise HookRefused("no pulls today", 2)

        async with EmbeddedBroker(hooks=(Guard(),)) as broker, RemotingClient() as client:
            await broker_calls.sent(client, broker.address, "T", b"x")
            answer = await pull(client, broker.address, "T")
            assert (answer.code, answer.remark) == (2, "no pulls today")

    async def test_of_a_message_before_it_is_stored(self) -> None:
        class Quota(BrokerHook):
            def on_send(self, request: Request[Any]) -> None:
                if b"secret" in request.body:
                    raise HookRefused("not here")

        async with EmbeddedBroker(hooks=(Quota(), diary := Diary())) as broker, RemotingClient() as client:
            await broker_calls.sent(client, broker.address, "T", b"open")
            answer = await broker_calls.send(client, broker.address, "T", b"secret")
            assert (answer.code, answer.remark) == (16, "not here")
            assert broker.inspect(lambda b: b.state.store.max_offset("T", 0)) == 1
        assert ("after", 310, 16) in diary.seen

    async def test_of_messages_that_were_found(self) -> None:
        class Censor(BrokerHook):
            def on_consume(self, request: Request[Any], response: Response) -> None:
                raise HookRefused("you may not read this")

        async with EmbeddedBroker(hooks=(Censor(),)) as broker, RemotingClient() as client:
            await broker_calls.sent(client, broker.address, "T", b"x")
            answer = await pull(client, broker.address, "T")
            assert (answer.code, answer.remark, answer.body) == (16, "you may not read this", b"")

    async def test_after_a_request_it_is_too_late(self) -> None:
        class Late(BrokerHook):
            def after_request(self, request: Request[Any], response: Response) -> None:
                raise HookRefused("too late")

        async with EmbeddedBroker(hooks=(Late(),)) as broker, RemotingClient() as client:
            await broker_calls.sent(client, broker.address, "T", b"x")
            assert broker.inspect(lambda b: b.state.hooks.failures["Late", "after_request"]) == 1


def test_without_plug_ins_the_handlers_are_what_they_are() -> None:
    with EmbeddedBroker() as broker:

        def wrapped(b: Any) -> list[str]:
            table = b._servers[0].table
            names = [entry.handler.__qualname__ for entry in table]
            return [name for name in names if "Hooks" in name] + table.before

        assert broker.inspect(wrapped) == []


class TestInstalled:
    """Plug-ins of packages, by the entry point `cometmq.broker_hooks`."""

    @pytest.fixture
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        (tmp_path / "some_plug_in.py").write_text(
            textwrap.dedent(
                """
                from cometmq.broker.hooks import BrokerHook

                class Good(BrokerHook):
                    pass

                class NoHook:
                    pass
                """
            )
        )
        info = tmp_path / "some_plug_in-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plug-in\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[cometmq.broker_hooks]\n"
            "good = some_plug_in:Good\nwrong = some_plug_in:NoHook\nmissing = some_plug_in:Nothing\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        yield tmp_path
        sys.modules.pop("some_plug_in", None)

    @pytest.mark.usefixtures("package")
    def test_they_are_found_and_bad_ones_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        hooks = Hooks.installed()
        assert [type(hook).__name__ for hook in hooks.hooks] == ["Good"]
        told = [r.getMessage() for r in caplog.records if "cannot be used" in r.getMessage()]
        assert len(told) == 2
