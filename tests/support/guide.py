"""Runs the examples of a page of the guide: its fenced `python` blocks, in order, in one namespace.

A `text` block behind a `python` block is what that one prints; `...` stands for anything. A block may await, as in
`python -m asyncio`; those that do not run in a thread, one for the whole page, as a reader's would: Spark keeps its
session by thread. `python FILE` blocks are files, for tests that a page shows.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)

#: What the pages write where a reader's nameserver is.
NAMESERVER = "127.0.0.1:9876"


class Block(NamedTuple):
    line: int
    language: str
    file: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 2, found[1], found[2] or "", found[3])
        for found in _FENCE.finditer(text)
    ]


async def run_page(page: Path, nameserver: str) -> int:
    """Runs the examples; how many they were."""
    blocks = blocks_of(page)
    names: dict[str, Any] = {"__name__": "__guide__"}
    ran = 0
    thread = ThreadPoolExecutor(1)
    try:
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.language != "python" or block.file:
                continue
            printed = await _run(page, block, names, nameserver, thread)
            if following is not None and following.language == "text":
                _compare(page, following, printed)
            ran += 1
    finally:
        thread.shutdown(wait=False)
        await _close(names.get("mq"))
    return ran


async def _close(client: Any) -> None:
    """A page that failed in the middle leaves its client open, and what that still does would hide why."""
    if client is not None and inspect.iscoroutinefunction(getattr(client, "close", None)):
        await client.close()


async def _run(page: Path, block: Block, names: dict[str, Any], nameserver: str, thread: ThreadPoolExecutor) -> str:
    # The lines of the page, so that a traceback names the right one.
    source = "\n" * (block.line - 1) + block.text.replace(NAMESERVER, nameserver)
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        async with asyncio.timeout(90):
            if code.co_flags & inspect.CO_COROUTINE:
                await eval(code, names)
            else:
                await asyncio.get_running_loop().run_in_executor(thread, exec, code, names)
    return output.getvalue()


def _compare(page: Path, expected: Block, printed: str) -> None:
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert checker.check_output(expected.text, printed, flags), f"{page.name}:{expected.line} prints:\n{printed}"
