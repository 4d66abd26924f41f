"""Packages that give names and load each when it is first used: who needs one of them does not pay for the others.

Imports nothing but the standard library, so that every package may use it. Type checkers do not see these names; the
package imports them once more, under TYPE_CHECKING.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def homes(package: str, **names: str) -> dict[str, str]:
    """Name -> module, for a package whose modules have these names: `homes("cometmq.remoting", pending="Answer")`."""
    return {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}


def exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package; `homes` says which module a name lives in, or is."""

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
