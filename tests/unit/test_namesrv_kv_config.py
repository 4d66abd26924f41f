"""The KV config of the nameserver and its file."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from cometmq.files import FileDamaged
from cometmq.namesrv import kv_config
from cometmq.namesrv.kv_config import KVConfig, decode, encode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def loaded(path: Path) -> KVConfig:
    kv = KVConfig(path)
    kv.load()
    return kv


def stored(path: Path) -> object:
    return json.loads(path.read_bytes())


async def test_put_get_delete_in_memory() -> None:
    kv = KVConfig()
    kv.load()
    assert kv.get("n", "k") is None
    assert kv.namespace("n") is None
    await kv.put("n", "k", "v")
    await kv.put("n", "k2", "ü")
    assert (kv.get("n", "k"), kv.namespace("n")) == ("v", {"k": "v", "k2": "ü"})
    assert await kv.delete("n", "k")
    assert kv.get("n", "k") is None
    assert not await kv.delete("n", "k")
    assert not await kv.delete("never", "k")
    assert kv.namespace("never") is None


async def test_namespace_that_was_used_stays(path: Path) -> None:
    kv = loaded(path)
    await kv.put("n", "k", "v")
    await kv.delete("n", "k")
    assert kv.namespace("n") == {}
    assert loaded(path).namespace("n") == {}


async def test_every_change_is_on_disk_in_java_s_form(path: Path) -> None:
    kv = loaded(path)
    await kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    first = {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}}
    assert stored(path) == first
    await kv.put("n", "k", "v")
    assert stored(path) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}, "n": {"k": "v"}}}
    assert stored(path.with_name("kvConfig.json.bak")) == first
    again = loaded(path)
    assert (again.get("ORDER_TOPIC_CONFIG", "T"), again.get("n", "k")) == ("broker-a:4", "v")


async def test_file_is_written_off_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[int] = []
    write = kv_config.write_atomically
    monkeypatch.setattr(
        kv_config, "write_atomically", lambda *args: (writers.append(threading.get_ident()), write(*args))
    )
    await loaded(path).put("n", "k", "v")
    assert writers
    assert writers != [threading.get_ident()]


async def test_concurrent_changes_all_last(path: Path) -> None:
    kv = loaded(path)
    await asyncio.gather(*(kv.put("n", f"k{i}", str(i)) for i in range(20)))
    assert loaded(path).namespace("n") == {f"k{i}": str(i) for i in range(20)}


async def test_value_that_could_not_be_stored_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = loaded(path)
    await kv.put("n", "k", "old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kv_config, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        await kv.put("n", "k", "new")
    with pytest.raises(OSError, match="No space"):
        await kv.delete("n", "k")
    assert kv.get("n", "k") == "old"
    monkeypatch.undo()
    await kv.put("n", "k", "new")
    assert loaded(path).get("n", "k") == "new"


def test_missing_file_is_an_empty_table(path: Path) -> None:
    assert loaded(path).namespace("n") is None


def test_file_of_java_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{\n\t\t"T":"broker-a:4;broker-b:4"}}\n}')
    assert loaded(path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"


def test_backup_is_used_when_the_file_is_broken(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"configTable":{"n":')
    path.with_name("kvConfig.json.bak").write_bytes(b'{"configTable":{"n":{"k":"old"}}}')
    assert loaded(path).get("n", "k") == "old"


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{}", b"no json", b'{"configTable":[]}', b'{"configTable":{"n":1}}', b'{"configTable":{"n":{"k":1}}}'],
)
def test_broken_file_names_itself(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(FileDamaged, match=r"kvConfig\.json"):
        loaded(path)


def test_encode_and_decode() -> None:
    table = {"n": {"k": 'quotes " and \n lines', "ü": "€"}, "empty": {}}
    assert decode(encode(table)) == table
    assert encode({"n": {"k": "v"}}) == b'{"configTable":{"n":{"k":"v"}}}'
