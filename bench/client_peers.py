"""The other clients for bench/client.py: built or installed into the cache of the interop tests, once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.line_driver import BUILD_SECONDS, _hash
from support.real_rocketmq import V5, available, cache, install, locked

HERE = Path(__file__).parent
#: Name, command, folder, sections.
Peer = tuple[str, list[str], Path, tuple[str, ...]]
SENDS = ("send-1", "send-64", "send-256")


def java_client(folder: Path) -> tuple[Peer | None, str]:
    """RocketMQ's Java client of 5.3.3, with a JVM as users run it."""
    if (reason := available()) is not None:
        return None, f"Java client: {reason}"
    source = HERE / "java" / "ClientBench.java"
    classes = cache() / f"java-bench-{_hash(source)}"
    place = install(V5)
    with locked("java-bench"):
        if not classes.is_dir():
            command = ["javac", "-nowarn", "-d", str(classes), "-cp", place.classpath, str(source)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
            if done.returncode != 0:
                shutil.rmtree(classes, ignore_errors=True)
                return None, f"Java client: {done.stderr[-500:]}"
    argv = [each for each in place.java("ClientBench", folder) if not each.startswith(("-Xm", "-XX:"))]
    argv[argv.index(place.classpath)] = f"{classes}{os.pathsep}{place.classpath}"
    argv[1:1] = ["-Xms512m", "-Xmx512m"]
    return ("Java 5.3.3", argv, folder, (*SENDS, "batch", "push")), ""


def go_client(folder: Path) -> tuple[Peer | None, str]:
    source = HERE / "go"
    program = cache() / f"go-bench-{_hash(*sorted(source.glob('*.go')), source / 'go.mod')}"
    with locked("go-bench"):
        if not program.exists():
            if shutil.which("go") is None:
                return None, "Go client: go is not installed"
            environ = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
            command = ["go", "build", "-buildvcs=false", "-o", str(program), "."]
            done = subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                return None, f"Go client: {done.stderr[-500:]}"
    return ("Go 2.1.2", [str(program)], folder, (*SENDS, "batch", "push")), ""


def cpp_client(folder: Path) -> tuple[Peer | None, str]:
    """The C++ client with its Python binding, of 2019."""
    target = cache() / "rocketmq-0.4.4"
    with locked("rocketmq-wheel"):
        if not target.is_dir():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
            done = subprocess.run([*command, "rocketmq==0.4.4"], capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                return None, f"C++ client: {done.stderr[-300:]}"
    command = [sys.executable, str(HERE / "cpp_client.py"), str(target)]
    check = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if check.returncode != 0:
        return None, f"C++ client: {check.stderr.strip().splitlines()[-1]}"
    return ("C++ 0.4.4", command, folder, (*SENDS, "batch", "push")), ""
