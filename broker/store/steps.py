"""Long reads in steps: a generator that yields when something else may be done, and gives a value at its end.

The store knows no asyncio: whoever owns the loop goes through the steps and pauses when it has had enough of them.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, None, _T]


def run_steps(steps: Steps[_T]) -> _T:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: _T = end.value
            return value
