"""`mqbroker` as a process: its lines, its exit codes, its files, its signals, and what it says when it cannot start."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from cometmq.protocol import properties_text
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.client import RemotingClient
from support import broker_calls
from support.broker_process import SECONDS, BrokerProcess, clean_environ, run
from support.fleet import OwnNameserver
from support.server_process import ServerProcess, free_port, wait_for

T = TypeVar("T")


def ask(work: Callable[[RemotingClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with RemotingClient() as client:
            return await work(client)

    return asyncio.run(main())


def send(address: str, topic: str = "T", body: bytes = b"x", **properties: str) -> Any:
    return ask(lambda client: broker_calls.sent(client, address, topic, body, **properties))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return clean_environ(tmp_path / "home")


class TestLife:
    def test_ready_line_means_that_it_takes_messages(self, tmp_path: Path) -> None:
        port = free_port()
        with BrokerProcess(tmp_path, listenPort=str(port)) as process:
            assert process.ready() == f"127.0.0.1:{port}"
            assert f"The broker[broker-a, 127.0.0.1:{port}] boot success. serializeType=JSON\n" in process.stdout
            assert send(f"127.0.0.1:{port}").queue_offset == 0
            assert send(f"127.0.0.1:{port - 2}").queue_offset == 1, "the fast port takes messages, too"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_signal_ends_it_well(self, tmp_path: Path, number: signal.Signals) -> None:
        with BrokerProcess(tmp_path) as process:
            address = process.ready()
            send(address)
            assert (process.store / "abort").exists()
            host, port = address.split(":")
            with socket.create_connection((host, int(port))) as client:
                assert process.end(number) == 0
                assert client.recv(1) == b"", "its connections are closed"
            assert process.stderr == ""
            assert not (process.store / "abort").exists(), "the next start need not look at everything"
            assert (process.store / "config" / "topics.json").exists()

    def test_second_signal_ends_it_at_once(self, tmp_path: Path) -> None:
        nameserver = OwnNameserver(tmp_path / "namesrv")
        with nameserver, BrokerProcess(tmp_path, "-n", nameserver.address) as process:
            wait_for("the registration", SECONDS, lambda: "registered with" in process.stdout)
            # It takes the farewell and never answers, so that the end would take long.
            nameserver.stop()
            process.terminate()
            wait_for("the first signal", SECONDS, lambda: "shutting down" in process.stdout)
            assert process.end() == 1

    def test_messages_survive_a_restart_and_a_kill(self, tmp_path: Path) -> None:
        process = BrokerProcess(tmp_path)
        with process:
            address = process.ready()
            assert [send(address).queue_offset for _ in range(3)] == [0, 1, 2]
            assert process.end() == 0
        with process:
            address = process.ready(times=2)
            assert send(address).queue_offset == 3
            process.kill()
            process.start()
            address = process.ready(times=3)
            assert send(address).queue_offset == 4
            assert "was not closed cleanly" in process.stdout

    def test_start_to_first_accepted_send(self, tmp_path: Path) -> None:
        """Below half a second on a quiet machine; here, where others work, it is only bounded."""
        port = free_port()
        begun = time.monotonic()
        with BrokerProcess(tmp_path, listenPort=str(port)) as process:
            wait_for("the port", SECONDS, lambda: _listens(port), pause=0.005)
            send(f"127.0.0.1:{port}")
            took = time.monotonic() - begun
            process.ready()
            assert took < 10

    def test_idle_memory_is_below_60_megabytes(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path) as process:
            send(process.ready())
            memory = psutil.Process(process.pid).memory_full_info()
            assert memory.uss < 60 * 1024**2

    def test_restarts_leave_no_files_behind(self, tmp_path: Path) -> None:
        process = BrokerProcess(tmp_path)
        listings = []
        for number in range(3):
            with process:
                process.ready(times=number + 1)
                assert process.end() == 0
            listings.append(sorted(str(p.relative_to(process.store)) for p in process.store.rglob("*")))
        assert listings[1] == listings[2]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class TestConfiguration:
    def test_file_is_read_and_updated(self, tmp_path: Path) -> None:
        port, path = free_port(), tmp_path / "broker.conf"
        path.write_text(
            f"# mine\nlistenPort={port}\nbindAddress: 127.0.0.1\nbrokerIP1 127.0.0.1\nbrokerName=from-file\n"
            f"storePathRootDir={tmp_path / 'store'}\nsendMessageThreadPoolNums=16\nown.key=1\n"
        )
        argv = ("-c", str(path))
        from support.broker_process import COMMAND

        with ServerProcess("mqbroker", (*COMMAND, *argv), tmp_path / "run", clean_environ(tmp_path)) as process:
            process.wait_ready("the ready line", SECONDS, lambda: broker_calls.booted(process.stdout))
            assert broker_calls.booted(process.stdout) == ("from-file", f"127.0.0.1:{port}")
            assert "these keys have no effect here: sendMessageThreadPoolNums\n" in process.stdout

    def test_what_stands_above_what(self, tmp_path: Path, environ: dict[str, str]) -> None:
        path = tmp_path / "broker.conf"
        path.write_text("listenPort=1\nbrokerName=file\nnamesrvAddr=127.0.0.1:1\nfileReservedTime=5\n")
        environ |= {"ROCKETMQ_BROKER_LISTENPORT": "2", "ROCKETMQ_BROKER_BROKERNAME": "environment"}
        environ |= {"ROCKETMQ_HOME": "/opt/rocketmq", "NAMESRV_ADDR": "127.0.0.1:2"}
        shown = properties_text.loads(run(environ, "-p", "-c", str(path), "-D", "listenPort=3").stdout.encode())
        assert shown["listenPort"] == "3"
        assert shown["brokerName"] == "environment"
        assert shown["namesrvAddr"] == "127.0.0.1:1"
        assert shown["fileReservedTime"] == "5"
        assert shown["rocketmqHome"] == "/opt/rocketmq"
        assert shown["brokerConfigPath"] == str(path)
        shown = properties_text.loads(run(environ, "-p").stdout.encode())
        assert shown["namesrvAddr"] == "127.0.0.1:2"
        shown = properties_text.loads(run(environ, "-p", "-c", str(path), "-n", "127.0.0.1:3").stdout.encode())
        assert shown["namesrvAddr"] == "127.0.0.1:3"

    def test_print_config(self, environ: dict[str, str]) -> None:
        result = run(environ, "-p")
        assert (result.returncode, result.stderr) == (0, "")
        keys = [line.partition("=")[0] for line in result.stdout.splitlines()]
        assert len(keys) > 411
        assert keys == sorted(keys)

    def test_print_important_config(self, environ: dict[str, str]) -> None:
        result = run(environ, "-m")
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert len(lines) < 40
        assert {"listenPort=10911", "brokerClusterName=DefaultCluster", "flushDiskType=ASYNC_FLUSH"} <= set(lines)

    def test_shipped_configurations_are_where_it_says(self, environ: dict[str, str]) -> None:
        folder = Path(run(environ, "--print-conf-dir").stdout.strip())
        assert {"broker.conf", "namesrv.conf", "2m-noslave"} <= set(os.listdir(folder))
        assert sorted(os.listdir(folder / "2m-noslave")) == ["broker-a.properties", "broker-b.properties"]

    def test_shipped_configurations_are_taken_as_they_are(self, environ: dict[str, str]) -> None:
        folder = Path(run(environ, "--print-conf-dir").stdout.strip())
        for path in [folder / "broker.conf", *(folder / "2m-noslave").iterdir()]:
            result = run(environ, "-p", "-c", str(path))
            assert (result.returncode, result.stderr) == (0, "")
            written, shown = (properties_text.loads(text) for text in (path.read_bytes(), result.stdout.encode()))
            assert written.items() <= shown.items()

    def test_logs_go_to_files_where_told(self, tmp_path: Path) -> None:
        logs = tmp_path / "logs"
        with BrokerProcess(tmp_path, "-d", str(logs)) as process:
            process.ready()
            assert process.end() == 0
            assert [line for line in process.stdout.splitlines() if "boot success" not in line] == []
        assert "listening on" in (logs / "broker.log").read_text()
        assert "log from 0 to 0" in (logs / "store.log").read_text()


class TestErrors:
    """One line on stderr: what, why and what to do. Exit code 1; 2 when the command line is wrong."""

    def fails(self, environ: dict[str, str], *options: str, code: int = 1) -> str:
        result = run(environ, *options)
        assert result.returncode == code, result.stderr
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1 or code == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert "Traceback" not in result.stdout
        return result.stderr

    def options(self, tmp_path: Path, **settings: str) -> list[str]:
        given = {"listenPort": "0", "bindAddress": "127.0.0.1", "storePathRootDir": f"{tmp_path}/store", **settings}
        return [part for key, value in given.items() for part in ("-D", f"{key}={value}")]

    @pytest.mark.parametrize("fast", [False, True])
    def test_port_is_taken(self, tmp_path: Path, environ: dict[str, str], fast: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            text = self.fails(environ, *self.options(tmp_path, listenPort=str(port + 2 if fast else port)))
        assert f"cannot listen on 127.0.0.1:{port}" in text
        assert ("the fast port, listenPort - 2" if fast else "(listenPort)") in text
        assert "choose another port" in text
        assert not (tmp_path / "store" / "abort").exists()

    def test_store_is_in_use(self, tmp_path: Path, environ: dict[str, str]) -> None:
        with BrokerProcess(tmp_path) as process:
            process.ready()
            text = self.fails(environ, *self.options(tmp_path))
            assert f"the store is in use by process {process.pid}" in text
            assert "storePathRootDir of its own" in text
            send(process.ready())

    def test_store_is_damaged(self, tmp_path: Path, environ: dict[str, str]) -> None:
        with BrokerProcess(tmp_path) as process:
            address = process.ready()
            for _ in range(20):
                send(address, body=b"y" * 100)
            assert process.end() == 0
        log = next((tmp_path / "store" / "commitlog").iterdir())
        data = bytearray(log.read_bytes())
        at = data.index(b"y" * 100, 2000)
        data[at - 60 : at - 40] = b"\xff" * 20
        data[at + 50] ^= 0xFF
        log.write_bytes(data)
        (tmp_path / "store" / "abort").write_text("1")
        text = self.fails(environ, *self.options(tmp_path, mappedFileSizeCommitLog=str(1 << 20)))
        assert str(log) in text
        assert "at offset" in text
        assert "--repair" in text

    def test_files_of_another_size(self, tmp_path: Path, environ: dict[str, str]) -> None:
        with BrokerProcess(tmp_path) as process:
            send(process.ready())
            assert process.end() == 0
        text = self.fails(environ, *self.options(tmp_path, mappedFileSizeCommitLog=str(1 << 21)))
        assert "the file has 1048576 bytes, 2097152 were expected" in text
        assert "mappedFileSizeCommitLog" in text

    def test_table_is_damaged(self, tmp_path: Path, environ: dict[str, str]) -> None:
        folder = tmp_path / "store" / "config"
        folder.mkdir(parents=True)
        (folder / "topics.json").write_text("{nonsense")
        text = self.fails(environ, *self.options(tmp_path))
        assert "topics.json" in text
        assert "restore the file from a backup" in text
        assert (folder / "topics.json").read_text() == "{nonsense"

    def test_place_cannot_be_written(self, tmp_path: Path, environ: dict[str, str]) -> None:
        (tmp_path / "store").write_text("a file, not a directory")
        text = self.fails(environ, *self.options(tmp_path))
        assert "cannot use the store" in text
        assert str(tmp_path / "store") in text

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
    def test_disk_is_full(self, tmp_path: Path, environ: dict[str, str]) -> None:
        """A full disk is a file system of 64 KiB; where one cannot be made, the seam's error does."""
        code = (
            "import errno, sys\n"
            "from cometmq.broker.store.disk import RealDisk\n"
            "def full(*a, **k): raise OSError(errno.ENOSPC, 'No space left on device', 'THERE')\n"
            "RealDisk.write_file = full\n"
            "from cometmq.broker.__main__ import main\n"
            "sys.argv = ['mqbroker', *sys.argv[1:]]\n"
            "main(prog_name='mqbroker')\n"
        )
        import subprocess
        import sys

        argv = [sys.executable, "-c", code, *self.options(tmp_path)]
        result = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert result.returncode == 1
        assert result.stderr.startswith("mqbroker: cannot use the store: THERE: no space left on device")
        assert "make room on the disk" in result.stderr

    @pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:9876,127.0.0.1:9877"])
    def test_address_of_a_nameserver_is_malformed(self, tmp_path: Path, environ: dict[str, str], address: str) -> None:
        text = self.fails(environ, "-n", address, code=2)
        assert f"address {address!r}" in text
        text = self.fails(environ, *self.options(tmp_path, namesrvAddr=address))
        assert f"namesrvAddr: address {address!r}" in text
        assert "host:port" in text

    def test_nameserver_is_not_there(self, tmp_path: Path) -> None:
        """No reason not to start: it is named once in the log, and tried again."""
        port = free_port()
        with BrokerProcess(tmp_path, "-n", f"127.0.0.1:{port};no-such-host.invalid:9876") as process:
            send(process.ready())
            assert process.stdout.count(f"cannot register with the nameserver 127.0.0.1:{port}") == 1
            wait_for("the name", SECONDS, lambda: "nameserver no-such-host.invalid:9876" in process.stdout)
            assert process.end() == 0

    def test_slave_is_not_there_yet(self, tmp_path: Path, environ: dict[str, str]) -> None:
        text = self.fails(environ, *self.options(tmp_path, brokerRole="SLAVE", brokerId="1"))
        assert "brokerRole=SLAVE: this version does not replicate yet" in text

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("listenPort=many", "listenPort=many: expected an integer"),
            ("flushDiskType=NEVER", "flushDiskType=NEVER: expected ASYNC_FLUSH or SYNC_FLUSH"),
            ("brokerRole=SLAVE", "brokerId=0: expected a number above 0"),
            ("messageDelayLevel=1s soon", "messageDelayLevel"),
        ],
    )
    def test_wrong_value_in_the_file(self, tmp_path: Path, environ: dict[str, str], line: str, said: str) -> None:
        path = tmp_path / "broker.conf"
        path.write_text(f"{line}\nstorePathRootDir={tmp_path}/store\n")
        text = self.fails(environ, "-c", str(path))
        assert said in text

    def test_file_is_not_there(self, environ: dict[str, str]) -> None:
        text = self.fails(environ, "-c", "/no/such/file")
        assert "cannot read /no/such/file: no such file or directory" in text

    @pytest.mark.parametrize("options", [["--nonsense"], ["-D", "x"], ["--standalone", "-n", "a:1;b:2"]])
    def test_command_line_is_wrong(self, environ: dict[str, str], options: list[str]) -> None:
        self.fails(environ, *options, code=2)

    def test_help_is_no_error(self, environ: dict[str, str]) -> None:
        result = run(environ, "-h")
        assert (result.returncode, result.stderr) == (0, "")
        assert "--standalone" in result.stdout


class TestStandalone:
    def test_both_are_there(self, tmp_path: Path) -> None:
        options = ("--standalone", "-n", f"127.0.0.1:{free_port()}")
        with BrokerProcess(tmp_path, *options) as process:
            address = process.ready()
            assert f"and name server is {options[2]}\n" in process.stdout
            send(address, "Mine")
            route = ask(lambda client: broker_calls.routed(client, options[2], "Mine"))
            assert [data.broker_addrs for data in route.broker_datas] == [{0: address}]
            assert process.end() == 0
            assert process.stderr == ""

    def test_everything_is_in_one_place_that_is_not_rocketmqs(self, tmp_path: Path) -> None:
        from support.broker_process import COMMAND

        environ = {**clean_environ(tmp_path / "home"), "NAMESRV_ADDR": "127.0.0.1:1"}
        argv = (*COMMAND, "--standalone", "-n", f"127.0.0.1:{free_port()}", "-D", "listenPort=0")
        with ServerProcess("mqbroker", argv, tmp_path / "run", environ) as process:
            process.wait_ready("the ready line", SECONDS, lambda: broker_calls.booted(process.stdout))
            assert "NAMESRV_ADDR is ignored" in process.stdout
            nameserver = argv[argv.index("-n") + 1]
            header = {"namespace": "n", "key": "k", "value": "v"}
            assert ask(lambda c: c.request(nameserver, RequestCode.PUT_KV_CONFIG, None, ext=header)).code == 0
            process.terminate()
            assert process.wait(SECONDS) == 0
        home = tmp_path / "home"
        assert not (home / "store").exists()
        store = home / ".cometmq" / "standalone"
        assert (store / "commitlog").is_dir() or (store / "config").is_dir()
        assert (store / "namesrv" / "kvConfig.json").exists()

    def test_advertised_name_is_what_clients_are_told(self, tmp_path: Path) -> None:
        nameserver = f"127.0.0.1:{free_port()}"
        folder = str(tmp_path / "elsewhere")
        with BrokerProcess(
            tmp_path, "--standalone", "-n", nameserver, "--advertise", "localhost", "--store", folder
        ) as process:
            address = process.ready()
            assert address.startswith("localhost:")
            route = ask(lambda client: broker_calls.routed(client, nameserver, "TBW102"))
            assert [data.broker_addrs for data in route.broker_datas] == [{0: address}]
            send(address)
        assert (tmp_path / "elsewhere" / "commitlog").is_dir()

    def test_everywhere_means_the_broker_too(self, tmp_path: Path) -> None:
        from support.broker_process import COMMAND

        argv = (*COMMAND, "--standalone", "-n", f"0.0.0.0:{free_port()}", "-D", "listenPort=0")
        environ = clean_environ(tmp_path / "home")
        with ServerProcess("mqbroker", argv, tmp_path / "run", environ) as process:
            process.wait_ready("the ready line", SECONDS, lambda: broker_calls.booted(process.stdout))
            assert "broker.broker - listening on 0.0.0.0:" in process.stdout
            found = broker_calls.booted(process.stdout)
            assert found
            send(f"127.0.0.1:{found[1].rpartition(':')[2]}")

    def test_taken_port_of_the_nameserver_is_told(self, tmp_path: Path, environ: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            where = f"127.0.0.1:{taken.getsockname()[1]}"
            result = run(environ, "--standalone", "-n", where, "--store", str(tmp_path), "-D", "listenPort=0")
        assert result.returncode == 1
        assert f"cannot listen on {where}" in result.stderr
