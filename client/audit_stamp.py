"""The properties of a stamp of `audit`: who sent, which number in its queue, and which numbers before it are void."""

from typing import Final

PRODUCER: Final = "AUDIT_PRODUCER"
SEQUENCE: Final = "AUDIT_SEQUENCE"
VOID: Final = "AUDIT_VOID"
