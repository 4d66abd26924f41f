"""Every example of the guide, and the quick start of the README, runs as it is printed."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.testing import EmbeddedBroker
from support.guide import Block, blocks_of, run_page

ROOT = Path(__file__).parents[2]
#: The page about Spark runs where Spark does: tests/spark/test_spark_guide.py.
GUIDE = sorted(page for page in (ROOT / "docs" / "guide").glob("*.md") if page.name != "spark.md")
PAGES = [page for page in GUIDE if any(block.language == "python" for block in blocks_of(page))]
FILES = [(page, block) for page in PAGES for block in blocks_of(page) if block.file]


@pytest.fixture
def guide_broker() -> Iterator[EmbeddedBroker]:
    """One for each page: its topics are its own."""
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as running:
        yield running


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_examples_of_a_page_run(guide_broker: EmbeddedBroker, page: Path) -> None:
    assert await run_page(page, guide_broker.nameserver) > 0


def test_the_tasks_have_their_pages() -> None:
    tasks = {"send", "consume", "order", "retry", "pull", "test", "migrate", "once", "forward", "apps", "sync"}
    assert tasks <= {page.stem for page in PAGES}


@pytest.mark.parametrize(("page", "block"), FILES, ids=lambda each: getattr(each, "file", getattr(each, "name", "")))
async def test_the_tests_of_a_page_pass(page: Path, block: Block, tmp_path: Path) -> None:
    assert block.file.startswith("test_")
    (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_the_first_example_runs(guide_broker: EmbeddedBroker) -> None:
    argv = [sys.executable, str(ROOT / "examples" / "quick_start.py")]
    environ = {**os.environ, "NAMESRV_ADDR": guide_broker.nameserver}
    done = await asyncio.to_thread(
        subprocess.run, argv, env=environ, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    sent, received = done.stdout.splitlines()
    assert received == f"received {sent.removeprefix('sent ')}: hello from Python"


async def test_the_quick_start_of_the_readme_runs(guide_broker: EmbeddedBroker) -> None:
    assert await run_page(ROOT / "README.md", guide_broker.nameserver) >= 1


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} names {target}"
