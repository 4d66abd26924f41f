"""The workers of a push consumer with a handler: each takes messages, calls the handler, and settles what came of it.

RocketMQ's ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from cometmq.client.consumer.consume_hooks import ConsumeHooks
from cometmq.client.consumer.handling import Handling
from cometmq.client.consumer.line import Line
from cometmq.client.errors import RetryFrom, RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.client.scheduler import Scheduler

log = logging.getLogger(__name__)

#: A worker lets others run after so many messages that never waited for anything.
MESSAGES_IN_A_ROW = 64


class Workers:
    """The workers of one consumer. Mutable state: their tasks, and whether they shall end."""

    def __init__(
        self,
        group: str,
        handling: Handling,
        hooks: ConsumeHooks,
        line: Line,
        take: Callable[[int], list[ReceivedMessage] | None],
    ) -> None:
        """`take` gives the next messages, noted as handed out; None when the line has none."""
        self._group = group
        self._handling = handling
        self._hooks = hooks
        self._line = line
        self._take = take
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = True

    def start(self, count: int, scheduler: Scheduler) -> None:
        for number in range(count):
            self._tasks.add(scheduler.spawn(self._work(), f"worker {number} of {self._group}"))

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def finish(self, seconds: float) -> None:
        """Let them end what they do, for so long. Who calls this from a handler is spared."""
        self._is_open = False
        self._line.wake_all()
        running = [task for task in self._tasks if task is not asyncio.current_task()]
        if running:
            _, late = await asyncio.wait(running, timeout=seconds)
            for task in late:
                log.warning("%s did not finish within %g s", task.get_name(), seconds)
                task.cancel()

    async def _work(self) -> None:
        in_a_row = 0
        while self._is_open:
            messages = self._take(self._handling.batch_size)
            if messages is None:
                in_a_row = 0
                await self._line.wait()
                continue
            await self._process(messages)
            in_a_row += 1
            if in_a_row >= MESSAGES_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _process(self, messages: list[ReceivedMessage]) -> None:
        """Call the handler and settle what came of it."""
        failed_from, level = len(messages), 0
        told = self._hooks.before(messages) if self._hooks.are_any else None
        error: Exception | None = None
        try:
            await self._handling(messages)
        except RetryFrom as some:
            error = some
            failed_from, level = min(max(some.index, 0), len(messages)), some.delay_level
        except RetryLater as later:
            error = later
            failed_from, level = 0, later.delay_level
        except Exception as failure:
            error = failure
            log.exception("the handler of %s failed for %s", self._group, ", ".join(repr(each) for each in messages))
            failed_from = 0
        if told is not None:
            self._hooks.after(told, is_success=failed_from == len(messages), error=error)
        for message in messages[:failed_from]:
            message.delivery.settle(message)
        # In reverse, so that an ordered queue gets them back in their order.
        for message in reversed(messages[failed_from:]):
            await message.retry(level)
