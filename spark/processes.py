"""Which of Spark's Python processes this is: they are started by the names of modules."""

import sys


def is_main(module: str) -> bool:
    """Whether this process was started with that module."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == module
