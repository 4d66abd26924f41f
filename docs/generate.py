"""Writes docs/protocol.md from the declarations of the code, so that the two cannot drift apart.

python docs/generate.py            writes the file
python docs/generate.py --check    exits 1 when the file is not what would be written
"""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.handlers import NOT_ON_FAST_PORT, handler_rows
from cometmq.broker.handlers import handler_table as broker_table
from cometmq.broker.handlers.row import Row
from cometmq.broker.hooks import Hooks
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.handlers import handler_table
from cometmq.namesrv.state import NamesrvState
from cometmq.protocol.bodies import REQUEST_BODIES, RESPONSE_BODIES
from cometmq.protocol.codes import TRUNCATED_CODES, LanguageCode, RequestCode, ResponseCode, Version
from cometmq.protocol.header import FieldSpec, Header, fields_of
from cometmq.protocol.requests import OPERATIONS
from cometmq.remoting.dispatch import HandlerTable, Permission

PAGE = Path(__file__).parent / "protocol.md"

INTRO = """\
# Protocol

Generated from the declarations in `protocol/` and the handler tables of the daemons by `scripts/docs`; a test compares
this page with the code.

## Frame

| bytes | field |
|---|---|
| 4 | length of all that follows, i32 big-endian; the whole frame is at most 16 MiB |
| 4 | header word: top byte = serialize type (0 JSON, 1 ROCKETMQ binary, 2 msgpack), the rest = length of the header |
| n | header: code, language, version, opaque, flag (bit 0 response, bit 1 oneway), remark, ext keys |
| m | body |

An answer has the serialize type of its request. The msgpack header is spoken between our SDK and our broker only, after
`hdr=msgpack` was announced with a heartbeat and confirmed by its answer. In a binary header a code has 16 bits, so that
the pop family arrives truncated and is mapped back: {truncated}.

Values of ext keys travel as text. Below, a key without mark is required, `?` marks an optional one, `=` gives what its
absence means. A required key that is missing, or a value that does not fit its type, is answered with
SYSTEM_ERROR (1) and a remark that names the request and the key. Keys that are not declared are ignored.

## Answered by every server

| situation | answer |
|---|---|
| unknown request code | 3, ` request type <code> not supported` |
| bad key or body | 1, names the request and the field |
| handler failed | 1, `<error>: <text>` |
| too many requests wait for their answers | 2, `[OVERLOAD]system busy, start flow control for a while` |
| shutting down, and the client is newer than 5.3.1 | 1500, `please go away` |
| oneway request | never an answer |
| a frame that cannot be read | the connection is closed |
"""

BROKER_NOTE = """\
Both ports answer these, but the fast port (`listenPort - 2`) does not answer what waits for messages: {fast}.
Every other request is refused with 3: what belongs to transactions, timers, pop, replication, controllers and access
rules is not in this version.
"""


def main() -> int:
    """Writes or checks the page."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page:
        return 0
    print("docs/protocol.md is not what the code declares; run scripts/docs", file=sys.stderr)
    return 1


def render() -> str:
    """The whole page."""
    truncated = ", ".join(f"{short} (for {code})" for short, code in sorted(TRUNCATED_CODES.items()))
    parts = [INTRO.format(truncated=truncated)]
    parts.append("## Answered by the nameserver\n")
    parts.append(_served(_namesrv_table()))
    broker = _broker_rows()
    parts.append("## Answered by the broker\n")
    parts.append(BROKER_NOTE.format(fast=_codes(NOT_ON_FAST_PORT & {code for code, _, _ in broker})))
    parts.append(_served(broker_table(broker)))
    parts.append("## All requests\n")
    parts.append(_requests())
    parts.append("## Response codes\n")
    parts.append(_enum(ResponseCode))
    parts.append("## Languages\n")
    parts.append(_enum(LanguageCode))
    parts.append("## Versions that change behaviour\n")
    parts.append(_enum(Version))
    return "\n".join(parts)


def _namesrv_table() -> HandlerTable:
    """The nameserver's table; nothing of it is ever called here."""
    config = NamesrvConfig(kv_config_path="", config_store_path="")
    return handler_table(NamesrvState(config, clock=lambda: 0.0), lambda changes: None)


def _broker_rows() -> list[Row]:
    """The broker's rows, of a broker that lives in memory."""

    async def rows() -> list[Row]:
        config = BrokerConfig(broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0)
        async with Broker(config, disk=FakeDisk(), hooks=Hooks()) as broker:
            return handler_rows(broker.state)

    return asyncio.run(rows())


def _codes(codes: Iterable[RequestCode]) -> str:
    return ", ".join(f"{code.name} ({int(code)})" for code in sorted(codes))


def _served(table: HandlerTable) -> str:
    rows = ["| code | request | permission |", "|---|---|---|"]
    for entry in table:
        permission = "" if entry.permission is None else _permission(entry.permission)
        rows.append(f"| {entry.code} | {RequestCode(entry.code).name} | {permission} |")
    return "\n".join(rows) + "\n"


def _permission(permission: Permission) -> str:
    field = "" if permission.field is None else f" named by `{permission.field}`"
    return f"{permission.action} {permission.resource}{field}"


def _requests() -> str:
    rows = [
        "| code | request | direction | keys | body | keys of the answer | body of the answer |",
        "|---|---|---|---|---|---|---|",
    ]
    for code, operation in sorted(OPERATIONS.items()):
        direction = operation.direction + (", oneway" if operation.oneway else "")
        cells = [
            str(code),
            operation.code.name,
            direction,
            _keys(operation.request),
            _body(REQUEST_BODIES, code),
            _keys(operation.response),
            _body(RESPONSE_BODIES, code),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _keys(header: type[Header]) -> str:
    return " ".join(_key(spec) for spec in fields_of(header))


def _key(spec: FieldSpec) -> str:
    if spec.required:
        mark = ""
    elif spec.default is None:
        mark = "?"
    else:
        mark = f"={str(spec.default).lower()}"
    return f"`{spec.key}:{spec.kind}{mark}`"


def _body(bodies: dict[int, object], code: int) -> str:
    body = bodies.get(code)
    return "" if body is None else getattr(body, "__name__", str(body))


def _enum(members: type[ResponseCode] | type[LanguageCode] | type[Version]) -> str:
    rows = ["| number | name |", "|---|---|"]
    rows += [f"| {int(member)} | {member.name} |" for member in members]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
