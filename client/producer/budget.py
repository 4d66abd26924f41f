"""The time that a send has: one budget for everything that it needs, the route as well as the attempts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cometmq.remoting.errors import Timeout


@asynccontextmanager
async def within(deadline: float, doing: str) -> AsyncIterator[None]:
    """Do something until a moment of the loop's clock; Timeout says that it took too long."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError as error:
        if isinstance(error, Timeout):
            raise
        raise Timeout(f"{doing} took all the time that the send had") from None
