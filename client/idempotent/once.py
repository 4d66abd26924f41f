"""`once`, and what a store has to do for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from cometmq.client.errors import ClientError

#: Longest key in characters: every database indexes that.
MAX_KEY = 512
#: Versions are kept as signed 64-bit numbers.
MAX_VERSION = 2**63 - 1


class InProgress(ClientError):
    """Raised when somebody else works on the same key at this moment."""

    retriable = True
    remedy = "let the message come again: raise it out of the handler"


class Turn(Protocol):
    """One key, from the claim to its end."""

    #: Whether the work is to be done. Not when it was done before, with this version or a later one.
    is_first: bool
    #: The user's database, inside of the transaction that also remembers the key; None where there is none.
    connection: Any

    async def commit(self) -> None:
        """The work is done: remember the key."""

    async def rollback(self) -> None:
        """The work failed: as if the key had never come."""


class Store(Protocol):
    """Where keys are remembered."""

    async def begin(self, key: str, version: int) -> Turn:
        """Claim a key. Somebody else who has it is waited for, or `InProgress` is raised."""


@asynccontextmanager
async def once(store: Store, key: str, *, version: int | None = None) -> AsyncIterator[Turn]:
    """Do the block's work once for a key: ask `turn.is_first` in it.

    A good key says what is to be done once: the name of the work and the id of an order or a message. With a `version`
    the work is done for each version that is higher than all before it, so that an old state that comes late changes
    nothing. The message id alone does not do: a sender that sends twice gives two of them.
    """
    if not key or len(key) > MAX_KEY:
        raise ValueError(f"a key has 1 to {MAX_KEY} characters, not {len(key)}")
    if "\x00" in key:
        raise ValueError("a key holds no zero byte: databases refuse it")
    if version is not None and not 1 <= version <= MAX_VERSION:
        raise ValueError(f"a version is a number from 1 to {MAX_VERSION}, not {version}")
    turn = await store.begin(key, version or 0)
    try:
        yield turn
    except BaseException:
        await turn.rollback()
        raise
    await turn.commit()
