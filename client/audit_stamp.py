"""The properties of a stamp of `audit`: who sent, which number in its queue, and which numbers before it are void."""

from typing import Final

PRODUCER: Final = "AUDIT_PRODUCER"
SEQUENCE: Final = "AUDIT_SEQUENCE"
VOID: Final = "AUDIT_VOID"

#: Digits that a number has at most: a million messages a second for thirty years. What has more is damaged or forged,
#: and as good as no stamp.
MAX_DIGITS: Final = 15
