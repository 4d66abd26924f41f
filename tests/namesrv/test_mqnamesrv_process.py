"""`mqnamesrv` as a process: its lines, its exit codes, its files, its signals."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.plain_frames import call
from support.server_process import ServerProcess, free_port

READY = re.compile(r"^The Name Server boot success\. serializeType=JSON, address (\S+):(\d+)$", re.M)
COMMAND = (sys.executable, "-m", "cometmq.namesrv")
SECONDS = 30.0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and nothing of RocketMQ in the environment."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("ROCKETMQ", "NAMESRV"))}
    return {**clean, "HOME": str(tmp_path / "home")}


class Process(ServerProcess):
    """A nameserver on a free port of 127.0.0.1 unless told otherwise."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *options: str) -> None:
        here = ("-D", "listenPort=0", "-D", "bindAddress=127.0.0.1")
        super().__init__("mqnamesrv", (*COMMAND, *here, *options), folder, environ)
        self._environ = dict(environ)

    def ready(self) -> int:
        """The port, once the ready line is out."""
        found = self.wait_ready("the ready line", SECONDS, lambda: READY.search(self.stdout))
        return int(found[2])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.pid, number)
        return self.wait(SECONDS)


@contextlib.contextmanager
def running(folder: Path, environ: Mapping[str, str], *options: str) -> Iterator[tuple[Process, int]]:
    with Process(folder, environ, *options) as process:
        yield process, process.ready()


def run(environ: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], env=dict(environ), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_ready_line_means_that_it_answers(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path, environ) as (process, port):
        found = READY.search(process.stdout)
        assert found
        assert found[1] == "127.0.0.1"
        assert call(f"127.0.0.1:{port}", 206).json() == {"topicList": []}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_well(tmp_path: Path, environ: dict[str, str], number: signal.Signals) -> None:
    with running(tmp_path, environ) as (process, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert process.end(number) == 0
            assert client.recv(1) == b"", "its connections are closed"
        assert process.stderr == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()


def test_files_are_in_the_home_of_the_user(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path, environ) as (process, port):
        address = f"127.0.0.1:{port}"
        assert call(address, 100, {"namespace": "n", "key": "k", "value": "v"}).code == 0
        assert call(address, 318, body=b"orderMessageEnable=true\n").code == 0
        process.kill()  # what was acknowledged is on disk
    folder = Path(environ["HOME"]) / "namesrv"
    assert (folder / "kvConfig.json").read_bytes() == b'{"configTable":{"n":{"k":"v"}}}'
    assert "orderMessageEnable=true\n" in (folder / "namesrv.properties").read_text()
    with running(tmp_path / "again", environ) as (_, port):
        assert call(f"127.0.0.1:{port}", 101, {"namespace": "n", "key": "k"}).fields == {"value": "v"}


def test_two_side_by_side(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path / "1", environ) as (_, one), running(tmp_path / "2", environ) as (_, two):
        assert one != two
        assert call(f"127.0.0.1:{one}", 206).code == call(f"127.0.0.1:{two}", 206).code == 0


def test_configuration_file_is_read_and_updated(tmp_path: Path, environ: dict[str, str]) -> None:
    port, path = free_port(), tmp_path / "namesrv.conf"
    path.write_text(f"# mine\nlistenPort={port}\nbindAddress: 127.0.0.1\nenableTopicList false\nown.key=1\n")
    with ServerProcess("mqnamesrv", (*COMMAND, "-c", str(path)), tmp_path / "run", environ) as process:
        process.wait_ready("the ready line", SECONDS, lambda: READY.search(process.stdout))
        address = f"127.0.0.1:{port}"
        assert call(address, 224, {"cluster": "C"}).remark == "disable"
        assert call(address, 318, body=b"enableTopicList=true\n").code == 0
        assert call(address, 224, {"cluster": "C"}).code == 0
    text = path.read_text()
    assert {"enableTopicList=true", "own.key=1", f"listenPort={port}"} <= set(text.splitlines())
    assert path.with_name("namesrv.conf.bak").read_text().startswith("# mine\n")


def test_what_stands_above_the_file(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=1\nproductEnvName=file\nwaitSecondsForService=1\n")
    environ |= {"ROCKETMQ_NAMESRV_LISTENPORT": "2", "ROCKETMQ_NAMESRV_PRODUCTENVNAME": "environment"}
    environ |= {"ROCKETMQ_HOME": "/opt/rocketmq"}
    result = run(environ, "-p", "-c", str(path), "-D", "listenPort=3", "-D", "rocketmq.namesrv.clusterTest=true")
    lines = set(result.stdout.splitlines())
    assert {
        "listenPort=3",
        "productEnvName=environment",
        "waitSecondsForService=1",
        "clusterTest=true",
        "rocketmqHome=/opt/rocketmq",
        f"configStorePath={path}",
    } <= lines


def test_print_config(environ: dict[str, str]) -> None:
    result = run(environ, "-p")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 40
    assert lines == sorted(lines)
    assert "listenPort=9876" in lines
    assert f"kvConfigPath={environ['HOME']}/namesrv/kvConfig.json" in lines


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(environ: dict[str, str], option: str) -> None:
    result = run(environ, option)
    assert (result.returncode, result.stderr) == (0, "")
    for part in ("mqnamesrv", "-c", "-p", "-n", "-h", "-D", "--address-server", "--addresses"):
        assert part in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--nonsense",),
        ("-c",),
        ("surplus",),
        ("-D", "no-equals-sign"),
        ("-D", "=value"),
        ("--address-server", "many"),
        ("--address-server", "65536"),
        ("--addresses", "127.0.0.1:9876"),
        ("--address-server", "0", "--addresses", "nowhere"),
    ],
)
def test_wrong_usage_exits_2(environ: dict[str, str], options: tuple[str, ...]) -> None:
    result = run(environ, *options)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr
    assert "Traceback" not in result.stderr


def fails(environ: Mapping[str, str], *options: str) -> str:
    """The one line on stderr of a start that fails."""
    result = run(environ, *options)
    assert result.returncode == 1
    assert READY.search(result.stdout) is None
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("mqnamesrv: ")
    return result.stderr


def test_taken_port_exits_1_and_says_what_to_do(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails(environ, "-D", f"listenPort={port}", "-D", "bindAddress=127.0.0.1")
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert "another port" in line


def test_taken_port_of_the_address_server(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails(environ, "-D", "listenPort=0", "-D", "bindAddress=127.0.0.1", "--address-server", str(port))
    assert "address server" in line
    assert str(port) in line


def test_bad_configuration_exits_1(tmp_path: Path, environ: dict[str, str]) -> None:
    assert "no-such-file" in fails(environ, "-c", str(tmp_path / "no-such-file"))
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=many\n")
    assert "listenPort=many" in fails(environ, "-c", str(path))
    path.write_text("a=\\u12\n")
    assert str(path) in fails(environ, "-c", str(path))
    assert "serverSocketBacklog=0" in fails(environ, "-D", "serverSocketBacklog=0")


def test_damaged_kv_file_exits_1_and_names_it(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(b"{")
    assert str(path) in fails(environ, "-D", "listenPort=0", "-D", f"kvConfigPath={path}")


def test_bad_tls_exits_1(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "no-such-cert.pem"
    options = ("-D", "listenPort=0", "-D", f"tls.server.certPath={path}", "-D", f"tls.server.keyPath={path}")
    assert "no-such-cert.pem" in fails(environ, *options)


def test_frame_limit_is_a_system_property(tmp_path: Path, environ: dict[str, str]) -> None:
    key = "com.rocketmq.remoting.frameMaxLength"
    with running(tmp_path, environ, "-D", f"{key}=2048") as (_, port):
        address = f"127.0.0.1:{port}"
        assert call(address, 318, body=b"#" * 1000).code == 0
        with pytest.raises((OSError, ValueError, EOFError)):
            call(address, 318, body=b"#" * 2100)
    for wrong in ("few", "1023", str(2**25)):
        assert f"{key}={wrong}: expected a number of bytes" in fails(environ, "-D", f"{key}={wrong}")


@pytest.mark.parametrize("how", ["-d", "logDir", "ROCKETMQ_LOG_DIR"])
def test_logs_go_to_a_directory(tmp_path: Path, environ: dict[str, str], how: str) -> None:
    folder = tmp_path / "logs" / "rocketmqlogs"
    options = {"-d": ("-d", str(folder)), "logDir": ("-D", f"logDir={folder}")}.get(how, ())
    if how == "ROCKETMQ_LOG_DIR":
        environ[how] = str(folder)
    with running(tmp_path / "run", environ, *options) as (process, port):
        assert process.end() == 0
        assert len(process.stdout.splitlines()) == 1, "the ready line alone"
    assert f"listening on 127.0.0.1:{port}" in (folder / "namesrv.log").read_text()


def test_log_directory_that_cannot_be_made_exits_1(tmp_path: Path, environ: dict[str, str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert str(blocked) in fails(environ, "-D", "listenPort=0", "-d", str(blocked / "logs"))


def test_logs_go_to_stdout_by_default(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path, environ, "-D", "serverWorkerThreads=99", "-n", "127.0.0.1:1") as (process, port):
        assert f"listening on 127.0.0.1:{port}" in process.stdout
        assert "no effect here: serverWorkerThreads" in process.stdout


def test_reader_of_stdout_may_leave(tmp_path: Path, environ: dict[str, str]) -> None:
    command = [*COMMAND, "-D", "listenPort=0", "-D", "bindAddress=127.0.0.1"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            found = None
            while found is None:
                line = process.stdout.readline()
                assert line, "it ended before it was ready"
                found = READY.match(line)
            process.stdout.close()
            with socket.create_connection(("127.0.0.1", int(found[2]))) as client:
                client.sendall(b"\x00\x00\x00\x00")
                assert client.recv(1) == b"", "it closes this one, and logs that"
            assert call(f"127.0.0.1:{found[2]}", 206).code == 0
            process.terminate()
            assert process.wait(SECONDS) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        assert response.status == 200
        text: str = response.read().decode()
        return text


def address_server_of(process: Process) -> str:
    found = process.wait_ready(
        "the address server", SECONDS, lambda: re.search(r"at (http://\S+/rocketmq/nsaddr)$", process.stdout, re.M)
    )
    return found[1]


def test_address_server_lists_itself(tmp_path: Path, environ: dict[str, str]) -> None:
    with running(tmp_path, environ, "--address-server", "0") as (process, port):
        url = address_server_of(process)
        for form in ("", "-unit?nofix=1", "?labels=x"):
            assert fetch(url + form) == f"127.0.0.1:{port}"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(url.replace("nsaddr", "else"))
        assert process.end() == 0
        assert process.stderr == ""


def test_address_server_of_a_nameserver_that_listens_everywhere(tmp_path: Path, environ: dict[str, str]) -> None:
    options = ("-D", "bindAddress=0.0.0.0", "--address-server", "0")
    with running(tmp_path, environ, *options) as (process, port):
        url = address_server_of(process).replace("0.0.0.0", "127.0.0.1")
        assert fetch(url) == f"127.0.0.1:{port}", "the address by which it was reached"


def test_address_server_lists_what_it_is_told(tmp_path: Path, environ: dict[str, str]) -> None:
    options = ("--address-server", "0", "--addresses", "10.0.0.1:9876; 10.0.0.2:9876")
    with running(tmp_path, environ, *options) as (process, _):
        assert fetch(address_server_of(process)) == "10.0.0.1:9876;10.0.0.2:9876"
