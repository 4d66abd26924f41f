"""`once`: each key's work is done once, on real SQLite, Redis and PostgreSQL."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cometmq.client.idempotent import InProgress, PostgresStore, RedisStore, SqliteStore, Store, once
from support.databases import postgres_programs, postgres_server, redis_program, redis_server


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if redis_program() is None:
        pytest.skip("redis-server is not installed")
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(scope="module")
def postgres_address() -> Iterator[str]:
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres_server() as address:
        yield address


def redis_at(port: int) -> Any:
    return pytest.importorskip("redis.asyncio").Redis(port=port)


def pool_at(address: str) -> Any:
    return pytest.importorskip("asyncpg").create_pool(address, min_size=0, max_size=8)


@pytest.fixture
async def redis_client(redis_port: int) -> AsyncIterator[Any]:
    async with redis_at(redis_port) as client:
        yield client


@pytest.fixture
async def pool(postgres_address: str) -> AsyncIterator[Any]:
    async with pool_at(postgres_address) as pool:
        yield pool


@pytest.fixture(params=["sqlite", "redis", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "sqlite":
        async with SqliteStore(tmp_path / "once.db") as sqlite:
            yield sqlite
    elif request.param == "redis":
        async with redis_at(request.getfixturevalue("redis_port")) as client:
            yield RedisStore(client, prefix=f"{request.node.name}:")
    else:
        async with pool_at(request.getfixturevalue("postgres_address")) as pool:
            yield PostgresStore(pool)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name} žluť '\"%{{}}"


async def is_first(store: Store, key: str, version: int | None = None) -> bool:
    async with once(store, key, version=version) as turn:
        return turn.is_first


async def test_a_key_is_done_once(store: Store, key: str) -> None:
    assert await is_first(store, key)
    assert not await is_first(store, key)
    assert await is_first(store, f"{key} another")


async def test_work_that_failed_is_done_again(store: Store, key: str) -> None:
    async def fail() -> None:
        async with once(store, key) as turn:
            assert turn.is_first
            _ = 1 / 0

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await fail()
    assert await is_first(store, key)
    assert not await is_first(store, key)


async def test_versions_are_exact_up_to_the_largest(store: Store, key: str) -> None:
    for version, expected in (
        (9, True),
        (10, True),
        (2**62, True),
        (2**62 + 1, True),
        (2**62, False),
        (2**63 - 1, True),
    ):
        assert await is_first(store, key, version) is expected
        assert not await is_first(store, key, version)


async def test_only_higher_versions_are_done(store: Store, key: str) -> None:
    assert await is_first(store, key, 3)
    assert not await is_first(store, key, 3)
    assert not await is_first(store, key, 2)
    assert await is_first(store, key, 9)
    with pytest.raises(ZeroDivisionError):
        async with once(store, key, version=10):
            _ = 1 / 0
    assert not await is_first(store, key, 8)
    assert await is_first(store, key, 10)


async def test_of_many_at_once_one_does_the_work(store: Store, key: str) -> None:
    done = 0
    refused: list[InProgress] = []

    async def work() -> None:
        nonlocal done
        try:
            async with once(store, key) as turn:
                if turn.is_first:
                    done += 1
                    await asyncio.sleep(0.01)
        except InProgress as error:
            refused.append(error)

    await asyncio.gather(*(work() for _ in range(20)))
    assert done == 1
    assert all(error.retriable and "somebody else" in str(error) for error in refused)
    assert not await is_first(store, key)


async def test_a_cancelled_block_counts_as_not_done(store: Store, key: str) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with once(store, key):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await is_first(store, key)


@pytest.mark.parametrize(("key", "version"), [("", None), ("x" * 513, None), ("a\0b", None), ("k", 0), ("k", 2**63)])
async def test_keys_and_versions_that_no_store_takes(tmp_path: Path, key: str, version: int | None) -> None:
    with pytest.raises(ValueError, match=r"a key|a version"):
        async with once(SqliteStore(tmp_path / "once.db"), key, version=version):
            pytest.fail("no such key")


# SQLite


async def test_sqlite_keeps_the_key_and_the_work_together(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "shop.db") as store:
        for attempt in range(3):
            try:
                async with once(store, "bill o-1") as turn:
                    if turn.is_first:
                        turn.connection.execute("CREATE TABLE IF NOT EXISTS bills (id TEXT)")
                        turn.connection.execute("INSERT INTO bills VALUES ('o-1')")
                    if attempt == 0:
                        _ = 1 / 0
            except ZeroDivisionError:
                pass
    with sqlite3.connect(tmp_path / "shop.db") as plain:
        assert plain.execute("SELECT count(*) FROM bills").fetchall() == [(1,)]
    plain.close()


DIES = """
import asyncio, os, sys
from cometmq.client.idempotent import SqliteStore, once
async def main():
    async with once(SqliteStore(sys.argv[1]), "k") as turn:
        turn.connection.execute("CREATE TABLE bills (id TEXT)")
        os._exit(9)
asyncio.run(main())
"""


async def test_a_process_that_dies_in_the_block_has_done_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DIES, str(path)], check=False, timeout=60)
    assert died.returncode == 9
    async with SqliteStore(path) as store, once(store, "k") as turn:
        assert turn.is_first
        assert turn.connection.execute("SELECT name FROM sqlite_master WHERE name = 'bills'").fetchall() == []


async def test_sqlite_waits_for_others_only_so_long(tmp_path: Path) -> None:
    path = tmp_path / "once.db"
    other = sqlite3.connect(path, isolation_level=None)
    async with SqliteStore(path, patience=0.05) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InProgress, match="another process"):
            await is_first(store, "k")
        other.execute("ROLLBACK")
        async with once(store, "k"):
            with pytest.raises(InProgress, match="other blocks"):
                await is_first(store, "k")
        assert not await is_first(store, "k")
    other.close()


async def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "once.db").write_bytes(b"this is no database at all" * 100)
    async with SqliteStore(tmp_path / "once.db") as store:
        for _ in range(2):
            with pytest.raises(sqlite3.DatabaseError):
                await is_first(store, "k")


async def test_sqlite_forgets_old_keys(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "once.db") as store:
        assert await is_first(store, "k")
        assert await store.forget(timedelta(hours=1)) == 0
        assert await store.forget(timedelta(seconds=-1)) == 1
        assert await is_first(store, "k")


# PostgreSQL


async def test_postgres_keeps_the_key_and_the_work_together(pool: Any) -> None:
    store = PostgresStore(pool)
    await pool.execute("CREATE TABLE bills (id text)")
    for attempt in range(3):
        try:
            async with once(store, "bill o-1") as turn:
                if turn.is_first:
                    await turn.connection.execute("INSERT INTO bills VALUES ('o-1')")
                if attempt == 0:
                    _ = 1 / 0
        except ZeroDivisionError:
            pass
    assert await pool.fetchval("SELECT count(*) FROM bills") == 1


async def test_a_connection_that_dies_in_the_block_has_done_nothing(pool: Any) -> None:
    import asyncpg

    store = PostgresStore(pool)

    async def die() -> None:
        async with once(store, "dies") as turn:
            await pool.execute("SELECT pg_terminate_backend($1)", turn.connection.get_server_pid())
            await turn.connection.execute("SELECT 1")

    # Which one depends on how far asyncpg has noticed.
    errors = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
    with pytest.raises(errors):
        await die()
    assert await is_first(store, "dies")


async def test_postgres_forgets_old_keys(pool: Any) -> None:
    store = PostgresStore(pool)
    assert await is_first(store, "old")
    assert await store.forget(timedelta(hours=1)) == 0
    assert await store.forget(timedelta(seconds=-1)) >= 1
    assert await is_first(store, "old")


# Redis


async def test_a_lease_that_ends_lets_others_work_and_the_late_one_is_warned(
    redis_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisStore(redis_client, lease=timedelta(milliseconds=20))
    async with once(store, "slow", version=1) as slow:
        assert slow.is_first
        while await redis_client.exists("cometmq:once:{slow}:lease"):  # noqa: ASYNC110 - Redis' own clock ends it
            await asyncio.sleep(0.005)
        assert await is_first(store, "slow", 2)
    assert "others may have done it too" in caplog.text
    assert not await is_first(store, "slow", 2), "the late one marked its lower version over the higher"


async def test_redis_keeps_marks_for_the_retention(redis_client: Any) -> None:
    store = RedisStore(redis_client, retention=timedelta(hours=1))
    assert await is_first(store, "kept")
    assert 0 < await redis_client.pttl("cometmq:once:{kept}:done") <= 3_600_000
    assert not await redis_client.exists("cometmq:once:{kept}:lease")
    with pytest.raises(ValueError, match="no time"):
        RedisStore(redis_client, lease=timedelta(0))
