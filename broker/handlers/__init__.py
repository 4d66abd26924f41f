"""The requests that a broker answers: one module a concern, each with `rows(state)`; here they become one table.

The fast port answers the same requests but those that wait for messages: a producer's port shall not be held up by
consumers. Mirrors the processor tables that RocketMQ's BrokerController registers.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from cometmq.broker.handlers import (
    client_calls,
    clients,
    cold_data,
    config,
    consume_stats,
    consumers,
    groups,
    locks,
    offsets,
    pull,
    query,
    reply,
    reset,
    runtime,
    send,
    send_back,
    topics,
)
from cometmq.broker.handlers.row import Row
from cometmq.broker.hooks import SENDS
from cometmq.broker.store.store import Store
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.dispatch import Handler, HandlerTable, Request, Result

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Each module's `rows`.
MODULES: "list[Callable[[BrokerState], list[Row]]]" = [
    send.rows,
    reply.rows,
    send_back.rows,
    pull.rows,
    offsets.rows,
    clients.rows,
    locks.rows,
    topics.rows,
    groups.rows,
    query.rows,
    config.rows,
    runtime.rows,
    cold_data.rows,
    consume_stats.rows,
    consumers.rows,
    client_calls.rows,
    reset.rows,
]

#: What the fast port does not answer.
NOT_ON_FAST_PORT = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)


def handler_rows(state: "BrokerState") -> list[Row]:
    """All requests of a broker."""
    return [row for rows in MODULES for row in rows(state)]


def fill_table(table: HandlerTable, rows: list[Row], *, fast: bool = False) -> None:
    """The requests of a port. Both ports share the rows, and with them whatever the handlers keep."""
    for code, handler, permission in rows:
        if not (fast and code in NOT_ON_FAST_PORT):
            table.add(code, handler, permission=permission)


def with_all_of(store: Store, code: int, handler: Handler) -> Handler:
    """A handler that finds all that was acknowledged before in queues and index. Sends look at neither."""
    if code in SENDS:
        return handler
    dispatch = store.dispatch

    def caught_up(request: Request[Any]) -> Result | Awaitable[Result]:
        if dispatch.is_put_off:
            dispatch.run()
        return handler(request)

    return caught_up


def handler_table(rows: list[Row], *, fast: bool = False) -> HandlerTable:
    """A table of its own: for tests and documentation."""
    table = HandlerTable()
    fill_table(table, rows, fast=fast)
    return table
