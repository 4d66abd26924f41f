"""scripts/lanes.py: two runs of pytest side by side, and what is told of them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.server_process import wait_for

SCRIPTS = Path(__file__).parents[2] / "scripts"

PASSES = "def test_fine(): pass\n"
FAILS = "def test_broken(): assert 'left' == 'right'\n"
#: Says that it has begun, and that it was ended in order.
WAITS = """
import pathlib, threading, pytest
@pytest.fixture
def begun():
    folder = pathlib.Path(__file__).parent
    (folder / "begun").touch()
    yield
    (folder / "ended").touch()
def test_waits(begun): threading.Event().wait(60)
"""


def start(folder: Path, *lanes: list[str]) -> "subprocess.Popen[str]":
    """Lanes of tests with these texts; each is a run in a folder of its own, named by lane and place."""
    named: list[list[str]] = []
    for number, lane in enumerate(lanes):
        named.append([])
        for place, text in enumerate(lane):
            name = f"lane{number}{place}"
            (folder / name).mkdir()
            (folder / name / "test_it.py").write_text(text)
            named[-1].append(name)
    code = f"""if True:
        import sys
        from lanes import Run, run
        plain = ("-p", "no:cacheprovider", "-c", "/dev/null", "-ra")
        sys.exit(run([[Run(name, *plain, name) for name in lane] for lane in {named}]))"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(SCRIPTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("lanes", "code", "failed"),
    [
        ([[PASSES], [PASSES, PASSES]], 0, []),
        ([[FAILS], [PASSES, PASSES]], 1, ["lane00"]),
        ([[PASSES], [FAILS, PASSES]], 1, ["lane10"]),  # what follows in a lane runs all the same
        ([["no Python"], ["# no test at all"]], 1, ["lane00", "lane10"]),
    ],
)
def test_one_failure_fails_all_and_is_told_at_the_end(
    tmp_path: Path, lanes: list[list[str]], code: int, failed: list[str]
) -> None:
    with start(tmp_path, *lanes) as process:
        told, _ = process.communicate(timeout=60)
    assert process.returncode == code, told
    runs = [f"lane{number}{place}" for number, lane in enumerate(lanes) for place in range(len(lane))]
    verdicts = dict(line.split(" | ") for line in told.splitlines()[-len(runs) :])
    assert {name.strip(): verdict.split()[0] for name, verdict in verdicts.items()} == {
        name: "FAILED" if name in failed else "passed" for name in runs
    }
    reports = [line.removeprefix("=== ") for line in told.splitlines() if line.startswith("=== lane")]
    assert sorted(reports) == runs
    assert reports[len(reports) - len(failed) :] == failed, "the reports of those that failed come last"
    assert (FAILS in [text for lane in lanes for text in lane]) == ("assert 'left' == 'right'" in told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_both_lanes_in_order(tmp_path: Path, number: int) -> None:
    with start(tmp_path, [WAITS, PASSES], [WAITS]) as process:
        try:
            for name in ("lane00", "lane10"):
                wait_for(f"{name} has begun", 60, (tmp_path / name / "begun").exists)
            process.send_signal(number)
            told, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, told
    assert (tmp_path / "lane00" / "ended").exists()
    assert (tmp_path / "lane10" / "ended").exists()
    assert "lane01 | did not run" in told
