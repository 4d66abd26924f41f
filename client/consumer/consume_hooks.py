"""Telling hooks what is consumed: before a handler is called and after it, or from the handing out to the settling.

The hooks themselves, those of users and the message trace, are in `client.hooks` and `client.trace`.
"""

import asyncio
from collections.abc import Iterable, Sequence

from cometmq.client.hooks import ConsumeContext, Hooks
from cometmq.client.message import ReceivedMessage


class ConsumeHooks:
    """The hooks of a consumer. Mutable state, by iteration: what they were told of messages that are not settled."""

    def __init__(self, hooks: Iterable[object], group: str, namespace: str) -> None:
        """`group` as its user knows it."""
        self._hooks = Hooks(hooks)
        self._group = group
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._told: dict[ReceivedMessage, tuple[ConsumeContext, float]] = {}
        #: Whether anybody wants to know.
        self.are_any = self._hooks.consumes

    def before(self, messages: Sequence[ReceivedMessage]) -> tuple[ConsumeContext, float]:
        """They are about to be processed; what `after` needs."""
        context = ConsumeContext(
            group=self._group, namespace=self._namespace, queue=messages[0].queue, messages=messages
        )
        self._hooks.before_consume(context)
        return context, self._loop.time()

    def after(self, told: tuple[ConsumeContext, float], *, is_success: bool, error: Exception | None = None) -> None:
        """They were."""
        context, began = told
        context.is_success, context.error = is_success, error
        context.seconds = self._loop.time() - began
        self._hooks.after_consume(context)

    def handed_out(self, messages: Sequence[ReceivedMessage]) -> None:
        """By iteration: each is settled by itself, later."""
        for message in messages:
            self._told[message] = self.before([message])

    def settled(self, message: ReceivedMessage, *, is_success: bool) -> None:
        """One that was handed out is settled."""
        told = self._told.pop(message, None) if self._told else None
        if told is not None:
            self.after(told, is_success=is_success)
