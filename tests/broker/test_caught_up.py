"""Answers to sends leave before queues and index have the messages; whoever asks finds them there all the same."""

from typing import Any

import pytest

from cometmq.broker.handlers import handler_rows, with_all_of
from cometmq.broker.hooks import SENDS
from cometmq.protocol.codes import RequestCode
from cometmq.testing import EmbeddedBroker


class PutOff:
    """A store whose dispatch has something to do."""

    def __init__(self) -> None:
        self.dispatch = self
        self.is_put_off = True
        self.runs = 0

    def run(self) -> None:
        self.runs += 1
        self.is_put_off = False


@pytest.mark.parametrize(("code", "runs"), [(RequestCode.PULL_MESSAGE, 1), (RequestCode.SEND_MESSAGE_V2, 0)])
def test_dispatch_is_brought_up_before_a_handler_looks(code: RequestCode, runs: int) -> None:
    store = PutOff()
    seen: list[int] = []
    handler: Any = with_all_of(store, code, lambda request: seen.append(store.runs))  # type: ignore[arg-type, func-returns-value]
    handler(None)
    handler(None)
    assert seen == [runs, runs]


def test_every_handler_of_a_running_broker_but_the_sends_catches_up() -> None:
    with EmbeddedBroker() as broker:

        def look(b: Any) -> tuple[bool, set[int], set[int]]:
            entries = list(b._servers[0].table)
            wrapped = {entry.code for entry in entries if "with_all_of" in entry.handler.__qualname__}
            return b.state.store.dispatch.comes_last, wrapped, {int(row[0]) for row in handler_rows(b.state)}

        comes_last, wrapped, known = broker.inspect(look)
    assert comes_last
    assert known - wrapped == SENDS
