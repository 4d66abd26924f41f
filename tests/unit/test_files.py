"""Small files that survive a crash: replaced whole, with the previous content beside them."""

import json
import os
import stat
from pathlib import Path

import pytest

from cometmq import files
from cometmq.files import FileDamaged, backup_of, read_or_backup, write_atomically


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_new_file_in_a_new_directory_has_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "table.json"
    write_atomically(path, b"one")
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["table.json"]


def test_backup_is_the_previous_content(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    for content in (b"one", b"two", b"three"):
        write_atomically(path, content)
    assert path.read_bytes() == b"three"
    assert backup_of(path).read_bytes() == b"two"
    assert names(tmp_path) == ["table.json", "table.json.bak"]


def test_without_backup(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, b"one", backup=False)
    write_atomically(str(path), b"two", backup=False)
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["table.json"]


def test_mode_of_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"one")
    path.chmod(0o600)
    write_atomically(path, b"two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(backup_of(path).stat().st_mode) == 0o600


def test_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"one")
    link.symlink_to(real)
    write_atomically(link, b"two")
    assert link.is_symlink()
    assert real.read_bytes() == b"two"
    assert backup_of(real).read_bytes() == b"one"


@pytest.mark.parametrize("failing", ["replace", "fsync", "write"])
def test_failure_leaves_the_old_content_and_no_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, b"one")

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if failing == "write":
        monkeypatch.setattr(files, "_sync", fail)
    else:
        monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"two")
    monkeypatch.undo()
    assert path.read_bytes() == b"one"
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


def test_data_is_flushed_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    steps: list[str] = []
    sync, replace, sync_directory = files._sync, os.replace, files._sync_directory
    monkeypatch.setattr(files, "_sync", lambda fd: (steps.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("rename"), replace(a, b)))
    monkeypatch.setattr(files, "_sync_directory", lambda d: (steps.append("directory"), sync_directory(d)))
    write_atomically(path, b"one")
    assert steps == ["sync", "rename", "directory"]


def test_read_missing_is_none(tmp_path: Path) -> None:
    assert read_or_backup(tmp_path / "table.json", json.loads) is None


def test_read_good(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, b'{"a":1}')
    write_atomically(path, b'{"a":2}')
    assert read_or_backup(path, json.loads) == {"a": 2}


@pytest.mark.parametrize("content", [None, b"", b"\0\0\0\0", b'{"a":'])
def test_backup_stands_in_for_a_missing_empty_or_broken_file(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, b'{"a":1}')
    write_atomically(path, b'{"a":2}')
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert read_or_backup(path, json.loads) == {"a": 1}
    assert str(path) in caplog.text
    # What is broken does not become the backup of the next write.
    write_atomically(path, b'{"a":3}')
    assert backup_of(path).read_bytes() == b'{"a":1}'
    broken = path.with_name("table.json.broken")
    assert (broken.read_bytes() if broken.exists() else None) == content


def test_broken_without_backup_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"{")
    with pytest.raises(FileDamaged, match=r"table\.json") as caught:
        read_or_backup(path, json.loads)
    assert caught.value.path == path
    assert caught.value.remedy
    assert path.read_bytes() == b"{", "it is left for whoever repairs it"


def test_both_broken_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"{")
    backup_of(path).write_bytes(b"[")
    with pytest.raises(FileDamaged, match=r"table\.json.*table\.json\.bak"):
        read_or_backup(path, json.loads)


def test_only_a_broken_backup_names_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    backup_of(path).write_bytes(b"[")
    with pytest.raises(FileDamaged, match=r"table\.json\.bak"):
        read_or_backup(path, json.loads)


def test_unreadable_is_not_taken_for_damaged(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.mkdir()
    backup_of(path).write_bytes(b"{}")
    with pytest.raises(FileDamaged, match=r"table\.json"):
        read_or_backup(path, json.loads)
