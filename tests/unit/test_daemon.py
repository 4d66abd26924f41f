"""What daemons share: properties, logs, how they fail."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import daemon
from cometmq.daemon import StartError, SystemProperties, UsageError, exit_with, log_to


def test_definition_stands_above_the_environment() -> None:
    environ = {"ROCKETMQ_NAMESRV_ADDR": "env:1", "EMPTY_ONE": ""}
    properties = SystemProperties(["rocketmq.home.dir=/x=y", " spaced =1"], environ)
    assert properties.get("rocketmq.namesrv.addr") == "env:1"
    assert properties.get("rocketmq.home.dir") == "/x=y"
    assert properties.get("spaced") == "1"
    assert properties.get("empty.one") is None
    assert properties.get("nothing") is None
    assert SystemProperties(["rocketmq.namesrv.addr=own:1"], environ).get("rocketmq.namesrv.addr") == "own:1"
    assert SystemProperties(["rocketmq.namesrv.addr="], environ).get("rocketmq.namesrv.addr") == ""
    assert properties.found(["rocketmq.namesrv.addr", "nothing", "spaced"]) == {
        "rocketmq.namesrv.addr": "env:1",
        "spaced": "1",
    }


@pytest.mark.parametrize("definition", ["", "key", "=value", "  =value"])
def test_definition_has_a_key_and_an_equals_sign(definition: str) -> None:
    with pytest.raises(UsageError, match="key=value"):
        SystemProperties([definition])


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger without the handlers of pytest, and put right afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_logs_to_stdout(root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log_to(None, "x.log")
    log_to(None, "x.log")
    logging.getLogger("cometmq.x").info("hello %s", "you")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO cometmq.x - hello you")


def test_logs_to_rotated_files(
    root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon, "LOG_FILE_BYTES", 200)
    monkeypatch.setattr(daemon, "LOG_FILE_COUNT", 2)
    log_to(tmp_path / "logs", "x.log")
    for number in range(20):
        logging.getLogger("cometmq.x").info("line %d with half a surrogate \ud800", number)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["x.log", "x.log.1", "x.log.2"]
    assert "line 19" in (tmp_path / "logs" / "x.log").read_text()
    assert capsys.readouterr().out == ""


def test_a_record_is_one_line_whatever_peers_call_themselves(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(None, "x.log")
    logging.getLogger("cometmq.x").info("a peer called %s", "you\n2026-01-01 00:00:00,000 ERROR forged\r")
    logging.getLogger("cometmq.x").info("a peer called %s", "y" * 1_000_000)
    forged, long = capsys.readouterr().out.splitlines()
    assert forged.endswith("a peer called you\\n2026-01-01 00:00:00,000 ERROR forged\\r")
    assert long.endswith("y... (1000014 characters)")
    assert len(long) < 5000


def test_log_directory_that_cannot_be_made(root_logger: logging.Logger, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartError, match=str(tmp_path / "file")) as caught:
        log_to(tmp_path / "file" / "logs", "x.log")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("-x is unknown"), 2, "mqx: -x is unknown\n"),
        (StartError("cannot\nlisten", "choose another port"), 1, "mqx: cannot listen; choose another port\n"),
        (OSError(28, "No space left on device"), 1, "mqx: no space left on device\n"),
    ],
)
def test_failure_is_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str], error: StartError | OSError, code: int, line: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        exit_with("mqx", error)
    assert caught.value.code == code
    assert capsys.readouterr().err == line
