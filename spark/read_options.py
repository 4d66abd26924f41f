"""How executors read: filter, sizes of pulls and batches, retries, and what becomes of lost and damaged messages.

A frozen value, made by the driver from the user's options and pickled with the reader. Nothing heavy is imported here.
"""

from typing import Final

import msgspec

ALL: Final = "*"
TAG, SQL92 = "TAG", "SQL92"
MASTER, SLAVE = "master", "slave"

#: What becomes of a message whose body does not decompress or does not match its checksum: the query fails; the
#: message is left out; or it is given with its body as stored, and with the COMPRESSED bit of its sysFlag as stored.
FAIL, SKIP, RAW = "fail", "skip", "raw"


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a task reads its ranges."""

    #: Tags (`a || b`) or an expression of SQL92; `*` is everything.
    sub_expression: str = ALL
    expression_type: str = TAG
    #: Whether messages that are gone end the query; otherwise they are passed over with a warning.
    fail_on_data_loss: bool = True
    #: What one pull asks for at most. Our broker gives that much, RocketMQ 32 messages and 256 KiB unless its
    #: maxTransferCountOnMessageInMemory and maxTransferBytesOnMessageInMemory are raised.
    pull_bytes: int = 4 * 1024 * 1024
    pull_count: int = 4096
    #: Seconds that a broker has to answer a pull.
    pull_timeout: float = 15.0
    #: How often a pull is tried again, with pauses that grow, before the task fails: some 30 s by default, which is
    #: what a broker takes to come back.
    retries: int = 10
    #: `master`, or `slave` to spare it; whichever is there serves when the other is not.
    read_from: str = MASTER
    #: An Arrow batch has about so many bytes, and at most so many rows.
    batch_rows: int = 16_384
    batch_bytes: int = 4 * 1024 * 1024
    #: One of FAIL, SKIP, RAW.
    corrupt: str = FAIL
    #: Whether bodies are held against their checksums.
    check_crc: bool = True

    @property
    def is_filtered(self) -> bool:
        """Whether the broker leaves messages out."""
        return self.expression_type == SQL92 or self.sub_expression.strip() not in ("", ALL)
