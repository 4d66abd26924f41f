"""The typed headers of all requests and their answers, a module for each subject; `operations` has them by code.

The table is loaded when it is used: who only asks needs the headers of his questions.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.protocol.requests.operations import OPERATIONS

#: Name -> the module that it lives in.
_HOMES = lazy.homes(__name__, operations="OPERATIONS")

__all__ = ["OPERATIONS"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
