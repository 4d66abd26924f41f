"""The rules that hold over the whole tree: who imports whom, what the package exports, that the docs are true."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Part -> the parts that it may import. Arrows go one way: protocol <- remoting <- daemons and client.
MAY_IMPORT = {
    "protocol": set(),
    "namespace": {"protocol"},
    "remoting": {"protocol", "namespace"},
    "namesrv": {"protocol", "remoting", "namespace"},
    "broker": {"protocol", "remoting", "namespace", "conf"},
    "conf": set(),
    "client": {"protocol", "remoting", "namespace"},
    "admin": {"client", "protocol", "remoting", "namespace"},
    "spark": {"client", "protocol", "remoting", "namespace"},
    "pyspark_cometmq": {"spark"},
    "testing": {"protocol", "remoting", "namesrv", "broker", "namespace"},
}
#: Folders and modules that may import less than their part, or more.
EXCEPTIONS = {
    "namespace/__init__.py": {"protocol", "remoting", "client"},  # the public names, loaded when they are used
    "namespace/sync.py": {"client"},
    "namespace/lazy.py": set(),  # all packages may use it
    "protocol/bodies/__init__.py": {"namespace"},  # lazy
    "protocol/requests/__init__.py": {"namespace"},  # lazy
    "broker/store": {"protocol", "namespace"},  # a store knows no sockets
    "admin/commands/store.py": {"client", "broker"},  # checks the files of a store that nobody runs
    "broker/standalone.py": MAY_IMPORT["broker"] | {"namesrv"},  # both daemons in one process
}
#: Modules of `namespace/` live directly in the package cometmq.
SHARED = {path.stem for path in (ROOT / "namespace").glob("*.py")} - {"__init__"}

SOURCES = [path for part in MAY_IMPORT for path in sorted((ROOT / part).rglob("*.py"))]


def imported_parts(path: Path) -> set[str]:
    """The parts of cometmq that a module imports, at whatever depth of the file."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "cometmq":
                names = [f"cometmq.{alias.name}" for alias in node.names]
            else:
                names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "cometmq" and rest:
                part = rest.split(".")[0]
                parts.add("namespace" if part in SHARED or part.startswith("_") else part)
    return parts


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    place = path.relative_to(ROOT).as_posix()
    part = place.partition("/")[0]
    allowed = next((parts for start, parts in EXCEPTIONS.items() if place.startswith(start)), MAY_IMPORT[part])
    assert imported_parts(path) <= allowed | {part}


@pytest.mark.parametrize("path", sorted((ROOT / "protocol").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_protocol_does_no_io(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {"asyncio", "selectors", "ssl", "threading", "subprocess", "pathlib", "tempfile"}
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert "open" not in calls


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_lives_in_it(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no module head"


LAZY_PACKAGES = [path for path in SOURCES if path.name == "__init__.py" and "lazy.exports(" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", LAZY_PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_package_loads_late_is_what_type_checkers_see(path):
    folders = [part for part in path.parent.relative_to(ROOT).parts if part != "namespace"]
    package = importlib.import_module(".".join(["cometmq", *folders]))
    typed = {
        alias.asname or alias.name: node.module
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        for alias in node.names
    }
    assert typed == package._HOMES
    assert set(package.__all__) - {"__version__"} == set(typed)
    assert set(package.__all__) <= set(dir(package))


def test_every_package_is_in_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = set(project["tool"]["setuptools"]["packages"])
    found = {"cometmq", "pyspark_cometmq"} | {
        ".".join(("cometmq", *path.parent.relative_to(ROOT).parts))
        for part in MAY_IMPORT
        if part not in ("namespace", "pyspark_cometmq")  # the package itself, and what Spark finds at the top level
        for path in (ROOT / part).rglob("__init__.py")
    }
    assert declared == found


@pytest.mark.parametrize(
    "modules", ["namesrv.__main__, cometmq.namesrv.server", "broker.__main__, cometmq.broker.standalone"]
)
def test_a_daemon_does_not_load_the_sdk_or_the_terminal_libraries(modules):
    code = f"import sys, cometmq.{modules}; print(sorted(m for m in sys.modules if m in "
    code += "('rich', 'cometmq.client', 'cometmq.testing', 'pytest', 'pyspark', 'numpy')))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


#: What no process of Spark needs to import: servers, what hangs on a client, rarer forms, tables of everything.
NOT_FOR_SPARK = {
    *(f"cometmq.{name}" for name in ("daemon", "client.server_requests", "client.admin.admin", "client.trace")),
    *(f"cometmq.remoting.{name}" for name in ("server", "listener", "preamble", "tls")),
    *(f"cometmq.protocol.{name}" for name in ("binary_header", "msgpack_header", "fastjson_reader")),
    *(
        "cometmq.protocol.requests.operations",
        "cometmq.protocol.bodies.by_code",
        "cometmq.protocol.bodies.registration",
    ),
}
NOT_FOR_READERS = {"cometmq.client.producer", "cometmq.client.consumer.push", "cometmq.client.consumer.pull"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("pyspark.worker cometmq.spark.reading cometmq.spark.decode cometmq.spark.pulls", NOT_FOR_READERS),
        ("pyspark.sql.streaming.python_streaming_source_runner cometmq.spark.planning", NOT_FOR_READERS),
        ("cometmq.spark.source cometmq.spark.cluster cometmq.spark.options", NOT_FOR_READERS | {"numpy", "pyarrow"}),
        ("cometmq.spark.source cometmq.spark.stream", {"asyncio", "cometmq.client.client", "cometmq.remoting.client"}),
        (
            "pyspark.worker cometmq.spark.sink cometmq.spark.sink_task",
            {"cometmq.client.audit", "cometmq.spark.options"},
        ),
    ],
    ids=["worker", "stream runner", "source", "stream reader", "sink"],
)
def test_a_process_of_spark_loads_what_it_needs(modules, unwanted):
    pytest.importorskip("pyspark")
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code, *modules.split()], capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & (NOT_FOR_SPARK | unwanted)


def test_the_protocol_page_is_what_the_code_declares():
    result = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_version_is_the_same_everywhere():
    import cometmq

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert cometmq.__version__ == project["project"]["version"]
    assert f"## {cometmq.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
