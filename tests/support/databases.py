"""Real Redis and PostgreSQL servers for a test, where their programs are installed (Debian: redis-server, postgresql).

Each has a temporary folder and a free port of 127.0.0.1, and is ended by the fixture that started it.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.server_process import ServerProcess, free_port

#: PostgreSQL does not run as root; one of these does it then.
_USERS = ("postgres", "nobody")


def redis_program() -> str | None:
    return shutil.which("redis-server")


def postgres_programs() -> Path | None:
    """The folder with initdb and postgres: on the path, or the newest that Debian has installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: int(each.parts[-3]))
    return installed[-1].parent if installed else None


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """Runs a Redis that keeps nothing; gives its port."""
    program, port = redis_program(), free_port()
    assert program is not None
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with ServerProcess("redis", argv, folder) as server:
        server.wait_ready("a connection", 60, lambda: _connects(port))
        yield port


@contextmanager
def postgres_server() -> Iterator[str]:
    """Runs a PostgreSQL with an empty database; gives its address as asyncpg takes it."""
    programs, port = postgres_programs(), free_port()
    assert programs is not None
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="cometmq-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder, timeout=120)
        argv = [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(argv, stdout=log, stderr=log, user=user, cwd=folder, start_new_session=True)
        try:
            _wait_for_postgres(server, programs, port, folder / "log")
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(60)
    finally:
        shutil.rmtree(folder)


def _wait_for_postgres(server: "subprocess.Popen[bytes]", programs: Path, port: int, log: Path) -> None:
    for _ in range(600):
        argv = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "1"]
        if subprocess.run(argv, check=False).returncode == 0:
            return
        if server.poll() is not None:
            break
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise RuntimeError(f"PostgreSQL does not start: {log.read_text()[-2000:]}")


def _user() -> str | None:
    if os.getuid() != 0:
        return None
    names = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in _USERS if name in names)


def _connects(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
