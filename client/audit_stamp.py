"""The properties by which `audit` stamps a message: who, which number in its queue, which numbers before it are void."""

from typing import Final

PRODUCER: Final = "AUDIT_PRODUCER"
SEQUENCE: Final = "AUDIT_SEQUENCE"
VOID: Final = "AUDIT_VOID"
