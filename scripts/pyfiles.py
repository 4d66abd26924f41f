"""Packs the packages that pyproject.toml names into a zip from which Python imports: for `spark-submit --py-files`.

Pure Python and nothing else: msgspec, pyarrow and the like have compiled parts, and have to be installed where it runs.
Beside the zip comes the module by which Spark finds the source in it; what is printed is what --py-files takes.
"""

import shutil
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: How Spark finds the source: the same module as when it is installed.
_FINDER = ROOT / "pyspark_cometmq" / "__init__.py"
#: The oldest time that a zip can hold: the same sources make the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def contents() -> Iterator[tuple[str, Path]]:
    """Names in the zip, and the files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for package in settings["packages"]:
        folder = _folder(package, settings["package-dir"])
        patterns = ["*.py", *settings["package-data"].get(package, [])]
        for file in sorted({file for pattern in patterns for file in folder.glob(pattern)}):
            yield f"{package.replace('.', '/')}/{file.relative_to(folder).as_posix()}", file


def _folder(package: str, homes: dict[str, str]) -> Path:
    """Where a package lives: its own entry, or that of the package around it."""
    if package in homes:
        return ROOT / homes[package]
    outer, _, name = package.rpartition(".")
    return (_folder(outer, homes) if outer else ROOT) / name


def main() -> int:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, file in contents():
            zipped.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    fresh.replace(target)
    finder = shutil.copyfile(_FINDER, target.with_name(f"{_FINDER.parent.name}.py"))
    print(target, finder, sep=",")
    return 0


if __name__ == "__main__":
    sys.exit(main())
