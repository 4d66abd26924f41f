"""CometMQ as its users have it: built into a wheel and installed in an environment of its own, or packed into a zip.

The other packages (pyspark alone takes half a gigabyte) come from the environment of the tests, by one line in a `.pth`
file; Python does not look at the `.pth` files there, so the checkout stays invisible. Drivers run as processes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("spark_installed_driver.py")
#: Seconds for a driver on a machine that does many things at once.
PATIENCE = 240.0
#: Seconds between two looks whether the tests are over.
LOOK = 0.5


def bare_environment(home: Path) -> Path:
    """An environment without CometMQ; its Python."""
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    (site / "other-packages.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return home / "bin" / "python"


class Drivers(NamedTuple):
    """What drivers tell that use the wheel on this machine, and the zip on a cluster's executors."""

    of_wheel: "Future[dict[str, Any]]"
    of_zip: "Future[dict[str, Any]]"


def build_wheel(home: Path) -> Path:
    """The wheel of this checkout, built in a copy: a build writes beside the sources."""
    copy = home / "sources"
    copy.mkdir()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {settings["package-dir"].get(package, package).split("/")[0] for package in settings["packages"]}
    for folder in sorted(name for name in folders if (ROOT / name).is_dir()):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(home / "wheels"), str(copy))
    (wheel,) = (home / "wheels").glob("cometmq-*.whl")
    return wheel


def install(python: Path, wheel: Path) -> None:
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_driver(
    argv: Sequence[str | Path], environ: Mapping[str, str], folder: Path, is_over: threading.Event
) -> dict[str, Any]:
    """Run a driver in a folder; what it printed as its last line, which is JSON, and on `stderr`."""
    deadline = time.monotonic() + PATIENCE
    with subprocess.Popen(
        [str(each) for each in argv],
        cwd=folder,  # Python looks there, too, and must not find the checkout
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # with Spark's JVMs and workers in its process group
    ) as process:
        while True:
            try:
                stdout, stderr = process.communicate(timeout=LOOK)
                break
            except subprocess.TimeoutExpired:
                if is_over.is_set() or time.monotonic() > deadline:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
    assert process.returncode == 0, stdout + stderr
    told: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return told | {"stderr": stderr}


def submit(
    files: str | Path,
    bare: Path,
    nameserver: str,
    folder: Path,
    is_over: threading.Event,
    master: str = "submitted",
) -> dict[str, Any]:
    """Run the driver by `spark-submit --py-files`, on executors that have an environment without CometMQ."""
    argv = [Path(sys.executable).with_name("spark-submit"), "--master", "local-cluster[2,1,1024]"]
    argv += ["--conf", "spark.ui.enabled=false", "--py-files", files, DRIVER, nameserver, "OF_ZIP", master]
    return run_driver(argv, clean_environ(PYSPARK_PYTHON=str(bare), SPARK_LOCAL_IP="127.0.0.1"), folder, is_over)


def clean_environ(**more: str) -> dict[str, str]:
    """The environment without what would lead a driver to this checkout, or to a Spark or Java of the user's choice.

    Each Java lives for seconds, and does without its optimising compiler.
    """
    names = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_REMOTE", "JAVA_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"} | more


def path_without_java(home: Path) -> str:
    """A directory with links to all commands that are on PATH but java's, for PATH."""
    home.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for command in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if command.name != "java" and not (home / command.name).is_symlink():
                (home / command.name).symlink_to(command)
    return str(home)
